"""A vocabulary spread over a tensor group: each rank looks up and scores its own part (`pdlab.models.vocabulary`)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pdlab.batch import IGNORED
from pdlab.models.vocabulary import SUMS
from pdlab.segments.frame import Frame, Weights


def embedding(frame: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    """The vectors of this rank's tokens [n, s, h], zero for the others."""
    (tokens,) = inputs
    place, inside = _within(tokens, frame.shard, len(w["token"]))
    found = torch.nn.functional.embedding(place, w["token"])
    return (found.masked_fill(~inside.unsqueeze(-1), 0),)


def position(_: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    return (inputs[0] + w["position"],)


def log_sums(frame: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    """Of this rank's logits [n, k]: log of the summed exponentials, the label's logit or 0, the sum: [n, 3]."""
    logits, target = inputs
    size = logits.shape[1]
    real = min(max(frame.option("classes") - frame.shard * size, 0), size)
    place, inside = _within(target, frame.shard, size)
    label = logits.gather(1, place.unsqueeze(1)).squeeze(1).masked_fill(~inside, 0)
    classes = logits[:, :real]
    return (torch.stack([classes.logsumexp(1), label, classes.sum(1)], 1),)


def loss(frame: Frame, inputs: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    """The cross-entropy from the sums of all ranks [n, 3 t], as `torch.nn.functional.cross_entropy` defines it."""
    gathered, target = inputs
    parts, label, total = gathered.view(len(target), -1, SUMS).unbind(2)
    log_sum, smoothing = parts.logsumexp(1), frame.segment.rate("smoothing")
    each = log_sum - (1 - smoothing) * label.sum(1) - smoothing * total.sum(1) / frame.option("classes")
    return (each.masked_fill(target == IGNORED, 0).sum(),)


def _within(numbers: Tensor, shard: int, size: int) -> tuple[Tensor, Tensor]:
    """Which of the numbers fall into this rank's range, and where in it; 0 for the others."""
    place = numbers - shard * size
    inside = (place >= 0) & (place < size)
    return place.where(inside, 0), inside
