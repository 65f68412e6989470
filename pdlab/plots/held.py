"""What each rank holds for its backwards, in M_B, as one strip for each rank."""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.patches import Patch

from pdlab import theme
from pdlab.bubbles import unit_bytes
from pdlab.metrics import ACTIVATION_ROLES, held_over_time
from pdlab.plots.numbers import Name, name_rows
from pdlab.plots.page import plain
from pdlab.plots.units import Unit
from pdlab.trace import Trace

STRIPS, AIR = ((4, 0.34), (8, 0.2), (float("inf"), 0.16)), 0.07
"""Inches: the height of a strip by the largest number of ranks, and what is left free above it."""

SHARES = tuple(share for share in theme.MEMORY if share.roles <= ACTIVATION_ROLES)

Point = tuple[float, float]


class Steps(NamedTuple):
    """How much of a share a rank holds, in M_B, from each of the times (seconds) until the next."""

    times: list[float]
    held: list[float]


class Strips:
    """The activations of a trace laid out in strips, all on one scale that ends at the largest peak."""

    def __init__(self, trace: Trace) -> None:
        unit, self.makespan = unit_bytes(trace.program), trace.makespan
        ranks = range(len(trace.program.ranks))
        self.steps = [[_steps(trace, rank, share, unit) for share in SHARES] for rank in ranks]
        self.peaks = [max(map(sum, zip(*(steps.held for steps in of), strict=True))) for of in self.steps]
        self.strip = next(height for most, height in STRIPS if len(ranks) <= most)

    @property
    def height(self) -> float:
        """Inches."""
        return len(self.peaks) * (self.strip + AIR)

    def legend(self) -> list[Artist]:
        there = {share for of in self.steps for share, steps in zip(SHARES, of, strict=True) if any(steps.held)}
        return [
            Patch(label=share.label, fc=share.colour, ec=theme.PAPER, hatch=share.hatch or None)
            for share in SHARES
            if share in there
        ]

    def draw(self, axes: Axes, heading: str, unit: Unit) -> None:
        """Draw the strips, and beside each the rank and its peak."""
        plain(axes, heading)
        axes.set_ylim(self.height, 0)
        floors = [(rank + 1) * (self.strip + AIR) for rank in range(len(self.peaks))]
        for turn, share in enumerate(SHARES):
            areas = [self._area(rank, turn, floor, unit) for rank, floor in enumerate(floors)]
            hatch = share.hatch or None
            drawn = PolyCollection(areas, fc=share.colour, ec=theme.PAPER if hatch else share.colour, lw=0, hatch=hatch)
            axes.add_collection(drawn, autolim=False)
        lines = [[(0.0, floor), (self.makespan / unit.size, floor)] for floor in floors]
        axes.add_collection(LineCollection(lines, colors=theme.INK, linewidths=0.6), autolim=False)
        names = [f"rank {rank}: {in_M_B(peak)}" for rank, peak in enumerate(self.peaks)]
        middles = [floor - self.strip / 2 for floor in floors]
        name_rows(axes, [Name(*name, theme.SMALL_SIZE) for name in zip(names, middles, strict=True)])

    def _area(self, rank: int, turn: int, floor: float, unit: Unit) -> list[Point]:
        """The outline of a share, on top of those before it: there along its upper edge, back along its lower one."""
        scale = self.strip / (max(self.peaks) or 1.0)
        below = [sum(column) for column in zip(*(s.held for s in self.steps[rank][:turn]), strict=True)]
        times, held = self.steps[rank][turn]
        lower = below or [0.0] * len(held)
        along = [time / unit.size for time in (*times, self.makespan)]
        upper = [floor - scale * (a + b) for a, b in zip(lower, held, strict=True)]
        return [*_stairs(along, upper), *reversed(_stairs(along, [floor - scale * a for a in lower]))]


def in_M_B(amount: float) -> str:
    """`7.5`, `11.33`, `8`: activations are halves and thirds of a forward, and whole ones."""
    return f"{round(amount, 2):g}"


def _steps(trace: Trace, rank: int, share: theme.Share, unit: float) -> Steps:
    times, held = held_over_time(trace, rank, share.roles)
    return Steps(times, [amount / unit for amount in held])


def _stairs(along: Sequence[float], heights: Sequence[float]) -> list[Point]:
    """Each height from one place to the next."""
    return [(x, y) for i, y in enumerate(heights) for x in along[i : i + 2]]
