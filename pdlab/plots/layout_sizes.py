"""Sizes in a picture of layouts: how wide the parts of a chain are, how they fill rows, how high a row is."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from pdlab import theme
from pdlab.models.model import Model
from pdlab.models.spec import Exchange, Item, Segment, Tensor
from pdlab.plots.layout_chain import NO_GRADIENT, Link, Weights, links, said, weights
from pdlab.plots.page import POINTS_PER_INCH

SIDES = (0.9, 0.8, 0.7, 0.6, 0.55)
"""Inches: the sides that a tensor may have."""

SPREAD, SMALL_SPREAD = 0.15, 0.09
"""Inches by which the last of several copies is moved up and to the right; of a tensor, of a gradient or a weight."""

GAP, MOST_GAP, PAD = 0.14, 0.7, 0.07
"""Inches between what stands beside each other, at least and at most; and within a box, left and right."""

CLEAR = 0.06
"""Inches between the word of a collective and the tensors beside it."""

GLYPH = 0.26
"""Inches: the side of a weight."""

NAME_SIZE, WORD_SIZE, WEIGHT_SIZE, EXCHANGE_SIZE = 9.0, theme.TEXT_SIZE, 10.0, theme.TEXT_SIZE
"""Points: the names of tensors and exchanges; layouts and the names of segments; weights; collectives."""

HINTED = 1.03
"""How much wider letters get where they are set on whole pixels."""


class Column(NamedTuple):
    """Something in a row: where it begins and how wide it is, in inches."""

    what: Tensor | Item
    left: float
    width: float

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def middle(self) -> float:
        return self.left + self.width / 2


Row = list[Link]


def rows(model: Model, layers: Sequence[int], side: float, room: float) -> list[Row]:
    """The layers in as few rows as they take, a layer cut only where it is longer than a row."""
    found: list[Row] = []
    for index in layers:
        layer = links(model.layers[index])
        joined = [*found[-1], *layer] if found else layer
        if found and found[-1][-1].after == layer[0].before and width(joined, side) <= room:
            found[-1] = joined
        else:
            found += _cut(layer, side, room)
    return found


def _cut(row: Row, side: float, room: float) -> list[Row]:
    """In as few rows as fit, and as equally long ones."""
    fewest = len(_filled(row, side, room))
    limits = sorted({width(row[i:j], side) for j in range(len(row) + 1) for i in range(j)})
    return next(found for limit in limits if len(found := _filled(row, side, min(limit, room))) == fewest)


def _filled(row: Row, side: float, limit: float) -> list[Row]:
    found: list[Row] = [[]]
    for link in row:
        if found[-1] and width([*found[-1], link], side) > limit:
            found.append([])
        found[-1].append(link)
    return found


def width(row: Row, side: float) -> float:
    """Inches that a row takes at least."""
    parts = _parts(row)
    return sum(_width(part, side) for part in parts) + GAP * (len(parts) - 1)


def columns(row: Row, side: float, left: float, room: float) -> list[Column]:
    """Where everything in a row stands, with what is left of the room in the gaps."""
    parts = _parts(row)
    gap = min(MOST_GAP, GAP + (room - width(row, side)) / (len(parts) - 1))
    found = [Column(parts[0], left, _width(parts[0], side))]
    for _, part in pairwise(parts):
        found.append(Column(part, found[-1].right + gap, _width(part, side)))
    return found


def _parts(row: Row) -> list[Tensor | Item]:
    return [row[0].before, *(part for link in row for part in (link.item, link.after))]


def _width(part: Tensor | Item, side: float) -> float:
    match part:
        case Tensor():
            word = NO_GRADIENT if part.grad is None else ""
            return max(side + SPREAD, text_width(part.name, NAME_SIZE), text_width(word, NAME_SIZE))
        case Segment():
            inside = [text_width(part.name, WORD_SIZE, bold=True), *map(weights_width, weights(part))]
            fed = beside([tensor.name for tensor in part.inputs if tensor.feed])
            return max(*inside, text_width(fed, NAME_SIZE)) + 2 * PAD
        case Exchange():
            words = [said(part.forward), said(part.backward)]
            needed = max(text_width(part.name, NAME_SIZE), *(text_width(w, EXCHANGE_SIZE, bold=True) for w in words))
            return needed - 2 * (GAP - CLEAR)


def beside(names: Sequence[str]) -> str:
    """What stands above a segment that reads these tensors besides the one before it."""
    return f"↓ {', '.join(names)}" if names else ""


def weights_width(entry: Weights) -> float:
    """Inches that a weight takes with its words."""
    words = max(text_width(text, WEIGHT_SIZE) for text in (entry.names, entry.holding.word))
    return GLYPH + SMALL_SPREAD + PAD + words


@lru_cache(maxsize=1024)
def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Inches that a text takes; measured, since a row is full to a letter."""
    if not text:
        return 0.0
    font = FontProperties(size=size, weight="bold" if bold else "normal")
    return HINTED * float(TextPath((0, 0), text, prop=font).get_extents().width) / POINTS_PER_INCH


@dataclass(frozen=True)
class Lines:
    """The heights in a row, in inches from its top, for tensors of a side."""

    side: float

    @property
    def lane(self) -> float:
        """Where residual connections run."""
        return 0.07

    @property
    def names(self) -> float:
        """Of tensors."""
        return 0.24

    @property
    def box_top(self) -> float:
        return 0.36

    @property
    def forward(self) -> float:
        return self.box_top + (self.side + SPREAD) / 2

    @property
    def words(self) -> float:
        """Of the forward's layouts."""
        return self.box_top + self.side + SPREAD + 0.12

    @property
    def small_side(self) -> float:
        return 0.5 * self.side

    @property
    def gradient(self) -> float:
        return self.words + 0.2 + (self.small_side + SMALL_SPREAD) / 2

    @property
    def gradient_words(self) -> float:
        return self.gradient + (self.small_side + SMALL_SPREAD) / 2 + 0.12

    @property
    def box_bottom(self) -> float:
        return self.gradient_words + 0.1

    @property
    def lower_lane(self) -> float:
        return self.box_bottom + 0.12

    @property
    def height(self) -> float:
        return self.lower_lane + 0.16
