"""How the layers of a model are split over a tensor group, and the collectives that follow from it.

A split says how each tensor lies on the ranks: whole, as a shard, or as a sum still to be taken. Between two segments
stands whatever turns the layout that the one makes into the layout that the other takes, and in the backward whatever
does the same with the gradients. So nobody chooses collectives:

    forward                         backward of the same place
    whole   -> whole    nothing     partial -> whole    ALL_REDUCE        Megatron's f, before a column-parallel linear
    partial -> whole    ALL_REDUCE  whole   -> whole    nothing           Megatron's g, after a row-parallel linear
    shard   -> whole    ALL_GATHER  whole   -> shard    SPLIT             the output of a column-parallel linear alone
    whole   -> shard    SPLIT       shard   -> whole    ALL_GATHER        the input of a row-parallel linear alone
    shard   -> whole    ALL_GATHER  partial -> shard    REDUCE_SCATTER    g bar of sequence parallelism, before
    partial -> shard    REDUCE_SCATTER  shard -> whole  ALL_GATHER        and after

(Shoeybi et al. 2019, arXiv:1909.08053, section 3; Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.)
"""

from enum import Enum

from pdlab.mesh import PARTIAL, REPLICATED, Axis, Layout, Spread, shard
from pdlab.models.spec import Exchange, Tensor
from pdlab.ops import Kind


class Split(Enum):
    """What is split over the ranks of a tensor group."""

    TENSOR = "tensor"
    SEQUENCE = "sequence"
    COLUMN = "column"
    ROW = "row"


WHOLE: Layout = REPLICATED
PART: Layout = REPLICATED.put(Axis.TP, PARTIAL)


def along(dim: int) -> Layout:
    """A shard along a dim of a tensor, where dim 0 counts the rows; or of a weight."""
    return REPLICATED.put(Axis.TP, shard(dim))


COLLECTIVES: dict[tuple[Spread | None, Spread | None], Kind | None] = {
    (None, None): None,
    (Spread.SHARD, Spread.SHARD): None,
    (Spread.PARTIAL, None): Kind.ALL_REDUCE,
    (Spread.SHARD, None): Kind.ALL_GATHER,
    (None, Spread.SHARD): Kind.SPLIT,
    (Spread.PARTIAL, Spread.SHARD): Kind.REDUCE_SCATTER,
}
"""What turns one layout into another along an axis; None is replicated."""


def exchange(name: str, payload: Tensor, result: Tensor) -> Exchange:
    """What stands between two segments, over the tensor group."""
    forward = _turn(payload.layout, result.layout)
    backward = _turn(result.grad, payload.grad) if result.grad is not None and payload.grad is not None else None
    return Exchange(name, Axis.TP, payload, result, forward, backward)


def _turn(before: Layout, after: Layout) -> Kind | None:
    places = before.at(Axis.TP), after.at(Axis.TP)
    first, second = (place.spread if place else None for place in places)
    return COLLECTIVES[first, second]


def split_named(name: str) -> Split:
    """The split of a name; ValueError lists the names."""
    known = [split.value for split in Split]
    if name not in known:
        raise ValueError(f"split {name!r}; choose one of {', '.join(known)}")
    return Split(name)


def check_divides(what: str, size: int, tp: int) -> None:
    """ValueError with the numbers where a tensor group cannot share something evenly."""
    if size % tp:
        raise ValueError(f"{what} {size} with tp {tp}: tp must divide it; take another of the two")


def check_degree(tp: int) -> None:
    if not 1 <= tp <= MOST:
        raise ValueError(f"tp {tp}; a tensor group has 1 to {MOST} ranks")


MOST = 8
"""Ranks of a tensor group: those that share one fast link in a usual machine."""
