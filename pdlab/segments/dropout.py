"""Dropout whose masks do not depend on where they are drawn."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pdlab.noise import keep
from pdlab.segments.frame import Frame

HIDDEN, PROBABILITIES = "hidden", "probabilities"


def dropped(frame: Frame, x: Tensor, keys: Sequence[Tensor], what: str, shard: int) -> Tensor:
    """x [n, k, ...] with a share of its elements dropped, where x is piece number `shard` of a tensor cut along dim 1.

    The mask of the pieces so far is drawn and the last of them taken, so together they have the mask of the whole.
    What is kept for the backward is one byte an element.
    """
    rate = frame.segment.rate("dropout")
    if not rate:
        return x
    size, name = x.shape[1], f"{frame.segment.layer or frame.segment.name}.{what}"
    mask = keep(keys[0].cpu().numpy(), name, ((shard + 1) * size, *x.shape[2:]), rate)[:, shard * size :]
    return x * torch.from_numpy(mask).to(x.device).contiguous() / (1 - rate)
