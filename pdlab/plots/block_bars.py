"""The bars below a transformer block: what it takes and what it keeps, by the size of the tensor group."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Polygon
from matplotlib.ticker import MaxNLocator

from pdlab import metrics, theme
from pdlab.models.digits import PIXELS
from pdlab.models.published import activation_bytes
from pdlab.models.split import Split
from pdlab.ops import PASS_KINDS, Kind
from pdlab.plots.numbers import Place, write
from pdlab.plots.page import plain
from pdlab.plots.units import BYTES, SECONDS, Unit, suited, three_digits
from pdlab.program import Program
from pdlab.trace import Trace

BAR = 0.8
"""The width of a bar, or of two beside each other, where the next one is 1 away."""

ROOM, ABOVE, ABOVE_MARK = 1.18, 0.045, 0.065
"""As a share of the longest bar: the end of their axis, and from a bar, with or without a mark, to the middle of its
number."""

TICK, NAME = -0.065, -0.155
"""Where the numbers of ranks stand below their bars, and what they are, as a share of the height of the panel."""

EXPOSED, CHOSEN, DOTS = "#D9D9D9", "#F2EFE6", ".."
"""Time in which a rank only communicates; what lies behind the bars of the timeline's own size; and a hatch, to tell
the first from paper in print."""

OUTLINE, BOLD = 0.6, 1.6
"""Points: around a box, and around the bar of the timeline's own size and split."""

PALER = 0.6
"""How far towards white the bars of sequence parallelism are."""

MARK = "D"
"""The shape of a mark: it covers the end of a bar and is seen on both sides of it."""


class Rectangle(NamedTuple):
    """In the coordinates of its axes."""

    left: float
    bottom: float
    width: float
    height: float

    def corners(self) -> list[tuple[float, float]]:
        right, top = self.left + self.width, self.bottom + self.height
        return [(self.left, self.bottom), (right, self.bottom), (right, top), (self.left, top)]


def fill(
    axes: Axes,
    places: Sequence[Rectangle],
    colour: str,
    *,
    edge: str = theme.PAPER,
    hatch: str | None = None,
    narrow: float = 0.0,
) -> None:
    """All that look the same in one go: drawn one by one they would take several times as long. What is narrower than
    `narrow` is outlined in its own colour, so that it stays visible."""
    there = [place for place in places if place.width and place.height]
    edges = [edge if place.width >= narrow else colour for place in there]
    corners = [place.corners() for place in there]
    axes.add_collection(PolyCollection(corners, fc=colour, ec=edges, lw=OUTLINE, hatch=hatch), autolim=False)


def draw_times(axes: Axes, traces: Sequence[Trace], tp: int) -> None:
    """Computing by kind, exposed communication on top, and how many times faster than the first."""
    plain(axes, f"time, and speed-up over {'one rank' if _size(traces[0]) == 1 else f'{_size(traces[0])} ranks'}")
    longest = max(trace.makespan for trace in traces)
    unit = suited(SECONDS, longest)
    spent = [_compute_seconds(trace) for trace in traces]
    tops = [0.0] * len(traces)
    for kind in (kind for kind in theme.WORDS if any(kind in one for one in spent)):
        heights = [one.get(kind, 0.0) / unit.size for one in spent]
        fill(axes, _stack(tops, heights), theme.shade(kind), hatch=theme.HATCHES.get(kind))
    exposed = [metrics.exposed_communication_per_rank(trace)[0] / unit.size for trace in traces]
    fill(axes, _stack(tops, exposed), EXPOSED, edge=theme.COLOURS[Kind.SEND], hatch=DOTS)
    texts = [_faster(trace, traces[0], unit) for trace in traces]
    _number(axes, range(len(traces)), tops, texts, longest / unit.size, ABOVE)
    _axes(axes, traces, tp, unit, longest)


def draw_kept(axes: Axes, series: Mapping[str, Sequence[Trace]], tp: int, split: str) -> None:
    """The splits beside each other, with what the closed form says."""
    plain(axes, "activations kept for the backward, per rank")
    kept = {name: [metrics.held_for_backward_per_rank(trace)[0] for trace in traces] for name, traces in series.items()}
    most = max(max(held) for held in kept.values())
    unit = suited(BYTES, most)
    for turn, (name, traces) in enumerate(series.items()):
        lefts = [at + (turn - 1) * BAR / 2 for at in range(len(traces))]
        bars = [Rectangle(x, 0, BAR / 2, held / unit.size) for x, held in zip(lefts, kept[name], strict=True)]
        fill(axes, bars, theme.shade(Kind.FORWARD, PALER * turn))
        middles = [x + BAR / 4 for x in lefts]
        published = [published_bytes(trace.program) / unit.size for trace in traces]
        axes.plot(middles, published, MARK, ms=5.5, mfc=theme.PAPER, mec=theme.INK, mew=1.0)
        heights = [bar.height for bar in bars]
        _number(axes, middles, heights, [three_digits(height) for height in heights], most / unit.size, ABOVE_MARK)
        if name == split:
            chosen = bars[[_size(trace) for trace in traces].index(tp)]
            axes.add_patch(Polygon(chosen.corners(), fill=False, ec=theme.INK, lw=BOLD))
    _axes(axes, series[split], tp, unit, most)


