"""A small transformer that reads the 64 pixels of a digit as 64 tokens, whole or split over a tensor group.

Whole, each block is one segment. What it holds for the backward is e s b h (16 + 2 a s / h) + s b h (2 + a s / h) bytes
for a layer with dropout, and e s b h (16 + a s / h) without (Korthikanti et al. 2022, arXiv:2205.05198, section 4,
for any element size e; the paper's s b h (34 + 5 a s / h) is e = 2), plus the statistics of the norms, which the
paper neglects. `pdlab.models.megatron` has the split form.
"""

from pdlab.models import megatron, vocabulary
from pdlab.models.digits import CLASSES, INTENSITIES, PIXELS, TARGET, TOKENS, loss_tensor
from pdlab.models.dimensions import GROWTH, STATISTICS, Dimensions
from pdlab.models.model import Model
from pdlab.models.spec import Block, Feed, Flops, Group, Item, Kept, Param, Segment, Tensor
from pdlab.models.split import Split
from pdlab.named import named


def transformer(
    *,
    width: int = 32,
    depth: int = 3,
    heads: int = 4,
    itemsize: int = 4,
    tp: int = 1,
    split: str = "tensor",
    dropout: float = 0.0,
    smoothing: float = 0.0,
    tokens: int = PIXELS,
) -> Model:
    """`depth` blocks of attention and feed-forward between an embedding and a classifier: 2 depth + 2 layers.

    `split` says what is split over `tp` ranks: `tensor`, or `sequence`, where the tokens between the blocks are split
    too. `smoothing` is that of the labels. With other than 64 tokens it can be predicted, not run. ValueError with the
    numbers for heads, widths and tokens that do not divide.
    """
    if depth < 1:
        raise ValueError(f"depth {depth}; give at least 1")
    sizes = Dimensions(tokens, width, heads, itemsize, tp, named(Split, split), dropout, smoothing)
    layers = _split(sizes, depth) if tp > 1 else _whole(sizes, depth)
    said = {"width": width, "depth": depth, "heads": heads, "itemsize": itemsize, "tp": tp}
    more: dict[str, float | str] = {"split": split, "dropout": dropout, "smoothing": smoothing, "tokens": tokens}
    usual = {"split": "tensor", "dropout": 0.0, "smoothing": 0.0, "tokens": PIXELS}
    recipe: dict[str, float | str] = {**said, **{name: value for name, value in more.items() if value != usual[name]}}
    blocks = tuple((2 * i + 1, 2 * i + 2) for i in range(depth))
    feeds = (_tokens(sizes), TARGET, *sizes.drop())
    shared = sizes.split if tp > 1 else None
    return Model(("transformer", tuple(recipe.items())), layers, feeds, itemsize, repeated=blocks, tp=tp, split=shared)


def _split(sizes: Dimensions, depth: int) -> tuple[tuple[Item, ...], ...]:
    blocks = [
        make(sizes, f"{name}{i}", sizes.hidden(f"h{2 * i + turn}"), sizes.hidden(f"h{2 * i + turn + 1}"))
        for i in range(depth)
        for turn, (name, make) in enumerate((("attn", megatron.attention), ("ffn", megatron.feed_forward)))
    ]
    first = vocabulary.embedding(sizes, _tokens(sizes), sizes.hidden("h0"))
    return (first, *blocks, vocabulary.head(sizes, sizes.hidden(f"h{2 * depth}")))


def _whole(sizes: Dimensions, depth: int) -> tuple[tuple[Item, ...], ...]:
    h = [sizes.hidden(f"h{i}") for i in range(2 * depth + 1)]
    blocks = [
        (make(sizes, f"{name}{i}", h[2 * i + turn], h[2 * i + turn + 1]),)
        for i in range(depth)
        for turn, (name, make) in enumerate((("attn", _attention), ("ffn", _feed_forward)))
    ]
    return ((_embedding(sizes, h[0]),), *blocks, (_classifier(sizes, h[-1]),))


