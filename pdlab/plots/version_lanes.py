"""Forwards and backwards in the colours of the weight versions that they meet: one row for each rank.

The colour says the version, so it cannot say what is forward and what is backward. That is said by the place: a forward
is raised, a backward lowered. A backward that meets other weights than its forward is hatched and outlined in red.
"""

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.path import Path

from pdlab import theme
from pdlab.ledger import START, Entry, Ledger, name
from pdlab.ops import BACKWARD_KINDS, COMPUTE, FORWARD_KINDS, PASS_KINDS, Kind
from pdlab.plots.boxes import GAP, WHOLE, Box, Row, boxes, rows
from pdlab.plots.labels import ROOMY, Labels, fitting, labels, largest
from pdlab.plots.lanes import example
from pdlab.plots.looks import Look, draw_boxes
from pdlab.plots.numbers import Name, Place, name_rows, write
from pdlab.plots.page import PANEL_WIDTH, POINTS_PER_INCH, plain
from pdlab.plots.units import Unit
from pdlab.program import Program
from pdlab.trace import Trace

RAISED, LOWERED = (0.0, 0.7), (0.3, 1.0)
"""Where a forward and a backward go in their row."""

FIRST_LINE, SECOND_LINE = 0.31, 0.73
"""Where the number and the version stand in a box, as shares of its height."""

TWO_LINES = 20
"""Points: a box below this has room for the number alone."""

SIZES = (8.5, 8.0, 7.5, 7.0)
"""Points of a version's name."""

MARK, SLIM, OUTLINE = 0.035, 0.15, 1.8
"""Inches that a step is wide, if it takes less; the share of the shortest pass that it is wide at most; points of the
outline of what is no gradient."""

UNLIKE = "≠"

Point = tuple[float, float]


class Versions:
    """Which version of the weights each pass of a program meets, by the name that the ledger gives it."""

    def __init__(self, program: Program) -> None:
        self.ledger = Ledger.of(program)
        self.made: dict[int, list[int]] = {}
        for entry in self.ledger.entries:
            of_stage = self.made.setdefault(entry.stage, [START])
            if entry.update is not None and entry.update not in of_stage:
                of_stage.append(entry.update)
        self.turn = {version: i for i, version in enumerate(sorted(set().union(*self.made.values())))}
        self._entries = {(e.rank, e.stage, e.minibatch): e for e in self.ledger.entries}

    @property
    def word(self) -> str:
        """What is numbered: a minibatch has an update of its own, of microbatches several share one."""
        updates = {(entry.rank, entry.stage, entry.update) for entry in self.ledger.entries}
        return "minibatch" if len(updates) == len(self.ledger.entries) else "microbatch"

    def of(self, box: Box) -> int:
        return self.made[box.stage][max(0, box.version)] if box.stage in self.made else START

    def wrong(self, box: Box) -> Entry | None:
        """What is known of a backward that meets other weights than its forward."""
        entry = self._entries.get((box.rank, box.stage, box.microbatch))
        return entry if entry and box.kind in BACKWARD_KINDS and not entry.consistent else None

    def colour(self, version: int) -> str:
        return theme.VERSIONS[self.turn.get(version, 0) % len(theme.VERSIONS)]

    def legend(self) -> list[Artist]:
        """One entry for each colour, with the first of its versions."""
        shared: dict[str, list[str]] = {}
        for version in self.turn:
            shared.setdefault(self.colour(version), []).append(name(version))
        return [
            Patch(label=", ".join(named[:2]) + ", ..." * (len(named) > 2), fc=colour, ec=theme.PAPER)
            for colour, named in shared.items()
        ]


