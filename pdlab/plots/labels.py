"""The numbers in the boxes: as large as fits, and none where none fits."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from pdlab import theme
from pdlab.ops import Kind
from pdlab.plots.boxes import Box
from pdlab.plots.page import DIGIT, POINTS_PER_INCH, text_width

MARGIN = 0.03
"""Inches left free beside a number."""

ENOUGH = 0.6
"""Where numbers fit in a smaller share of the boxes that are alike, none is drawn: a few would look like a pattern."""

AIRY = 1.0
"""The height of a box as a multiple of the font size, at least, for a number to have air above and below."""

SMALLEST_LONG = 8.0
"""Points: below this the number of the microbatch alone is easier to read."""

Numbered = tuple[Box, str]


class Labels(NamedTuple):
    """A text for each box that has one, all in one size (points), and what they stand for."""

    texts: list[Numbered]
    size: float
    meaning: str

    @property
    def example(self) -> tuple[str, str]:
        """One of the texts and what it stands for."""
        return self.texts[0][1], self.meaning


def labels(found: Sequence[Box], inches: float, height: float) -> Labels:
    """Number the boxes by microbatch, or as the field writes an op where a rank has several stages and there is room.

    `inches` is the length of a second, `height` that of a row.
    """
    boxes = [box for box in found if box.microbatch >= 0]
    short = [(box, f"{box.microbatch}") for box in boxes]
    long = [(box, f"{box.stage}{box.kind.value}{box.microbatch}") for box in boxes]
    lowest = height * min((box.part[1] - box.part[0] for box in boxes), default=1.0)
    sizes = [s for s in theme.LABEL_SIZES if AIRY * s <= lowest * POINTS_PER_INCH] or theme.LABEL_SIZES[-1:]
    several_stages = len({(box.rank, box.stage) for box in boxes}) > len({box.rank for box in boxes})
    if several_stages and len(_fitting(long, SMALLEST_LONG, inches)) == len(long):
        return _largest(long, sizes, inches, "stage, op, microbatch")
    return _largest(short, sizes, inches, "microbatch")


def _largest(pairs: Sequence[Numbered], sizes: Sequence[float], inches: float, meaning: str) -> Labels:
    for size in sizes:
        fitting = _fitting(pairs, size, inches)
        if len(fitting) == len(pairs):
            break
    there, fit = Counter(map(_like, pairs)), Counter(map(_like, fitting))
    return Labels([pair for pair in fitting if fit[_like(pair)] >= ENOUGH * there[_like(pair)]], size, meaning)


def _like(numbered: Numbered) -> tuple[Kind, int]:
    """Boxes that a reader expects to be numbered alike: of one kind, with as many digits."""
    box, text = numbered
    return box.kind, len(text)


def _fitting(pairs: Sequence[Numbered], size: float, inches: float) -> list[Numbered]:
    return [(b, text) for b, text in pairs if text_width(text, size, DIGIT) + MARGIN <= (b.end - b.start) * inches]
