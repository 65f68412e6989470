"""A router, its experts, and what puts their answers together."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import relu, softmax

from pdlab.layers import linear
from pdlab.segments.frame import Frame, Weights


def router(frame: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    """Rows sorted by expert, the gate of each, where each row went, and how many go to each expert."""
    (h,) = inputs
    gates, chosen = softmax(linear(frame.tape, h, w), -1).max(-1, keepdim=True)
    order = torch.argsort(chosen.squeeze(-1), stable=True)
    counts = torch.bincount(chosen.squeeze(-1), minlength=frame.option("experts"))
    return h[order], gates[order], torch.argsort(order), counts


def expert(frame: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    return (linear(frame.tape, relu(linear(frame.tape, inputs[0], w, "up.")), w, "down."),)


def combine(_: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    returned, gate, place = inputs
    return ((returned * gate)[place],)