class VersionLanes:
    """The passes of a trace laid out in rows, to be drawn on a time axis that ends at `until` seconds."""

    def __init__(self, trace: Trace, versions: Versions, until: float) -> None:
        self.trace, self.versions = trace, versions
        self.boxes = [_placed(box) for box in boxes(trace) if box.stream == COMPUTE and box.kind in PASS_KINDS]
        self.rows = rows(self.boxes, len(trace.program.ranks))
        self.inches = PANEL_WIDTH / (until or 1.0)  # the length of a second
        self.numbers = labels(self.boxes, self.inches)._replace(meaning=versions.word)
        self.names = self._names()

    @property
    def height(self) -> float:
        """Inches."""
        return self.rows[-1].top + self.rows[-1].height + self.rows[0].top

    def legend(self) -> list[Artist]:
        """What place, marks and texts mean, then the colours."""
        entries = [_side(RAISED, "forward (raised)"), _side(LOWERED, "backward (lowered)")]
        entries.append(Patch(label="optimizer step: a new version", fc=theme.COLOURS[Kind.STEP]))
        if any(map(self.versions.wrong, self.boxes)):
            both = next((f" ({text})" for _, text in reversed(self.names.texts) if UNLIKE in text), "")
            label = f"backward on other weights than its forward{both}: no gradient"
            entries.append(Patch(label=label, fc=theme.PAPER, ec=theme.WRONG, lw=OUTLINE, hatch=theme.WRONG_HATCH))
        if self.numbers.texts:
            entries.append(example(*self.numbers.example))
        if named := {self.versions.of(box) for box, _ in self.names.texts} - {START}:
            version = sorted(named)[len(named) // 2]
            entries.append(example(name(version), f"weights after the update with {self.versions.word} {version}"))
        return [*entries, *self.versions.legend()]

    def draw(self, axes: Axes, heading: str, unit: Unit) -> None:
        """Draw boxes, what is written in them, steps, and the names of rows."""
        plain(axes, heading)
        axes.set_ylim(self.height, 0)
        looks = self.looks(unit)
        draw_boxes(axes, list(looks.values()), self.inches)
        self._draw_wrong(axes, [look for box, look in looks.items() if self.versions.wrong(box)])
        marks = PolyCollection(self._marks(unit), fc=theme.COLOURS[Kind.STEP], lw=0, clip_on=False)
        axes.add_collection(marks, autolim=False)
        self._write(axes, looks)
        name_rows(axes, [name for row in self.rows for name in self._row_names(row)])

    def looks(self, unit: Unit) -> dict[Box, Look]:
        """How each box is drawn."""
        places = {row.rank: row for row in self.rows}
        return {
            box: Look(box, places[box.rank], 0.0, unit, fill=self.versions.colour(self.versions.of(box)))
            for box in self.boxes
        }

    def _names(self) -> Labels:
        """The version of each box that has room for two lines; of a backward that is wrong, with that of its forward if
        there is room for both."""
        height = min((self._height(box) for box in self.boxes), default=0.0)
        roomy = self.boxes if height * POINTS_PER_INCH >= TWO_LINES else []
        both = [(box, text) for box in roomy if (text := self._both(box))]
        short = [(box, name(self.versions.of(box))) for box in roomy]
        named = dict(short) | dict(fitting(both, SIZES[-1], self.inches, ROOMY))
        readable = largest([*named.items()], self.inches, ROOMY, "", SIZES[-1:])
        return largest(readable.texts, self.inches, ROOMY, "", SIZES)

    def _height(self, box: Box) -> float:
        return self.rows[0].height * (box.part[1] - box.part[0])

    def _both(self, box: Box) -> str:
        """`w3≠w0`: the version that a wrong backward meets, and that of its forward."""
        wrong = self.versions.wrong(box)
        return f"{name(wrong.backward)}{UNLIKE}{name(wrong.forward)}" if wrong else ""

    def _write(self, axes: Axes, looks: dict[Box, Look]) -> None:
        """The number in the middle of a box, or above its version."""
        named = {box for box, _ in self.names.texts}
        for texts, line, size in (
            (self.numbers.texts, FIRST_LINE, self.numbers.size),
            (self.names.texts, SECOND_LINE, self.names.size),
        ):
            places: list[Place] = []
            for box, text in texts:
                on_paper = self.versions.wrong(box) is not None
                places.append(looks[box].number(text, line if box in named else 0.5, on_paper))
            write(axes, places, size)

    def _draw_wrong(self, axes: Axes, looks: Sequence[Look]) -> None:
        corners = [look.corners() for look in looks]
        hatched = PolyCollection(corners, fc="none", ec=theme.WRONG, lw=OUTLINE, hatch=theme.WRONG_HATCH)
        axes.add_collection(hatched, autolim=False)

    def _marks(self, unit: Unit) -> list[list[Point]]:
        """Where each rank steps, a little higher than its row, and wide enough to be seen."""
        rows = {row.rank: row for row in self.rows}
        shortest = min((box.end - box.start for box in self.boxes), default=0.0)
        least = min(MARK / self.inches, SLIM * shortest)
        steps = zip(self.trace.rows(), self.trace.starts, self.trace.ends, strict=True)
        return [_mark(start, end, rows[rank], least, unit) for (rank, op), start, end in steps if op.kind is Kind.STEP]

    def _row_names(self, row: Row) -> list[Name]:
        """`rank 0`, and below it the stage where ranks and stages are not numbered alike."""
        middle, named = row.top + row.height / 2, f"rank {row.rank}"
        if all(box.stage == box.rank for box in self.boxes):
            return [Name(named, middle, theme.TEXT_SIZE)]
        stages = sorted({box.stage for box in self.boxes if box.rank == row.rank})
        below = f"stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))}"
        apart = 0.5 * theme.TEXT_SIZE / POINTS_PER_INCH
        return [Name(named, middle - apart, theme.TEXT_SIZE), Name(below, middle + 1.1 * apart, theme.STREAM_SIZE)]


def _placed(box: Box) -> Box:
    """Raised or lowered, where the box does not share its row with another anyway."""
    return box._replace(part=RAISED if box.kind in FORWARD_KINDS else LOWERED) if box.part is WHOLE else box


def _mark(start: float, end: float, row: Row, least: float, unit: Unit) -> list[Point]:
    """A step as a rectangle; one that takes less than can be seen is as wide as that, around its end."""
    if end - start < least:
        start, end = end - least / 2, end + least / 2
    top, bottom = row.top - GAP / 3, row.top + row.height + GAP / 3
    left, right = start / unit.size, end / unit.size
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def _side(part: tuple[float, float], label: str) -> Artist:
    """A legend entry: a box at its place in a row."""
    upper, lower = 0.5 - part[0], 0.5 - part[1]
    box = [(-0.8, upper), (0.8, upper), (0.8, lower), (-0.8, lower), (-0.8, upper)]
    row = [(-0.8, 0.5), (0.8, 0.5), (-0.8, -0.5), (0.8, -0.5)]
    codes = [Path.MOVETO, *[Path.LINETO] * 4, Path.MOVETO, Path.LINETO, Path.MOVETO, Path.LINETO]
    marker = Path([*box, *row], codes)
    return Line2D([], [], ls="none", marker=marker, ms=15, mew=0.6, mec=theme.QUIET, mfc="#B8B8B8", label=label)
