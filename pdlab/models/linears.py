"""A chain of linears over a tensor group: each split by columns, each by rows, or the two in turn.

    column   y_i = x W_i^T + b_i       Every rank has all of x and makes its columns of y: forward, nothing moves.
                                       Backward, each finds a part of dx, and the parts are summed (ALL_REDUCE).
    row      y = sum_i x_i W_i^T + b   Every rank has its columns of x and makes a part of y, and the parts are summed
                                       (ALL_REDUCE). Backward, dx_i = dy W_i: nothing moves.
    tensor   column, then row          The columns that the first makes are the columns that the second takes.

(Shoeybi et al. 2019, arXiv:1909.08053, section 3.) Alone, a column-parallel linear leaves an output to be gathered, and
a row-parallel one wants an input to be split first, whose gradient is then gathered: that is where the collectives come
from that are often said to be part of the linears. The row-parallel bias is contributed as 1/t by each rank inside the
sum, so each rank finds a part of its gradient.
"""

from pdlab.models.digits import CLASSES, PIXELS, TARGET, loss_tensor
from pdlab.models.exchanges import PARTIAL_SUM, WHOLE, along, exchange
from pdlab.models.linear import linear
from pdlab.models.spec import Block, Feed, Group, Item, Kept, Param, Segment, Tensor
from pdlab.models.split import Split, check_degree, check_divides
from pdlab.models.vocabulary import classifier


def linears(width: int, depth: int, itemsize: int, tp: int, split: Split) -> tuple[tuple[Item, ...], ...]:
    """The layers of an MLP over `tp` > 1 ranks; `layers[0][0]` is the segment that is fed."""
    check_degree(tp)
    check_divides("width", width, tp)
    if split is Split.ROW:
        check_divides("pixels", PIXELS, tp)
    if split is Split.SEQUENCE:
        raise ValueError("an mlp has no split 'sequence', since it has no tokens; use tensor, column or row")
    layers: list[tuple[Item, ...]] = []
    x = _pixels(itemsize, tp, split)
    for i in range(depth):
        out = None if i == depth - 1 else width
        if _by_rows(i, split):
            items = _row(i, x, out, itemsize, tp)
        else:
            items = _column(i, x, out, itemsize, tp, gathered=not _by_rows(i + 1, split))
        layers.append(items)
        x = _result(items[-1])
    return tuple(layers)


def _by_rows(i: int, split: Split) -> bool:
    return split is Split.ROW or (split is Split.TENSOR and i % 2 == 1)


def _pixels(itemsize: int, tp: int, split: Split) -> Tensor:
    """All pixels of a sample, or each rank's own."""
    layout, size = (along(1), PIXELS // tp) if split is Split.ROW else (WHOLE, PIXELS)
    return Tensor("x", (size,), itemsize, layout, grad=None, feed=Feed.SCALED_PIXELS)


def _result(item: Item) -> Tensor:
    return item.outputs[0] if isinstance(item, Segment) else item.result


def _name(i: int, width: int | None) -> str:
    return f"fc{i}" if width is not None else "head"


def _column(i: int, x: Tensor, width: int | None, itemsize: int, tp: int, *, gathered: bool) -> tuple[Item, ...]:
    name = _name(i, width)
    entered = Tensor(f"{x.name}.in", x.shape, itemsize, WHOLE, PARTIAL_SUM) if i else x
    before = (exchange(f"{name}.f", x, entered),) if i else ()
    if width is None:
        return (*before, *classifier(name, entered, tp, itemsize, relu=bool(i)))
    whole = Tensor(f"h{i + 1}", (width,), itemsize)
    own = Tensor(f"h{i + 1}.own" if gathered else f"h{i + 1}", (width // tp,), itemsize, along(1), along(1))
    items = (*before, linear(name, entered, own, (_columns(name, width, x.shape[0], itemsize, tp),), relu=bool(i)))
    return (*items, exchange(f"{name}.gather", own, whole)) if gathered else items


def _columns(name: str, width: int, fan_in: int, itemsize: int, tp: int) -> Group:
    params = (Param("weight", (width, fan_in), 0), Param("bias", (width,), 0))
    return Group(f"{name}.w", params, itemsize, along(0), along(0), tp)


def _row(i: int, x: Tensor, width: int | None, itemsize: int, tp: int) -> tuple[Item, ...]:
    name, out = _name(i, width), CLASSES if width is None else width
    split_already = x.layout == along(1)
    own = x if split_already else Tensor(f"{x.name}.own", (x.shape[0] // tp,), itemsize, along(1), along(1))
    y = "logits" if width is None else f"h{i + 1}"
    part, whole = Tensor(f"{y}.part", (out,), itemsize, PARTIAL_SUM, WHOLE), Tensor(y, (out,), itemsize)
    weight = Group(f"{name}.w", (Param("weight", (out, own.shape[0] * tp), 1),), itemsize, along(0), along(0), tp)
    bias = Group(f"{name}.bias", (Param("bias", (out,)),), itemsize, WHOLE, PARTIAL_SUM)
    before = () if split_already else (exchange(f"{name}.cut", x, own),)
    after = exchange(f"{name}.g", part, whole)
    rows = linear(name, own, part, (weight, bias), relu=bool(i), rows=tp)
    return (*before, rows, after, *((_cross_entropy(whole, itemsize),) if width is None else ()))


def _cross_entropy(logits: Tensor, itemsize: int) -> Segment:
    return Segment(
        name="loss",
        block=Block.CROSS_ENTROPY,
        inputs=(logits, TARGET),
        outputs=(loss_tensor(itemsize),),
        keeps=("target",),
        saved=Kept(CLASSES * itemsize, fixed=itemsize),
    )
