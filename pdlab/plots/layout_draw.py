"""The parts of a picture of layouts: squares that show what each rank holds, boxes, and arrows for what moves."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrow, FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.path import Path

from pdlab import theme
from pdlab.models.spec import Segment
from pdlab.ops import Kind
from pdlab.plots.layout_chain import Holding, Pattern, said, weights
from pdlab.plots.layout_sizes import (
    EXCHANGE_SIZE,
    GLYPH,
    PAD,
    SMALL_SPREAD,
    WEIGHT_SIZE,
    WORD_SIZE,
    Column,
    text_width,
    weights_width,
)
from pdlab.plots.page import POINTS_PER_INCH

EDGE, FAINT = 0.8, 0.5
"""Points: the outlines of boxes and squares, and what is between the bands of a square."""

LINE, TIP = 1.1, 9.0
"""Points: a thin arrow's line and tip."""

VISIBLE = 0.4
"""The share of what is seen of a card behind another that its outline may take."""

BOX = "#F3F3F3"
"""Behind the words of a segment."""

SHAFT, HEAD, HEAD_LENGTH = 0.09, 0.24, 0.17
"""Inches: of the arrow of a collective."""

FLAT = 0.35
"""The height of a vector as a share of that of a matrix."""

WORD_BESIDE = 0.16
"""Inches from the middle of a collective's arrow to the edge of its word."""


def draw_holding(
    axes: Axes, middle: tuple[float, float], size: tuple[float, float], spread: float, held: Holding, num_ranks: int
) -> None:
    """What each rank holds: a card for each copy or summand, rank 0 in front, or one square in bands."""
    width, height = size
    left, top = middle[0] - width / 2, middle[1] - height / 2
    colours = theme.rank_colours(num_ranks)
    if not held.stacked:
        _draw_bands(axes, (left, top), size, held.pattern, colours)
        return
    hatch = theme.PARTIAL_HATCH if held.pattern is Pattern.PARTIAL else None
    outline = min(EDGE, VISIBLE * spread / (num_ranks - 1) * POINTS_PER_INCH)
    for rank in reversed(range(num_ranks)):
        away = spread * (rank / (num_ranks - 1) - 0.5)
        corner = (left + away, top - away)
        axes.add_patch(Rectangle(corner, width, height, fc=colours[rank], ec=theme.INK, lw=outline, hatch=hatch))
    if hatch:
        _draw_sum(axes, (middle[0] - spread / 2, middle[1] + spread / 2), min(size))


def _draw_bands(
    axes: Axes, corner: tuple[float, float], size: tuple[float, float], pattern: Pattern, colours: Sequence[str]
) -> None:
    left, top = corner
    across = pattern is Pattern.ACROSS
    width, height = (size[0] / len(colours), size[1]) if across else (size[0], size[1] / len(colours))
    fitting = [s for s in theme.LABEL_SIZES if _fits(s, width, height)]
    for rank, colour in enumerate(colours):
        x, y = (left + rank * width, top) if across else (left, top + rank * height)
        axes.add_patch(Rectangle((x, y), width, height, fc=colour, ec=theme.PAPER, lw=FAINT))
        if fitting:
            ink = theme.ink_on(colour)
            write(axes, x + width / 2, y + height / 2, f"{rank}", fitting[0], color=ink)
    axes.add_patch(Rectangle(corner, *size, fc="none", ec=theme.INK, lw=EDGE))


def _fits(size: float, width: float, height: float) -> bool:
    return text_width("0", size) + 0.05 <= width and 1.1 * size / POINTS_PER_INCH <= height


def _draw_sum(axes: Axes, middle: tuple[float, float], side: float) -> None:
    axes.add_patch(Circle(middle, 0.3 * side, fc=theme.PAPER, ec="none"))
    write(axes, *middle, "Σ", 0.42 * side * POINTS_PER_INCH, weight="bold")


def draw_segment(axes: Axes, column: Column, top: float, bottom: float, num_ranks: int) -> None:
    """A box with the segment's name and its weights, each with how it is split."""
    segment = column.what
    assert isinstance(segment, Segment)
    box = FancyBboxPatch(
        (column.left, top), column.width, bottom - top, "round,pad=0,rounding_size=0.06", fc=BOX, ec=theme.INK, lw=EDGE
    )
    axes.add_patch(box)
    write(axes, column.middle, top + 0.16, segment.name, WORD_SIZE, weight="bold")
    entries = weights(segment)
    first = top + 0.3
    step = (bottom - first) / max(len(entries), 1)
    left = column.middle - max(map(weights_width, entries), default=0.0) / 2
    for i, entry in enumerate(entries):
        y = first + (i + 0.5) * step
        size = (GLYPH, GLYPH * FLAT if entry.flat else GLYPH)
        draw_holding(axes, (left + (GLYPH + SMALL_SPREAD) / 2, y), size, SMALL_SPREAD, entry.holding, num_ranks)
        x = left + GLYPH + SMALL_SPREAD + PAD
        write(axes, x, y, f"{entry.names}\n{entry.holding.word}", WEIGHT_SIZE, ha="left", linespacing=1.15)


def draw_flow(axes: Axes, start: float, end: float, y: float) -> None:
    """From a tensor to a segment or back."""
    axes.add_patch(_thin_arrow((start, y), (end, y)))


def draw_collective(axes: Axes, start: float, end: float, y: float, kind: Kind | None, *, above: bool) -> None:
    """What moves from `start` to `end`, with its word above or below."""
    middle, beside = (start + end) / 2, -WORD_BESIDE if above else WORD_BESIDE
    if kind is None:
        axes.add_patch(_thin_arrow((start, y), (end, y), theme.QUIET, ":"))
    else:
        axes.add_patch(_broad_arrow(start, end, y, theme.COLOURS[kind]))
    colour, weight = (theme.QUIET, "normal") if kind is None else (theme.INK, "bold")
    va = "bottom" if above else "top"
    write(axes, middle, y + beside, said(kind), EXCHANGE_SIZE, color=colour, weight=weight, va=va)


def draw_around(axes: Axes, xs: tuple[float, float], ys: tuple[float, float, float], *, into_box: bool) -> None:
    """A residual connection: from the first place beside the chain to the second, `ys` are those of the chain, of
    the lane outside and of the box's edge. The arrow is at the box, or at the chain for the gradient."""
    (beside, box), (chain, lane, edge) = xs, ys
    path = Path([(beside, chain), (beside, lane), (box, lane), (box, edge)][:: 1 if into_box else -1])
    axes.add_patch(FancyArrowPatch(path=path, arrowstyle="-|>", mutation_scale=TIP, color=theme.INK, lw=LINE))


def _thin_arrow(
    start: tuple[float, float], end: tuple[float, float], colour: str = theme.INK, line: str = "-"
) -> FancyArrowPatch:
    return FancyArrowPatch(
        start, end, arrowstyle="-|>", mutation_scale=TIP, shrinkA=0, shrinkB=0, color=colour, lw=LINE, ls=line
    )


def _broad_arrow(start: float, end: float, y: float, colour: str) -> FancyArrow:
    return FancyArrow(
        start,
        y,
        end - start,
        0,
        width=SHAFT,
        head_width=HEAD,
        head_length=HEAD_LENGTH,
        length_includes_head=True,
        fc=colour,
        ec=theme.INK,
        lw=EDGE,
    )


def write(axes: Axes, x: float, y: float, text: str, size: float, **look: Any) -> None:
    """In the middle of a place if not said otherwise."""
    axes.text(x, y, text, size=size, **{"color": theme.INK, "ha": "center", "va": "center", **look})
