"""The stash: which versions of the weights each rank holds, as one strip for each rank, a layer for each version.

A version is there from the step that makes it to the last op that reads it. The oldest lies at the bottom, so a layer
that ends lets those above it down.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection

from pdlab import theme
from pdlab.ledger import START
from pdlab.ops import Kind, Op, Value
from pdlab.plots.looks import shape
from pdlab.plots.numbers import Name, name_rows
from pdlab.plots.page import POINTS_PER_INCH, plain
from pdlab.plots.units import BYTES, Unit, suited
from pdlab.plots.version_lanes import Versions
from pdlab.program import Role
from pdlab.trace import Trace

STRIPS, AIR = ((4, 0.4), (8, 0.32), (float("inf"), 0.26)), 0.07
"""Inches: the height of a strip by the largest number of ranks, and what is left free above it."""

BETWEEN, LINE = 0.08, 0.7
"""The white line between two layers, as a share of their height, and the dark ones along the floor and along the top,
in points."""

Point = tuple[float, float]


class Held(NamedTuple):
    """What a rank holds from each of the times (seconds) until the next: versions, the oldest first."""

    times: list[float]
    versions: list[tuple[int, ...]]

    @property
    def most(self) -> int:
        return max(map(len, self.versions))


class Layer(NamedTuple):
    """A version at one height (how many are below it) from one time to another, in seconds."""

    version: int
    below: int
    start: float
    end: float


class Stash:
    """The versions of a trace laid out in strips, all on one scale that ends at the most that a rank holds."""

    def __init__(self, trace: Trace, versions: Versions) -> None:
        self.versions, self.makespan, self.bytes = versions, trace.makespan, trace.peak_weights
        self.held = [held_versions(trace, rank) for rank in range(len(trace.program.ranks))]
        self.strip = next(height for most, height in STRIPS if len(self.held) <= most)

    @property
    def height(self) -> float:
        """Inches."""
        return len(self.held) * (self.strip + AIR)

    def draw(self, axes: Axes, heading: str, unit: Unit) -> None:
        """Draw the strips, and beside each the rank, the most versions and the most bytes that it holds."""
        plain(axes, heading)
        axes.set_ylim(self.height, 0)
        each = self.strip / max(held.most for held in self.held)
        colours: dict[str, list[list[Point]]] = {}
        edges: list[list[Point]] = []
        for rank, held in enumerate(self.held):
            floor = (rank + 1) * (self.strip + AIR)
            for layer in layers(held, self.makespan):
                colours.setdefault(self.versions.colour(layer.version), []).append(_corners(layer, floor, each, unit))
            along = [time / unit.size for time in (*held.times, self.makespan)]
            edges += [_stairs(along, [floor - each * len(versions) for versions in held.versions])]
            edges += [[(0.0, floor), (self.makespan / unit.size, floor)]]
        shapes = [shape(corners) for corners in colours.values()]
        between = min(0.4, BETWEEN * each * POINTS_PER_INCH)
        drawn = PathCollection(shapes, fc=[*colours], ec=theme.PAPER, lw=between)
        axes.add_collection(drawn, autolim=False)
        axes.add_collection(LineCollection(edges, colors=theme.INK, linewidths=LINE), autolim=False)
        name_rows(axes, list(self._names()))

    def _names(self) -> Iterator[Name]:
        scale, apart = suited(BYTES, max(self.bytes)), 0.55 * theme.SMALL_SIZE / POINTS_PER_INCH
        for rank, held in enumerate(self.held):
            middle = (rank + 1) * (self.strip + AIR) - self.strip / 2
            yield Name(f"rank {rank}: {held.most}", middle - apart, theme.SMALL_SIZE)
            yield Name(scale.text(self.bytes[rank]), middle + apart, theme.STREAM_SIZE)


def held_versions(trace: Trace, rank: int) -> Held:
    """By the ends of ops, as the simulator counts memory. In the middle of a step a rank holds more versions of some of
    its weights than of others; what counts are those of which it holds most."""
    program, last = trace.program.ranks[rank], trace.program.num_microbatches - 1
    weights = {value: t.of for value, t in program.types.items() if t.role is Role.WEIGHT}
    version = {value: START for value in weights.keys() & program.live_in}
    alive = set(version)
    held = Held([0.0], [_most(alive, weights, version)])
    rows = zip(trace.rows_of(rank), program.ops, strict=True)
    for row, op in sorted(rows, key=lambda of: (trace.ends[of[0]], of[0])):
        written, consumed = weights.keys() & op.writes, weights.keys() & op.consumes
        if written or consumed:
            version |= dict.fromkeys(written, _made(op, version, last))
            alive = alive - consumed | written
            held.times.append(trace.ends[row])
            held.versions.append(_most(alive, weights, version))
    return held


def _made(op: Op, version: dict[Value, int], last: int) -> int:
    """The version that an op writes: a step a new one, a gather that of its shards."""
    if op.kind is Kind.STEP:
        return op.microbatch if op.microbatch >= 0 else last
    return max((version[value] for value in op.inputs if value in version), default=START)


def _most(alive: set[Value], weights: dict[Value, str], version: dict[Value, int]) -> tuple[int, ...]:
    """The versions of the weights of which there are most; of several such, the newest."""
    groups: dict[str, set[int]] = {}
    for value in alive:
        groups.setdefault(weights[value], set()).add(version[value])
    return max((tuple(sorted(of)) for of in groups.values()), key=lambda of: (len(of), of), default=())


def layers(held: Held, until: float) -> Iterator[Layer]:
    """Each version at each of its heights, from the time that it is there until it sinks or ends."""
    began: dict[tuple[int, int], float] = {}
    for time, versions in zip((*held.times, until), (*held.versions, ()), strict=True):
        now = {(version, below) for below, version in enumerate(versions)}
        for version, below in began.keys() - now:
            start = began.pop((version, below))
            if time > start:
                yield Layer(version, below, start, time)
        for at in now - began.keys():
            began[at] = time


def _corners(layer: Layer, floor: float, each: float, unit: Unit) -> list[Point]:
    left, right = layer.start / unit.size, layer.end / unit.size
    bottom = floor - each * layer.below
    return [(left, bottom - each), (right, bottom - each), (right, bottom), (left, bottom)]


def _stairs(along: Sequence[float], heights: Sequence[float]) -> list[Point]:
    """Each height from one place to the next."""
    return [(x, y) for i, y in enumerate(heights) for x in along[i : i + 2]]
