"""Linear and convolution whose weight gradient can wait.

A backward split into two autograd calls does a quarter of the work twice. Here one backward finds the input gradient
and hands the rest to the tape, which does it at once for `B` and later for `W`: I and W together do exactly the work
of B (Qi et al. 2024, "Zero Bubble Pipeline Parallelism", arXiv:2401.10241, section 2). Nor does the first half look at
the layer's input, which need not be there until the second.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import grad

from pdlab.tape import Tape


def linear(tape: Tape, x: Tensor, weights: Mapping[str, Tensor], name: str = "") -> Tensor:
    """x W^T + b for `{name}weight` and, if there is one, `{name}bias`; x [..., in], result [..., out]."""
    return _Linear.apply(x, weights[f"{name}weight"], weights.get(f"{name}bias"), tape, name)


def convolution(tape: Tape, x: Tensor, weight: Tensor) -> Tensor:
    """Same-size convolution without bias; x [n, in, h, w], weight [out, in, k, k] with odd k, result [n, out, h, w]."""
    return _Convolution.apply(x, weight, tape)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, tape: Tape, name: str) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.x = tape.pack(x.detach())
        ctx.tape, ctx.name, ctx.has_bias = tape, name, bias is not None
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        name, has_bias = ctx.name, ctx.has_bias

        def rule(x: Tensor, dy: Tensor) -> dict[str, Tensor]:
            rows = dy.reshape(-1, dy.shape[-1])
            bias = {f"{name}bias": rows.sum(0)} if has_bias else {}
            return {f"{name}weight": rows.T @ x.reshape(-1, x.shape[-1]), **bias}

        ctx.tape.weight_gradient(rule, ctx.x, dy)
        return (dy @ weight if ctx.needs_input_grad[0] else None), None, None, None, None


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, tape: Tape) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.x, ctx.shape = tape.pack(x.detach()), x.shape
        ctx.tape, ctx.padding = tape, weight.shape[-1] // 2
        return torch.nn.functional.conv2d(x, weight, padding=ctx.padding)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        padding, shape = ctx.padding, weight.shape

        def rule(x: Tensor, dy: Tensor) -> dict[str, Tensor]:
            return {"weight": grad.conv2d_weight(x, shape, dy, padding=padding)}

        ctx.tape.weight_gradient(rule, ctx.x, dy)
        dx = grad.conv2d_input(ctx.shape, weight, dy, padding=padding) if ctx.needs_input_grad[0] else None
        return dx, None, None
