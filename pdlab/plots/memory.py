"""Live bytes over time: what each rank holds, and what for."""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from pdlab import theme
from pdlab.metrics import held_over_time, live_over_time, peak_bytes_per_rank
from pdlab.plots.page import page, plain
from pdlab.plots.timeline import name, time_axis
from pdlab.plots.units import BYTES, Unit, suited, time_unit
from pdlab.trace import Trace

STRIP = 0.62
"""Inches: the height of a rank's strip."""


class Line(NamedTuple):
    """How a line is drawn: colour and width in points."""

    colour: str
    width: float


OVER, UNDER = Line(theme.INK, 1.2), Line("#9A9A9A", 4.0)
"""Two lines that may coincide: the wide pale one shows on both sides of the thin dark one."""


class Layer(NamedTuple):
    """One layer of a stack: bytes from `lower` to `upper` at each of the times (seconds)."""

    share: theme.Share
    times: list[float]
    lower: list[int]
    upper: list[int]


def live_bytes(trace: Trace, *, title: str | None = None, unit: Unit | None = None) -> Figure:
    """One strip per rank, all on one scale, stacked by what the values are for; the line is the sum of everything."""
    unit = unit or time_unit(trace)
    peaks = peak_bytes_per_rank(trace)
    scale = suited(BYTES, max(peaks))
    stacks = [_stack(trace, rank) for rank in range(len(peaks))]
    heading = title or f"{name(trace.program)}: live bytes"
    figure, panels = page(heading, [STRIP] * len(peaks), _legend(stacks), theme.small_print(trace))
    for rank, axes in enumerate(panels):
        plain(axes, f"rank {rank}: peak {scale.text(peaks[rank])}")
        _draw_stack(axes, stacks[rank], unit, scale)
        draw_live(axes, trace, rank, unit, scale, OVER)
        bytes_axis(axes, max(peaks), scale)
        time_axis(axes, trace.makespan, unit, named=axes is panels[-1])
    return figure


def draw_live(axes: Axes, trace: Trace, rank: int, unit: Unit, scale: Unit, line: Line) -> None:
    """All that a rank holds, from the start to the end of the trace."""
    times, held = live_over_time(trace, rank)
    along = [t / unit.size for t in (*times, trace.makespan)]
    axes.step(along, [b / scale.size for b in (*held, held[-1])], where="post", color=line.colour, linewidth=line.width)


def line_entry(label: str, line: Line) -> Artist:
    """The legend entry of a line."""
    return Line2D([], [], color=line.colour, linewidth=line.width, label=label)


def bytes_axis(axes: Axes, until: int, scale: Unit) -> None:
    """Ticks and name of an axis of bytes that starts at 0 and has room for `until` of them."""
    axes.set_ylim(0, 1.08 * (until or 1) / scale.size)
    axes.yaxis.set_major_locator(MaxNLocator(3, steps=(1, 2, 5, 10)))
    axes.set_ylabel(scale.name, size=theme.TEXT_SIZE, color=theme.INK)
    axes.spines["left"].set_visible(True)


def _stack(trace: Trace, rank: int) -> list[Layer]:
    """The layers that are ever there, from the bottom up, each as a step function up to the makespan."""
    layers: list[Layer] = []
    for share in theme.MEMORY:
        times, held = held_over_time(trace, rank, share.roles)
        if any(held):
            held.append(held[-1])
            lower = layers[-1].upper if layers else [0] * len(held)
            upper = [a + b for a, b in zip(lower, held, strict=True)]
            layers.append(Layer(share, [*times, trace.makespan], lower, upper))
    return layers


def _draw_stack(axes: Axes, layers: Sequence[Layer], unit: Unit, scale: Unit) -> None:
    for share, times, *edges in layers:
        along = [t / unit.size for t in times]
        lower, upper = ([b / scale.size for b in edge] for edge in edges)
        hatch = share.hatch or None
        axes.fill_between(along, lower, upper, step="post", fc=share.colour, ec=theme.PAPER, lw=0, hatch=hatch)


def _legend(stacks: Sequence[Sequence[Layer]]) -> list[Artist]:
    there = {layer.share for layers in stacks for layer in layers}
    patches: list[Artist] = [
        Patch(label=share.label, fc=share.colour, ec=theme.PAPER, hatch=share.hatch or None)
        for share in theme.MEMORY
        if share in there
    ]
    return [*patches, line_entry("everything", OVER)]
