"""A multi-layer perceptron on the digits: the smallest model on which every schedule can be checked."""

from pdlab.models.digits import CLASSES, PIXELS, TARGET, loss_tensor
from pdlab.models.linear import linear
from pdlab.models.linears import linears
from pdlab.models.model import Model
from pdlab.models.spec import Block, Feed, Flops, Group, Item, Kept, Param, Segment, Tensor
from pdlab.models.split import Split, check_degree
from pdlab.named import named


def mlp(*, width: int = 64, depth: int = 8, itemsize: int = 4, tp: int = 1, split: str = "tensor") -> Model:
    """`depth` linear layers: pixels to `width`, then ReLU and linear, and a classifier with its loss at the end.

    Over `tp` > 1 ranks the linears are split by columns and by rows in turn (`tensor`), all by columns or all by rows.
    """
    if depth < 2 or width < 1:
        raise ValueError(f"depth {depth}, width {width}: an MLP needs a depth of at least 2 and a width of at least 1")
    how = named(Split, split)
    check_degree(tp)
    layers = linears(width, depth, itemsize, tp, how) if tp > 1 else _whole(width, depth, itemsize)
    first = layers[0][0]
    assert isinstance(first, Segment)
    said: tuple[tuple[str, int | str], ...] = (("width", width), ("depth", depth), ("itemsize", itemsize))
    recipe = ("mlp", (*said, *((("tp", tp), ("split", split)) if tp > 1 else ())))
    return Model(recipe, layers, (first.inputs[0], TARGET), itemsize, tp=tp, split=how if tp > 1 else None)


def _whole(width: int, depth: int, itemsize: int) -> tuple[tuple[Item, ...], ...]:
    x = Tensor("x", (PIXELS,), itemsize, grad=None, feed=Feed.SCALED_PIXELS)
    first = linear("fc0", x, Tensor("h1", (width,), itemsize), (linear_group("fc0", width, PIXELS, itemsize),))
    hidden = [
        linear(
            f"fc{i}",
            Tensor(f"h{i}", (width,), itemsize),
            Tensor(f"h{i + 1}", (width,), itemsize),
            (linear_group(f"fc{i}", width, width, itemsize),),
            relu=True,
        )
        for i in range(1, depth - 1)
    ]
    last = classifier("head", Tensor(f"h{depth - 1}", (width,), itemsize), TARGET, itemsize)
    return tuple((s,) for s in (first, *hidden, last))


def linear_group(segment: str, fan_out: int, fan_in: int, itemsize: int) -> Group:
    return Group(f"{segment}.w", (Param("weight", (fan_out, fan_in)), Param("bias", (fan_out,))), itemsize)


def classifier(name: str, x: Tensor, target: Tensor, itemsize: int) -> Segment:
    """ReLU, linear to the classes, cross-entropy summed over the samples (the seed of the backward divides by the
    batch)."""
    fan_in = x.shape[0]
    flops = 2 * fan_in * CLASSES
    return Segment(
        name=name,
        block=Block.CLASSIFIER,
        inputs=(x, target),
        outputs=(loss_tensor(itemsize),),
        groups=(linear_group(name, CLASSES, fan_in, itemsize),),
        keeps=("target",),
        saved=Kept(per_row=(fan_in + CLASSES) * itemsize, fixed=itemsize),
        pending=Kept(per_row=(fan_in + CLASSES) * itemsize),
        flops=Flops(flops, flops, flops),
    )
