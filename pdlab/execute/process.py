"""One rank in a process of its own: a thread per stream, each walking its ops in order and waiting for values.

That is the dependency rule, executed literally. In a paced run each op is held until its modelled duration has passed
since it could start, and a communication starts when the last of its members has arrived; so more ranks than cores
still show their true order, overlap and bubbles.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pdlab.depend import Graph
from pdlab.execute.board import Board
from pdlab.execute.exchange import note_facts
from pdlab.execute.gloo import Gloo
from pdlab.execute.store import Held, Store
from pdlab.ops import COMMUNICATION_KINDS, COMPUTE, Op, Stream, label
from pdlab.program import Facts


class RankError(RuntimeError):
    """A run that failed on one rank: says where, at which op, and why."""


@dataclass
class Timeline:
    """What one rank measured: by position in its list, seconds on the machine's monotonic clock, and bytes."""

    starts: list[float]
    ends: list[float]
    moved: list[int]
    live: list[int]
    live_before: int
    peak_weights: int = 0
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True)
class Pace:
    """How long each op is to take (seconds, by position), and where ranks learn of each other's arrival."""

    durations: Sequence[float]
    board: Board


@dataclass
class Runner:
    """Runs one program on one rank. `pace` holds its ops, None lets it run as fast as it goes. `enter` is told the
    position of each op that the rank's compute stream comes to, before it waits for anything."""

    graph: Graph
    store: Store
    transport: Gloo | None
    pace: Pace | None
    timeout: float
    enter: Callable[[int], None]

    def __post_init__(self) -> None:
        rank = self.store.rank
        first = self.graph.first_row[rank]
        self.ops = self.graph.program.ranks[rank].ops
        self.waits = [[w - first for w in self.graph.waits[first + i]] for i in range(len(self.ops))]
        self.previous = [self.graph.previous[first + i] - first for i in range(len(self.ops))]
        self.events = [self.graph.event_of[first + i] for i in range(len(self.ops))]
        self.members = [[self.graph.rank_of[row] for row in self.graph.members[event]] for event in self.events]
        self.done = [threading.Event() for _ in self.ops]
        self.lock = threading.Lock()
        self.began = 0.0
        self.failure: BaseException | None = None
        count = len(self.ops)
        before = self.store.begin(self.graph.program)
        self.timeline = Timeline([0.0] * count, [0.0] * count, [0] * count, [0] * count, before)

    def run(self, start: float) -> Timeline:
        """Start at a moment of the monotonic clock; raises `RankError` if an op fails or waits too long."""
        self.began = start
        if self.pace is not None:
            self.pace.board.begin(start)
        streams: dict[Stream, list[int]] = {COMPUTE: []}
        for i, op in enumerate(self.ops):
            streams.setdefault(op.stream, []).append(i)
        own = streams.pop(COMPUTE)
        threads = [threading.Thread(target=self._walk, args=(ops, start), daemon=True) for ops in streams.values()]
        for thread in threads:
            thread.start()
        self._walk(own, start)
        self._join(threads)
        self._follow_memory()
        return self.timeline

    def _join(self, threads: Sequence[threading.Thread]) -> None:
        """Wait for the other streams. A failure is raised at once: what is still blocked then ends with the process."""
        deadline = time.monotonic() + self.timeout
        while self.failure is None and any(thread.is_alive() for thread in threads):
            if time.monotonic() > deadline:
                late = next(i for i, event in enumerate(self.done) if not event.is_set())
                self._fail(late, TimeoutError(f"not done {self.timeout:g} s after the rest of its rank"))
            next(thread for thread in threads if thread.is_alive() or thread is threads[-1]).join(0.05)
        if self.failure is not None:
            raise self.failure

    def _follow_memory(self) -> None:
        """From what each op added and freed, in the order in which they ended, to what was held after each."""
        line = self.timeline
        held = line.live_before
        for i in sorted(range(len(self.ops)), key=lambda i: (line.ends[i], i)):
            held += line.live[i]
            line.live[i] = held
        line.peak_weights = self.store.peak_weights

    def _walk(self, positions: Sequence[int], start: float) -> None:
        hold(start)
        for i in positions:
            try:
                if self.ops[i].stream == COMPUTE:
                    self.enter(i)
                self._wait(i)
                if self.failure is None:
                    self._perform(i)
            except BaseException as error:
                self._fail(i, error)
            if self.failure is not None:
                return

    def _wait(self, i: int) -> None:
        for w in self.waits[i]:
            if not self.done[w].wait(self.timeout):
                values = ", ".join(v for v in self.ops[i].operands if v in self.ops[w].writes) or "a value to be free"
                raise TimeoutError(f"waited {self.timeout:g} s for {values} from {label(self.ops[w])}")
            if self.failure is not None:
                return

    def _ready(self, i: int) -> float:
        """When the op starts: now, or in a paced run when the dependency rule allowed it, since there it does not
        count how soon the operating system found a core for the thread."""
        if self.pace is None:
            return time.monotonic()
        before = [self.timeline.ends[w] for w in self.waits[i]]
        if self.previous[i] >= 0:
            before.append(self.timeline.ends[self.previous[i]])
        return max(before, default=self.began)

    def _perform(self, i: int) -> None:
        op, line = self.ops[i], self.timeline
        start = self._ready(i)
        written: Sequence[Held]
        if op.kind in COMMUNICATION_KINDS:
            assert self.transport is not None
            if self.pace is not None:
                self.pace.board.arrive(self.events[i], start)
            written, line.moved[i] = self.transport.communicate(op, self.store)
            if self.pace is not None:
                start = self.pace.board.last_arrival(self.events[i], self.members[i], self.timeout)
        else:
            written = self.store.compute(op)
        allowed = self.store.allowed(op)
        with self.lock:
            note_facts(line.facts, self.graph.program, self.store.rank, op, written)
            before = self.store.live
            self.store.finish(op, list(written))
            line.live[i] = self.store.live - before
        if self.pace is not None and allowed:
            hold(start + self.pace.durations[i])
        line.starts[i], line.ends[i] = start, time.monotonic()
        self.done[i].set()

    def _fail(self, i: int, error: BaseException) -> None:
        """Remember the first failure and wake every stream that waits."""
        with self.lock:
            if self.failure is None:
                self.failure = RankError(_sentence(self.store.rank, i, self.ops[i], error))
                self.failure.__cause__ = error
        for event in self.done:
            event.set()


def _sentence(rank: int, i: int, op: Op, error: BaseException) -> str:
    values = ", ".join((*op.inputs, *op.writes)[:3])
    return f"rank {rank}, op {i} ({label(op)}; {values}): {type(error).__name__}: {error}"


SPIN_S = 0.0008
"""A sleeping thread wakes up a little late, so the last stretch of a hold is spent asking for the time."""


def hold(until: float) -> None:
    """Return at a moment of the monotonic clock, or at once if it has passed."""
    while (left := until - time.monotonic()) > 0:
        time.sleep(max(0.0, left - SPIN_S))
