"""Samples of different lengths in one tensor: what follows a sample's own tokens only fills it up.

Nobody attends to padding and no mean counts it, so whatever it holds, and every gradient of it, comes to nothing.
`lengths` [n] says how many tokens are a sample's own.
"""

from math import inf

import torch
from torch import Tensor


def unattended(scores: Tensor, lengths: Tensor) -> Tensor:
    """Scores [n, heads, s, s] with minus infinity for each key that is padding. A sum, since a constant that is added
    need not be kept for the backward."""
    others = padding(lengths, scores.shape[-1])
    return scores + scores.new_zeros(others.shape).masked_fill(others, -inf)[:, None, None]


def own_mean(x: Tensor, lengths: Tensor) -> Tensor:
    """The mean [n, h] over each sample's own tokens of x [n, s, h]."""
    others = padding(lengths, x.shape[1]).unsqueeze(-1)
    return x.masked_fill(others, 0).sum(1) / lengths.unsqueeze(1)


def padding(lengths: Tensor, tokens: int) -> Tensor:
    """Which of the tokens are no sample's own, [n, tokens]."""
    return torch.arange(tokens, device=lengths.device) >= lengths.unsqueeze(1)
