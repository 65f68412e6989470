"""The numbers in the boxes: as large as fits, and none where none fits."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from pdlab import theme
from pdlab.ops import Kind
from pdlab.plots.boxes import Box, Part
from pdlab.plots.page import DIGIT, text_width

MARGIN, ROOMY = 0.03, 0.08
"""Inches left free beside a number, and beside a whole op, of which two that touch could not be read."""

ENOUGH = 0.6
"""Where numbers fit in a smaller share of the boxes that a reader expects to be numbered alike, none is drawn: a few
would look like a pattern."""

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


def labels(found: Sequence[Box], inches: float) -> Labels:
    """Number the boxes by microbatch, or as the field writes an op where a rank has several stages and there is room.

    `inches` is the length of a second.
    """
    boxes = [box for box in found if box.microbatch >= 0]
    short = [(box, f"{box.microbatch}") for box in boxes]
    long = [(box, f"{box.stage}{box.kind.value}{box.microbatch}") for box in boxes]
    several_stages = len({(box.rank, box.stage) for box in boxes}) > len({box.rank for box in boxes})
    if several_stages and len(fitting(long, SMALLEST_LONG, inches, ROOMY)) == len(long):
        return largest(long, inches, ROOMY, "stage, op, microbatch")
    return largest(short, inches, MARGIN, "microbatch")


def largest(
    pairs: Sequence[Numbered],
    inches: float,
    margin: float,
    meaning: str,
    sizes: Sequence[float] = theme.LABEL_SIZES,
) -> Labels:
    """The texts in the largest of the sizes in which all of them fit; in the smallest, those of which most do."""
    for size in sizes:
        chosen = fitting(pairs, size, inches, margin)
        if len(chosen) == len(pairs):
            break
    for like in (_alike, _of_one_kind):
        there, fit = Counter(map(like, pairs)), Counter(map(like, chosen))
        chosen = [pair for pair in chosen if fit[like(pair)] >= ENOUGH * there[like(pair)]]
    return Labels(chosen, size, meaning)


def _alike(numbered: Numbered) -> tuple[Kind, Part, int]:
    """Boxes of one kind and height, with as many digits."""
    box, text = numbered
    return box.kind, box.part, len(text)


def _of_one_kind(numbered: Numbered) -> tuple[Kind, Part]:
    return numbered[0].kind, numbered[0].part


def fitting(pairs: Sequence[Numbered], size: float, inches: float, margin: float) -> list[Numbered]:
    """Those whose texts are not wider than their boxes, in a size (points) and with a margin (inches)."""
    return [(b, text) for b, text in pairs if text_width(text, size, DIGIT) + margin <= (b.end - b.start) * inches]
