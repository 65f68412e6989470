"""The automatic zero-bubble schedule: what a search finds that knows the times and how much a stage may hold.

The schedules of `zero_bubble` are drawn by hand, for stages that all take the same time. Qi et al. 2024
(arXiv:2401.10241, section 3) search instead: where each of p stages may hold p microbatches they find ZB-1p; where it
may hold 2p, ZB-2p, with next to no bubble. The times can be measured ones, and the stages uneven.

Memory, in units of M_B (what one forward saves): F adds 1, I frees 1 - M_W, W frees the M_W that was left for it. At no
time does a stage hold more than the limit. For p = 2, m = 4 and F = I = W, with a limit of 1p and of 2p:

    rank 0  |F0|F1|  |I0|W0|F2|I1|W1|F3|I2|W2|I3|W3|    limit 2: one bubble, as in ZB-H1
    rank 1     |F0|I0|F1|I1|W0|F2|I2|W1|F3|I3|W2|W3|

    rank 0  |F0|F1|F2|I0|F3|I1|W0|I2|W1|I3|W2|W3|       limit 4: none
    rank 1     |F0|I0|F1|I1|F2|I2|F3|I3|W0|W1|W2|W3|

The cost is the longest span of a rank, from its first compute op to its last: a rank that is done early can begin the
next step early. So only the stage with the longest span matters, and elsewhere a gap may stay a gap.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, product
from math import ceil, inf, isfinite, log10
from typing import Protocol

from pdlab.costs import Uniform
from pdlab.ops import STEP, F, I, Kind, Op, W
from pdlab.strategies.zero_bubble import zb_h1

FORWARD, INPUT, WEIGHT = Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT
WRITTEN = {FORWARD: F, INPUT: I, WEIGHT: W}

DIGITS = 12
"""Of the longest time, how many count."""

SHARES = 1e-9
"""Sums of shares of M_B that differ by no more are equal."""


@dataclass(frozen=True)
class Times:
    """What the search believes: how long an op of one microbatch takes on each stage, and a message between stages."""

    F: float = 1.0
    I: float = 1.0
    W: float = 1.0
    comm: float = 0.0
    M_W: float = 0.5
    """The share of M_B that is still held between I and W."""
    scale: tuple[float, ...] = ()
    """How long each stage computes, relative to the others; empty where they take the same."""

    @classmethod
    def of(cls, costs: Uniform, M_W: float) -> "Times":
        """What `Uniform` costs say, and the share of M_B that a W still needs."""
        assert costs.I is not None and costs.W is not None
        return cls(F=costs.F, I=costs.I, W=costs.W, comm=costs.comm, M_W=M_W, scale=costs.scale)

    def __post_init__(self) -> None:
        for number in (self.F, self.I, self.W, self.comm, *self.scale):
            if not (isfinite(number) and number >= 0):
                raise ValueError(f"{number} among {self}; a time or a scale is a finite number of at least 0")
        if not 0 <= self.M_W <= 1:
            raise ValueError(f"M_W is {self.M_W}; W frees a part of M_B, so give a share from 0 to 1")

    def in_ticks(self, time: float) -> int:
        """A time as a whole number, since sums of those do not depend on the order: whether two ways to the same moment
        agree decides between a gap and none. A tick is a power of ten, so that 18.522 stays what it is."""
        longest = max(self.comm, max(self.F, self.I, self.W) * max(self.scale, default=1.0))
        return round(time * 10.0 ** min(DIGITS - ceil(log10(longest)), 300)) if longest else 0


EVEN = Times()


def zb_auto(num_stages: int, num_microbatches: int, limit: float, times: Times = EVEN) -> list[list[Op]]:
    """The ops of each stage, from the best of all attempts in which no stage holds more than `limit` M_B.

    One attempt for each choice of the grid; and ZB-H1, which holds what the first rank of 1F1B does, where that fits.
    """
    if not limit >= 1:
        raise ValueError(f"a memory limit of {limit:g} M_B; one forward already adds 1, so give at least 1")
    if times.scale and len(times.scale) != num_stages:
        raise ValueError(f"{len(times.scale)} scales for {num_stages} stages; give one for each stage, or none")
    rules: list[Rule] = [*GRID]
    if limit >= min(num_stages, num_microbatches):
        rules.append(ByHand([list(zb_h1(s, num_stages, num_microbatches)) for s in range(num_stages)]))
    attempts = [_Attempt(num_stages, num_microbatches, limit, times, rule) for rule in rules]
    best = min(attempts, key=lambda attempt: attempt.longest_span)
    return [stage.ops() for stage in best.stages]


class _Stage:
    """A stage while its list is being written: what it has done, and what is known of what will reach it."""

    def __init__(self, index: int, num_stages: int, num_microbatches: int, limit: float, times: Times) -> None:
        self.index, self.later = index, num_stages - 1 - index
        self.limit, self.share_left = limit, times.M_W
        scale = times.scale[index] if times.scale else 1.0
        seconds = {FORWARD: times.F * scale, INPUT: times.I * scale, WEIGHT: times.W * scale}
        self.ticks = {kind: times.in_ticks(time) for kind, time in seconds.items()}
        self.arrivals: dict[Kind, list[int]] = {FORWARD: [0] * num_microbatches if index == 0 else [], INPUT: []}
        self.done = dict.fromkeys(self.ticks, 0)
        self.order: list[Kind] = []
        self.last = INPUT  # the last op but for W; where F and I take turns, F begins
        self.clock = 0
        self.span = num_microbatches * sum(self.ticks.values())  # all of its work, and the gaps so far

    @property
    def in_flight(self) -> int:
        return self.done[FORWARD] - self.done[INPUT]

    @property
    def put_off(self) -> int:
        """How many W could run now."""
        return self.done[INPUT] - self.done[WEIGHT]

    @property
    def has_room(self) -> bool:
        return self.in_flight + self.put_off * self.share_left + 1 <= self.limit + SHARES

    def ready_at(self, kind: Kind) -> float:
        """When what the next F or I needs is here; infinity where nobody has yet begun to make it."""
        known, number = self.arrivals[kind], self.done[kind]
        return known[number] if number < len(known) else inf

    def run(self, kind: Kind, now: int) -> int:
        """Put the next op of a kind at the end of the list; returns when it ends."""
        if self.order:
            self.span += now - self.clock
        self.order.append(kind)
        self.done[kind] += 1
        self.last = self.last if kind is WEIGHT else kind
        self.clock = now + self.ticks[kind]
        return self.clock

    def ops(self) -> list[Op]:
        microbatches = {kind: count() for kind in WRITTEN}
        return [*(WRITTEN[kind](self.index, next(microbatches[kind])) for kind in self.order), STEP(self.index)]


class Rule(Protocol):
    def next(self, stage: _Stage, now: int, longest_span: int) -> Kind | None:
        """What a stage that is free starts now; None to wait for what arrives next."""


@dataclass(frozen=True)
class Choice:
    """One point of the grid: F and I in turn, each as soon as it can run; W in gaps, where memory is full, and at the
    end. Which answers to its three questions are best depends on times and limit, so the search tries them all."""

    slope: float
    """How many microbatches may be in flight for each stage from here on: 1 as in 1F1B, or as many as memory allows."""
    delay_first: bool
    """Whether a forward of the warm-up may start where the first I then has to wait."""
    tolerance: float
    """A gap too short for a W gets one only if it would make this stage's span the longest by more than so many W; with
    -inf it always does."""

    def next(self, stage: _Stage, now: int, longest_span: int) -> Kind | None:
        backward = stage.ready_at(INPUT)
        forward = stage.ready_at(FORWARD) if self._may_enter(stage, now) else inf
        if forward <= now and (backward > now or stage.last is INPUT):
            if stage.has_room:
                return FORWARD
            if stage.put_off:
                return WEIGHT  # makes room
        if backward <= now:
            return INPUT
        arrival = min(forward if stage.has_room else inf, backward)  # what is not known yet counts as far off
        return WEIGHT if stage.put_off and self._is_worth(arrival, stage, now, longest_span) else None

    def _may_enter(self, stage: _Stage, now: int) -> bool:
        if stage.in_flight >= self.slope * (stage.later + 1):
            return False
        return self.delay_first or stage.done[INPUT] > 0 or stage.ready_at(INPUT) >= now + stage.ticks[FORWARD]

    def _is_worth(self, arrival: float, stage: _Stage, now: int, longest_span: int) -> bool:
        weight, span_without = stage.ticks[WEIGHT], stage.span + arrival - stage.clock
        return arrival - now >= weight or span_without > longest_span + self.tolerance * weight


GRID = tuple(Choice(*point) for point in product((inf, 1), (False, True), (0.0, 0.25, -inf)))


@dataclass(frozen=True)
class ByHand:
    """A valid order that is given, one list for each stage: each op as soon as it can run."""

    orders: Sequence[Sequence[Op]]

    def next(self, stage: _Stage, now: int, longest_span: int) -> Kind | None:
        kind = self.orders[stage.index][len(stage.order)].kind
        if kind is Kind.STEP:
            return None
        return kind if kind is WEIGHT or stage.ready_at(kind) <= now else None


class _Attempt:
    """A schedule that one rule writes, for all stages at once, in the order of time."""

    def __init__(self, num_stages: int, num_microbatches: int, limit: float, times: Times, rule: Rule) -> None:
        self.stages = [_Stage(s, num_stages, num_microbatches, limit, times) for s in range(num_stages)]
        self.longest_span = max(stage.span for stage in self.stages)
        self.comm = times.in_ticks(times.comm)
        self.moments = [(0, 0)]  # when which stage may have something to decide
        while self.moments:
            now, s = heappop(self.moments)
            stage = self.stages[s]
            kind = rule.next(stage, now, self.longest_span) if now >= stage.clock else None
            if kind:
                self._run(kind, stage, now)

    def _run(self, kind: Kind, stage: _Stage, now: int) -> None:
        """Run an op, and tell the stage that waits for it."""
        end = stage.run(kind, now)
        self.longest_span = max(self.longest_span, stage.span)
        self._decide_again(stage, end)
        if kind is FORWARD and stage.later == 0:
            stage.arrivals[INPUT].append(end)  # the last stage turns round
        elif kind is FORWARD or (kind is INPUT and stage.index > 0):
            receiver = self.stages[stage.index + (1 if kind is FORWARD else -1)]
            receiver.arrivals[kind].append(end + self.comm)
            self._decide_again(receiver, end + self.comm)

    def _decide_again(self, stage: _Stage, moment: int) -> None:
        heappush(self.moments, (moment, stage.index))
