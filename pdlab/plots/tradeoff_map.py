"""The map of an answer: over batch and speed of the links, which strategy is faster and which can run at all."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from numpy.typing import NDArray

from pdlab import theme
from pdlab.plots.page import plain
from pdlab.plots.units import BYTES, Unit, suited, three_digits
from pdlab.study import TENSOR, ZERO3, Study, crossover_batch, hidden_crossover_batch, least_batch

PALE = 0.5
"""How far towards white the colours of the strategies are lightened where they fill an area."""

HATCH, NEITHER = "///", theme.PAPER
"""Where only one of the two can run, and the colour where neither can."""

EQUAL: Mapping[str, Any] = {"ls": "--", "lw": 1.4}
FORMULA: Mapping[str, Any] = {"ls": ":", "lw": 2.0}
"""Lines of equal bytes, and of equal times by the closed form."""

ROOM = 0.2
"""The share of the panel's width that an area has if words are to stand in it."""

Numbers = NDArray[np.float64]


def link_unit(largest: float) -> Unit:
    """The largest unit of bytes per second of which a link has at least one."""
    unit = suited(BYTES, largest)
    return Unit(f"{unit.name}/s", unit.size)


def draw_map(axes: Axes, study: Study, colours: Mapping[str, str]) -> None:
    """Areas in the colours of the faster strategy among those that fit, hatched where the other one cannot run, with
    the simulated crossover between them and the two closed forms beside it."""
    plain(axes, "the faster one of those that fit")
    links, crossing = (np.array(column, dtype=float) for column in zip(*study.crossovers, strict=True))
    unit = link_unit(max(study.bandwidths))
    low, high = study.batches[0], study.batches[-1]
    heights, boundary = links / unit.size, np.clip(crossing, low, high)
    for left, right, runs in _intervals(study, low, high):
        _fill(axes, heights, (left, right), boundary, runs, colours)
        if len(runs) == 2:
            _draw_crossover(axes, heights, crossing, (left, right))
            _say(axes, heights, (left, right), boundary, (low, high), colours)
    formula = [hidden_crossover_batch(study.setup, link) for link in links]
    axes.plot(formula, heights, color=theme.INK, **FORMULA)
    axes.axvline(crossover_batch(study.setup), color=theme.INK, **EQUAL)
    axes.set_yscale("log")
    axes.set_ylim(heights[0], heights[-1])
    axes.yaxis.set_major_locator(LogLocator(10))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: three_digits(value)))
    axes.set_ylabel(f"bandwidth of a link ({unit.name})", size=theme.TEXT_SIZE, color=theme.INK)
    axes.spines["left"].set_visible(True)


def _intervals(study: Study, low: float, high: float) -> list[tuple[float, float, list[str]]]:
    """The batches from `low` to `high` cut wherever one of the two begins or ceases to be able to run, each piece with
    those that can."""
    spans = {name: (least_batch(study.setup, name), dict(study.largest)[name]) for name in (ZERO3, TENSOR)}
    inner = {float(edge) for span in spans.values() for edge in span if low < edge < high}
    cuts = sorted({low, high, *inner})
    return [
        (left, right, [name for name, (first, last) in spans.items() if first <= left and right <= last])
        for left, right in pairwise(cuts)
    ]


def _fill(
    axes: Axes,
    heights: Numbers,
    ends: tuple[float, float],
    boundary: Numbers,
    runs: list[str],
    colours: Mapping[str, str],
) -> None:
    left, right = ends
    if len(runs) == 2:
        inside = np.clip(boundary, left, right)
        axes.fill_betweenx(heights, left, inside, fc=_pale(colours[TENSOR]), lw=0)
        axes.fill_betweenx(heights, inside, right, fc=_pale(colours[ZERO3]), lw=0)
    elif runs:
        axes.axvspan(left, right, fc=_pale(colours[runs[0]]), ec=theme.INK, lw=0, hatch=HATCH)
    else:
        axes.axvspan(left, right, fc=NEITHER, lw=0)


def _pale(colour: str) -> str:
    red, green, blue = (channel + (1 - channel) * PALE for channel in to_rgb(colour))
    return to_hex((red, green, blue))


def _draw_crossover(axes: Axes, heights: Numbers, crossing: Numbers, ends: tuple[float, float]) -> None:
    """The part of the line where both can run."""
    there = np.where((crossing > 0) & np.isfinite(crossing), crossing, np.nan)
    [line] = axes.plot(there, heights, color=theme.INK, lw=2.2)
    line.set_clip_path(
        Rectangle((ends[0], heights[0]), ends[1] - ends[0], heights[-1] - heights[0], transform=axes.transData)
    )


def _say(
    axes: Axes,
    heights: Numbers,
    ends: tuple[float, float],
    boundary: Numbers,
    shown: tuple[float, float],
    colours: Mapping[str, str],
) -> None:
    """Name the two areas where they are widest, if they are wide enough: tensor at slow links, ZeRO-3 at fast ones."""
    bottom, top = np.log(heights[0]), np.log(heights[-1])
    for name, word, at in ((TENSOR, "tensor", 0.12), (ZERO3, "ZeRO-3", 0.88)):
        height = bottom + at * (top - bottom)
        crossing = float(np.clip(np.interp(height, np.log(heights), boundary), *ends))
        first, last = (ends[0], crossing) if name == TENSOR else (crossing, ends[1])
        if np.log(last / first) >= ROOM * np.log(shown[1] / shown[0]):
            paper = {"boxstyle": "square,pad=0.15", "fc": _pale(colours[name]), "ec": "none"}
            middle = (first * last) ** 0.5, float(np.exp(height))
            axes.text(*middle, word, size=theme.HEADING_SIZE, color=theme.INK, ha="center", va="center", bbox=paper)
