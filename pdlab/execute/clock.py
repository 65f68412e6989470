"""One clock for ranks on several machines, whose monotonic clocks start at different moments.

Every rank asks rank 0 for the time and takes the answer of the quickest exchange: the answer is from the middle of it,
give or take half of its length (Cristian 1989, "Probabilistic clock synchronization").
"""

import time
from typing import NamedTuple

import torch
import torch.distributed as dist

ROUNDS = 30


class Clock(NamedTuple):
    """`ahead` seconds have to be added to this process's monotonic clock to get that of rank 0, known to within
    `give`."""

    ahead: float = 0.0
    give: float = 0.0

    def now(self) -> float:
        return time.monotonic() + self.ahead

    def here(self, moment: float) -> float:
        """A moment of rank 0's clock on the one of this process."""
        return moment - self.ahead


def set_clock(rank: int, size: int) -> Clock:
    """Ask rank 0, one rank after the other. Every rank of the default process group has to call it."""
    mine = Clock()
    for other in range(1, size):
        if rank == 0:
            _answer(other)
        elif rank == other:
            mine = _ask()
    return mine


def _answer(other: int) -> None:
    stamp = torch.zeros(1, dtype=torch.float64)
    for _ in range(ROUNDS):
        dist.recv(stamp, other)
        stamp[0] = time.monotonic()
        dist.send(stamp, other)


def _ask() -> Clock:
    stamp = torch.zeros(1, dtype=torch.float64)
    found = []
    for _ in range(ROUNDS):
        asked = time.monotonic()
        dist.send(stamp, 0)
        dist.recv(stamp, 0)
        answered = time.monotonic()
        found.append(Clock(stamp.item() - (asked + answered) / 2, (answered - asked) / 2))
    return min(found, key=lambda clock: clock.give)
