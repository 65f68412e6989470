"""A run without flush held to its own rule: every version of every parameter against plain PyTorch on one process.

Where gradients are stale by design, those of the whole batch are no yardstick. What a variant of PipeDream promises is
a trajectory: which weights there are after which minibatch.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pdlab import reference
from pdlab.batch import Batch, labelled_rows, rows
from pdlab.execute.result import Result
from pdlab.execute.settings import Settings
from pdlab.ledger import Ledger
from pdlab.mesh import Axis
from pdlab.models.spec import Feed
from pdlab.ops import Kind
from pdlab.optimizers import Sgd
from pdlab.program import Program
from pdlab.reference import StageRule, Trajectory
from pdlab.state import FLOAT, assemble, initial_parameters, microbatch_of


def expected(program: Program, batch: Batch, settings: Settings) -> Trajectory:
    """What the rule of the program's name gives. An order that somebody typed has no rule but itself: there the
    versions that each minibatch meets are read off the program. ValueError for an optimizer or steps that no rule is
    for."""
    if not isinstance(settings.optimizer, Sgd):
        raise ValueError(f"the rules of PipeDream are for Sgd and the run steps with {settings.optimizer}; give it Sgd")
    model, dtype = program.model, FLOAT[program.model.itemsize]
    parts: list[Any] = [*reference.inputs(model, batch.pixels, batch.labels, dtype)]
    if any(t.feed in (Feed.KEYS, Feed.LENGTHS) for t in model.feeds):
        parts += [batch.keys, batch.lengths]
    minibatches: list[Any] = []
    for i in range(program.num_microbatches):
        picked = [j for shard in range(len(program.rows)) for j in range(len(batch))[rows(program, shard, i)]]
        minibatches.append(tuple(None if part is None else part[picked] for part in parts))
    name = program.name.partition(",")[0]
    given = model, initial_parameters(model, settings.seed, dtype), minibatches, settings.optimizer.lr
    if name not in reference.RULES:
        return reference.trajectory_of(_stages(program), *given, _layers(program))
    return reference.pipedream_trajectory(
        *(name, *given),
        layers=_layers(program),
        replicas=_replicas(program),
        accumulate=_accumulate(program) if name in reference.GROUPED else None,
    )


def trajectory_error(programs: Sequence[Program], result: Result, batch: Batch, settings: Settings) -> float:
    """The worst deviation of any version of any parameter (relative, as `reference.relative_errors` has it), and of any
    loss. Infinite where one of the versions that the rule makes was not made, or one that it does not make."""
    wanted = expected(programs[0], batch, settings)
    found = versions(programs, result)
    if {n: set(made) for n, made in found.items()} != {n: set(made) - {-1} for n, made in wanted.versions.items()}:
        return float("inf")
    lost = {"losses": torch.tensor(losses(programs[-1], result, batch), dtype=torch.float64)}
    by_rule = {"losses": torch.tensor(wanted.losses, dtype=torch.float64)}
    worst = max(reference.relative_errors(lost, by_rule).values())
    for minibatch in sorted({minibatch for made in found.values() for minibatch in made}):
        ours = {name: made[minibatch] for name, made in found.items() if minibatch in made}
        theirs = {name: wanted.versions[name][minibatch] for name in ours}
        worst = max(worst, *reference.relative_errors(ours, theirs).values())
    return worst


def versions(programs: Sequence[Program], result: Result) -> dict[str, dict[int, Tensor]]:
    """What the steps of a recorded run wrote: by parameter, then by the last minibatch that is included. ValueError
    where replicas differ."""
    made: dict[int, dict[tuple[int, str], Tensor]] = {}
    for program in programs:
        for rank, of_rank in enumerate(program.ranks):
            for op in of_rank.ops:
                if op.kind is Kind.STEP:
                    minibatch = op.microbatch if op.microbatch >= 0 else program.num_microbatches - 1
                    made.setdefault(minibatch, {})[rank, op.writes[0]] = result.weights[rank, op.writes[0]]
    found: dict[str, dict[int, Tensor]] = {}
    for minibatch, shards in made.items():
        for name, tensor in assemble(programs[0], shards).items():
            found.setdefault(name, {})[minibatch] = tensor
    return found


def losses(program: Program, result: Result, batch: Batch) -> list[float]:
    """The mean loss of each minibatch, as its forward saw it."""
    mesh = program.mesh
    sums = {(mesh.data_shard(rank), value): t.item() for (rank, value), t in result.losses.items()}
    by_minibatch = [0.0] * program.num_microbatches
    for (_, value), loss in sums.items():
        by_minibatch[microbatch_of(value)] += loss
    return [loss / labelled_rows(program, batch, i) for i, loss in enumerate(by_minibatch)]


def _stages(program: Program) -> list[StageRule]:
    """Which versions each stage of the program meets, as a rule for the reference."""
    ledger, stages = Ledger.of(program), []
    for stage in range(len(program.stages)):
        entries = [*{entry.minibatch: entry for entry in ledger.entries if entry.stage == stage}.values()]
        updates = sorted({entry.update for entry in entries if entry.update is not None})
        every, last = updates[0] + 1, program.num_microbatches - 1
        if updates != sorted({*range(every - 1, last, every), last}):
            raise ValueError(
                f"{program.name}: stage {stage} steps after microbatches {', '.join(map(str, updates))}; there is a "
                "rule to hold it to where each step takes as many as the first"
            )
        stages.append(StageRule(every, tuple(e.forward for e in entries), tuple(e.backward for e in entries)))
    return stages


def _layers(program: Program) -> tuple[int, ...]:
    layer_of = program.model.layer_of
    firsts = [layer_of[segments[0]] for segments in program.stages]
    ends = [*firsts[1:], len(program.model.layers)]
    return tuple(end - first for first, end in zip(firsts, ends, strict=True))


def _replicas(program: Program) -> tuple[int, ...]:
    """How many ranks of a pipeline step each stage."""
    line = program.mesh.group(0, Axis.PP)
    holders = [{op.stage for op in program.ranks[r].ops if op.kind is Kind.STEP} for r in line]
    return tuple(sum(stage in held for held in holders) for stage in range(len(program.stages)))


def _accumulate(program: Program) -> int:
    """The microbatches of an update, from the first; where that is the only one and not full, as many as must be."""
    first = next(op.microbatch for op in program.ranks[0].ops if op.kind is Kind.STEP) % program.num_microbatches
    return max(first + 1, program.mesh.degree(Axis.PP)) if first + 1 == program.num_microbatches else first + 1
