"""Dropout's draws depend on the run, the step, the sample and the name, on each of them, and on nothing else."""

import numpy as np
import torch
from torch import Tensor

from pdlab import models
from pdlab.models.spec import Segment
from pdlab.noise import keep, keys
from pdlab.segments import Frame
from pdlab.segments.dropout import HIDDEN, dropped
from pdlab.tape import Tape

SHAPE = (64, 16)


def test_keys_differ_between_runs_steps_and_samples() -> None:
    every = np.concatenate([keys(seed, step, 50) for seed in range(3) for step in range(3)])
    assert len(set(every.tolist())) == len(every)
    assert (keys(1, 2, 50) == keys(1, 2, 50)).all()


def test_masks_differ_between_samples_and_names_and_drop_the_share_asked_for() -> None:
    masks = {name: keep(keys(0, 0, 40), name, SHAPE, 0.2) for name in ("attn0.hidden", "attn1.hidden", "ffn0.hidden")}
    flat = [tuple(mask.reshape(-1)) for of_name in masks.values() for mask in of_name]
    assert len(set(flat)) == len(flat)
    for of_name in masks.values():
        assert abs(of_name.mean() - 0.8) < 0.005


def test_a_sample_has_its_mask_in_whatever_company() -> None:
    of_all = keys(0, 0, 10)
    assert (keep(of_all, "x", SHAPE, 0.5)[3:5] == keep(of_all[3:5], "x", SHAPE, 0.5)).all()


def test_pieces_have_the_mask_of_the_whole() -> None:
    x, drawn = torch.ones(5, *SHAPE), torch.tensor(keys(0, 0, 5))
    segment: Segment = models.transformer(dropout=0.3).segments["attn0"]

    def piece(shard: int, part: Tensor) -> Tensor:
        return dropped(Frame(segment, Tape({}), shard), part, [drawn], HIDDEN, shard)

    whole = piece(0, x)
    assert set(whole.unique().tolist()) == {0.0, torch.ones(()).div(1 - 0.3).item()}
    for pieces in (2, 4, 8):
        assert torch.equal(torch.cat([piece(i, part) for i, part in enumerate(x.chunk(pieces, 1))], 1), whole)
