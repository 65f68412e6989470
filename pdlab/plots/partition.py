"""A chain of layers cut into stages: who has which layers, and what each stage takes for a minibatch.

A stage has a colour; neighbours differ in lightness too, and every stage is also named where its name fits. What limits
the pipeline is outlined.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import isfinite

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Polygon
from matplotlib.ticker import MaxNLocator

from pdlab import theme
from pdlab.ops import Kind
from pdlab.partition import Load, Partition, What
from pdlab.plots.block_bars import Rectangle, fill
from pdlab.plots.page import AXIS, HEADING, PANEL_WIDTH, page, plain, text_width
from pdlab.plots.units import SECONDS, Unit, suited, three_digits

CHAIN, NAMES, ROW, GAP, BESIDE = 0.52, 0.3, 0.18, 0.1, 0.06
"""Inches: the height of the boxes of the layers, of the stages' names above them, of a bar, between two stages, and
between a bar and its number."""

ROOM = 0.32
"""The share of the panel's width, right of the longest bar, that is left for the words beside it."""

COLOURS = tuple(
    theme.COLOURS[kind]
    for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_WEIGHT, Kind.ADD, Kind.BACKWARD_INPUT, Kind.RECOMPUTE)
)
"""Of the stages in turn, from Okabe and Ito: a dark one and a light one by turns."""

LOOKS = {What.SUMS: (theme.COLOURS[Kind.ALL_GATHER], "xxx"), What.MESSAGE: (theme.COLOURS[Kind.SEND], "")}
"""Colour and hatch of what is not computing."""

WORDS = {
    What.COMPUTE: "compute (in the colour of the stage)",
    What.SUMS: "gradient sums of its replicas",
    What.MESSAGE: "message to the next stage, there and back",
}

BOLD, NARROW = 2.2, 0.04
"""Points of the outline around the bottleneck; inches below which a box has no white outline."""


def partition(found: Partition, *, title: str | None = None, made: str = "layer times as given") -> Figure:
    """The layers as boxes as wide as they take time, and below what each stage takes for a minibatch, with the
    bottleneck outlined. `made` says in the small print where the times come from."""
    bars = _bars(found)
    rows = sum(map(len, bars)) * ROW + len(bars) * GAP
    prints = [f"bottleneck: {found.bottleneck}", f"predicted, {found.how}; {made}; {found.links}"]
    heading = title or _headline(found)
    figure, [chain, stages] = page(
        heading, [CHAIN + NAMES, rows], _legend(found), prints, heading=[HEADING, HEADING + AXIS]
    )
    _draw_chain(chain, found)
    _draw_stages(stages, found, bars, rows)
    return figure


def _headline(found: Partition) -> str:
    rate = found.throughput
    return f"{found.shape}: {f'{three_digits(rate)} minibatches per second' if isfinite(rate) else 'no time at all'}"


def _bars(found: Partition) -> list[list[Load]]:
    """For each stage what takes time; computing always."""
    return [
        [load for load in found.loads if load.stage == s and (load.seconds or load.what is What.COMPUTE)]
        for s in range(found.num_stages)
    ]


def _colour(stage: int) -> str:
    return COLOURS[stage % len(COLOURS)]


def _draw_chain(axes: Axes, found: Partition) -> None:
    """A layer that takes no time is not seen."""
    total = sum(layer.seconds for layer in found.chain)
    unit = suited(SECONDS, total)
    inches = PANEL_WIDTH * unit.size / (total or unit.size)
    plain(axes, "the layers, as long as they take for a minibatch on one rank")
    axes.set_xlim(0, (total or unit.size) / unit.size)
    axes.set_ylim(0, CHAIN + NAMES)
    ends = [0.0, *accumulate(layer.seconds / unit.size for layer in found.chain)]
    cuts = [0, *accumulate(found.layers)]
    for s, (first, last) in enumerate(pairwise(cuts)):
        boxes = [Rectangle(left, 0, right - left, CHAIN) for left, right in pairwise(ends[first : last + 1])]
        fill(axes, boxes, _colour(s), narrow=NARROW / inches)
    colours = [_colour(s) for s, count in enumerate(found.layers) for _ in range(count)]
    _name(axes, [layer.name for layer in found.chain], [*pairwise(ends)], inches, colours)
    _name_stages(axes, found, [(ends[a], ends[b]) for a, b in pairwise(cuts)], inches)
    for cut in cuts[1:-1]:
        axes.axvline(ends[cut], color=theme.INK, lw=1.6)
    _time_axis(axes, unit, "")


def _name(
    axes: Axes, names: Sequence[str], spans: Sequence[tuple[float, float]], inches: float, colours: Sequence[str]
) -> None:
    """Names of layers in their boxes: those that fit in the smallest size, all in the largest in which they do. If that
    is less than half of the layers, none."""
    room = [(right - left) * inches for left, right in spans]
    fits = _fit(names, room, theme.LABEL_SIZES[-1])
    if sum(fits) < len(names) / 2:
        return
    size = next(size for size in theme.LABEL_SIZES if _fit(names, room, size) == fits)
    for name, (left, right), colour, fit in zip(names, spans, colours, fits, strict=True):
        if fit:
            ink = theme.ink_on(colour)
            axes.text((left + right) / 2, CHAIN / 2, name, size=size, color=ink, ha="center", va="center")


