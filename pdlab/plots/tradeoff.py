"""ZeRO-3 or tensor parallelism on one slide: step time and memory over the batch, and which is faster where."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isfinite, log
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from pdlab import theme
from pdlab.plots.page import PANEL_WIDTH, page, plain, text_width
from pdlab.plots.tradeoff_map import EQUAL, FORMULA, HATCH, NEITHER, draw_map, link_unit
from pdlab.plots.training import LOOKS
from pdlab.plots.units import BYTES, SECONDS, Unit, suited, three_digits
from pdlab.study import SEQUENCE, TENSOR, ZERO3, Measured, Study

HEIGHT, GAP, END = 4.1, 0.95, 0.12
"""Inches: the height of the panels, what is left between two of them for the numbers of an axis, and at the end for the
last of them."""

SHARE = (PANEL_WIDTH - 2 * GAP - END) / 3
"""Inches: the width of one of the three panels."""

NAMES = {ZERO3: "ZeRO-3", TENSOR: "tensor", SEQUENCE: "tensor + sequence"}
LOOK = dict(zip(NAMES, LOOKS, strict=False))
"""The name, and colour and dashes of each strategy's curves."""

RATES = (Unit("TFLOP/s", 1e12), Unit("GFLOP/s", 1e9), Unit("MFLOP/s", 1e6))

LIMIT_AT = 0.72
"""How high the memory limit is drawn, as a share of the panel: there are words above it."""

LEFT_OF: Mapping[str, Any] = {"xytext": (-8, 0), "ha": "right", "va": "center"}
ABOVE: Mapping[str, Any] = {"xytext": (0, 6), "ha": "left", "va": "bottom"}
RIGHT_BELOW: Mapping[str, Any] = {"xytext": (7, -6), "ha": "left", "va": "top"}
LEFT_ABOVE: Mapping[str, Any] = {"xytext": (-7, 6), "ha": "right", "va": "bottom"}
"""Where words stand beside a point, in points."""

CROSSING: Mapping[str, Any] = {"marker": "o", "ms": 7, "mfc": theme.PAPER, "mec": theme.INK, "mew": 1.6}
RUN: Mapping[str, Any] = {"marker": "D", "ms": 8, "mec": theme.INK, "mew": 1.0, "ls": "none"}


def tradeoff(study: Study, measured: Sequence[Measured] = (), *, title: str | None = None) -> Figure:
    """Three panels on one axis of batches: step times with each of the study's links, the peak memory of a rank and the
    limit, and the map of the faster one over batch and link. `measured` steps are drawn over the simulated curves;
    ValueError for one on a link of which there is no curve."""
    for run in measured:
        if run.bandwidth not in study.bandwidths:
            raise ValueError(f"a run with links of {run.bandwidth:g} bytes/s; the study has {study.bandwidths}")
    heading = title or f"ZeRO-3 or tensor? Tensor is faster {_headline(study)}"
    figure, [whole] = page(heading, [HEIGHT], _legend(study, measured), _small_print(study, measured))
    box = whole.get_position()
    whole.remove()
    share = SHARE / theme.WIDTH
    step = share + GAP / theme.WIDTH
    panels = [figure.add_axes((box.x0 + i * step, box.y0, share, box.height)) for i in range(3)]
    _draw_times(panels[0], study, measured)
    _draw_memory(panels[1], study)
    draw_map(panels[2], study, {name: LOOK[name][0] for name in NAMES})
    for axes in panels:
        _batch_axis(axes, study.batches)
    return figure


def _headline(study: Study) -> str:
    unit = link_unit(max(study.bandwidths))
    crossing = {link: batch for link, batch in study.crossovers if link in study.bandwidths}
    ends = dict.fromkeys((study.bandwidths[0], study.bandwidths[-1]))
    return ", ".join(f"{_below(crossing[link])} at {unit.text(link)}" for link in ends)


def _below(batch: float) -> str:
    return "never" if not batch else f"below batch {batch:.0f}" if isfinite(batch) else "always"


def _draw_times(axes: Axes, study: Study, measured: Sequence[Measured]) -> None:
    plain(axes, "step time")
    crossing, links = dict(study.crossovers), link_unit(max(study.bandwidths))
    unit = suited(SECONDS, max(point.step_s for point in study.points))
    axes.set_yscale("log")
    for link in study.bandwidths:
        for name in (ZERO3, TENSOR):
            curve = study.of(name, link)
            colour, dashes = LOOK[name]
            axes.plot([p.batch for p in curve], [p.step_s / unit.size for p in curve], color=colour, ls=dashes, lw=2.2)
        zero3 = [(p.batch, p.step_s / unit.size) for p in study.of(ZERO3, link)]
        _note_link(axes, links.text(link), zero3, crossing[link], study.batches)
    for run in measured:
        axes.plot([run.batch], [run.measured_s / unit.size], mfc=LOOK[run.strategy][0], zorder=6, **RUN)
    _log_axis(axes, f"{unit.name} per step")


