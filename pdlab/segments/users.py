"""A module of the user's own."""

from collections.abc import Sequence

from torch import Tensor, float32
from torch.nn.functional import cross_entropy

from pdlab.modules import call, loaded
from pdlab.segments.frame import Frame, Weights


def module(frame: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    """What the module makes; after the last one the loss."""
    x, *target = inputs
    dtype = next(iter(w.values()), x).dtype
    segment = frame.segment
    modules = loaded(segment.code, segment.option("stamp"), dtype if dtype.is_floating_point else float32)
    y = call(modules[segment.option("index")], frame.tape, x, w)
    return (cross_entropy(y, target[0], reduction="sum") if target else y,)
