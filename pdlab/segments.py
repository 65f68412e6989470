"""The segments of `pdlab.models` in torch: one function per block, from inputs and weights to outputs.

Weights come by name, since in a program they are values with versions and no module owns them. Every function is free
of communication and of side effects. Losses are sums over rows, so that microbatches, ranks and uneven shares simply
add up.
"""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt

import torch
from torch import Tensor, float32
from torch.nn.functional import cross_entropy, gelu, layer_norm, relu, softmax

from pdlab.layers import convolution, linear
from pdlab.models.spec import Block, Segment
from pdlab.modules import call, loaded
from pdlab.tape import Tape

Weights = Mapping[str, Tensor]
Function = Callable[[Segment, Tape, Sequence[Tensor], Weights], tuple[Tensor, ...]]


def run(segment: Segment, tape: Tape, inputs: Sequence[Tensor], weights: Weights) -> tuple[Tensor, ...]:
    """The outputs of a segment, in the order of its specification."""
    return FUNCTIONS[segment.block](segment, tape, inputs, weights)


def _linear(_: Segment, tape: Tape, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    return (linear(tape, inputs[0], w),)


def _relu_linear(_: Segment, tape: Tape, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    return (linear(tape, relu(inputs[0]), w),)


def _classifier(_: Segment, tape: Tape, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    x, target = inputs
    return (cross_entropy(linear(tape, relu(x), w), target, reduction="sum"),)


def _embedding(_: Segment, tape: Tape, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    (tokens,) = inputs
    return (torch.nn.functional.embedding(tokens, w["token"]) + w["position"],)


def _norm(x: Tensor, w: Weights) -> Tensor:
    return layer_norm(x, x.shape[-1:], w["norm.weight"], w["norm.bias"])


def _attention(segment: Segment, tape: Tape, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    """This rank's heads; of the residual and the output bias it contributes 1/tp."""
    (x,) = inputs
    heads, tp = segment.option("heads") // segment.option("tp"), segment.option("tp")
    n, s, _ = x.shape
    normed = _norm(x, w)
    q, k, v = (linear(tape, normed, w, f"{name}.").view(n, s, heads, -1).transpose(1, 2) for name in "qkv")
    scores = q @ k.transpose(-1, -2) / sqrt(q.shape[-1])  # [n, heads, s, s]
    context = (softmax(scores, -1) @ v).transpose(1, 2).reshape(n, s, -1)
    return (_row_parallel(tape, context, x, w, "out.", tp),)


def _feed_forward(segment: Segment, tape: Tape, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    """This rank's share of the inner width; of the residual and the output bias it contributes 1/tp."""
    (x,) = inputs
    inner = gelu(linear(tape, _norm(x, w), w, "up."))
    return (_row_parallel(tape, inner, x, w, "down.", segment.option("tp")),)


def _row_parallel(tape: Tape, inner: Tensor, residual: Tensor, w: Weights, name: str, tp: int) -> Tensor:
    part = linear(tape, inner, {f"{name}weight": w[f"{name}weight"]}, name)
    return part + (residual + w[f"{name}bias"]) / tp


def _token_classifier(_: Segment, tape: Tape, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    x, target = inputs
    return (cross_entropy(linear(tape, _norm(x, w).mean(1), w), target, reduction="sum"),)


def _convolution(segment: Segment, tape: Tape, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    (x,) = inputs
    maps = convolution(tape, relu(x) if segment.option("relu") else x, w["weight"])
    return (torch.nn.functional.batch_norm(maps, None, None, w["norm.weight"], w["norm.bias"], training=True),)


def _image_classifier(_: Segment, tape: Tape, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    x, target = inputs
    return (cross_entropy(linear(tape, relu(x).mean((2, 3)), w), target, reduction="sum"),)


def _router(segment: Segment, tape: Tape, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    """Rows sorted by expert, the gate of each, where each row went, and how many go to each expert."""
    (h,) = inputs
    gates, chosen = softmax(linear(tape, h, w), -1).max(-1, keepdim=True)
    order = torch.argsort(chosen.squeeze(-1), stable=True)
    counts = torch.bincount(chosen.squeeze(-1), minlength=segment.option("experts"))
    return h[order], gates[order], torch.argsort(order), counts


def _expert(_: Segment, tape: Tape, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    return (linear(tape, relu(linear(tape, inputs[0], w, "up.")), w, "down."),)


def _combine(_: Segment, tape: Tape, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    returned, gate, place = inputs
    return ((returned * gate)[place],)


def _module(segment: Segment, tape: Tape, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    """A module of the user's; after the last one the loss."""
    x, *target = inputs
    dtype = next(iter(w.values()), x).dtype
    modules = loaded(segment.code, segment.option("stamp"), dtype if dtype.is_floating_point else float32)
    y = call(modules[segment.option("index")], tape, x, w)
    return (cross_entropy(y, target[0], reduction="sum") if target else y,)


FUNCTIONS: dict[Block, Function] = {
    Block.LINEAR: _linear,
    Block.RELU_LINEAR: _relu_linear,
    Block.CLASSIFIER: _classifier,
    Block.EMBEDDING: _embedding,
    Block.ATTENTION: _attention,
    Block.FEED_FORWARD: _feed_forward,
    Block.TOKEN_CLASSIFIER: _token_classifier,
    Block.CONVOLUTION: _convolution,
    Block.IMAGE_CLASSIFIER: _image_classifier,
    Block.ROUTER: _router,
    Block.EXPERT: _expert,
    Block.COMBINE: _combine,
    Block.MODULE: _module,
}
