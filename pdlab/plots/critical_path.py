"""The timeline once more, with only the critical path in full colour: what would have to be faster, and what not."""

from collections.abc import Sequence
from itertools import pairwise

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pdlab import critical, theme
from pdlab.ops import COMMUNICATION_KINDS, PASS_KINDS
from pdlab.plots.lanes import Lanes, Look
from pdlab.plots.page import page
from pdlab.plots.timeline import name, time_axis
from pdlab.plots.units import Unit, time_unit
from pdlab.trace import Trace

OUTLINE, LINK = 1.3, 1.0
"""Points: the line around a box on the path, and the one that leads to the next."""

PARTS = (
    ("forward and backward", frozenset(theme.WORDS[kind] for kind in PASS_KINDS)),
    ("communication", frozenset(theme.WORDS[kind] for kind in COMMUNICATION_KINDS)),
)
"""What the title sums up; all else keeps its own word."""


def critical_path(trace: Trace, *, title: str | None = None, unit: Unit | None = None) -> Figure:
    """The timeline with everything dimmed that does not determine the makespan; the title says what the rest is."""
    unit = unit or time_unit(trace)
    lanes = Lanes(trace, trace.makespan, critical.critical_path(trace))
    heading = f"{title or name(trace.program)}: critical path {division(trace)}"
    figure, [axes] = page(heading, [lanes.height], _legend(lanes), theme.small_print(trace), heading=0.0)
    lanes.draw(axes, "", unit)
    _outline(axes, [look for box, look in lanes.looks(unit).items() if box.marked])
    time_axis(axes, trace.makespan, unit)
    return figure


def division(trace: Trace) -> str:
    """`62 % forward and backward, 38 % communication`, the larger part first; what rounds to nothing is left out."""
    sums: dict[str, float] = {}
    for word, seconds in critical.critical_share(trace).items():
        part = next((part for part, words in PARTS if word in words), word)
        sums[part] = sums.get(part, 0.0) + seconds / trace.makespan
    shares = sorted(sums.items(), key=lambda one: -one[1])
    return ", ".join(f"{100 * share:.0f} % {part}" for part, share in shares if share >= 0.005) or "nothing"


def _outline(axes: Axes, looks: Sequence[Look]) -> None:
    """Dark outlines, and lines from each box to the next where they are on different rows."""
    corners = [look.corners() for look in looks]
    axes.add_collection(PolyCollection(corners, fc="none", ec=theme.INK, lw=OUTLINE, clip_on=False), autolim=False)
    links = [_link(one, other) for one, other in pairwise(sorted(looks, key=_time)) if one.row != other.row]
    axes.add_collection(LineCollection(links, colors=theme.INK, linewidths=LINK), autolim=False)


def _time(look: Look) -> tuple[float, float]:
    return look.box.start, look.box.end


def _link(one: Look, other: Look) -> list[tuple[float, float]]:
    """From the end of a box to the start of the next, between those edges of the two that face each other."""
    below = other.row.top > one.row.top
    leave = one.row.top + one.row.height * below
    arrive = other.row.top + other.row.height * (not below)
    return [(one.box.end / one.unit.size, leave), (other.box.start / one.unit.size, arrive)]


def _legend(lanes: Lanes) -> list[Artist]:
    return [*lanes.legend(), Patch(label="critical path", fc=theme.PAPER, ec=theme.INK, lw=OUTLINE)]
