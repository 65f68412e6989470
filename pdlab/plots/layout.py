"""How the layers of a model lie on the ranks of a tensor group, and what moves: the papers' picture, of any model.

    h1     nothing     h1.in  +-----+  h2.own  all-gather  h2
    [ ] -------------->  [ ]  | fc1 |   |||   ==========>  [ ]
    [ ] <============== Σ     |     |   |||   <----------  [ ]
         all-reduce           +-----+            split

To the right the forward, to the left, below it, the gradients. (Shoeybi et al. 2019, arXiv:1909.08053, figure 3, and
Korthikanti et al. 2022, arXiv:2205.05198, figures 4 to 6, draw the block of a transformer.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pdlab import theme
from pdlab.models.exchanges import PARTIAL_SUM
from pdlab.models.model import Model
from pdlab.models.spec import Exchange, Segment, Tensor
from pdlab.models.split import Split
from pdlab.ops import Kind
from pdlab.plots.layout_chain import NO_GRADIENT, check_layers, degree, holding, worth_showing
from pdlab.plots.layout_draw import (
    draw_around,
    draw_collective,
    draw_flow,
    draw_holding,
    draw_segment,
    write,
)
from pdlab.plots.layout_sizes import (
    NAME_SIZE,
    PAD,
    SIDES,
    SMALL_SPREAD,
    SPREAD,
    WORD_SIZE,
    Column,
    Lines,
    Row,
    beside,
    columns,
    rows,
)
from pdlab.plots.page import AXIS, EDGE, page

MARGIN = 0.28
"""Inches left of the rows for the names of the directions."""

ROOM = theme.WIDTH - MARGIN - 2 * EDGE
"""Inches: how long a row may be."""

SLIDE = 5.2
"""Inches that a slide of 16 to 9 leaves for the rows, between title and legend."""

BEYOND = 0.03
"""Inches between a tensor and an arrow."""

TITLES = {
    Split.TENSOR: "tensor parallelism",
    Split.SEQUENCE: "sequence parallelism",
    Split.COLUMN: "column-parallel linears",
    Split.ROW: "row-parallel linears",
}

SQUARES = (
    "a square: samples or tokens down, width across, a weight as A in Y = X A; "
    "several behind each other: each rank has something as large as the whole"
)
SUMMAND = "partial: each rank has a summand of the whole"


def layout(model: Model, layers: Sequence[int] | None = None, *, title: str | None = None) -> Figure:
    """Layers of a model over a tensor group: what each rank holds, and the collectives of forward and backward.

    Without `layers` the block that the model repeats, or the layers that split something and are not alike, as many as
    fit on a slide. ValueError for a model that nothing is exchanged in, and for layers that it does not have.
    """
    num_ranks = degree(model)
    shown = _shown(model, layers)
    side = _side(model, shown)
    found, lines = rows(model, shown, side, ROOM), Lines(side)
    heights = [max(len(found) * lines.height - AXIS, 0.0)]
    figure, [axes] = page(
        title or f"{_split(model)} on {num_ranks} ranks",
        heights,
        _legend(num_ranks),
        _prints(model, shown),
        heading=0.0,
    )
    _take_width(figure, axes)
    for i, row in enumerate(found):
        _Drawing(axes, lines, columns(row, side, EDGE + MARGIN, ROOM), num_ranks, i * lines.height).draw(row)
    return figure


@dataclass(frozen=True)
class _Drawing:
    """A row, being drawn: `columns` holds tensors and items in turn, `top` is in inches."""

    axes: Axes
    lines: Lines
    columns: list[Column]
    num_ranks: int
    top: float

    def draw(self, row: Row) -> None:
        for y, text in ((self.lines.forward, "forward"), (self.lines.gradient, "backward")):
            write(self.axes, EDGE + 0.08, self.top + y, text, WORD_SIZE, rotation=90)
        for column in self.columns[::2]:
            self._tensor(column)
        for i, link in enumerate(row):
            before, column, after = self.columns[2 * i : 2 * i + 3]
            if isinstance(link.item, Exchange):
                self._exchange(link.item, before, after)
            else:
                self._segment(link.item, before, column, after)
                self._beside(link.item, i)

    def _tensor(self, column: Column) -> None:
        tensor, lines = column.what, self.lines
        assert isinstance(tensor, Tensor)
        write(self.axes, column.middle, self.top + lines.names, tensor.name, NAME_SIZE)
        places = (
            (tensor.layout, lines.forward, lines.words, lines.side, SPREAD),
            (tensor.grad, lines.gradient, lines.gradient_words, lines.small_side, SMALL_SPREAD),
        )
        for lies, y, word_y, side, spread in places:
            if lies is None:
                write(self.axes, column.middle, self.top + y, NO_GRADIENT, NAME_SIZE, color=theme.QUIET)
                continue
            held = holding(lies, len(tensor.shape))
            size = (side, side) if tensor.shape else (side / 3, side / 3)
            draw_holding(self.axes, (column.middle, self.top + y), size, spread, held, self.num_ranks)
            write(self.axes, column.middle, self.top + word_y, held.word, WORD_SIZE)

    def _edge(self, column: Column, *, small: bool, right: bool) -> float:
        """A little beyond the left or right edge of what is drawn of a tensor, or of its gradient if `small`."""
        tensor, lines = column.what, self.lines
        assert isinstance(tensor, Tensor)
        side, spread, lies = (
            (lines.small_side, SMALL_SPREAD, tensor.grad) if small else (lines.side, SPREAD, tensor.layout)
        )
        stacked = lies is not None and holding(lies, len(tensor.shape)).stacked
        half = ((side if tensor.shape else side / 3) + (spread if stacked else 0.0)) / 2 + BEYOND
        return column.middle + (half if right else -half)

    def _exchange(self, item: Exchange, before: Column, after: Column) -> None:
        y = self.top + self.lines.forward
        start, end = self._edge(before, small=False, right=True), self._edge(after, small=False, right=False)
        draw_collective(self.axes, start, end, y, item.forward, above=True)
        write(self.axes, (start + end) / 2, self.top + self.lines.words, item.name, NAME_SIZE)
        if item.result.grad is not None and item.payload.grad is not None:
            y = self.top + self.lines.gradient
            draw_collective(self.axes, end, start, y, item.backward, above=False)

    def _segment(self, item: Segment, before: Column, column: Column, after: Column) -> None:
        top, lines = self.top, self.lines
        draw_segment(self.axes, column, top + lines.box_top, top + lines.box_bottom, self.num_ranks)
        y = top + lines.forward
        draw_flow(self.axes, self._edge(before, small=False, right=True), column.left, y)
        draw_flow(self.axes, column.right, self._edge(after, small=False, right=False), y)
        y = top + lines.gradient
        for tensor, ends in (
            (after, (self._edge(after, small=True, right=False), column.right)),
            (before, (column.left, self._edge(before, small=True, right=True))),
        ):
            if isinstance(tensor.what, Tensor) and tensor.what.grad is not None:
                draw_flow(self.axes, *ends, y)

    def _beside(self, item: Segment, i: int) -> None:
        """What a segment reads besides the tensor before it: a residual from the row, the rest by name."""
        lines, column = self.lines, self.columns[2 * i + 1]
        came_by = {c.what.name: c for c in self.columns[: 2 * i : 2] if isinstance(c.what, Tensor)}
        others = [tensor for tensor in item.inputs if tensor != self.columns[2 * i].what]
        named = [tensor.name for tensor in others if tensor.name not in came_by]
        for tensor in others:
            if tensor.name in came_by:
                self._residual(came_by[tensor.name], column, tensor.grad is not None)
        if named:
            alone = len(named) == len(others)
            x, align = (column.middle, "center") if alone else (column.left + PAD, "left")
            write(self.axes, x, self.top + lines.names, beside(named), NAME_SIZE, ha=align)

    def _residual(self, source: Column, column: Column, graded: bool) -> None:
        top, lines = self.top, self.lines
        xs = (source.right + BEYOND, column.middle)
        ys = (top + lines.forward, top + lines.lane, top + lines.box_top)
        draw_around(self.axes, xs, ys, into_box=True)
        if graded:
            ys = (top + lines.gradient, top + lines.lower_lane, top + lines.box_bottom)
            draw_around(self.axes, xs, ys, into_box=False)


def _shown(model: Model, layers: Sequence[int] | None) -> list[int]:
    if layers is not None:
        check_layers(model, layers)
        return list(layers)
    found = worth_showing(model)
    while len(found) > 1 and _height(model, found, SIDES[-1]) > SLIDE:
        found.pop()
    return found


def _height(model: Model, shown: Sequence[int], side: float) -> float:
    return len(rows(model, shown, side, ROOM)) * Lines(side).height


def _side(model: Model, shown: Sequence[int]) -> float:
    """The largest that needs no more rows than the smallest, and no more height than a slide has."""
    fewest = len(rows(model, shown, SIDES[-1], ROOM))
    fitting = [side for side in SIDES if len(rows(model, shown, side, ROOM)) == fewest]
    return next((side for side in fitting if _height(model, shown, side) <= SLIDE), fitting[-1])


def _split(model: Model) -> str:
    assert model.split is not None
    return TITLES[model.split]


def _legend(num_ranks: int) -> list[Artist]:
    ranks = [
        Patch(label=f"rank {rank}", fc=colour, ec=theme.INK)
        for rank, colour in enumerate(theme.rank_colours(num_ranks))
    ]
    return [*ranks, Patch(label=SUMMAND, fc=theme.PAPER, ec=theme.INK, hatch=theme.PARTIAL_HATCH)]


def _prints(model: Model, shown: Sequence[int]) -> list[str]:
    items = [item for i in shown for item in model.layers[i]]
    lines = [SQUARES]
    if any(Kind.SPLIT in (item.forward, item.backward) for item in items if isinstance(item, Exchange)):
        lines.append("split: each rank keeps its own part of what it has, without a message")
    summed = [
        group.name
        for item in items
        if isinstance(item, Segment)
        for group in item.groups
        if group.grad == PARTIAL_SUM and group.layout != PARTIAL_SUM
    ]
    if summed:
        lines.append(f"weights whose gradients are partial, to be summed after the backward: {', '.join(summed)}")
    which = f"layer{'s' if len(shown) > 1 else ''} {', '.join(map(str, shown))} of 0 to {len(model.layers) - 1}"
    return [*lines, f"model {model.name}, {which}, tensor group of {degree(model)} ranks"]


def _take_width(figure: Figure, axes: Axes) -> None:
    """The whole width, down to where others have their time axis, in inches from the upper left corner."""
    width, height = figure.get_size_inches()
    place = axes.get_position()
    bottom = place.y0 - AXIS / height
    axes.set_position((0, bottom, 1, place.y1 - bottom))
    axes.set_xlim(0, width)
    axes.set_ylim((place.y1 - bottom) * height, 0)
    axes.set_axis_off()
