"""A small transformer that reads the 64 pixels of a digit as 64 tokens, whole or split over a tensor group.

With `tp` > 1 each block is Megatron's: f, column-parallel, row-parallel, g (Shoeybi et al. 2019, arXiv:1909.08053,
section 3). The residual and the row-parallel bias are contributed as 1/tp by each rank inside the sum that g takes,
so the output of a block is one partial value. What is replicated inside the block (norm gains, those biases) then
gets a partial gradient.

Saved bytes per layer without dropout are e s b h (16 + a s / h) at tp = 1 (Korthikanti et al. 2022, arXiv:2205.05198,
section 4, with element size e and the dropout masks left out), plus the two statistics of each norm, which the paper
neglects.
"""

from pdlab.mesh import PARTIAL, REPLICATED, Axis, Layout, shard
from pdlab.models.mlp import CLASSES, PIXELS, loss_tensor
from pdlab.models.spec import Block, Exchange, Feed, Flops, Group, Item, Kept, Model, Param, Segment, Tensor
from pdlab.ops import Kind

INTENSITIES = 17
GROWTH = 4

_PARTIAL_TP: Layout = REPLICATED.put(Axis.TP, PARTIAL)
_SHARDED_TP: Layout = REPLICATED.put(Axis.TP, shard(0))


def transformer(*, width: int = 32, depth: int = 3, heads: int = 4, itemsize: int = 4, tp: int = 1) -> Model:
    """`depth` blocks of attention and feed-forward between an embedding and a classifier: 2 depth + 2 layers."""
    if min(width, depth, heads, tp) < 1:
        raise ValueError(f"width {width}, depth {depth}, heads {heads}, tp {tp}; each is at least 1")
    if width % heads or heads % tp:
        raise ValueError(
            f"width {width}, {heads} heads, tp {tp}: the heads must divide the width, and tp must divide the heads"
        )
    feeds = (
        Tensor("x", (PIXELS,), 8, grad=None, feed=Feed.TOKENS),
        Tensor("target", (), 8, grad=None, feed=Feed.LABELS),
    )
    layers: list[tuple[Item, ...]] = [(_embedding(feeds[0], width, itemsize),)]
    for i in range(depth):
        layers.append(_block(f"attn{i}", 2 * i, width, heads, itemsize, tp))
        layers.append(_block(f"ffn{i}", 2 * i + 1, width, 0, itemsize, tp))
    layers.append((_classifier(_hidden(2 * depth, width, itemsize), feeds[1], itemsize),))
    arguments = (("width", width), ("depth", depth), ("heads", heads), ("itemsize", itemsize), ("tp", tp))
    return Model(("transformer", arguments), tuple(layers), feeds, itemsize)


def _hidden(i: int, width: int, itemsize: int) -> Tensor:
    return Tensor(f"h{i}", (PIXELS, width), itemsize)


def _embedding(x: Tensor, width: int, itemsize: int) -> Segment:
    params = (Param("token", (INTENSITIES, width)), Param("position", (PIXELS, width)))
    return Segment(
        name="embed",
        block=Block.EMBEDDING,
        inputs=(x,),
        outputs=(_hidden(0, width, itemsize),),
        groups=(Group("embed.w", params, itemsize),),
        keeps=("x",),
        pending=Kept(fixed=(INTENSITIES + PIXELS) * width * itemsize),
    )


def _block(name: str, i: int, width: int, heads: int, itemsize: int, tp: int) -> tuple[Item, ...]:
    """One attention (`heads` > 0) or feed-forward block, between f and g where it is split."""
    x, y = _hidden(i, width, itemsize), _hidden(i + 1, width, itemsize)
    make = _attention if heads else _feed_forward
    if tp == 1:
        return (make(name, x, y, heads, itemsize, tp),)
    entered = Tensor(f"{x.name}.in", x.shape, itemsize, grad=_PARTIAL_TP)
    part = Tensor(f"{y.name}.part", y.shape, itemsize, layout=_PARTIAL_TP)
    f = Exchange(f"{name}.f", Axis.TP, x, entered, None, Kind.ALL_REDUCE)
    g = Exchange(f"{name}.g", Axis.TP, part, y, Kind.ALL_REDUCE, None)
    return (f, make(name, entered, part, heads, itemsize, tp), g)


def _groups(name: str, split: tuple[Param, ...], whole: tuple[Param, ...], itemsize: int, tp: int) -> tuple[Group, ...]:
    if tp == 1:
        return (Group(f"{name}.w", (*split, *whole), itemsize),)
    return (
        Group(f"{name}.w", split, itemsize, _SHARDED_TP, _SHARDED_TP, tp),
        Group(f"{name}.norm", whole, itemsize, REPLICATED, _PARTIAL_TP),
    )


def _norm_params(width: int, bias: str) -> tuple[Param, ...]:
    return (Param("norm.weight", (width,)), Param("norm.bias", (width,)), Param(bias, (width,)))


def _attention(name: str, x: Tensor, y: Tensor, heads: int, itemsize: int, tp: int) -> Segment:
    s, h = x.shape
    columns = tuple(param for n in "qkv" for param in (Param(f"{n}.weight", (h, h), 0), Param(f"{n}.bias", (h,), 0)))
    linear, core = 8 * s * h * h // tp, 4 * s * s * h // tp
    return Segment(
        name=name,
        block=Block.ATTENTION,
        inputs=(x,),
        outputs=(y,),
        groups=_groups(name, (*columns, Param("out.weight", (h, h), 1)), _norm_params(h, "out.bias"), itemsize, tp),
        keeps=(x.name,),
        saved=Kept(itemsize * (2 * s + s * h + 4 * s * h // tp + heads * s * s // tp)),
        pending=Kept(itemsize * (2 * s * h + 4 * s * h // tp), fixed=itemsize * 3 * h),
        flops=Flops(linear + core, linear + 2 * core, linear),
        options=(("heads", heads), ("tp", tp)),
    )


def _feed_forward(name: str, x: Tensor, y: Tensor, _heads: int, itemsize: int, tp: int) -> Segment:
    s, h = x.shape
    inner = GROWTH * h
    up = (Param("up.weight", (inner, h), 0), Param("up.bias", (inner,), 0), Param("down.weight", (h, inner), 1))
    linear = 4 * s * h * inner // tp
    return Segment(
        name=name,
        block=Block.FEED_FORWARD,
        inputs=(x,),
        outputs=(y,),
        groups=_groups(name, up, _norm_params(h, "down.bias"), itemsize, tp),
        keeps=(x.name,),
        saved=Kept(itemsize * (2 * s + s * h + 2 * s * inner // tp)),
        pending=Kept(itemsize * (2 * s * h + 2 * s * inner // tp), fixed=itemsize * 3 * h),
        flops=Flops(linear, linear, linear),
        options=(("tp", tp),),
    )


def _classifier(x: Tensor, target: Tensor, itemsize: int) -> Segment:
    s, h = x.shape
    params = (
        Param("norm.weight", (h,)),
        Param("norm.bias", (h,)),
        Param("weight", (CLASSES, h)),
        Param("bias", (CLASSES,)),
    )
    flops = 2 * h * CLASSES
    return Segment(
        name="head",
        block=Block.TOKEN_CLASSIFIER,
        inputs=(x, target),
        outputs=(loss_tensor(itemsize),),
        groups=(Group("head.w", params, itemsize),),
        keeps=(x.name, "target"),
        saved=Kept(itemsize * (2 * s + h + CLASSES), fixed=itemsize),
        pending=Kept(itemsize * (h + CLASSES), fixed=itemsize * 2 * h),
        flops=Flops(flops, flops, flops),
    )