def _fit(names: Sequence[str], room: Sequence[float], size: float) -> list[bool]:
    """Which names fit into their room (inches)."""
    return [text_width(name, size) + NARROW <= width for name, width in zip(names, room, strict=True)]


def _name_stages(axes: Axes, found: Partition, spans: Sequence[tuple[float, float]], inches: float) -> None:
    """Above the boxes, all in words where there is room for that; otherwise each as short as it has to be."""
    words = [f"stage {s} on {m} rank{'s' * (m > 1)}" for s, m in enumerate(found.replicas)]
    short = [f"{s}" + (f" × {m}" if m > 1 else "") for s, m in enumerate(found.replicas)]
    room = [(right - left) * inches for left, right in spans]
    forms = [words] if all(_fit(words, room, theme.SMALL_SIZE)) else [[f"stage {name}" for name in short], short]
    fits = [_fit(form, room, theme.SMALL_SIZE) for form in forms]
    for s, (left, right) in enumerate(spans):
        name = next((form[s] for form, fit in zip(forms, fits, strict=True) if fit[s]), None)
        if name:
            place = (left + right) / 2, CHAIN + NAMES / 2
            axes.text(*place, name, size=theme.SMALL_SIZE, color=theme.INK, ha="center", va="center")


def _draw_stages(axes: Axes, found: Partition, bars: Sequence[Sequence[Load]], height: float) -> None:
    """Stage 0 on top."""
    unit = suited(SECONDS, found.seconds)
    longest = found.seconds / unit.size or 1.0
    plain(axes, "what each stage takes for a minibatch")
    axes.set_xlim(0, longest / (1 - ROOM))
    axes.set_ylim(height, 0)
    top, places = GAP / 2, []
    for s, loads in enumerate(bars):
        places.append(top + ROW / 2)
        for load in loads:
            place = Rectangle(0, top, load.seconds / unit.size, ROW)
            _draw_bar(axes, found, load, place, unit, longest)
            top += ROW
        top += GAP
        if s + 1 < len(bars):
            axes.axhline(top - GAP / 2, color=theme.DIM_INK, lw=0.4)
    if found.seconds:
        axes.axvline(longest, color=theme.INK, lw=1.0, ls="--", zorder=0)
    axes.set_yticks(places, [f"stage {s}" for s in range(len(bars))])
    axes.tick_params(axis="y", length=0)
    _time_axis(axes, unit, " per minibatch", right=longest)


def _draw_bar(axes: Axes, found: Partition, load: Load, place: Rectangle, unit: Unit, longest: float) -> None:
    """A bar with its number beside it, or, where that would be on the line at the longest one, right of the line."""
    colour, hatch = LOOKS.get(load.what, (_colour(load.stage), ""))
    fill(axes, [place], colour, edge=theme.INK if hatch else theme.PAPER, hatch=hatch or None)
    limits = bool(load.seconds) and load == found.limit
    if limits:
        axes.add_patch(Polygon(place.corners(), fill=False, ec=theme.INK, lw=BOLD, clip_on=False, zorder=3))
    text = f"{_text(found, load, unit)}{'  ← bottleneck' if limits else ''}"
    ends = place.width / longest * PANEL_WIDTH * (1 - ROOM) + text_width(text, theme.SMALL_SIZE) + 2 * BESIDE
    axes.text(
        (longest if ends > PANEL_WIDTH * (1 - ROOM) else place.width) + BESIDE * longest / PANEL_WIDTH / (1 - ROOM),
        place.bottom + ROW / 2,
        text,
        size=theme.SMALL_SIZE,
        color=theme.INK,
        weight="bold" if limits else "normal",
        ha="left",
        va="center_baseline",
    )


def _text(found: Partition, load: Load, unit: Unit) -> str:
    """`12 = 36 / 3 ranks`; a message is not shared."""
    each, m = three_digits(load.seconds / unit.size), found.replicas[load.stage]
    if load.what is What.MESSAGE or m == 1:
        return each
    return f"{each} = {three_digits(m * load.seconds / unit.size)} / {m} ranks"


def _time_axis(axes: Axes, unit: Unit, per: str, right: float | None = None) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=(1, 2, 5, 10)))
    if right is not None:
        axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= right])
    if not per:
        axes.set_yticks([])
    axes.set_xlabel(f"{unit.name}{per}", size=theme.TEXT_SIZE, color=theme.INK)


def _legend(found: Partition) -> list[Artist]:
    there = {load.what for load in found.loads if load.seconds}
    entries: list[Artist] = []
    for what, words in WORDS.items():
        colour, hatch = LOOKS.get(what, (_colour(0), ""))
        if what in there or what is What.COMPUTE:
            edge = theme.INK if hatch else theme.PAPER
            entries.append(Patch(label=words, fc=colour, ec=edge, lw=0.6, hatch=hatch or None))
    if found.seconds:
        entries.append(Patch(label="the bottleneck", fc=theme.PAPER, ec=theme.INK, lw=BOLD))
        entries.append(Line2D([], [], color=theme.INK, ls="--", lw=1.0, label="its time"))
    return entries
