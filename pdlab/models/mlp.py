"""A multi-layer perceptron on the digits: the smallest model on which every schedule can be checked.

With a skip connection the first layer's output is also an input of a later layer: in a pipeline it passes stages that
have no use for it, and its gradient is the sum of what two stages find.
"""

from pdlab.models.digits import CLASSES, PIXELS, TARGET, loss_tensor
from pdlab.models.linear import linear
from pdlab.models.linears import linears
from pdlab.models.model import Model
from pdlab.models.spec import Block, Feed, Flops, Group, Item, Kept, Param, Segment, Tensor
from pdlab.models.split import Split, check_degree
from pdlab.named import named


def mlp(
    *, width: int = 64, depth: int = 8, itemsize: int = 4, tp: int = 1, split: str = "tensor", skip: int = 0
) -> Model:
    """`depth` linear layers: pixels to `width`, then ReLU and linear, and a classifier with its loss at the end.

    Over `tp` > 1 ranks the linears are split by columns and by rows in turn (`tensor`), all by columns or all by rows.
    `skip` is the number of the layer to whose input the output of layer 0 is added, before the ReLU; 0 for none.
    """
    if depth < 2 or width < 1:
        raise ValueError(f"depth {depth}, width {width}: an MLP needs a depth of at least 2 and a width of at least 1")
    how = named(Split, split)
    check_degree(tp)
    _check_skip(skip, depth, tp)
    layers = linears(width, depth, itemsize, tp, how) if tp > 1 else _whole(width, depth, itemsize, skip)
    first = layers[0][0]
    assert isinstance(first, Segment)
    said: tuple[tuple[str, int | str], ...] = (("width", width), ("depth", depth), ("itemsize", itemsize))
    skips = (("skip", skip),) if skip else ()
    recipe = ("mlp", (*said, *((("tp", tp), ("split", split)) if tp > 1 else ()), *skips))
    return Model(recipe, layers, (first.inputs[0], TARGET), itemsize, tp=tp, split=how if tp > 1 else None)


def _check_skip(skip: int, depth: int, tp: int) -> None:
    if type(skip) is not int or (skip and not 2 <= skip < depth):
        layers = f"a layer from 2 to {depth - 1}, or 0 for none" if depth > 2 else "0, or a depth of at least 3"
        raise ValueError(f"skip {skip!r} in an MLP of depth {depth}; give {layers}")
    if skip and tp > 1:
        raise ValueError(f"skip {skip} with tp {tp}: a skip connection cannot be split over a tensor group; take tp 1")


def _whole(width: int, depth: int, itemsize: int, skip: int) -> tuple[tuple[Item, ...], ...]:
    x = Tensor("x", (PIXELS,), itemsize, grad=None, feed=Feed.SCALED_PIXELS)
    h = [x, *(Tensor(f"h{i}", (width,), itemsize) for i in range(1, depth))]
    also = {skip: h[1]} if skip else {}
    first = linear("fc0", x, h[1], (linear_group("fc0", width, PIXELS, itemsize),))
    hidden = [
        linear(
            f"fc{i}",
            h[i],
            h[i + 1],
            (linear_group(f"fc{i}", width, width, itemsize),),
            relu=True,
            skip=also.get(i),
        )
        for i in range(1, depth - 1)
    ]
    last = classifier("head", h[-1], TARGET, itemsize, skip=also.get(depth - 1))
    return tuple((s,) for s in (first, *hidden, last))


def linear_group(segment: str, fan_out: int, fan_in: int, itemsize: int) -> Group:
    return Group(f"{segment}.w", (Param("weight", (fan_out, fan_in)), Param("bias", (fan_out,))), itemsize)


def classifier(name: str, x: Tensor, target: Tensor, itemsize: int, *, skip: Tensor | None = None) -> Segment:
    """ReLU, linear to the classes, cross-entropy summed over the samples (the seed of the backward divides by the
    batch). `skip` is added to x before the ReLU."""
    fan_in = x.shape[0]
    flops = 2 * fan_in * CLASSES
    return Segment(
        name=name,
        block=Block.CLASSIFIER if skip is None else Block.SKIP_CLASSIFIER,
        inputs=(x, target) if skip is None else (x, skip, target),
        outputs=(loss_tensor(itemsize),),
        groups=(linear_group(name, CLASSES, fan_in, itemsize),),
        keeps=("target",),
        saved=Kept(per_row=(fan_in + CLASSES) * itemsize, fixed=itemsize),
        pending=Kept(per_row=(fan_in + CLASSES) * itemsize),
        flops=Flops(flops, flops, flops),
    )
