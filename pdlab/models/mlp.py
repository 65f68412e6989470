"""A multi-layer perceptron on the digits: the smallest model on which every schedule can be checked."""

from pdlab.models.spec import Block, Feed, Flops, Group, Kept, Model, Param, Segment, Tensor

PIXELS, CLASSES = 64, 10


def mlp(*, width: int = 64, depth: int = 8, itemsize: int = 4) -> Model:
    """`depth` linear layers: pixels to `width`, then ReLU and linear, and a classifier with its loss at the end."""
    if depth < 2 or width < 1:
        raise ValueError(f"depth {depth}, width {width}: an MLP needs a depth of at least 2 and a width of at least 1")
    feeds = (
        Tensor("x", (PIXELS,), itemsize, grad=None, feed=Feed.SCALED_PIXELS),
        Tensor("target", (), 8, grad=None, feed=Feed.LABELS),
    )
    first = _linear("fc0", Block.LINEAR, feeds[0], width, itemsize)
    hidden = [
        _linear(f"fc{i}", Block.RELU_LINEAR, Tensor(f"h{i}", (width,), itemsize), width, itemsize)
        for i in range(1, depth - 1)
    ]
    last = classifier("head", Tensor(f"h{depth - 1}", (width,), itemsize), feeds[1], itemsize)
    recipe = ("mlp", (("width", width), ("depth", depth), ("itemsize", itemsize)))
    return Model(recipe, tuple((s,) for s in (first, *hidden, last)), feeds, itemsize)


def _linear(name: str, block: Block, x: Tensor, width: int, itemsize: int) -> Segment:
    index = int(name.removeprefix("fc"))
    fan_in = x.shape[0]
    relu = block is Block.RELU_LINEAR
    flops = 2 * fan_in * width
    return Segment(
        name=name,
        block=block,
        inputs=(x,),
        outputs=(Tensor(f"h{index + 1}", (width,), itemsize),),
        groups=(linear_group(name, width, fan_in, itemsize),),
        keeps=() if relu else (x.name,),
        saved=Kept(per_row=fan_in * itemsize if relu else 0),
        pending=Kept(per_row=(width + (fan_in if relu else 0)) * itemsize),
        flops=Flops(flops, flops if x.grad is not None else 0, flops),
    )


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


def loss_tensor(itemsize: int) -> Tensor:
    return Tensor("loss", (), itemsize, per_row=False)
