"""A program: for each rank, an ordered list of ops, the types of the values they name, and what lives before and after.

This is the one source. The picture, the prediction and the run are three readings of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from pdlab.mesh import DATA_AXES, LOCAL, PARTIAL, REPLICATED, Layout, Mesh
from pdlab.models.model import Model
from pdlab.models.spec import Group, Tensor
from pdlab.ops import BACKWARD_KINDS, Kind, Op, Value


class Role(Enum):
    """What a value is for; memory is stacked by it, and gradients are followed by it."""

    FEED = "feed"
    ACTIVATION = "activation"
    ACTIVATION_GRADIENT = "activation gradient"
    SAVED = "saved for backward"
    PENDING = "pending weight gradient"
    WEIGHT = "weight"
    GRADIENT = "weight gradient"
    OPTIMIZER = "optimizer state"
    LOSS = "loss"
    FACT = "fact"
    FLAG = "flag"
    SCALE = "loss scale"
    TOKEN = "token"

    __hash__ = object.__hash__  # members are singletons, and Enum's own hash runs in Python


class Sized(NamedTuple):
    """A size known only at run time: `each` bytes for every row that the fact counts."""

    fact: Value
    each: int
    fixed: int = 0


Size = int | Sized


class Type(NamedTuple):
    """The type of a value on one rank. `of` is the model's name for it: a tensor, a group of weights, a segment; of a
    scale it is the number, where the program says it."""

    role: Role
    size: Size
    layout: Layout = REPLICATED
    of: str = ""


Facts = dict[tuple[int, Value], tuple[int, ...]]
"""Facts of a run or a scenario: (rank, value) -> the integers it holds (a flag holds one: 0 or 1)."""


def facts_as_list(facts: Facts) -> list[list[object]]:
    """Facts in a form that JSON can hold; `facts_of_list` reads it back."""
    return [[rank, value, list(numbers)] for (rank, value), numbers in facts.items()]


def facts_of_list(entries: Iterable[tuple[int, Value, Iterable[int]]]) -> Facts:
    return {(rank, value): tuple(numbers) for rank, value, numbers in entries}


@dataclass(frozen=True)
class RankProgram:
    """What one rank does. `live_in` values exist before the first op, `live_out` values are still wanted after the
    last."""

    ops: tuple[Op, ...]
    types: dict[Value, Type] = field(default_factory=dict)
    live_in: frozenset[Value] = frozenset()
    live_out: frozenset[Value] = frozenset()

    @property
    def steps_in_flight(self) -> bool:
        """Whether it ever steps with a microbatch between its forward and its backward."""
        begun: set[tuple[int, int]] = set()
        for op in self.ops:
            if op.kind is Kind.FORWARD:
                begun.add((op.stage, op.microbatch))
            elif op.kind in BACKWARD_KINDS:
                begun.discard((op.stage, op.microbatch))
            elif op.kind is Kind.STEP and begun:
                return True
        return False


@dataclass(frozen=True)
class Program:
    """One step of training (or, without a flush, a span of minibatches) for every rank of a mesh.

    `rows[shard][microbatch]` counts samples; `stages[s]` names the segments of stage s.
    """

    name: str
    mesh: Mesh
    model: Model
    ranks: tuple[RankProgram, ...]
    rows: tuple[tuple[int, ...], ...]
    stages: tuple[tuple[str, ...], ...]

    @property
    def num_microbatches(self) -> int:
        return len(self.rows[0])

    @property
    def num_ops(self) -> int:
        return sum(len(rank.ops) for rank in self.ranks)

    @property
    def batch(self) -> int:
        """Samples of one step over all data shards and microbatches."""
        return sum(map(sum, self.rows))

    @property
    def steps_each_microbatch(self) -> bool:
        return any(op.kind is Kind.STEP and op.microbatch >= 0 for rank in self.ranks for op in rank.ops)

    def with_ranks(self, ranks: list[RankProgram]) -> "Program":
        return replace(self, ranks=tuple(ranks))

    def __str__(self) -> str:
        from pdlab.forms import grid

        return grid(self)


def tensor_role(model: Model, t: Tensor) -> Role:
    """What a tensor between segments is: fed from outside, the loss, a count (a fact), or an activation."""
    if any(t.name == feed.name for feed in model.feeds):
        return Role.FEED
    if t.name == model.loss:
        return Role.LOSS
    return Role.ACTIVATION if t.grad is not None or t.per_row else Role.FACT


def gradient_layout(group: Group, mesh: Mesh) -> Layout:
    """What a backward makes for a group of weights: along each data axis only this rank's share of the sum."""
    layout = group.grad
    for axis in DATA_AXES:
        if mesh.degree(axis) > 1 and group.layout.at(axis) != LOCAL:
            layout = layout.put(axis, PARTIAL)
    return layout


def num_bytes(size: Size, facts: Facts, rank: int) -> int:
    """The bytes of a size on a rank, given the facts; an unknown fact is an error with the value's name."""
    if isinstance(size, int):
        return size
    try:
        counts = facts[rank, size.fact]
    except KeyError:
        raise ValueError(
            f"rank {rank}: the size of a value depends on the fact {size.fact!r}; pass facts= a scenario, "
            "or the facts of a recorded run"
        ) from None
    return size.fixed + size.each * sum(counts)


def split_rows(batch: int, num_shards: int, num_microbatches: int) -> tuple[tuple[int, ...], ...]:
    """Cut a batch into data shards and those into microbatches, as equal as possible, the larger ones first."""
    if num_microbatches < 1:
        raise ValueError(f"{num_microbatches} microbatches; give at least 1")
    if batch < num_shards * num_microbatches:
        raise ValueError(
            f"a batch of {batch} cannot feed {num_shards} data shards x {num_microbatches} microbatches; "
            f"use a batch of at least {num_shards * num_microbatches}"
        )
    return tuple(_even(share, num_microbatches) for share in _even(batch, num_shards))


def _even(total: int, parts: int) -> tuple[int, ...]:
    each, extra = divmod(total, parts)
    return tuple(each + (i < extra) for i in range(parts))
