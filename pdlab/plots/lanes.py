"""One trace drawn on one panel: boxes in rows, numbers in boxes, names beside rows."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from pdlab import theme
from pdlab.ops import COMPUTE, PASS_KINDS, Kind, Lane
from pdlab.plots.boxes import Box, Row, boxes, opposite, rows
from pdlab.plots.labels import labels
from pdlab.plots.numbers import Place, write
from pdlab.plots.page import PANEL_WIDTH, plain
from pdlab.plots.units import Unit
from pdlab.program import Program
from pdlab.trace import Trace

OUTLINE = 0.6
"""Points: the white line around a box that keeps neighbours apart."""

SEAM = 0.2
"""The share of a box's height that a seam is cut into it, from above and from below: a number fits between."""

BESIDE = -0.005
"""Where names end, left of the axis, as a share of its width."""

NARROW = 0.04
"""Inches: a box below this has no white outline, which would leave nothing of it."""


class Lanes:
    """A trace laid out in rows, to be drawn on a time axis that ends at `until` seconds.

    Where rows of the trace are `marked`, everything else is dimmed.
    """

    def __init__(self, trace: Trace, until: float, marked: Collection[int] = ()) -> None:
        self.boxes = boxes(trace, frozenset(marked))
        self.rows = rows(self.boxes, len(trace.program.ranks))
        self.program = trace.program
        self.inches = PANEL_WIDTH / (until or 1.0)  # the length of a second
        self.labels = labels([box for box in self.boxes if box.stream == COMPUTE], self.inches)

    @property
    def height(self) -> float:
        """Inches."""
        return self.rows[-1].top + self.rows[-1].height + self.rows[0].top

    def legend(self) -> list[Artist]:
        """One entry per word for what is drawn, in the order of `theme.WORDS`, and what the numbers mean."""
        drawn = {box.kind for box in self.boxes}
        words = {word: kind for kind, word in reversed(theme.WORDS.items()) if kind in drawn}
        entries: list[Artist] = [_patch(kind, word) for word, kind in reversed(words.items())]
        if self.labels.texts:
            lighter = " (lighter: newer weights)" if self.program.steps_each_microbatch else ""
            text, meaning = self.labels.example
            entries.append(_number(text, meaning + lighter))
        return entries

    def draw(self, axes: Axes, heading: str, unit: Unit) -> None:
        """Draw boxes, numbers and the names of rows."""
        plain(axes, heading)
        axes.set_ylim(self.height, 0)
        looks = self.looks(unit)
        _draw_boxes(axes, list(looks.values()), self.inches)
        lines = [line for look in looks.values() for at in look.box.seams for line in look.seam(at)]
        axes.add_collection(LineCollection(lines, colors=theme.PAPER, linewidths=OUTLINE), autolim=False)
        write(axes, [looks[box].number(text) for box, text in self.labels.texts], self.labels.size)
        _name_rows(axes, self.rows)

    def looks(self, unit: Unit) -> "dict[Box, Look]":
        """How each box is drawn."""
        places = {(row.rank, row.stream): row for row in self.rows}
        paleness = _Paleness(self.program)
        dims = any(box.marked for box in self.boxes)
        return {
            box: Look(box, places[box.rank, box.stream], paleness.of(box), unit, dims and not box.marked)
            for box in self.boxes
        }


@dataclass(frozen=True)
class Look:
    """Where a box is drawn (horizontally in units of time, vertically in inches) and how pale (from 0 to 1)."""

    box: Box
    row: Row
    paleness: float
    unit: Unit
    dim: bool = False

    @property
    def colour(self) -> str:
        return theme.shade(self.box.kind, theme.DIM if self.dim else self.paleness)

    def corners(self) -> list[tuple[float, float]]:
        left, right = self.box.start / self.unit.size, self.box.end / self.unit.size
        top, bottom = self.row.top, self.row.top + self.row.height
        return [(left, top), (right, top), (right, bottom), (left, bottom)]

    def seam(self, at: float) -> list[list[tuple[float, float]]]:
        x, top, bottom = at / self.unit.size, self.row.top, self.row.top + self.row.height
        cut = SEAM * self.row.height
        return [[(x, top), (x, top + cut)], [(x, bottom - cut), (x, bottom)]]

    def number(self, text: str) -> Place:
        """The number in the middle of the box, on a piece of paper where the box is hatched."""
        x, y = (self.box.start + self.box.end) / 2 / self.unit.size, self.row.top + self.row.height / 2
        hatched = self.box.kind in theme.HATCHES
        ink = theme.DIM_INK if self.dim else theme.INK if hatched else theme.ink_on(self.colour)
        return Place(text, x, y, ink, hatched)


class _Paleness:
    """Lightness by weight version where a program steps along the way, otherwise slightly by microbatch."""

    def __init__(self, program: Program) -> None:
        self.last = max(1, program.num_microbatches - 1)
        self.by_version = program.steps_each_microbatch

    def of(self, box: Box) -> float:
        if box.kind not in PASS_KINDS:
            return 0.0
        if self.by_version:
            return theme.PALEST_VERSION * max(0, box.version) / self.last
        return theme.PALEST_MICROBATCH * box.microbatch / self.last


def _draw_boxes(axes: Axes, looks: Sequence[Look], inches: float) -> None:
    """One collection per hatch. Narrow boxes are plain and outlined in their own colour, so that they stay visible."""
    groups: dict[tuple[bool, str], list[Look]] = {}
    for look in looks:
        wide = (look.box.end - look.box.start) * inches >= NARROW
        groups.setdefault((wide, theme.HATCHES.get(look.box.kind, "") if wide else ""), []).append(look)
    for (wide, hatch), chosen in sorted(groups.items()):
        colours = [look.colour for look in chosen]
        outline = theme.PAPER if wide else colours
        corners = [look.corners() for look in chosen]
        boxes_drawn = PolyCollection(corners, fc=colours, ec=outline, lw=OUTLINE, hatch=hatch or None)
        axes.add_collection(boxes_drawn, autolim=False)


def _name_rows(axes: Axes, placed: Sequence[Row]) -> None:
    """`rank 0` beside compute, the stream beside communication; two directions to one peer share a name."""
    taken = {(row.rank, row.stream) for row in placed}
    names = []
    for row in placed:
        other = opposite(row.stream)
        if other is None or (row.rank, other) not in taken:
            name = f"rank {row.rank}" if row.stream == COMPUTE else str(row.stream)
            names.append((row.top + row.height / 2, name, row.stream == COMPUTE))
        elif row.stream.lane is Lane.TO:
            names.append((row.top + row.height, f"to, from {row.stream.peer}", False))
    axes.set_yticks([])  # texts do the same as tick labels, and are drawn in a quarter of the time
    beside = axes.get_yaxis_transform()
    for at, name, is_compute in names:
        size = theme.TEXT_SIZE if is_compute else theme.STREAM_SIZE
        axes.text(BESIDE, at, name, transform=beside, size=size, color=theme.INK, ha="right", va="center")


def _patch(kind: Kind, word: str) -> Artist:
    return Patch(label=word, facecolor=theme.shade(kind), edgecolor=theme.PAPER, hatch=theme.HATCHES.get(kind))


def _number(text: str, meaning: str) -> Artist:
    marker, size = f"${text}$", 5 + 4 * len(text)
    return Line2D([], [], ls="none", marker=marker, ms=size, mew=0, color=theme.INK, label=meaning)
