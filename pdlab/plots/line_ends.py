"""Names of lines at their ends, instead of a legend: those that end together share a name, and none covers another."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from matplotlib.axes import Axes

from pdlab import theme
from pdlab.plots.page import POINTS_PER_INCH

LINE, AIR = 1.25, 0.05
"""The height of a line of a name as a multiple of the font size, and what is left between two names (inches)."""

START, GAP, TEXT = 0.06, 0.3, 0.36
"""Inches from the right end of the panel: where the line to a name begins, where it ends, and where the name does."""

SAME = 0.02
"""Inches: ends that are no further apart are one."""


@dataclass(frozen=True)
class End:
    """Where a line ends, in inches from the lower left corner of the panel, and its name."""

    name: str
    colour: str
    x: float
    y: float


@dataclass(frozen=True)
class Tag:
    """A name of some ends, whose middle is to stand as near as possible to `y` (inches)."""

    lines: tuple[str, ...]
    colour: str
    x: float
    y: float

    @property
    def height(self) -> float:
        return len(self.lines) * LINE * theme.TEXT_SIZE / POINTS_PER_INCH + AIR


def tags(ends: Sequence[End], letters: int) -> list[Tag]:
    """One for all ends at one place, from the bottom up, wrapped after so many letters."""
    groups: list[list[End]] = []
    for end in sorted(ends, key=lambda end: (end.y, end.x)):
        last = groups[-1][-1] if groups else None
        if last and end.y - last.y <= SAME and abs(end.x - last.x) <= SAME:
            groups[-1].append(end)
        else:
            groups.append([end])
    turn = {end.name: i for i, end in enumerate(ends)}
    found = []
    for group in groups:
        names = sorted((end.name for end in group), key=lambda name: turn[name])
        colours = {end.colour for end in group}
        colour = colours.pop() if len(colours) == 1 else theme.INK
        lines = wrap(", ".join(names), letters, break_long_words=False, break_on_hyphens=False)
        found.append(Tag(tuple(lines), colour, group[0].x, group[0].y))
    return found


def spread(wanted: Sequence[Tag], height: float) -> list[float]:
    """Middles for tags that are in order from the bottom up: each as near to where it is wanted as the others and the
    panel allow. Tags that touch move as one block to the mean of what they want."""
    blocks: list[tuple[float, list[Tag]]] = []  # lower end of each, and its tags
    for tag in wanted:
        members = [tag]
        low = _lower_end(members, height)
        while blocks and blocks[-1][0] + _height(blocks[-1][1]) > low:
            members = [*blocks.pop()[1], *members]
            low = _lower_end(members, height)
        blocks.append((low, members))
    middles = []
    for low, members in blocks:
        for tag in members:
            middles.append(low + tag.height / 2)
            low += tag.height
    return middles


def _height(members: Sequence[Tag]) -> float:
    return sum(tag.height for tag in members)


def _lower_end(members: Sequence[Tag], height: float) -> float:
    below, shifts = 0.0, []
    for tag in members:
        shifts.append(tag.y - below - tag.height / 2)
        below += tag.height
    return max(0.0, min(sum(shifts) / len(shifts), height - below))


def name_ends(axes: Axes, ends: Sequence[End], size: tuple[float, float], letters: int) -> None:
    """Write the names right of a panel of `size` (inches), with a thin line from each end to its name."""
    width, height = size
    wanted = tags(ends, letters)
    for tag, middle in zip(wanted, spread(wanted, height), strict=True):
        along, up = [tag.x, width + START, width + GAP], [tag.y, tag.y, middle]
        axes.plot(
            [x / width for x in along],
            [y / height for y in up],
            transform=axes.transAxes,
            color=tag.colour,
            lw=0.8,
            clip_on=False,
        )
        place = ((width + TEXT) / width, middle / height)
        text = "\n".join(tag.lines)
        axes.text(
            *place, text, transform=axes.transAxes, size=theme.TEXT_SIZE, color=theme.INK, va="center", linespacing=LINE
        )
