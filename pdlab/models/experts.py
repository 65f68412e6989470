"""One layer of experts, one expert per rank of the ep axis, top-1 and dropless: who gets how many rows depends on the
data.

So the size of the all-to-all is not known beforehand. A first all-to-all exchanges the counts; they are facts, and
the second one is sized by them (as in Switch Transformer routing, Fedus et al. 2021, arXiv:2101.03961, without its
capacity limit).
"""

from pdlab.mesh import LOCAL, REPLICATED, Axis
from pdlab.models.digits import PIXELS, TARGET
from pdlab.models.linear import linear
from pdlab.models.mlp import classifier, linear_group
from pdlab.models.model import Model
from pdlab.models.spec import Block, Exchange, Feed, Flops, Group, Kept, Param, Segment, Tensor
from pdlab.ops import Kind


def experts(*, width: int = 16, ep: int = 2, itemsize: int = 4) -> Model:
    """Linear, a layer of `ep` experts with inner width 2 `width`, classifier."""
    feeds = (Tensor("x", (PIXELS,), itemsize, grad=None, feed=Feed.SCALED_PIXELS), TARGET)
    h, y = Tensor("h", (width,), itemsize), Tensor("y", (width,), itemsize)
    counts = Tensor("counts", (ep,), 8, grad=None, per_row=False)
    arrivals = Tensor("arrivals", (ep,), 8, grad=None, per_row=False)
    sent, returned = Tensor("sent", (width,), itemsize), Tensor("returned", (width,), itemsize)
    received = Tensor("received", (width,), itemsize, rows="arrivals")
    done = Tensor("done", (width,), itemsize, rows="arrivals")
    gate, place = Tensor("gate", (1,), itemsize), Tensor("place", (), 8, grad=None)
    layer = (
        _router(h, (sent, gate, place, counts), ep, itemsize),
        Exchange("counts_exchange", Axis.EP, counts, arrivals, Kind.ALL_TO_ALL, None),
        Exchange("dispatch", Axis.EP, sent, received, Kind.ALL_TO_ALL, Kind.ALL_TO_ALL, ("counts", "arrivals")),
        _expert(received, done, itemsize),
        Exchange("return", Axis.EP, done, returned, Kind.ALL_TO_ALL, Kind.ALL_TO_ALL, ("arrivals", "counts")),
        _combine(returned, gate, place, y),
    )
    first = linear("fc0", feeds[0], h, (linear_group("fc0", width, PIXELS, itemsize),))
    layers = ((first,), layer, (classifier("head", y, feeds[1], itemsize),))
    return Model(("experts", (("width", width), ("ep", ep), ("itemsize", itemsize))), layers, feeds, itemsize)


def _router(h: Tensor, outputs: tuple[Tensor, ...], ep: int, itemsize: int) -> Segment:
    """Softmax over the experts, the rows sorted by the chosen one, how many go to each."""
    width = h.shape[0]
    return Segment(
        name="router",
        block=Block.ROUTER,
        inputs=(h,),
        outputs=outputs,
        groups=(Group("router.w", (Param("weight", (ep, width)),), itemsize),),
        keeps=("h",),
        saved=Kept(per_row=ep * itemsize + 16),
        pending=Kept(per_row=ep * itemsize),
        flops=Flops(2 * width * ep, 2 * width * ep, 2 * width * ep),
        options=(("experts", ep),),
    )


def _expert(x: Tensor, y: Tensor, itemsize: int) -> Segment:
    width = x.shape[0]
    inner = 2 * width
    local = REPLICATED.put(Axis.EP, LOCAL)
    params = (
        Param("up.weight", (inner, width)),
        Param("up.bias", (inner,)),
        Param("down.weight", (width, inner)),
        Param("down.bias", (width,)),
    )
    flops = 4 * width * inner
    return Segment(
        name="expert",
        block=Block.EXPERT,
        inputs=(x,),
        outputs=(y,),
        groups=(Group("expert.w", params, itemsize, local, local),),
        keeps=(x.name,),
        saved=Kept(per_row=inner * itemsize),
        pending=Kept(per_row=(2 * inner + width) * itemsize),
        flops=Flops(flops, flops, flops),
        rows="arrivals",
    )


def _combine(returned: Tensor, gate: Tensor, place: Tensor, y: Tensor) -> Segment:
    """Each row times its gate, back in the order of the samples."""
    return Segment(
        name="combine",
        block=Block.COMBINE,
        inputs=(returned, gate, place),
        outputs=(y,),
        keeps=(returned.name, gate.name, place.name),
    )