def _tokens(sizes: Dimensions) -> Tensor:
    return TOKENS if sizes.tokens == PIXELS else Tensor("x", (sizes.tokens,), 8, grad=None, feed=Feed.TOKENS)


def _embedding(sizes: Dimensions, y: Tensor) -> Segment:
    s, h = y.shape
    params = (Param("token", (INTENSITIES, h)), Param("position", (s, h)))
    return Segment(
        name="embed",
        block=Block.EMBEDDING,
        inputs=(_tokens(sizes),),
        outputs=(y,),
        groups=(Group("embed.w", params, sizes.itemsize),),
        keeps=("x",),
        pending=Kept(fixed=(INTENSITIES + s) * h * sizes.itemsize),
    )


def _norm_params(width: int, bias: str) -> tuple[Param, ...]:
    return (Param("norm.weight", (width,)), Param("norm.bias", (width,)), Param(bias, (width,)))


def _attention(sizes: Dimensions, name: str, x: Tensor, y: Tensor) -> Segment:
    s, h, e = sizes.tokens, sizes.width, sizes.itemsize
    columns = tuple(param for n in "qkv" for param in (Param(f"{n}.weight", (h, h)), Param(f"{n}.bias", (h,))))
    params = (*columns, Param("out.weight", (h, h)), *_norm_params(h, "out.bias"))
    linear, core = 8 * s * h * h, 4 * s * s * h
    return Segment(
        name=name,
        block=Block.ATTENTION,
        inputs=(x, *sizes.drop()),
        outputs=(y,),
        groups=(Group(f"{name}.w", params, e),),
        keeps=(x.name,),
        saved=Kept(e * (STATISTICS * s + s * h) + sizes.attention_kept().per_row + sizes.mask(s)),
        pending=Kept(e * 6 * s * h, fixed=e * 3 * h),
        flops=Flops(linear + core, linear + 2 * core, linear),
        options=(("heads", sizes.heads), *sizes.rates),
    )


def _feed_forward(sizes: Dimensions, name: str, x: Tensor, y: Tensor) -> Segment:
    s, h, e = sizes.tokens, sizes.width, sizes.itemsize
    inner = GROWTH * h
    up = (Param("up.weight", (inner, h)), Param("up.bias", (inner,)), Param("down.weight", (h, inner)))
    linear = 4 * s * h * inner
    return Segment(
        name=name,
        block=Block.FEED_FORWARD,
        inputs=(x, *sizes.drop()),
        outputs=(y,),
        groups=(Group(f"{name}.w", (*up, *_norm_params(h, "down.bias")), e),),
        keeps=(x.name,),
        saved=Kept(e * (STATISTICS * s + s * h + 2 * s * inner) + sizes.mask(s)),
        pending=Kept(e * (2 * s * h + 2 * s * inner), fixed=e * 3 * h),
        flops=Flops(linear, linear, linear),
        options=sizes.rates,
    )


def _classifier(sizes: Dimensions, x: Tensor) -> Segment:
    s, h, e = sizes.tokens, sizes.width, sizes.itemsize
    norm = (Param("norm.weight", (h,)), Param("norm.bias", (h,)))
    flops = 2 * h * CLASSES
    return Segment(
        name="head",
        block=Block.TOKEN_CLASSIFIER,
        inputs=(x, TARGET),
        outputs=(loss_tensor(e),),
        groups=(Group("head.w", (*norm, Param("weight", (CLASSES, h)), Param("bias", (CLASSES,))), e),),
        keeps=(x.name, "target"),
        saved=Kept(e * (STATISTICS * s + h + CLASSES) + bool(sizes.smoothing), fixed=e),
        pending=Kept(e * (h + CLASSES), fixed=e * 2 * h),
        flops=Flops(flops, flops, flops),
        options=(("smoothing", sizes.smoothing),) if sizes.smoothing else (),
    )
