"""The numbers in the boxes: as large as fits, and none where none fits."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from pdlab import theme
from pdlab.ops import Kind
from pdlab.plots.boxes import Box
from pdlab.plots.page import DIGIT, text_width

MARGIN = 0.03
"""Inches left free beside a number."""

ENOUGH = 0.6
"""Where numbers fit in a smaller share of the boxes that are alike, none is drawn: a few would look like a pattern."""

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


def labels(found: Sequence[Box], inches: float) -> Labels:
    """Number the boxes by microbatch, and by stage too where a rank has several and there is room.

    `inches` is the length of a second.
    """
    boxes = [box for box in found if box.microbatch >= 0]
    short = [(box, f"{box.microbatch}") for box in boxes]
    long = [(box, f"{box.stage}.{box.microbatch}") for box in boxes]
    several_stages = len({(box.rank, box.stage) for box in boxes}) > len({box.rank for box in boxes})
    if several_stages and len(_fitting(long, theme.LABEL_SIZES[-1], inches)) == len(long):
        return _largest(long, inches, "stage.microbatch")
    return _largest(short, inches, "microbatch")


def _largest(pairs: Sequence[Numbered], inches: float, meaning: str) -> Labels:
    for size in theme.LABEL_SIZES:
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
