"""The dynamic programme: which contiguous stages, each on how many ranks, make the slowest part of a pipeline fastest.

With A(i, r) for the layers from i on, on exactly r ranks, and M(j) for the message before layer j,

    A(i, r) = min over j, m of  max(T(i -> j, m), M(j), A(j, r - m))

which is PipeDream's recursion (Harlap et al. 2018, arXiv:1806.03377, section 3.2), from the last layer to the first. It
takes n^2 r^2 / 4 steps for n layers. With one rank to a stage it is the linear partition problem: that is how layers,
time or parameters are balanced.

The bottleneck rarely settles the whole partition, and a maximum is no help in settling the rest: the best stages of a
suffix may be needlessly many for a bottleneck that is elsewhere. So there are three questions, each asked of the
partitions that the one before leaves over:

    1. the smallest bottleneck                                              `_bottlenecks`
    2. the fewest stages, and of those the fewest replicas early            `_replicas`
    3. the least sum of squares of the stages' times, then of their numbers of layers, then the longer stages first
                                                                            `_lengths`
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

SAME = 1e-12
"""Two bottlenecks that differ by less than this share of them are the same: sums round, and no time is known better."""

GRID = 2**30
"""Sums of squares are compared in whole parts of the bottleneck's square; a power of two, on which halves and quarters
do not fall between two numbers."""


class Costs(NamedTuple):
    """Seconds per minibatch, or whatever else is to be small. `stages[start][stop - start - 1][replicas - 1]` is what
    the stage of layers start to stop - 1 takes on so many ranks, `messages[start]` what the message before a layer
    takes (0 before the first and after the last)."""

    stages: Sequence[Sequence[Sequence[float]]]
    messages: Sequence[float]


def search(costs: Costs, ranks: int, *, may_idle: bool = False) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Layers and replicas of each stage of the best partition, on exactly `ranks` ranks, or, where some `may_idle`, on
    the fewest that have the smallest bottleneck."""
    smallest = _bottlenecks(costs, ranks)
    best = min(smallest) if may_idle else smallest[ranks]
    used = next(r for r, found in enumerate(smallest) if found <= best * (1 + SAME)) if may_idle else ranks
    replicas = _replicas(costs, used, best * (1 + SAME))
    return _lengths(costs, replicas, best), replicas


def _bottlenecks(costs: Costs, ranks: int) -> list[float]:
    """The smallest bottleneck of all layers on exactly 0, 1, 2, ... ranks."""
    num_layers = len(costs.stages)
    best = [[inf] * (ranks + 1) for _ in range(num_layers)]
    best.append([0.0] + [inf] * ranks)
    for start in reversed(range(num_layers)):
        own = best[start]
        for stop, stage in enumerate(costs.stages[start], start + 1):
            rest, message = best[stop], costs.messages[stop]
            for m, seconds in enumerate(stage, 1):
                here = max(seconds, message)
                for r in range(m, ranks + 1):
                    found = max(here, rest[r - m])
                    if found < own[r]:
                        own[r] = found
    return best[0]


def _replicas(costs: Costs, ranks: int, most: float) -> tuple[int, ...]:
    """The replicas of each stage, in the fewest stages of which nothing takes more than `most`."""
    num_layers = len(costs.stages)
    best: list[list[tuple[int, ...] | None]] = [[None] * (ranks + 1) for _ in range(num_layers + 1)]
    best[num_layers][0] = ()
    for start in reversed(range(num_layers)):
        own = best[start]
        for stop, stage in enumerate(costs.stages[start], start + 1):
            if costs.messages[stop] > most:
                continue
            for m, seconds in enumerate(stage[:ranks], 1):
                if seconds > most:
                    continue
                for r, rest in enumerate(best[stop][: ranks + 1 - m], m):
                    if rest is not None and _before(m, rest, own[r]):
                        own[r] = (m, *rest)
    found = best[0][ranks]
    assert found is not None
    return found


def _before(m: int, rest: tuple[int, ...], known: tuple[int, ...] | None) -> bool:
    """Whether m and then the rest are fewer stages than what is known, or as many with fewer replicas early."""
    if known is None or len(rest) + 1 != len(known):
        return known is None or len(rest) + 1 < len(known)
    return m < known[0] or (m == known[0] and rest < known[1:])


class _Split(NamedTuple):
    squares: float
    squared_lengths: int
    lengths: tuple[int, ...]

    @property
    def key(self) -> tuple[int, int]:
        return round(self.squares * GRID), self.squared_lengths


def _lengths(costs: Costs, replicas: Sequence[int], bottleneck: float) -> tuple[int, ...]:
    """The layers of each stage."""
    num_layers, most, unit = len(costs.stages), bottleneck * (1 + SAME), bottleneck or 1.0
    best = {num_layers: _Split(0.0, 0, ())}
    for m in reversed(replicas):
        rests, best = best, {}
        for start in range(num_layers):
            found = best.get(start)
            for stop in reversed(range(start + 1, num_layers + 1)):
                seconds, rest = costs.stages[start][stop - start - 1][m - 1], rests.get(stop)
                if rest is None or seconds > most or costs.messages[stop] > most:
                    continue
                length = stop - start
                squares = rest.squares + (seconds / unit) ** 2
                split = _Split(squares, rest.squared_lengths + length**2, (length, *rest.lengths))
                if found is None or split.key < found.key:
                    found = split
            if found is not None:
                best[start] = found
    return best[0].lengths
