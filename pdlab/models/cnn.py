"""A small convolutional network with BatchNorm.

BatchNorm normalises with the statistics of the rows it sees, so a network cut into microbatches or spread over
data-parallel ranks is a different function from the same network on the whole batch. Where the whole batch is one
microbatch on one rank, gradients equal the reference.

Its running statistics come with the result of a run (`Result.running`; a training does not keep them). They are no
weights: no gradient, no version, nothing to stash. Each rank has its own, and every forward adds its minibatch once, in
the order in which they come; a backward, with whatever weights, and a forward that is run again leave them alone.
"""

from pdlab.models.digits import CLASSES, TARGET, loss_tensor
from pdlab.models.mlp import linear_group
from pdlab.models.model import Model
from pdlab.models.spec import Block, Feed, Flops, Group, Kept, Param, Segment, Tensor

SIDE = 8
KERNEL = 3


def cnn(*, width: int = 8, depth: int = 4, itemsize: int = 4) -> Model:
    """`depth` - 1 convolutions of `width` channels on 8 x 8 images, each with BatchNorm, and a classifier."""
    if depth < 2 or width < 1:
        raise ValueError(f"depth {depth}, width {width}: a CNN needs a depth of at least 2 and a width of at least 1")
    feeds = (Tensor("x", (1, SIDE, SIDE), itemsize, grad=None, feed=Feed.SCALED_PIXELS), TARGET)
    maps = [feeds[0], *(Tensor(f"h{i}", (width, SIDE, SIDE), itemsize) for i in range(1, depth))]
    convolutions = [_convolution(i, maps[i], maps[i + 1], itemsize) for i in range(depth - 1)]
    layers = tuple((s,) for s in (*convolutions, _classifier(maps[-1], feeds[1], itemsize)))
    return Model(("cnn", (("width", width), ("depth", depth), ("itemsize", itemsize))), layers, feeds, itemsize)


def _convolution(i: int, x: Tensor, y: Tensor, itemsize: int) -> Segment:
    """ReLU (but for the first), 3 x 3 convolution without bias, BatchNorm."""
    first = x.grad is None
    fan_in, channels, area = x.shape[0], y.shape[0], SIDE * SIDE
    flops = 2 * area * fan_in * channels * KERNEL * KERNEL
    params = (
        Param("weight", (channels, fan_in, KERNEL, KERNEL)),
        Param("norm.weight", (channels,)),
        Param("norm.bias", (channels,)),
    )
    rectified = 0 if first else fan_in * area
    return Segment(
        name=f"conv{i}",
        block=Block.CONVOLUTION,
        inputs=(x,),
        outputs=(y,),
        groups=(Group(f"conv{i}.w", params, itemsize),),
        keeps=(x.name,) if first else (),
        saved=Kept(itemsize * (rectified + channels * area), fixed=itemsize * 2 * channels),
        pending=Kept(itemsize * (rectified + channels * area), fixed=itemsize * 2 * channels),
        flops=Flops(flops, 0 if first else flops, flops),
        options=(("relu", int(not first)),),
        running=channels,
    )


def _classifier(x: Tensor, target: Tensor, itemsize: int) -> Segment:
    """ReLU, mean over the pixels, linear, cross-entropy."""
    channels, area = x.shape[0], SIDE * SIDE
    flops = 2 * channels * CLASSES
    return Segment(
        name="head",
        block=Block.IMAGE_CLASSIFIER,
        inputs=(x, target),
        outputs=(loss_tensor(itemsize),),
        groups=(linear_group("head", CLASSES, channels, itemsize),),
        keeps=("target",),
        saved=Kept(itemsize * (channels * area + channels + CLASSES), fixed=itemsize),
        pending=Kept(itemsize * (channels + CLASSES)),
        flops=Flops(flops, flops, flops),
    )
