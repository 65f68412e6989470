"""Where the answer changes: the batch at which the other strategy becomes the faster one, and the largest that fits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tqdm.auto import tqdm

from pdlab.study.points import STRATEGIES, TENSOR, ZERO3, Point, least_batch, predicted, table
from pdlab.study.setup import Setup

MOST = 2**16
"""Where a search for a batch ends."""

AROUND = 17
"""How many links a map has if nobody says which."""


def simulated_crossover(setup: Setup, bandwidth: float, strategy: str = TENSOR) -> float:
    """The batch below which tensor parallelism takes the shorter step, found between two whole numbers of samples per
    rank. 0 where ZeRO-3 is faster from one sample per rank on, infinite where it never is.

    It is not `crossover_batch`, where both move as many bytes: what counts is not what is moved, but the time that
    moving adds to computing. ZeRO-3 hides its gathers behind the computation and tensor parallelism hides nothing, so
    the simulated crossover comes earlier, the more so the faster the links.
    """

    def tensor_leads(samples: int) -> float:
        zero3, tensor = (predicted(setup, s, samples * setup.ranks, bandwidth).step_s for s in (ZERO3, strategy))
        return zero3 - tensor

    last = _last(lambda samples: tensor_leads(samples) > 0, 1, MOST // setup.ranks)
    if last is None:
        return float("inf")
    if last == 0:
        return 0.0
    before, after = tensor_leads(last), tensor_leads(last + 1)
    return setup.ranks * (last + before / (before - after))


def largest_batch(setup: Setup, strategy: str, limit_bytes: float, bandwidth: float) -> int:
    """The most samples of a step with which no rank holds more than `limit_bytes`; 0 where none fits. `bandwidth` sets
    when gathers end, and so a little of what ZeRO-3 holds at once."""
    least = least_batch(setup, strategy)
    last = _last(lambda batch: predicted(setup, strategy, batch, bandwidth).fits(limit_bytes), least, MOST)
    if last is None:
        raise ValueError(f"a batch of {MOST} still fits {limit_bytes:g} bytes; give a limit that something exceeds")
    return last if last >= least else 0


def _last(holds: Callable[[int], bool], first: int, most: int) -> int | None:
    """The last number for which something holds that holds from `first` up to some number and not beyond: `first` - 1
    if it never does, None if it still does at `most`."""
    lower, upper = first - 1, first
    while holds(upper):
        if upper >= most:
            return None
        lower, upper = upper, 2 * upper
    while upper - lower > 1:
        middle = (lower + upper) // 2
        lower, upper = (middle, upper) if holds(middle) else (lower, middle)
    return lower


@dataclass(frozen=True)
class Study:
    """All that a picture of the question shows.

    `points` is the grid; `crossovers` is for each of a range of links (bytes per second) the batch below which tensor
    parallelism is faster; `largest` for each strategy the largest batch that fits `limit_bytes`, whichever of the
    grid's links there are.
    """

    setup: Setup
    points: tuple[Point, ...]
    crossovers: tuple[tuple[float, float], ...]
    largest: tuple[tuple[str, int], ...]
    limit_bytes: float

    @property
    def bandwidths(self) -> list[float]:
        """The links of the grid, slowest first, in bytes per second."""
        return sorted({point.bandwidth for point in self.points})

    @property
    def batches(self) -> list[int]:
        """The batches of the grid, smallest first."""
        return sorted({point.batch for point in self.points})

    def of(self, strategy: str, bandwidth: float) -> list[Point]:
        """The points of one curve, by batch."""
        found = [p for p in self.points if (p.strategy, p.bandwidth) == (strategy, bandwidth)]
        return sorted(found, key=lambda point: point.batch)


def study(
    setup: Setup,
    batches: Sequence[int],
    bandwidths: Sequence[float],
    limit_bytes: float,
    *,
    between: Sequence[float] | None = None,
    strategies: Sequence[str] = STRATEGIES,
    progress: bool = True,
) -> Study:
    """The question answered over a grid of batches and links; `between` are further links of which only the crossover
    is wanted, by default `AROUND` of them from a quarter of the slowest to four times the fastest. It takes some 20 ms
    for each number simulated. ValueError without two batches that both can run on."""
    shared = [batch for batch in batches if batch >= setup.ranks]
    if len(set(shared)) < 2 or not {ZERO3, TENSOR} <= set(strategies) or not bandwidths:
        raise ValueError(
            f"batches {list(batches)}, links {list(bandwidths)}, strategies {list(strategies)}: give a link, {ZERO3} "
            f"and {TENSOR}, and two batches of at least {setup.ranks}, a sample for each rank"
        )
    points = table(setup, batches, bandwidths, strategies, progress=progress)
    if between is None:
        between = [float(link) for link in np.geomspace(min(bandwidths) / 4, max(bandwidths) * 4, AROUND)]
    links = sorted({*bandwidths, *between})
    bar = tqdm(links, desc="looking for crossovers", unit="link", leave=False, delay=1.0, disable=not progress)
    crossovers = tuple((link, simulated_crossover(setup, link)) for link in bar)
    largest = tuple((s, min(largest_batch(setup, s, limit_bytes, w) for w in bandwidths)) for s in strategies)
    return Study(setup, tuple(points), crossovers, largest, limit_bytes)
