"""The page that every figure is printed on: title, panels, legend and small print, each given its room in inches.

Nothing is left to a layout engine, so that no text can end up on another and a legend never covers data.
"""

from collections.abc import Sequence
from math import ceil
from textwrap import wrap

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pdlab import theme

POINTS_PER_INCH = 72

LEFT, RIGHT, EDGE, HEADING, AXIS = 0.95, 0.2, 0.12, 0.38, 0.58
"""Inches: left of the panels for the names of rows, right of them, around everything, above a panel for its heading,
below the last one for its time axis."""

PANEL_WIDTH = theme.WIDTH - LEFT - RIGHT
"""Inches; the same in every figure, so that two of them can be laid under each other."""

HANDLE, SPACING = 0.85, 1.5
"""Inches of a legend entry besides its text, and the height of a line as a multiple of the font size."""


DIGIT, LETTER = 0.64, 0.58
"""The width of a character of DejaVu Sans as a share of the font size, of letters on average and a little more."""


def text_width(text: str, size: float, character: float = LETTER) -> float:
    """Inches that a text takes, near enough to plan by."""
    return character * len(text) * size / POINTS_PER_INCH


def page(
    title: str,
    heights: Sequence[float],
    legend: Sequence[Artist],
    print_lines: Sequence[str],
    *,
    heading: float | Sequence[float] = HEADING,
) -> tuple[Figure, list[Axes]]:
    """A figure with one panel for each of `heights`, each with room for a `heading` above it (inches), or each with its
    own."""
    headings = [heading] * len(heights) if isinstance(heading, float) else heading
    titles = _lines(title, theme.TITLE_SIZE)
    prints = [line for text in print_lines for line in _lines(text, theme.PRINT_SIZE)]
    columns = _columns(legend)
    top = EDGE + _height(len(titles), theme.TITLE_SIZE)
    bottom = 2 * EDGE + _height(len(prints), theme.PRINT_SIZE)
    legend_height = _height(ceil(len(legend) / columns), theme.TEXT_SIZE)
    height = top + sum(headings) + sum(heights) + AXIS + legend_height + bottom
    figure = Figure(figsize=(theme.WIDTH, height), facecolor=theme.PAPER)
    left = EDGE / theme.WIDTH
    figure.text(left, 1 - EDGE / height, "\n".join(titles), size=theme.TITLE_SIZE, color=theme.INK, va="top")
    figure.text(left, EDGE / height, "\n".join(prints), size=theme.PRINT_SIZE, color=theme.INK, va="bottom")
    if legend:
        _add_legend(figure, legend, columns, bottom / height)
    return figure, _panels(figure, heights, top, headings)


def plain(axes: Axes, heading: str = "") -> None:
    """The look of a panel: a heading, a line below, nothing around."""
    axes.set_title(heading, loc="left", size=theme.HEADING_SIZE, color=theme.INK, pad=5)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(labelsize=theme.TEXT_SIZE, colors=theme.INK)


def _panels(figure: Figure, heights: Sequence[float], top: float, headings: Sequence[float]) -> list[Axes]:
    width, height = figure.get_size_inches()
    panels, used = [], top
    for panel, heading in zip(heights, headings, strict=True):
        used += heading + panel
        panels.append(figure.add_axes((LEFT / width, 1 - used / height, PANEL_WIDTH / width, panel / height)))
    return panels


def _columns(legend: Sequence[Artist]) -> int:
    """As many columns as fit; entries run down the columns, each as wide as its widest entry."""
    widths = [HANDLE + text_width(str(entry.get_label()), theme.TEXT_SIZE) for entry in legend]
    for num_rows in range(1, len(widths)):
        columns = [max(widths[i : i + num_rows]) for i in range(0, len(widths), num_rows)]
        if sum(columns) <= PANEL_WIDTH:
            return len(columns)
    return 1


def _add_legend(figure: Figure, legend: Sequence[Artist], columns: int, bottom: float) -> None:
    figure.legend(
        handles=list(legend),
        loc="lower left",
        bbox_to_anchor=(LEFT / theme.WIDTH, bottom),
        ncols=columns,
        frameon=False,
        fontsize=theme.TEXT_SIZE,
        labelcolor=theme.INK,
        borderpad=0,
        borderaxespad=0,
        labelspacing=0.3,
        columnspacing=1.5,
    )


def _lines(text: str, size: float) -> list[str]:
    return wrap(text, int((theme.WIDTH - 2 * EDGE) / text_width("x", size)))


def _height(num_lines: int, size: float) -> float:
    return num_lines * SPACING * size / POINTS_PER_INCH
