"""The collectives that follow from how a layer is split over a tensor group.

A split says how each tensor lies on the ranks: whole, as a shard, or as a sum still to be taken. Between two segments
stands whatever turns the layout that the one makes into the layout that the other takes, and in the backward whatever
does the same with the gradients. So nobody chooses collectives:

    forward                         backward of the same place
    whole   -> whole    nothing     partial -> whole    ALL_REDUCE        Megatron's f, before a column-parallel linear
    partial -> whole    ALL_REDUCE  whole   -> whole    nothing           Megatron's g, after a row-parallel linear
    shard   -> whole    ALL_GATHER  whole   -> shard    SPLIT             the output of a column-parallel linear alone
    whole   -> shard    SPLIT       shard   -> whole    ALL_GATHER        the input of a row-parallel linear alone
    shard   -> whole    ALL_GATHER  partial -> shard    REDUCE_SCATTER    sequence parallelism's g, before the columns
    partial -> shard  REDUCE_SCATTER  shard -> whole    ALL_GATHER        and its g bar, after the rows

(Shoeybi et al. 2019, arXiv:1909.08053, section 3; Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.)
"""

from pdlab.mesh import PARTIAL, REPLICATED, Axis, Layout, Spread, shard
from pdlab.models.spec import Exchange, Tensor
from pdlab.ops import Kind

WHOLE: Layout = REPLICATED
PARTIAL_SUM: Layout = REPLICATED.put(Axis.TP, PARTIAL)


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
