"""Short texts at many places, as shapes: a hundred text objects would take longer to draw than all the rest of a
picture, and a slider has to be followed. Numbers in boxes, and names of rows.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D

from pdlab import theme
from pdlab.plots.page import POINTS_PER_INCH

PAD = 1.5
"""Points of paper around a number that is written on a hatched box."""

BESIDE = -0.006
"""Where names end, left of the axis, as a share of its width."""


class Place(NamedTuple):
    """Where a number stands (its middle, in the coordinates of the axes), in which ink, and whether on paper."""

    text: str
    x: float
    y: float
    ink: str
    on_paper: bool


class Numbers(PathCollection):
    """One text at several places."""

    def __init__(self, axes: Axes, text: str, path: Path, places: Sequence[Place], inks: Sequence[str]) -> None:
        offsets = [(place.x, place.y) for place in places]
        super().__init__([path], offsets=offsets, offset_transform=axes.transData, facecolors=inks, linewidths=0)
        self.text = text
        assert axes.figure is not None
        self.set_transform(Affine2D().scale(1 / POINTS_PER_INCH) + axes.figure.dpi_scale_trans)


def write(axes: Axes, places: Sequence[Place], size: float) -> None:
    """Write all numbers in one size (points)."""
    lifted: dict[str, list[Place]] = {}
    texts: dict[str, list[Place]] = {}
    for place in places:
        texts.setdefault(place.text, []).append(place)
        if place.on_paper:
            lifted.setdefault(_as_wide(place.text), []).append(place)
    for text, alike in lifted.items():
        paper = _around(text, size)
        axes.add_collection(Numbers(axes, "", paper, alike, [theme.PAPER]), autolim=False)
    for text, alike in texts.items():
        inks = [place.ink for place in alike]
        axes.add_collection(Numbers(axes, text, _shape(text, size), alike, inks), autolim=False)


class Name(NamedTuple):
    """The name of a row: the height of its middle, in the coordinates of the axes, and its size (points)."""

    text: str
    y: float
    size: float


class Names(PathCollection):
    """Names of rows, left of the axes."""

    def __init__(self, axes: Axes, names: Sequence[Name]) -> None:
        shapes = [_ending(name.text, name.size) for name in names]
        offsets = [(BESIDE, name.y) for name in names]
        along = axes.get_yaxis_transform()
        super().__init__(shapes, offsets=offsets, offset_transform=along, facecolors=theme.INK, linewidths=0)
        self.texts = [name.text for name in names]
        assert axes.figure is not None
        self.set_transform(Affine2D().scale(1 / POINTS_PER_INCH) + axes.figure.dpi_scale_trans)
        self.set_clip_on(False)


def name_rows(axes: Axes, names: Sequence[Name]) -> None:
    axes.set_yticks([])
    axes.add_collection(Names(axes, names), autolim=False)


@lru_cache(maxsize=1024)
def _ending(text: str, size: float) -> Path:
    """The outline of a text left of its middle height, in points."""
    path, zero = TextPath((0, 0), text, size=size), TextPath((0, 0), "0", size=size)
    height = zero.get_extents()
    ended = Affine2D().translate(-path.get_extents().x1, -(height.y0 + height.y1) / 2)
    return Path(path.vertices, path.codes).transformed(ended)


@lru_cache(maxsize=1024)
def _shape(text: str, size: float) -> Path:
    """The outline of a text around its middle, in points. All digits are as high as a 0."""
    path, zero = TextPath((0, 0), text, size=size), TextPath((0, 0), "0", size=size)
    around, height = path.get_extents(), zero.get_extents()
    middle = Affine2D().translate(-(around.x0 + around.x1) / 2, -(height.y0 + height.y1) / 2)
    return Path(path.vertices, path.codes).transformed(middle)


def _as_wide(text: str) -> str:
    """What all numbers of as many digits share a piece of paper with."""
    return "".join("0" if character.isdigit() else character for character in text)


@lru_cache(maxsize=1024)
def _around(text: str, size: float) -> Path:
    """A piece of paper below a text."""
    box = _shape(text, size).get_extents().padded(PAD)
    return Path([(box.x0, box.y0), (box.x1, box.y0), (box.x1, box.y1), (box.x0, box.y1)], closed=False)
