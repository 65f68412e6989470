"""The blocks of the transformer: whole, and cut where a tensor group communicates."""

from collections.abc import Sequence
from math import sqrt

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, gelu, layer_norm, softmax

from pdlab.layers import linear
from pdlab.segments.dropout import HIDDEN, PROBABILITIES, dropped
from pdlab.segments.frame import Frame, Weights
from pdlab.segments.padding import own_mean, unattended


def embedding(_: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    (tokens,) = inputs
    return (torch.nn.functional.embedding(tokens, w["token"]) + w["position"],)


def attention(frame: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    x, *keys = inputs
    return (_attended(frame, x, keys, w),)


def masked_attention(frame: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    """Of each token to its sample's own tokens."""
    x, lengths, *keys = inputs
    return (_attended(frame, x, keys, w, lengths),)


def feed_forward(frame: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    x, *keys = inputs
    update = _fire(frame, _norm(x, w), w) + w["down.bias"]
    return (x + dropped(frame, update, keys, HIDDEN, 0),)


def classifier(frame: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    x, target, *lengths = inputs
    return _loss(frame, linear(frame.tape, _pooled(x, lengths, w), w), target)


def tied_classifier(frame: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    """Each class is an intensity, whose logit is the likeness to its token's vector."""
    x, target, *lengths = inputs
    return _loss(frame, torch.nn.functional.linear(_pooled(x, lengths, w), w["token"], w["bias"]), target)


def norm(_: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    return (_norm(inputs[0], w),)


def heads(frame: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    """What this rank's heads contribute to the output."""
    normed, *keys = inputs
    return (_attend(frame, normed, keys, w, frame.shard),)


def neurons(frame: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    """What this rank's share of the inner neurons contributes to the output."""
    return (_fire(frame, inputs[0], w),)


def residual(frame: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    """x plus what the block has found, after its bias and dropout. Ranks with the same tokens drop the same."""
    x, update, *keys = inputs
    (bias,) = w.values()
    own = x.shape[1] < frame.option("tokens")
    return (x + dropped(frame, update + bias, keys, HIDDEN, frame.shard if own else 0),)


def pool(frame: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    """This rank's tokens' part of the mean over all tokens."""
    return (_norm(inputs[0], w).sum(1) / frame.option("tokens"),)


def _norm(x: Tensor, w: Weights) -> Tensor:
    return layer_norm(x, x.shape[-1:], w["norm.weight"], w["norm.bias"])


def _pooled(x: Tensor, lengths: Sequence[Tensor], w: Weights) -> Tensor:
    """The mean [n, h] over the tokens, all of them or, where there are lengths, each sample's own."""
    normed = _norm(x, w)
    return own_mean(normed, lengths[0]) if lengths else normed.mean(1)


def _loss(frame: Frame, logits: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    return (cross_entropy(logits, target, reduction="sum", label_smoothing=frame.segment.rate("smoothing")),)


def _attended(frame: Frame, x: Tensor, keys: Sequence[Tensor], w: Weights, lengths: Tensor | None = None) -> Tensor:
    """All of an attention block, from [n, s, h] to [n, s, h]."""
    update = _attend(frame, _norm(x, w), keys, w, 0, lengths) + w["out.bias"]
    return x + dropped(frame, update, keys, HIDDEN, 0)


def _attend(
    frame: Frame, normed: Tensor, keys: Sequence[Tensor], w: Weights, shard: int, lengths: Tensor | None = None
) -> Tensor:
    """Attention of some heads, from [n, s, h] to [n, s, h], without the output's bias."""
    n, s, _ = normed.shape
    heads = frame.option("heads")
    q, k, v = (linear(frame.tape, normed, w, f"{name}.").view(n, s, heads, -1).transpose(1, 2) for name in "qkv")
    scores = q @ k.transpose(-1, -2) / sqrt(q.shape[-1])  # [n, heads, s, s]
    scores = scores if lengths is None else unattended(scores, lengths)
    probabilities = dropped(frame, softmax(scores, -1), keys, PROBABILITIES, shard)
    context = (probabilities @ v).transpose(1, 2).reshape(n, s, -1)
    return linear(frame.tape, context, {"out.weight": w["out.weight"]}, "out.")


def _fire(frame: Frame, normed: Tensor, w: Weights) -> Tensor:
    inner = gelu(linear(frame.tape, normed, w, "up."))
    return linear(frame.tape, inner, {"down.weight": w["down.weight"]}, "down.")
