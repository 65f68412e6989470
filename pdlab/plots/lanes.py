"""One trace drawn on one panel: boxes in rows, numbers in boxes, names beside rows."""

from collections.abc import Collection, Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from pdlab import theme
from pdlab.ops import COMPUTE, Kind, Lane
from pdlab.plots.boxes import WHOLE, Box, Row, boxes, opposite, rows
from pdlab.plots.labels import labels
from pdlab.plots.looks import OUTLINE, Look, Paleness, draw_boxes
from pdlab.plots.numbers import Name, name_rows, write
from pdlab.plots.page import PANEL_WIDTH, plain
from pdlab.plots.units import Unit
from pdlab.trace import Trace


class Lanes:
    """A trace laid out in rows, to be drawn on a time axis that ends at `until` seconds.

    Where rows of the trace are `marked`, everything else is dimmed.
    """

    def __init__(self, trace: Trace, until: float, marked: Collection[int] = ()) -> None:
        self.boxes = boxes(trace, frozenset(marked))
        self.rows = rows(self.boxes, len(trace.program.ranks))
        self.paleness = Paleness(trace.program, self.boxes)
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
        if any(box.part is not WHOLE for box in self.boxes):
            entries.append(example(r"\frac{F}{B}", "a forward and a backward that overlap", size=14))
        if self.labels.texts:
            text, meaning = self.labels.example
            entries.append(example(text, meaning))
        if self.paleness.meaning:
            entries.append(_patch(Kind.FORWARD, self.paleness.meaning, self.paleness.palest))
        return entries

    def draw(self, axes: Axes, heading: str, unit: Unit) -> None:
        """Draw boxes, numbers and the names of rows."""
        plain(axes, heading)
        axes.set_ylim(self.height, 0)
        looks = self.looks(unit)
        draw_boxes(axes, list(looks.values()), self.inches)
        lines = [line for look in looks.values() for at in look.box.seams for line in look.seam(at)]
        axes.add_collection(LineCollection(lines, colors=theme.PAPER, linewidths=OUTLINE), autolim=False)
        write(axes, [looks[box].number(text) for box, text in self.labels.texts], self.labels.size)
        _name_rows(axes, self.rows)

    def looks(self, unit: Unit) -> dict[Box, Look]:
        """How each box is drawn."""
        places = {(row.rank, row.stream): row for row in self.rows}
        dims = any(box.marked for box in self.boxes)
        return {
            box: Look(box, places[box.rank, box.stream], self.paleness.of(box), unit, dims and not box.marked)
            for box in self.boxes
        }


def _name_rows(axes: Axes, placed: Sequence[Row]) -> None:
    """`rank 0` beside compute, the stream beside communication; two directions to one peer share a name."""
    taken = {(row.rank, row.stream) for row in placed}
    names = []
    for row in placed:
        other = opposite(row.stream)
        if other is None or (row.rank, other) not in taken:
            name = f"rank {row.rank}" if row.stream == COMPUTE else str(row.stream)
            size = theme.TEXT_SIZE if row.stream == COMPUTE else theme.STREAM_SIZE
            names.append(Name(name, row.top + row.height / 2, size))
        elif row.stream.lane is Lane.TO:
            names.append(Name(f"to, from {row.stream.peer}", row.top + row.height, theme.STREAM_SIZE))
    name_rows(axes, names)


def _patch(kind: Kind, word: str, paleness: float = 0.0) -> Artist:
    colour, hatch = theme.shade(kind, paleness), theme.HATCHES.get(kind)
    return Patch(label=word, facecolor=colour, edgecolor=theme.PAPER, hatch=hatch)


def example(text: str, meaning: str, size: float | None = None) -> Artist:
    """A legend entry that explains a text of the picture."""
    marker = f"$\\mathrm{{{text}}}$"
    return Line2D([], [], ls="none", marker=marker, ms=size or 5 + 4 * len(text), mew=0, color=theme.INK, label=meaning)
