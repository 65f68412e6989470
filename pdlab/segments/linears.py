"""Linears, whole, by columns and by rows, and their losses."""

from collections.abc import Sequence

from torch import Tensor
from torch.nn.functional import cross_entropy, relu

from pdlab.layers import linear
from pdlab.segments.frame import Frame, Weights


def plain(frame: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    """Also a column-parallel one, of which each rank has its columns."""
    return (linear(frame.tape, inputs[0], w),)


def rectified(frame: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    return (linear(frame.tape, relu(inputs[0]), w),)


def row_parallel(frame: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    """A part of the sum over the group, to which each rank contributes its share of the bias."""
    (x,) = inputs
    x = relu(x) if frame.option("relu") else x
    return (linear(frame.tape, x, {"weight": w["weight"]}) + w["bias"] / frame.option("tp"),)


def classifier(frame: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    x, target = inputs
    return (cross_entropy(linear(frame.tape, relu(x), w), target, reduction="sum"),)


def skipped(frame: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    """A rectified one of two inputs' sum."""
    x, skip = inputs
    return rectified(frame, (x + skip,), w)


def skipped_classifier(frame: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    x, skip, target = inputs
    return classifier(frame, (x + skip, target), w)


def loss(_: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    logits, target = inputs
    return (cross_entropy(logits, target, reduction="sum"),)
