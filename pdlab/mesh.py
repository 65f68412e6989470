"""Where ranks stand and how a value is spread over them.

A job is a mesh: each rank has one coordinate on every axis, and the ranks that differ in a single axis form a process
group. A layout says, axis by axis, what one rank holds of a value. A missing axis means that every rank of it holds
the same thing. The distinction that matters most is *partial*: a sum that still has to be taken. Handing a partial
value to an op that expects the sum is the classic silent bug of distributed training, so here it is a type error.
"""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from math import prod
from typing import NamedTuple


class Axis(Enum):
    DP = "dp"
    EP = "ep"
    PP = "pp"
    TP = "tp"

    __hash__ = object.__hash__  # members are singletons, and Enum's own hash runs in Python


DATA_AXES = (Axis.DP, Axis.EP)
"""The axes along which ranks see different samples."""


class Spread(Enum):
    SHARD = "S"
    FLAT = "flat"
    PARTIAL = "P"
    LOCAL = "L"


class Placement(NamedTuple):
    """What a rank holds along one axis: a shard of `dim`, a flat 1/n piece, a partial sum, or something on purpose
    its own."""

    spread: Spread
    dim: int = 0

    def __str__(self) -> str:
        return f"S{self.dim}" if self.spread is Spread.SHARD else self.spread.value


def shard(dim: int) -> Placement:
    return Placement(Spread.SHARD, dim)


FLAT = Placement(Spread.FLAT)
PARTIAL = Placement(Spread.PARTIAL)
LOCAL = Placement(Spread.LOCAL)

_AXIS_ORDER = {axis: i for i, axis in enumerate(Axis)}


class Layout(NamedTuple):
    """Placements by axis, in the order of `Axis`; replicated along every axis that is not named."""

    places: tuple[tuple[Axis, Placement], ...] = ()

    def at(self, axis: Axis) -> Placement | None:
        return next((place for a, place in self.places if a is axis), None)

    def put(self, axis: Axis, place: Placement | None) -> "Layout":
        kept = [(a, p) for a, p in self.places if a is not axis]
        if place is not None:
            kept.append((axis, place))
        return Layout(tuple(sorted(kept, key=lambda item: _AXIS_ORDER[item[0]])))

    def shard_dim(self, axis: Axis) -> int | None:
        """The dim along which the ranks of an axis hold shards; None where they do not."""
        place = self.at(axis)
        return place.dim if place is not None and place.spread is Spread.SHARD else None

    def partial_axes(self) -> tuple[Axis, ...]:
        return tuple(a for a, p in self.places if p.spread is Spread.PARTIAL)

    def __str__(self) -> str:
        return " ".join(f"{a.value}:{p}" for a, p in self.places) or "replicated"


REPLICATED = Layout()


@dataclass(frozen=True)
class Mesh:
    """A grid of ranks. Axes are listed from the slowest to the fastest varying one, so tensor groups are neighbours."""

    degrees: tuple[tuple[Axis, int], ...]

    def __post_init__(self) -> None:
        for axis, degree in self.degrees:
            if degree < 1:
                raise ValueError(f"--{axis.value} is {degree}; a degree is a whole number of at least 1")

    @classmethod
    def of(cls, *, dp: int = 1, ep: int = 1, pp: int = 1, tp: int = 1) -> "Mesh":
        return cls(((Axis.DP, dp), (Axis.EP, ep), (Axis.PP, pp), (Axis.TP, tp)))

    @cached_property
    def size(self) -> int:
        return prod(degree for _, degree in self.degrees)

    @cached_property
    def _degree(self) -> dict[Axis, int]:
        return dict(self.degrees)

    def degree(self, axis: Axis) -> int:
        return self._degree.get(axis, 1)

    @cached_property
    def coordinates(self) -> tuple[dict[Axis, int], ...]:
        return tuple(self._coordinate(rank) for rank in range(self.size))

    def _coordinate(self, rank: int) -> dict[Axis, int]:
        where = {}
        for axis, degree in reversed(self.degrees):
            rank, where[axis] = divmod(rank, degree)
        return where

    def rank_at(self, coordinate: dict[Axis, int]) -> int:
        rank = 0
        for axis, degree in self.degrees:
            rank = rank * degree + coordinate[axis]
        return rank

    def group(self, rank: int, axis: Axis) -> tuple[int, ...]:
        """The ranks that differ from `rank` along `axis` only, in order of their coordinate."""
        here = self.coordinates[rank]
        return tuple(self.rank_at({**here, axis: i}) for i in range(self.degree(axis)))

    def data_shard(self, rank: int) -> int:
        """Which share of the batch this rank sees (ranks that differ in pp or tp see the same one)."""
        share = 0
        for axis in DATA_AXES:
            share = share * self.degree(axis) + self.coordinates[rank][axis]
        return share

    @property
    def num_data_shards(self) -> int:
        return prod(self.degree(axis) for axis in DATA_AXES)

    def __str__(self) -> str:
        return " x ".join(f"{a.value} {d}" for a, d in self.degrees if d > 1) or "1 rank"
