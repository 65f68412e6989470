"""Jobs as they travel to the ranks, and what comes back put together."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pdlab.batch import Batch
from pdlab.costs import Costs
from pdlab.crew import Crew, Reply
from pdlab.execute.board import Board, Progress
from pdlab.execute.fold import Stretch, Told, joined
from pdlab.execute.result import Result, Shards
from pdlab.ops import label
from pdlab.program import Program, facts_of_list
from pdlab.simulate import run_plan, start_plan
from pdlab.trace import Mode, Provenance, Trace

Paced = tuple[list[list[float]], str, float]
"""For each rank how long each of its ops takes, the board where ranks meet, the makespan."""


def paths() -> list[str]:
    """Where a rank is to look for the user's code: wherever this process looks."""
    return [str(Path(folder).resolve()) for folder in sys.path if not folder.endswith(".zip")]


def paced(folder: Path, i: int, program: Program, costs: Costs) -> Paced:
    """What a paced run of the i-th program of a job needs to know."""
    plan = start_plan(program, costs)
    by_row = [plan.durations[event] for event in plan.graph.event_of]
    ends = [*plan.graph.first_row[1:], len(by_row)]
    board = folder / f"board{i}"
    Board.create(board, program.mesh.size, len(plan.durations))
    durations = [by_row[start:end] for start, end in zip(plan.graph.first_row, ends, strict=True)]
    return durations, str(board), max(run_plan(plan)[1], default=0.0)


def batch_tensors(batches: Sequence[Batch]) -> dict[str, Tensor]:
    """The samples of all steps in one piece."""
    return {name: torch.tensor(np.concatenate([batch.arrays[name] for batch in batches])) for name in batches[0].arrays}


def where(progress: Progress | None, programs: Sequence[Program], rank: int) -> str:
    """What a rank was last seen doing, for the report of its end."""
    if progress is None:
        return "(what it was at is known on its own machine only)"
    _, program, position = progress.of(rank)
    if rank >= programs[0].mesh.size or position < 0:
        return "before its first op"
    op = programs[program].ranks[rank].ops[position]
    values = ", ".join((*op.inputs, *op.writes)[:3])
    return f"at op {position} ({label(op)}; {values})"


def share_done(progress: Progress, programs: Sequence[Program], steps: int) -> float:
    """How much of a run rank 0 has behind it, from 0 to 1."""
    lengths = [len(program.ranks[0].ops) for program in programs]
    step, program, position = progress.of(0)
    done = step * sum(lengths) + sum(lengths[:program]) + position + 1
    return min(1.0, done / max(1, steps * sum(lengths)))


def provenance(crew: Crew, program: Program, pace: Costs | None, seed: int) -> Provenance:
    """Where the numbers of a run come from; a measurement with more ranks than cores says so."""
    mode = Mode.PACED if pace else Mode.MEASURED
    crowded = pace is None and crew.crowded(program.mesh.size)
    machine = f"{crew.machine}, gloo"
    return Provenance(mode, str(pace or ""), machine, f"torch {torch.__version__}", seed, crowded)


def result(programs: Sequence[Program], replies: dict[int, Reply], steps: int, made: Provenance) -> Result:
    """The traces of every repetition, and what the ranks recorded in the last one."""
    traces = [
        [
            _trace(program, [replies[rank][0]["steps"][step][i] for rank in range(program.mesh.size)], made)
            for i, program in enumerate(programs)
        ]
        for step in range(steps)
    ]
    parts: dict[str, Shards] = {"gradients": {}, "weights": {}, "losses": {}, "running": {}}
    for rank, (_, tensors) in replies.items():
        for name, t in tensors.items():
            what, value = name.split(" ", 1)
            parts[what][rank, value] = t
    return Result(traces, **parts)


def stretch(program: Program, replies: dict[int, Reply], batches: Sequence[Batch]) -> Stretch:
    """The steps of a training and where they ended."""
    ranks = range(program.mesh.size)
    told = [
        [Told(step["losses"], step["seconds"], facts_of_list(step["facts"])) for step in replies[rank][0]["steps"]]
        for rank in ranks
    ]
    taken = max(int(replies[rank][0]["taken"]) for rank in ranks)
    return joined(program, told, {rank: replies[rank][1] for rank in ranks}, taken, batches)


def _trace(program: Program, lines: list[dict[str, Any]], made: Provenance) -> Trace:
    def together(key: str) -> list[Any]:
        return [x for line in lines for x in line[key]]

    before, heaviest = ([line[key] for line in lines] for key in ("live_before", "peak_weights"))
    starts, ends, moved, live = (together(key) for key in ("starts", "ends", "moved", "live"))
    return Trace(program, starts, ends, moved, live, before, heaviest, made, facts_of_list(together("facts")))
