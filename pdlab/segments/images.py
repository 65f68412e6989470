"""Convolutions with BatchNorm."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, relu

from pdlab.layers import convolution, linear
from pdlab.segments.frame import Frame, Weights


def convolved(frame: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    (x,) = inputs
    maps = convolution(frame.tape, relu(x) if frame.option("relu") else x, w["weight"])
    return (torch.nn.functional.batch_norm(maps, None, None, w["norm.weight"], w["norm.bias"], training=True),)


def classifier(frame: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    x, target = inputs
    return (cross_entropy(linear(frame.tape, relu(x).mean((2, 3)), w), target, reduction="sum"),)
