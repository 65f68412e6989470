"""Run programs on real processes: `with Ranks(4) as ranks: result = ranks.run(program, batch)`.

The processes are started once and stay warm between runs. A run that fails ends them; the next run starts new ones.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from torch import Tensor
from tqdm.auto import tqdm

from pdlab import replies
from pdlab.batch import Batch
from pdlab.costs import Costs, Link
from pdlab.crew import Crew, Look, Reply
from pdlab.errors import Cancelled, PoolError
from pdlab.execute.board import Progress
from pdlab.execute.fold import Stretch
from pdlab.execute.result import Result
from pdlab.execute.settings import Settings, check_start
from pdlab.forms import to_json
from pdlab.importing import locate
from pdlab.pool import Pool
from pdlab.program import Program
from pdlab.state import Start
from pdlab.validate import validate

KEPT_TEXTS = 7

Watch = Callable[[float], None]
"""Told, about ten times a second, how much of a run is done (0 to 1)."""


class Ranks:
    """A pool of `size` ranks.

    `timeout` (seconds) bounds every wait inside a run beyond the time that the run is modelled to take;
    `start_timeout` how long the processes may take to come up. `started` is told how many of them are up while they
    do; None draws a progress bar.
    """

    def __init__(
        self,
        size: int,
        *,
        timeout: float = 30.0,
        start_timeout: float = 60.0,
        started: Callable[[int], None] | None = None,
    ) -> None:
        if size < 1:
            raise ValueError(f"a pool of {size} ranks; give at least 1")
        if not (timeout > 0 and start_timeout > 0):
            raise ValueError(f"timeout {timeout:g} s, start_timeout {start_timeout:g} s; give more than 0")
        self.size = size
        self.timeout = timeout
        self.start_timeout = start_timeout
        self._started = started
        self._crew: Crew | None = None
        self._cancelled = threading.Event()
        self._working = threading.Event()
        self._restarts = True
        self._texts: list[tuple[Program, str]] = []

    @classmethod
    def over(cls, crew: Crew, timeout: float = 30.0) -> "Ranks":
        """Ranks that somebody else has started, and who cannot be started again from here."""
        ranks = cls(len(crew.channels), timeout=timeout)
        ranks._crew, ranks._restarts = crew, False
        return ranks

    def __enter__(self) -> "Ranks":
        with self._work():
            return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def on_one_machine(self) -> bool:
        """Whether all ranks share a clock and a memory, which a paced run needs."""
        return self._crew is None or self._crew.folder is not None

    def close(self) -> None:
        """End the processes. Safe to call twice; a later run starts new ones."""
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.close()

    def cancel(self) -> None:
        """End what is under way in another thread: it raises `Cancelled` there. Where nothing is, nothing happens."""
        if self._working.is_set():
            self._cancelled.set()
            crew = self._crew
            if crew is not None:
                crew.kill()

    @contextmanager
    def _work(self) -> Iterator[Crew]:
        """The crew, started if need be, for a piece of work. Whatever goes wrong in it, the processes end."""
        if self._working.is_set():
            raise ValueError("these ranks are at work in another thread; wait for it, or make other Ranks")
        self._cancelled.clear()
        self._working.set()
        try:
            if self._crew is None:
                self._crew = self._start()
            yield self._crew
        except BaseException as error:
            crew, self._crew = self._crew, None
            if crew is not None:
                crew.end()
            if isinstance(error, PoolError):
                if self._cancelled.is_set():
                    raise Cancelled("the run was cancelled") from None
                error.add_note("The ranks have ended" + ("; the next run starts new ones." if self._restarts else "."))
            raise
        finally:
            self._working.clear()

    def _start(self) -> Crew:
        if not self._restarts:
            raise PoolError("the ranks have ended; start them again with torchrun")
        if self._started is not None:
            return Pool(self.size, self.start_timeout, self._told(self._started))
        with tqdm(total=self.size, desc="starting ranks", unit="rank", leave=False, delay=0.3) as bar:
            return Pool(self.size, self.start_timeout, self._told(lambda up: _advance(bar, up)))

    def _told(self, show: Callable[[int], None]) -> Callable[[int], None]:
        def told(up: int) -> None:
            if self._cancelled.is_set():
                raise Cancelled("cancelled while the ranks were starting")
            show(up)

        return told

    # --- work

    def run(
        self,
        programs: Program | Sequence[Program],
        batch: Batch,
        *,
        pace: Costs | None = None,
        steps: int = 1,
        settings: Settings | None = None,
        watch: Watch | None = None,
    ) -> Result:
        """Run a program, or several one after the other, `steps` times from the same start.

        `pace` holds each op for its modelled time; None measures. Raises `ProgramError` or `ValueError` for what
        cannot run, before anything reaches a process, and `PoolError` for a run that failed, after ending the
        processes.
        """
        programs = [programs] if isinstance(programs, Program) else list(programs)
        settings = settings or Settings()
        self._check(programs, pace, steps)
        check_start(programs[0], batch, settings)
        job = {"do": "run", "steps": steps, "settings": settings.to_message()}
        with self._work() as crew:
            came = self._program_job(crew, job, programs, replies.batch_tensors([batch]), pace, watch)
            made = replies.provenance(crew, programs[0], pace, settings.seed)
        return replies.result(programs, came, steps, made)

    def fold(
        self,
        program: Program,
        batches: Sequence[Batch],
        settings: Settings,
        start: Start | None = None,
        *,
        pace: Costs | None = None,
    ) -> Stretch:
        """Train for one step on each batch, from `start` or from the seed. Errors as for `run`."""
        self._check([program], pace, len(batches))
        for batch in batches:
            check_start(program, batch, settings)
        taken = start.steps if start else 0
        job = {"do": "fold", "steps": len(batches), "settings": settings.to_message(), "taken": taken}
        tensors = replies.batch_tensors(batches) | (start.tensors() if start else {})
        with self._work() as crew:
            came = self._program_job(crew, job, [program], tensors, pace, None)
        return replies.stretch(program, came, batches)

    def call(self, function: str, timeout: float | None = None, **arguments: object) -> list[Any]:
        """Run a function of your own on every rank: `ranks.call("my_file:hello", name="x")`.

        It is imported there, is given `arguments` by name, finds torch.distributed set up for gloo, and returns what
        JSON can hold (numbers, texts, lists, dicts). The answers come by rank, what it prints is printed here with the
        rank before each line. `timeout` (seconds) bounds it, by default the pool's.
        """
        locate(function)
        job = {"do": "call", "function": function, "arguments": arguments}
        patience = self.timeout if timeout is None else timeout
        with self._work() as crew:
            found = self._do(crew, job, {}, patience, lambda _: f"in {function}", lambda: None)
        for rank in range(self.size):
            for line in found[rank][0]["printed"].splitlines():
                print(f"rank {rank}: {line}")
        return [found[rank][0]["answer"] for rank in range(self.size)]

    def _program_job(
        self,
        crew: Crew,
        job: dict[str, Any],
        programs: Sequence[Program],
        tensors: dict[str, Tensor],
        pace: Costs | None,
        watch: Watch | None,
    ) -> dict[int, Reply]:
        folder = crew.folder
        paces = (
            [replies.paced(folder, i, program, pace) for i, program in enumerate(programs)] if pace and folder else []
        )
        length, steps = sum(seconds for _, _, seconds in paces), job["steps"]
        progress = Progress.create(folder / "progress", self.size) if folder else None
        job["programs"] = [self._text(program) for program in programs]
        job |= {"timeout_s": self.timeout + length, "progress": str(folder / "progress") if folder else None}
        job["pace"] = [[durations, board] for durations, board, _ in paces]

        def look() -> object:
            if watch and progress:
                watch(replies.share_done(progress, programs, steps))
            return progress.everything() if progress else None

        patience = 2 * self.timeout + 3 * length + 5.0
        if not progress:
            patience *= steps  # nobody can see how far it is
        return self._do(crew, job, tensors, patience, lambda rank: replies.where(progress, programs, rank), look)

    def _text(self, program: Program) -> str:
        """A program as it travels; those that were sent last are not written anew."""
        known = next((text for sent, text in self._texts if sent is program), None)
        if known is None:
            known = to_json(program)
            self._texts = [*self._texts[-KEPT_TEXTS:], (program, known)]
        return known

    def _do(
        self,
        crew: Crew,
        job: dict[str, Any],
        tensors: dict[str, Tensor],
        patience: float,
        where: Callable[[int], str],
        look: Look,
    ) -> dict[int, Reply]:
        """Send a job to every rank and wait for all replies."""
        job["paths"] = replies.paths()
        for rank in range(self.size):
            crew.send(rank, job, tensors, self.timeout)
        return crew.collect(patience, where, look)

    def _check(self, programs: Sequence[Program], pace: Costs | None, steps: int) -> None:
        if steps < 1 or not programs:
            raise ValueError(f"{len(programs)} programs, {steps} steps; a run has at least one of each")
        if pace is not None and pace.link is not Link.CHANNEL:
            raise ValueError(
                "a paced run has exclusive channels; simulate independent links, or pace with Link.CHANNEL"
            )
        if pace is not None and not self.on_one_machine:
            raise ValueError("a paced run needs all ranks on one machine, whose clock they share; measure instead")
        for program in programs:
            validate(program)
            if program.mesh != programs[0].mesh:
                raise ValueError(
                    f"programs of one run share a mesh; these are on {programs[0].mesh} and {program.mesh}"
                )
            if program.mesh.size > self.size:
                raise ValueError(f"the program needs {program.mesh.size} ranks and the pool has {self.size}")
        for first, second in pairwise(programs):
            _check_goes_on(first, second)


def _check_goes_on(first: Program, second: Program) -> None:
    for rank, (before, after) in enumerate(zip(first.ranks, second.ranks, strict=True)):
        lacking = sorted(after.live_in - before.live_out)
        if lacking:
            raise ValueError(
                f"rank {rank}: {second.name!r} begins with {lacking[0]!r}, which {first.name!r} does not leave; "
                "run several programs only where each goes on from the one before"
            )


def _advance(bar: Any, up: int) -> None:
    if up > bar.n:
        bar.update(up - bar.n)
