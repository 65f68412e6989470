"""How the boxes of a timeline look: where each is drawn, how pale, what is written on it and in which ink."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.path import Path

from pdlab import theme
from pdlab.ops import FORWARD_KINDS, PASS_KINDS
from pdlab.plots.boxes import Box, Row
from pdlab.plots.numbers import Place
from pdlab.plots.units import Unit
from pdlab.program import Program

OUTLINE = 0.6
"""Points: the white line around a box that keeps neighbours apart."""

SEAM = 0.2
"""The share of a box's height that a seam is cut into it, from above and from below: a number fits between."""

NARROW = 0.04
"""Inches: a box below this has no white outline, which would leave nothing of it."""

CLOSED = (Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY)

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Look:
    """Where a box is drawn (horizontally in units of time, vertically in inches), and in which colour: `fill`, or else
    that of its kind, so pale (from 0 to 1)."""

    box: Box
    row: Row
    paleness: float
    unit: Unit
    dim: bool = False
    fill: str = ""

    @property
    def colour(self) -> str:
        return self.fill or theme.shade(self.box.kind, theme.DIM if self.dim else self.paleness)

    @property
    def hatch(self) -> str:
        return theme.HATCHES.get(self.box.kind, "")

    @property
    def top(self) -> float:
        return self.row.top + self.box.part[0] * self.row.height

    @property
    def bottom(self) -> float:
        return self.row.top + self.box.part[1] * self.row.height

    def corners(self) -> list[Point]:
        left, right = self.box.start / self.unit.size, self.box.end / self.unit.size
        top, bottom = self.top, self.bottom
        return [(left, top), (right, top), (right, bottom), (left, bottom)]

    def seam(self, at: float) -> list[list[Point]]:
        x, cut = at / self.unit.size, SEAM * (self.bottom - self.top)
        return [[(x, self.top), (x, self.top + cut)], [(x, self.bottom - cut), (x, self.bottom)]]

    def number(self, text: str, at: float = 0.5, on_paper: bool = False) -> Place:
        """A text in the box, its middle `at` a share of the height, on a piece of paper where the box is hatched."""
        x = (self.box.start + self.box.end) / 2 / self.unit.size
        y = self.top + at * (self.bottom - self.top)
        hatched = bool(self.hatch) or on_paper
        ink = theme.DIM_INK if self.dim else theme.INK if hatched else theme.ink_on(self.colour)
        return Place(text, x, y, ink, hatched)


class Paleness:
    """Lightness by weight version where a program steps along the way, by stage where ranks have several, otherwise
    slightly by microbatch."""

    def __init__(self, program: Program, found: Sequence[Box]) -> None:
        self.last = max(1, program.num_microbatches - 1)
        self.by_version = program.steps_each_microbatch
        stages: dict[int, set[int]] = {}
        for box in found:
            if box.kind in PASS_KINDS:
                stages.setdefault(box.rank, set()).add(box.stage)
        self.turn = {(rank, stage): i for rank, of in stages.items() for i, stage in enumerate(sorted(of))}
        self.last_turn = max(self.turn.values(), default=0)

    @property
    def palest(self) -> float:
        """Of a forward."""
        return theme.PALEST_VERSION if self.by_version else theme.PALEST_FORWARD

    @property
    def meaning(self) -> str:
        """What it means that a box is lighter, in words; empty where it means little."""
        if self.by_version:
            return "lighter: newer weights"
        return "lighter: a later stage of the rank" if self.last_turn else ""

    def of(self, box: Box) -> float:
        if box.kind not in PASS_KINDS:
            return 0.0
        if self.by_version:
            return theme.PALEST_VERSION * max(0, box.version) / self.last
        if self.last_turn:
            palest = theme.PALEST_FORWARD if box.kind in FORWARD_KINDS else theme.PALEST_BACKWARD
            return palest * self.turn[box.rank, box.stage] / self.last_turn
        return theme.PALEST_MICROBATCH * box.microbatch / self.last


class Boxes(PathCollection):
    """Boxes with one hatch, those of a colour as one shape: one by one they would take several times as long."""

    def __init__(self, looks: Sequence[Look], wide: bool, hatch: str) -> None:
        colours: dict[str, list[list[Point]]] = {}
        for look in looks:
            colours.setdefault(look.colour, []).append(look.corners())
        outline = theme.PAPER if wide else [*colours]
        shapes = [shape(corners) for corners in colours.values()]
        super().__init__(shapes, fc=[*colours], ec=outline, lw=OUTLINE, hatch=hatch or None)
        self.set_snap(True)


def shape(boxes_of: Sequence[Sequence[Point]]) -> Path:
    """Several boxes as one path."""
    corners = np.array(boxes_of)
    closed = np.concatenate([corners, corners[:, :1]], axis=1)
    return Path(closed.reshape(-1, 2), CLOSED * len(corners))


def draw_boxes(axes: Axes, looks: Sequence[Look], inches: float) -> None:
    """One collection per hatch. Narrow boxes are plain and outlined in their own colour, so that they stay visible.

    `inches` is the length of a second.
    """
    groups: dict[tuple[bool, str], list[Look]] = {}
    for look in looks:
        wide = (look.box.end - look.box.start) * inches >= NARROW
        groups.setdefault((wide, look.hatch if wide else ""), []).append(look)
    for (wide, hatch), chosen in sorted(groups.items(), key=lambda group: group[0]):
        axes.add_collection(Boxes(chosen, wide, hatch), autolim=False)