def published_bytes(program: Program) -> float:
    """What a rank keeps of one transformer block by the closed form. Where the block is run again, only what enters it:
    e s b h bytes, or a t-th of it (table 2 of the paper)."""
    model, said = program.model, dict(program.model.recipe[1])
    s, h, a, e = (int(said.get(name, PIXELS)) for name in ("tokens", "width", "heads", "itemsize"))
    split = model.split or Split.TENSOR
    kinds = {op.kind for op in program.ranks[0].ops}
    if Kind.RECOMPUTE in kinds:
        shared = Kind.SPLIT in kinds or split is Split.SEQUENCE
        return e * s * program.batch * h / (model.tp if shared else 1)
    return activation_bytes(tokens=s, width=h, heads=a, samples=program.batch, itemsize=e, tp=model.tp, split=split)


def legend() -> list[Artist]:
    """What only the bars have."""
    tensor, sequence = (theme.shade(Kind.FORWARD, PALER * turn) for turn in range(2))
    return [
        Patch(label="exposed communication", fc=EXPOSED, ec=theme.COLOURS[Kind.SEND], hatch=DOTS),
        Patch(label="kept, tensor parallel", fc=tensor, ec=theme.PAPER),
        Patch(label="kept, sequence parallel", fc=sequence, ec=theme.PAPER),
        Line2D([], [], ls="none", marker=MARK, ms=5.5, mfc=theme.PAPER, mec=theme.INK, label="closed form"),
    ]


def _compute_seconds(trace: Trace) -> dict[Kind, float]:
    """Seconds of rank 0 by kind of pass."""
    spent: dict[Kind, float] = {}
    for row, op in zip(trace.rows_of(0), trace.program.ranks[0].ops, strict=True):
        if op.kind in PASS_KINDS:
            spent[op.kind] = spent.get(op.kind, 0.0) + trace.ends[row] - trace.starts[row]
    return spent


def _stack(tops: list[float], heights: Sequence[float]) -> list[Rectangle]:
    """A bar on top of each of those that are there; raises `tops`."""
    found = [Rectangle(at - BAR / 2, top, BAR, h) for at, (top, h) in enumerate(zip(tops, heights, strict=True))]
    tops[:] = [place.bottom + place.height for place in found]
    return found


def _faster(trace: Trace, first: Trace, unit: Unit) -> str:
    time = three_digits(trace.makespan / unit.size)
    if trace is first or not trace.makespan:
        return time
    speedup = first.makespan / trace.makespan
    return f"{time} ({speedup:{'.2f' if speedup >= 0.1 else '.2g'}}x)"


def _number(
    axes: Axes, xs: Sequence[float], heights: Sequence[float], texts: Sequence[str], longest: float, above: float
) -> None:
    tops = [height + above * longest for height in heights]
    places = [Place(text, x, top, theme.INK, False) for text, x, top in zip(texts, xs, tops, strict=True)]
    write(axes, places, theme.LABEL_SIZES[1])


def _axes(axes: Axes, traces: Sequence[Trace], tp: int, unit: Unit, longest: float) -> None:
    sizes = [_size(trace) for trace in traces]
    chosen = sizes.index(tp)
    axes.axvspan(chosen - 0.5, chosen + 0.5, color=CHOSEN, lw=0, zorder=0)
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.set_ylim(0, ROOM * (longest or unit.size) / unit.size)
    axes.set_xticks([])
    for at, size in enumerate(sizes):
        _below(axes, at, TICK, str(size), "bold" if at == chosen else "normal")
    _below(axes, (len(sizes) - 1) / 2, NAME, "ranks in the tensor group")
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=(1, 2, 5, 10)))
    axes.set_ylabel(unit.name, size=theme.TEXT_SIZE, color=theme.INK)
    axes.spines["left"].set_visible(True)


def _below(axes: Axes, x: float, y: float, text: str, weight: str = "normal") -> None:
    """Texts do the same as tick labels, and are drawn in a quarter of the time."""
    size, where = theme.TEXT_SIZE, axes.get_xaxis_transform()
    axes.text(x, y, text, size=size, color=theme.INK, weight=weight, ha="center", va="center", transform=where)


def _size(trace: Trace) -> int:
    return trace.program.model.tp
