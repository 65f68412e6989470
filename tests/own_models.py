"""Modules as a student writes them, for the tests that bring their own model or function."""

import os
import time
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pdlab.execute import clock


class Block(nn.Module):
    """Pre-norm perceptron with a residual; the second linear has no bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(torch.tanh(self.up(self.norm(x))))
        return y


def perceptron() -> list[nn.Module]:
    return [nn.Linear(64, 16), Block(16), nn.ReLU(), Block(16), nn.Linear(16, 10)]


def tokens() -> list[nn.Module]:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return [nn.Embedding(17, 8), layer, nn.Sequential(nn.Flatten(), nn.Linear(512, 10))]


def images() -> list[nn.Module]:
    return [nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3), nn.Sequential(nn.ReLU(), nn.Flatten()), nn.Linear(144, 10)]


def like_the_mlp() -> list[nn.Module]:
    return [
        nn.Linear(64, 16),
        nn.Sequential(nn.ReLU(), nn.Linear(16, 16)),
        nn.Sequential(nn.ReLU(), nn.Linear(16, 10)),
    ]


MADE_AT_IMPORT = [nn.Linear(64, 12), nn.Linear(12, 10)]


def do_not_fit() -> list[nn.Module]:
    return [nn.Linear(64, 16), nn.Linear(12, 10)]


def drops() -> list[nn.Module]:
    return [nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, 10)]


def keeps_statistics() -> list[nn.Module]:
    return [nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Linear(16, 10)]


def ends_early() -> list[nn.Module]:
    return [nn.Linear(64, 16)]


def shares() -> list[nn.Module]:
    one = nn.Linear(16, 16)
    return [nn.Linear(64, 16), one, one, nn.Linear(16, 10)]


class Cuts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach()


def lets_no_gradient_through() -> list[nn.Module]:
    return [nn.Linear(64, 16), Cuts(), nn.Linear(16, 10)]


def works_in_place() -> list[nn.Module]:
    return [nn.Linear(64, 16), nn.ReLU(inplace=True), nn.Linear(16, 10)]


def frozen() -> list[nn.Module]:
    return [nn.Linear(64, 16).requires_grad_(False), nn.Linear(16, 10)]


def nothing_to_train() -> list[nn.Module]:
    return [nn.AvgPool1d(6, 6)]


def lazy() -> list[nn.Module]:
    return [nn.LazyLinear(10)]


def no_modules() -> list[Any]:
    return [nn.Linear(64, 10), "softmax"]


def raises() -> list[nn.Module]:
    return [nn.Linear(64, 1 // 0)]


def rank_sum(factor: int = 1) -> dict[str, float]:
    """Called on every rank: the sum of the ranks, by a collective."""
    total = torch.tensor([float(dist.get_rank())])
    print("summing")
    dist.all_reduce(total)
    return {"rank": dist.get_rank(), "sum": factor * total.item()}


def fails_on_rank_1() -> None:
    if dist.get_rank() == 1:
        raise KeyError("no such key")
    dist.barrier()


def never_ends() -> None:
    while True:
        time.sleep(1)


def returns_a_tensor() -> Tensor:
    return torch.zeros(1)


def dies() -> None:
    os._exit(3)


def ahead_of_a_shifted_clock(seconds: float) -> float:
    """How far a rank finds rank 0's clock ahead, whose own one is `seconds` times its rank ahead of the machine's."""
    rank = dist.get_rank()
    shifted = SimpleNamespace(monotonic=lambda: time.monotonic() + seconds * rank)
    with mock.patch.object(clock, "time", shifted):
        return clock.set_clock(rank, dist.get_world_size()).ahead


def drive(ranks: Any, arguments: list[str]) -> int:
    """What rank 0 does on a cluster."""
    print(sorted(answer["sum"] for answer in ranks.call("own_models:rank_sum")), arguments)
    return 0
