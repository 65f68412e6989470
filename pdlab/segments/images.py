"""Convolutions with BatchNorm."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, relu

from pdlab.layers import convolution, linear
from pdlab.segments.frame import Frame, Weights

MOMENTUM = 0.1


def convolved(frame: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    (x,) = inputs
    maps = convolution(frame.tape, relu(x) if frame.option("relu") else x, w["weight"])
    if frame.running is not None:
        keep_up(frame.running, maps)
    return (torch.nn.functional.batch_norm(maps, None, None, w["norm.weight"], w["norm.bias"], training=True),)


@torch.no_grad()
def keep_up(running: Tensor, maps: Tensor) -> None:
    """Move mean and variance a tenth of the way to those of these maps [n, channels, side, side], as
    `torch.nn.BatchNorm2d` does."""
    seen = torch.stack([maps.mean((0, 2, 3)), maps.var((0, 2, 3))])
    running.lerp_(seen.to(running.dtype), MOMENTUM)


def classifier(frame: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    x, target = inputs
    return (cross_entropy(linear(frame.tape, relu(x).mean((2, 3)), w), target, reduction="sum"),)
