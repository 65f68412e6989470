"""Training is a fold: the same program again and again, each time from the weights that the last time left.

A program reads `fc0.w@0` and leaves `fc0.w@1`; the next step's first is this step's last. What else it needs (samples,
seeds of the backward) is new each time. Wherever a step runs, this is all that happens between two of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pdlab.batch import Batch, labelled
from pdlab.execute.settings import Settings
from pdlab.execute.store import Store
from pdlab.ops import Value
from pdlab.program import Facts, Program, Role
from pdlab.state import Parameters, Start, assemble, batch_values

KEPT = frozenset({Role.WEIGHT, Role.OPTIMIZER})


@dataclass(frozen=True)
class Stretch:
    """Several steps of training: for each the mean loss over its samples, the seconds it took and its facts; and where
    they ended."""

    losses: list[float]
    seconds: list[float]
    facts: list[Facts]
    end: Start


@dataclass(frozen=True)
class Told:
    """What one rank has to tell of one step: the losses it holds (sums over rows), how long it took, its facts."""

    losses: dict[Value, float]
    seconds: float
    facts: Facts = field(default_factory=dict)


def following(store: Store, batch: Batch, settings: Settings) -> Store:
    """The rank of a store after one step, as it is before the next."""
    program, rank = store.program, store.rank
    after = Store(program, rank, store.optimizer, counted=store.counted, steps=store.steps)
    for value, t in (newest(store) | batch_values(program, rank, batch, settings.loss_scale)).items():
        after.put(value, t)
    return after


def newest(store: Store) -> dict[Value, Tensor]:
    """For each weight and optimizer state that the program begins with, the tensor that it ends with."""
    rank = store.program.ranks[store.rank]
    last = {rank.types[v]: v for v in rank.live_in if rank.types[v].role in KEPT}
    for op in rank.ops:
        last |= {rank.types[v]: v for v in op.writes if rank.types[v] in last and v in rank.live_out}
    return {v: store.tensor(last[rank.types[v]]) for v in rank.live_in if rank.types[v] in last}


def taken(store: Store) -> int:
    """The optimizer steps of the training so far; one that its guard stopped is none."""
    return max(store.steps.values(), default=store.counted)


def losses(store: Store) -> dict[Value, float]:
    types = store.program.ranks[store.rank].types
    return {v: store.tensor(v).item() for v in store.values if types[v].role is Role.LOSS}


def joined(
    program: Program,
    told: Sequence[Sequence[Told]],
    left: Mapping[int, Mapping[Value, Tensor]],
    steps_taken: int,
    batches: Sequence[Batch],
) -> Stretch:
    """From what the ranks tell (by rank, then by step) and hold at the end to the whole."""
    steps = list(zip(*told, strict=True))
    return Stretch(
        [_mean_loss(program, step, batch) for step, batch in zip(steps, batches, strict=True)],
        [max(rank.seconds for rank in step) for step in steps],
        [{key: value for rank in step for key, value in rank.facts.items()} for step in steps],
        Start(*_whole(program, left), steps_taken),
    )


def _mean_loss(program: Program, step: Sequence[Told], batch: Batch) -> float:
    """Replicas of a loss (along the tensor axis, say) count once, those of different samples all."""
    by_samples = {
        (program.mesh.data_shard(rank), value): loss
        for rank, told in enumerate(step)
        for value, loss in told.losses.items()
    }
    return sum(by_samples.values()) / labelled(batch.labels)


def _whole(program: Program, left: Mapping[int, Mapping[Value, Tensor]]) -> tuple[Parameters, Parameters]:
    """Parameters and optimizer state by name."""
    held = {(rank, v): t for rank, values in left.items() for v, t in values.items()}
    by_role = {
        role: {key: t for key, t in held.items() if program.ranks[key[0]].types[key[1]].role is role} for role in KEPT
    }
    states = by_role[Role.OPTIMIZER]
    num_rows = min((len(t) for t in states.values()), default=0)
    rows = [assemble(program, {key: t[row] for key, t in states.items()}) for row in range(num_rows)]
    stacked = {name: torch.stack([row[name] for row in rows]) for name in (rows[0] if rows else ())}
    return assemble(program, by_role[Role.WEIGHT]), stacked
