"""A transformer block over a tensor group: norm, column-parallel, row-parallel, residual, with collectives between.

    tensor      x     norm  u  |f: -         / all-reduce    |  heads  part  |g: all-reduce     / -         |  z  + x
    sequence    x_i   norm u_i |all-gather   / reduce-scatter|  heads  part  |reduce-scatter    / all-gather|  z_i + x_i

(forward / backward.) The two differ in nothing but the layout between the blocks: the whole hidden state on each
rank, or each rank's own tokens (Shoeybi et al. 2019, arXiv:1909.08053, section 3; Korthikanti et al. 2022,
arXiv:2205.05198, section 4.2). The exchanges are called f and g in both, as in the first paper; the second writes f bar
for its g, and g and g bar for what takes the places of the two.

The row-parallel bias comes after the sum, so it is added once with a whole gradient (the linears of
`pdlab.models.linears` add a t-th of it inside the sum instead). Of split tokens each rank finds a part of the
gradients of gains and biases, to be summed over the group.

A rank holds s b h (10 + 24 / t + 5 a s / (h t)) bytes of a layer with tensor parallelism and
s b h / t (34 + 5 a s / h) with both (equations 2 and 4 there, for e = 2).
"""

from collections.abc import Callable

from pdlab.models.dimensions import GROWTH, STATISTICS, Dimensions
from pdlab.models.exchanges import PARTIAL_SUM, WHOLE, along, exchange
from pdlab.models.spec import Block, Flops, Group, Item, Kept, Param, Segment, Tensor


def attention(sizes: Dimensions, name: str, x: Tensor, y: Tensor) -> tuple[Item, ...]:
    """This rank's heads of multi-head attention."""
    s, h, t, e = sizes.tokens, sizes.width, sizes.tp, sizes.itemsize
    columns = tuple(param for n in "qkv" for param in (Param(f"{n}.weight", (h, h), 0), Param(f"{n}.bias", (h,), 0)))
    linear, core = 8 * s * h * h // t, 4 * s * s * h // t
    return _block(sizes, name, x, y, "out.bias", lambda u, part: Segment(
        name=f"{name}.heads",
        block=Block.HEADS,
        inputs=(u, *sizes.drop()),
        outputs=(part,),
        groups=(_sharded(f"{name}.w", (*columns, Param("out.weight", (h, h), 1)), sizes),),
        keeps=(u.name,),
        late=(u.name,),
        saved=sizes.attention_kept(),
        pending=Kept(e * (s * h + 4 * s * h // t)),
        flops=Flops(linear + core, linear + 2 * core, linear),
        options=(("heads", sizes.heads // t), *sizes.rates),
        layer=name,
    ))  # fmt: skip


def feed_forward(sizes: Dimensions, name: str, x: Tensor, y: Tensor) -> tuple[Item, ...]:
    """This rank's share of the inner neurons."""
    s, h, t, e = sizes.tokens, sizes.width, sizes.tp, sizes.itemsize
    inner = GROWTH * h
    params = (Param("up.weight", (inner, h), 0), Param("up.bias", (inner,), 0), Param("down.weight", (h, inner), 1))
    linear = 4 * s * h * inner // t
    return _block(sizes, name, x, y, "down.bias", lambda u, part: Segment(
        name=f"{name}.neurons",
        block=Block.NEURONS,
        inputs=(u,),
        outputs=(part,),
        groups=(_sharded(f"{name}.w", params, sizes),),
        keeps=(u.name,),
        late=(u.name,),
        saved=Kept(e * 2 * s * inner // t),
        pending=Kept(e * (s * h + 2 * s * inner // t)),
        flops=Flops(linear, linear, linear),
        layer=name,
    ))  # fmt: skip


def _sharded(name: str, params: tuple[Param, ...], sizes: Dimensions) -> Group:
    return Group(name, params, sizes.itemsize, along(0), along(0), sizes.tp)


def whole(name: str, params: tuple[Param, ...], sizes: Dimensions) -> Group:
    """Weights that every rank has all of, for segments between the blocks."""
    return Group(name, params, sizes.itemsize, WHOLE, PARTIAL_SUM if sizes.sharded else WHOLE)


def _block(
    sizes: Dimensions, name: str, x: Tensor, y: Tensor, bias: str, inside: Callable[[Tensor, Tensor], Segment]
) -> tuple[Item, ...]:
    normed, entered = sizes.hidden(f"{name}.u"), sizes.hidden(f"{name}.u.in", WHOLE, PARTIAL_SUM)
    part, summed = sizes.hidden(f"{name}.part", PARTIAL_SUM, WHOLE), sizes.hidden(f"{name}.z")
    return (
        _norm(sizes, name, x, normed),
        exchange(f"{name}.f", normed, entered),
        inside(entered, part),
        exchange(f"{name}.g", part, summed),
        _residual(sizes, name, (x, summed), y, bias),
    )


def _norm(sizes: Dimensions, name: str, x: Tensor, y: Tensor) -> Segment:
    s, h, e = sizes.own_tokens, sizes.width, sizes.itemsize
    return Segment(
        name=f"{name}.norm",
        block=Block.NORM,
        inputs=(x,),
        outputs=(y,),
        groups=(whole(f"{name}.norm.w", (Param("norm.weight", (h,)), Param("norm.bias", (h,))), sizes),),
        keeps=(x.name,),
        saved=Kept(e * STATISTICS * s),
        pending=Kept(fixed=e * 2 * h),
        layer=name,
    )


def _residual(sizes: Dimensions, name: str, inputs: tuple[Tensor, Tensor], y: Tensor, bias: str) -> Segment:
    return Segment(
        name=f"{name}.add",
        block=Block.RESIDUAL,
        inputs=(*inputs, *sizes.drop()),
        outputs=(y,),
        groups=(whole(f"{name}.{bias}", (Param(bias, (sizes.width,)),), sizes),),
        saved=Kept(sizes.mask(sizes.own_tokens)),
        pending=Kept(fixed=sizes.itemsize * sizes.width),
        options=(("tokens", sizes.tokens), *sizes.rates),
        layer=name,
    )
