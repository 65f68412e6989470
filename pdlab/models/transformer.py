"""A small transformer that reads the 64 pixels of a digit as 64 tokens, whole or split over a tensor group.

Whole, each block is one segment. What it holds for the backward is e s b h (16 + 2 a s / h) + s b h (2 + a s / h) bytes
for a layer with dropout, and e s b h (16 + a s / h) without (Korthikanti et al. 2022, arXiv:2205.05198, section 4,
for any element size e; the paper's s b h (34 + 5 a s / h) is e = 2), plus the statistics of the norms, which the
paper neglects. `pdlab.models.megatron` has the split form.

Tied, the matrix whose rows are the tokens' vectors is that of the classifier too (Press and Wolf 2017,
arXiv:1608.05859), so the first stage and the last hold copies of one group of weights. Masked, each sample has a length
of its own, and what follows is padding that the attention and the mean over the tokens pass over; it takes its FLOP and
its bytes all the same.
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
    tied: int = 0,
    masked: int = 0,
) -> Model:
    """`depth` blocks of attention and feed-forward between an embedding and a classifier: 2 depth + 2 layers.

    `split` says what is split over `tp` ranks: `tensor`, or `sequence`, where the tokens between the blocks are split
    too. `smoothing` is that of the labels. With other than 64 tokens it can be predicted, not run. With `tied` 1 the
    classes are the 17 intensities and their matrix is the embedding's; with `masked` 1 samples have lengths. ValueError
    with the numbers for heads, widths and tokens that do not divide, and for either of the two over a tensor group.
    """
    if depth < 1:
        raise ValueError(f"depth {depth}; give at least 1")
    sizes = Dimensions(tokens, width, heads, itemsize, tp, named(Split, split), dropout, smoothing, tied, masked)
    layers = _split(sizes, depth) if tp > 1 else _whole(sizes, depth)
    blocks = tuple((2 * i + 1, 2 * i + 2) for i in range(depth))
    feeds = (_tokens(sizes), TARGET, *sizes.lengths(), *sizes.drop())
    shared = sizes.split if tp > 1 else None
    recipe = ("transformer", _recipe(sizes, depth, split))
    return Model(recipe, layers, feeds, itemsize, repeated=blocks, tp=tp, split=shared)


USUAL: dict[str, float | str] = {
    "split": "tensor",
    "dropout": 0.0,
    "smoothing": 0.0,
    "tokens": PIXELS,
    "tied": 0,
    "masked": 0,
}
"""What a recipe leaves out."""


def _recipe(sizes: Dimensions, depth: int, split: str) -> tuple[tuple[str, float | str], ...]:
    said = {"width": sizes.width, "depth": depth, "heads": sizes.heads, "itemsize": sizes.itemsize, "tp": sizes.tp}
    more = {"split": split, **{name: getattr(sizes, name) for name in USUAL if name != "split"}}
    return tuple((said | {name: value for name, value in more.items() if value != USUAL[name]}).items())


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
    (s, h), e = y.shape, sizes.itemsize
    token, position = Param("token", (INTENSITIES, h)), Param("position", (s, h))
    apart = (_shared(sizes), Group("embed.w", (position,), e))
    return Segment(
        name="embed",
        block=Block.EMBEDDING,
        inputs=(_tokens(sizes),),
        outputs=(y,),
        groups=apart if sizes.tied else (Group("embed.w", (token, position), e),),
        keeps=("x",),
        pending=Kept(fixed=(INTENSITIES + s) * h * e),
    )


def _shared(sizes: Dimensions) -> Group:
    """The tokens' vectors, which the embedding reads and the classifier multiplies by."""
    return Group("embed.token", (Param("token", (INTENSITIES, sizes.width)),), sizes.itemsize)


def _norm_params(width: int, bias: str) -> tuple[Param, ...]:
    return (Param("norm.weight", (width,)), Param("norm.bias", (width,)), Param(bias, (width,)))


def _attention(sizes: Dimensions, name: str, x: Tensor, y: Tensor) -> Segment:
    s, h, e = sizes.tokens, sizes.width, sizes.itemsize
    columns = tuple(param for n in "qkv" for param in (Param(f"{n}.weight", (h, h)), Param(f"{n}.bias", (h,))))
    params = (*columns, Param("out.weight", (h, h)), *_norm_params(h, "out.bias"))
    linear, core = 8 * s * h * h, 4 * s * s * h
    return Segment(
        name=name,
        block=Block.MASKED_ATTENTION if sizes.masked else Block.ATTENTION,
        inputs=(x, *sizes.lengths(), *sizes.drop()),
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
    """Tied, the gradient of the matrix is found with that of the input and does not wait for a `W`."""
    s, h, e = sizes.tokens, sizes.width, sizes.itemsize
    classes = INTENSITIES if sizes.tied else CLASSES
    norm, weight = (Param("norm.weight", (h,)), Param("norm.bias", (h,))), Param("weight", (classes, h))
    params = (*norm, *(() if sizes.tied else (weight,)), Param("bias", (classes,)))
    flops = 2 * h * classes
    waiting = Kept(e * (h + classes), fixed=e * 2 * h)
    found = Kept(fixed=e * (2 * h + classes * h + classes))
    padding = s if sizes.masked else 0
    return Segment(
        name="head",
        block=Block.TIED_CLASSIFIER if sizes.tied else Block.TOKEN_CLASSIFIER,
        inputs=(x, TARGET, *sizes.lengths()),
        outputs=(loss_tensor(e),),
        groups=(Group("head.w", params, e), *((_shared(sizes),) if sizes.tied else ())),
        keeps=(x.name, *(t.name for t in (TARGET, *sizes.lengths()))),
        saved=Kept(e * (STATISTICS * s + h + classes) + bool(sizes.smoothing) + padding, fixed=e),
        pending=found if sizes.tied else waiting,
        flops=Flops(flops, 2 * flops) if sizes.tied else Flops(flops, flops, flops),
        options=(("smoothing", sizes.smoothing),) if sizes.smoothing else (),
    )
