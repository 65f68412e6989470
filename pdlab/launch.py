"""Run programs on real processes: `with Ranks(4) as ranks: result = ranks.run(program, batch)`.

The processes are started once and stay warm between runs. A run that fails ends them; the next run starts new ones.
"""

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from pdlab.costs import Costs, Link
from pdlab.execute.board import Board, Progress
from pdlab.execute.result import Result, Shards
from pdlab.execute.settings import Settings
from pdlab.forms import to_json
from pdlab.ops import label
from pdlab.pool import Pool, Reply
from pdlab.program import Facts, Program
from pdlab.simulate import run_plan, start_plan
from pdlab.state import Batch
from pdlab.trace import Mode, Provenance, Trace
from pdlab.validate import validate


class Ranks:
    """A pool of `size` ranks.

    `timeout` (seconds) bounds every wait inside a run beyond the time that the run is modelled to take;
    `start_timeout` how long the processes may take to come up.
    """

    def __init__(self, size: int, *, timeout: float = 30.0, start_timeout: float = 60.0) -> None:
        if size < 1:
            raise ValueError(f"a pool of {size} ranks; give at least 1")
        if timeout <= 0 or start_timeout <= 0:
            raise ValueError(f"timeout {timeout:g} s, start_timeout {start_timeout:g} s; give more than 0")
        self.size = size
        self.timeout = timeout
        self.start_timeout = start_timeout
        self._pool: Pool | None = None

    def __enter__(self) -> "Ranks":
        self._ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes. Safe to call twice; a later run starts new ones."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _ready(self) -> Pool:
        if self._pool is None:
            self._pool = Pool(self.size, self.start_timeout)
        return self._pool

    def run(
        self,
        programs: Program | Sequence[Program],
        batch: Batch,
        *,
        pace: Costs | None = None,
        steps: int = 1,
        settings: Settings | None = None,
    ) -> Result:
        """Run a program, or several one after the other, `steps` times from the same start.

        `pace` holds each op for its modelled time; None measures. Raises `ProgramError` or `ValueError` for what
        cannot run, before anything reaches a process, and `PoolError` for a run that failed, after ending the
        processes.
        """
        programs = [programs] if isinstance(programs, Program) else list(programs)
        settings = settings or Settings()
        self._check(programs, pace, steps)
        pool = self._ready()
        try:
            replies = self._send_and_collect(pool, programs, batch, pace, steps, settings)
        except BaseException:
            self.close()
            raise
        return _result(programs, replies, steps, _provenance(pace, settings.seed))

    def _send_and_collect(
        self,
        pool: Pool,
        programs: Sequence[Program],
        batch: Batch,
        pace: Costs | None,
        steps: int,
        settings: Settings,
    ) -> dict[int, Reply]:
        progress = Progress.create(pool.folder / "progress", self.size)
        paces = [_paced(pool, i, program, pace) for i, program in enumerate(programs)] if pace else []
        length = sum(seconds for _, _, seconds in paces)
        job = {
            "do": "run",
            "programs": [to_json(program) for program in programs],
            "timeout_s": self.timeout + length,
            "steps": steps,
            "settings": settings.to_message(),
            "progress": str(pool.folder / "progress"),
        }
        tensors = {"pixels": torch.tensor(batch.pixels), "labels": torch.tensor(batch.labels)}
        for rank in range(self.size):
            mine = [(durations[rank], board) for durations, board, _ in paces if rank < len(durations)]
            pool.send(rank, job | {"pace": mine}, tensors)
        patience = 2 * self.timeout + 3 * steps * length + 5.0
        return pool.collect(patience, lambda rank: _where(progress, programs, rank))

    def _check(self, programs: Sequence[Program], pace: Costs | None, steps: int) -> None:
        if steps < 1 or not programs:
            raise ValueError(f"{len(programs)} programs, {steps} steps; a run has at least one of each")
        if pace is not None and pace.link is not Link.CHANNEL:
            raise ValueError(
                "a paced run has exclusive channels; simulate independent links, or pace with Link.CHANNEL"
            )
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


Paced = tuple[list[list[float]], str, float]
"""For each rank how long each of its ops takes, the board where ranks meet, the makespan."""


def _paced(pool: Pool, i: int, program: Program, costs: Costs) -> Paced:
    plan = start_plan(program, costs)
    by_row = [plan.durations[event] for event in plan.graph.event_of]
    ends = [*plan.graph.first_row[1:], len(by_row)]
    board = pool.folder / f"board{i}"
    Board.create(board, program.mesh.size, len(plan.durations))
    durations = [by_row[start:end] for start, end in zip(plan.graph.first_row, ends, strict=True)]
    return durations, str(board), max(run_plan(plan)[1], default=0.0)


def _where(progress: Progress, programs: Sequence[Program], rank: int) -> str:
    """What a rank was last seen doing, for the report of its end."""
    program, position = progress.of(rank)
    if rank >= programs[0].mesh.size or position < 0:
        return "before its first op"
    op = programs[program].ranks[rank].ops[position]
    values = ", ".join((*op.inputs, *op.writes)[:3])
    return f"at op {position} ({label(op)}; {values})"


def _provenance(pace: Costs | None, seed: int) -> Provenance:
    mode = Mode.PACED if pace else Mode.MEASURED
    return Provenance(mode, str(pace or ""), f"{os.cpu_count()} cores, gloo", f"torch {torch.__version__}", seed)


def _result(programs: Sequence[Program], replies: dict[int, Reply], steps: int, provenance: Provenance) -> Result:
    traces = [
        [
            _trace(program, [replies[rank][0]["steps"][step][i] for rank in range(program.mesh.size)], provenance)
            for i, program in enumerate(programs)
        ]
        for step in range(steps)
    ]
    parts: dict[str, Shards] = {"gradients": {}, "weights": {}, "losses": {}}
    for rank, (_, tensors) in replies.items():
        for name, t in tensors.items():
            what, value = name.split(" ", 1)
            parts[what][rank, value] = t
    return Result(traces, **parts)


def _trace(program: Program, lines: list[dict[str, Any]], provenance: Provenance) -> Trace:
    def joined(key: str) -> list[Any]:
        return [x for line in lines for x in line[key]]

    facts: Facts = {(rank, value): tuple(numbers) for line in lines for rank, value, numbers in line["facts"]}
    before = [line["live_before"] for line in lines]
    return Trace(program, joined("starts"), joined("ends"), joined("moved"), joined("live"), before, provenance, facts)