def _note_link(
    axes: Axes, link: str, curve: Sequence[tuple[float, float]], crossing: float, batches: Sequence[int]
) -> None:
    """Mark and number the crossing of a link's two curves. The link's name is left of its ZeRO-3 curve; where there is
    no room, since the axis begins with the curve, it goes with the number."""

    def along(batch: float) -> float:
        return log(batch / batches[0]) / log(batches[-1] / batches[0])

    aside = text_width(link, theme.TEXT_SIZE) < along(curve[0][0]) * SHARE
    crosses = curve[0][0] <= crossing <= curve[-1][0]
    if aside or not crosses:
        _note(axes, link, curve[0], LEFT_OF if aside else ABOVE)
    if crosses:
        place = crossing, _between(curve, crossing)
        axes.plot(*place, zorder=5, **CROSSING)
        beside = RIGHT_BELOW if along(crossing) < 0.6 else LEFT_ABOVE
        _note(axes, f"{crossing:.0f}" if aside else f"{crossing:.0f} at {link}", place, beside, fontweight="bold")


def _note(axes: Axes, text: str, place: tuple[float, float], beside: Mapping[str, Any], **how: Any) -> None:
    """Words beside a point, on a piece of paper that keeps lines off them."""
    paper = {"boxstyle": "square,pad=0.1", "fc": theme.PAPER, "ec": "none"}
    words = axes.annotate(
        text, place, textcoords="offset points", size=theme.TEXT_SIZE, color=theme.INK, bbox=paper, **beside, **how
    )
    words.set_zorder(4)


def _between(curve: Sequence[tuple[float, float]], batch: float) -> float:
    """The value of a curve between two of its points, along a straight line on logarithmic axes as it is drawn."""
    (b0, y0), (b1, y1) = next(pair for pair in pairwise(curve) if pair[0][0] <= batch <= pair[1][0])
    part = log(batch / b0) / log(b1 / b0)
    return float(y0 ** (1 - part) * y1**part)


def _draw_memory(axes: Axes, study: Study) -> None:
    """The most that a rank holds with any of the links: when gathers end decides a little of it."""
    unit = suited(BYTES, study.limit_bytes)
    limit = study.limit_bytes / unit.size
    plain(axes, "peak memory of a rank")
    lowest = limit
    for name, _ in study.largest:
        curves = [study.of(name, link) for link in study.bandwidths]
        peaks = [max(p.peak_bytes for p in points) / unit.size for points in zip(*curves, strict=True)]
        colour, dashes = LOOK[name]
        axes.plot([p.batch for p in curves[0]], peaks, color=colour, ls=dashes, lw=2.2)
        lowest = min(lowest, *peaks)
    axes.axhline(limit, color=theme.INK, lw=1.4)
    for name, batch in study.largest:
        if batch:
            axes.plot([batch], [limit], marker="o", ms=7, mfc=LOOK[name][0], mec=theme.INK, zorder=4)
    axes.set_yscale("log")
    lowest *= 0.85
    axes.set_ylim(lowest, lowest * (limit / lowest) ** (1 / LIMIT_AT))
    axes.text(
        0.03, 0.985, _fits(study, unit), transform=axes.transAxes, size=theme.TEXT_SIZE, color=theme.INK, va="top"
    )
    _log_axis(axes, f"{unit.name} per rank")


def _fits(study: Study, unit: Unit) -> str:
    lines = [f"{NAMES[name]}: {batch or 'none'}" for name, batch in study.largest]
    return "\n".join([f"largest batch in {unit.text(study.limit_bytes)}", *lines])


def _log_axis(axes: Axes, name: str) -> None:
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: three_digits(value)))
    axes.set_ylabel(name, size=theme.TEXT_SIZE, color=theme.INK)
    axes.spines["left"].set_visible(True)


def _batch_axis(axes: Axes, batches: Sequence[int]) -> None:
    """Every second power of two, so that the numbers have room."""
    axes.set_xscale("log")
    axes.set_xlim(batches[0], batches[-1])
    powers = [2**i for i in range(batches[-1].bit_length()) if batches[0] <= 2**i]
    axes.xaxis.set_major_locator(FixedLocator([float(b) for b in (powers if len(powers) < 7 else powers[::2])]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlabel("batch (samples per step)", size=theme.TEXT_SIZE, color=theme.INK)


def _legend(study: Study, measured: Sequence[Measured]) -> list[Artist]:
    shown = [name for name, _ in study.largest]
    entries: list[Artist] = [
        Line2D([], [], color=LOOK[name][0], ls=LOOK[name][1], lw=2.2, label=NAMES[name]) for name in shown
    ]
    entries += [
        Line2D([], [], color=theme.INK, lw=1.8, label="equal times, simulated", **CROSSING),
        Line2D([], [], color=theme.INK, label="equal times, closed form", **FORMULA),
        Line2D([], [], color=theme.INK, label="equal bytes on the wire", **EQUAL),
        Patch(fc=theme.PAPER, ec=theme.INK, lw=0.6, hatch=HATCH, label="the other one cannot run"),
        Patch(fc=NEITHER, ec=theme.INK, lw=0.6, label="neither fits"),
    ]
    if measured:
        entries.append(Line2D([], [], mfc=theme.PAPER, label="measured (paced)", **RUN))
    return entries


def _small_print(study: Study, measured: Sequence[Measured]) -> list[str]:
    setup, memory = study.setup, "memory: the largest over the links"
    rate = suited(RATES, setup.flops_per_second).text(setup.flops_per_second)
    costs = f"{rate} per rank, links as stated + {setup.latency * 1e6:g} us"
    where = f"ZeRO-3 needs a sample for each of the {setup.ranks} ranks"
    made = dict.fromkeys(run.made for run in measured)
    return [f"simulated, {setup.ranks} ranks, {costs}; {memory}; {where}", *made, f"{setup}, no recomputation"]
