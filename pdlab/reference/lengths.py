"""Samples of different lengths, one after the other: each is cut to its own tokens and runs alone.

What a batch does with a mask happens here without one, so a mask that hides too much, too little or another sample's
tokens cannot agree with it.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call

from pdlab.models.model import Model
from pdlab.reference.networks import skeleton

Lengths = NDArray[np.int64]
"""For each sample how many of its tokens are its own."""


def one_by_one(
    model: Model, parameters: dict[str, Tensor], x: Tensor, lengths: Lengths, keys: NDArray[np.int64] | None
) -> Tensor:
    """The logits [n, classes] of samples x [n, 64], of each of which only the first so many tokens exist."""
    alone = []
    for i, length in enumerate(lengths.tolist()):
        network = skeleton(model, None if keys is None else keys[i : i + 1])
        alone.append(functional_call(network, parameters, x[i : i + 1, :length]))
    return torch.cat(alone)


def check_lengths(model: Model, x: Tensor, lengths: Lengths | None) -> None:
    """ValueError unless there are as many lengths as samples, or none for a model that reads all of each."""
    masked = bool(dict(model.recipe[1]).get("masked"))
    if masked and lengths is None:
        raise ValueError("the model reads samples of different lengths; give the lengths of these samples")
    if not masked and lengths is not None:
        raise ValueError("the model reads all of each sample; leave the lengths out")
    if lengths is not None and len(lengths) != len(x):
        raise ValueError(f"{len(lengths)} lengths for {len(x)} samples; give one for each")
