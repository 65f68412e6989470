"""One transformer block over a tensor group: when it computes and communicates, and what more ranks would change.

On top the block itself, forward then backward, below what it takes and what it keeps on 1, 2, ... ranks: computing
gets shorter in proportion to the ranks, communication does not, so at some point more ranks stop paying.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pdlab import metrics, theme
from pdlab.mesh import Axis
from pdlab.ops import COMPUTE, PASS_KINDS, Kind, Op
from pdlab.plots import block_bars
from pdlab.plots.block_bars import Rectangle, fill
from pdlab.plots.labels import MARGIN
from pdlab.plots.numbers import Place, write
from pdlab.plots.page import AXIS, PANEL_WIDTH, page, plain, text_width
from pdlab.plots.timeline import time_axis
from pdlab.plots.units import SECONDS, Unit, percent, suited
from pdlab.program import Program
from pdlab.trace import Trace

LANE, LANE_GAP = 0.5, 0.12
"""Inches: the height of a lane of the timeline, and what is left free around it."""

BARS, BETWEEN = 2.5, 1.0
"""Inches: the height of the panels with bars, and the distance of the two."""

NARROW = 0.04
"""Inches: a box below this has no white outline, which would leave nothing of it."""

BESIDE = -0.008
"""Where the names of lanes end, left of the axis, as a share of its width."""

NAMES = {"attn": ("attention", "attn"), "ffn": ("feed-forward", "ffn")}
"""What is written in a box, in full and short, by the beginning of its segment's name."""

SOURCE = "closed form: arXiv:2205.05198, equations 2 and 4, without dropout"


def block(tensor: Sequence[Trace], sequence: Sequence[Trace], *, tp: int, split: str) -> Figure:
    """A block on several sizes of the tensor group, with tensor and with sequence parallelism, each a simulated
    `excerpt` of one microbatch. `tp` and `split` say which of them the timeline shows; ValueError if none is meant."""
    series = {"tensor": tensor, "sequence": sequence}
    shown = _shown(series, tp, split)
    heights = [2 * LANE + 3 * LANE_GAP, AXIS + BARS]
    prints = [*theme.small_print(shown), SOURCE]
    figure, [lanes, band] = page(_title(shown, tp, split), heights, _legend(series[split]), prints)
    _draw_lanes(lanes, shown)
    left, right = _halves(figure, band)
    block_bars.draw_times(left, series[split], tp)
    block_bars.draw_kept(right, series, tp, split)
    return figure


def _shown(series: Mapping[str, Sequence[Trace]], tp: int, split: str) -> Trace:
    if split not in series:
        raise ValueError(f"split {split!r}; choose one of {', '.join(series)}")
    found = {trace.program.mesh.degree(Axis.TP): trace for trace in series[split]}
    if tp not in found:
        raise ValueError(
            f"no trace of {split} parallelism on {tp} ranks; there are some on {', '.join(map(str, found))}"
        )
    return found[tp]


def _title(shown: Trace, tp: int, split: str) -> str:
    how = f"{split} parallel on {tp} ranks" if tp > 1 else "on one rank"
    makespan = suited(SECONDS, shown.makespan).text(shown.makespan)
    exposed = metrics.exposed_communication_per_rank(shown)[0] / (shown.makespan or 1.0)
    also = f", {percent(exposed)} exposed communication" if tp > 1 else ""
    return f"One block, {how}: {shown.provenance.how} {makespan}{also}"


def _halves(figure: Figure, band: Axes) -> tuple[Axes, Axes]:
    """Two panels beside each other in the lower part of the band."""
    place = band.get_position()
    height = place.height * BARS / (AXIS + BARS)
    each = place.width * (1 - BETWEEN / PANEL_WIDTH) / 2
    band.set_position((place.x0, place.y0, each, height))
    return band, figure.add_axes((place.x1 - each, place.y0, each, height))


def _legend(traces: Sequence[Trace]) -> list[Artist]:
    """Kinds in the order of `theme.WORDS`, then what only the bars have."""
    drawn = {piece.kind for trace in traces for piece in _pieces(trace)}
    patches: list[Artist] = [
        Patch(label=word, fc=theme.shade(kind), ec=theme.PAPER, hatch=theme.HATCHES.get(kind))
        for kind, word in theme.WORDS.items()
        if kind in drawn
    ]
    return [*patches, *block_bars.legend()]


class _Piece(NamedTuple):
    """An op of rank 0 that takes time: its lane (0 is compute), start and end (seconds), and what may be written on
    it, the best first."""

    kind: Kind
    lane: int
    start: float
    end: float
    texts: tuple[str, ...]

    @property
    def middle(self) -> float:
        """Of its lane, in inches from the top."""
        return LANE_GAP + LANE / 2 + self.lane * (LANE + LANE_GAP)

    def place(self, unit: Unit) -> Rectangle:
        return Rectangle(self.start / unit.size, self.middle - LANE / 2, (self.end - self.start) / unit.size, LANE)


def _pieces(trace: Trace) -> list[_Piece]:
    program = trace.program
    rows = zip(trace.rows_of(0), program.ranks[0].ops, strict=True)
    return [
        _Piece(op.kind, int(op.stream != COMPUTE), trace.starts[row], trace.ends[row], _texts(op, program))
        for row, op in rows
        if trace.ends[row] > trace.starts[row]
    ]


def _texts(op: Op, program: Program) -> tuple[str, ...]:
    if op.kind not in PASS_KINDS:
        return (theme.WORDS[op.kind],)
    name = program.stages[op.stage][op.segment]
    return next((texts for start, texts in NAMES.items() if name.startswith(start)), (name,))


def _heading(program: Program) -> str:
    samples = f"{program.batch} sample{'s' if program.batch > 1 else ''}"
    where = f", the same on each of the {program.mesh.size} ranks" if program.mesh.size > 1 else ""
    return f"a transformer block on {samples}, forward, then backward{where}"


def _draw_lanes(axes: Axes, trace: Trace) -> None:
    unit = suited(SECONDS, trace.makespan)
    inches = PANEL_WIDTH / (trace.makespan or 1.0)  # the length of a second
    plain(axes, _heading(trace.program))
    pieces = _pieces(trace)
    for kind in dict.fromkeys(piece.kind for piece in pieces):
        places = [piece.place(unit) for piece in pieces if piece.kind is kind]
        narrow = NARROW / inches / unit.size
        fill(axes, places, theme.shade(kind), hatch=theme.HATCHES.get(kind), narrow=narrow)
    _write(axes, pieces, unit, inches)
    axes.set_ylim(2 * LANE + 3 * LANE_GAP, 0)
    axes.set_yticks([])
    for lane, name in enumerate(("compute", "tp group")):
        at = LANE_GAP + LANE / 2 + lane * (LANE + LANE_GAP)
        beside = axes.get_yaxis_transform()
        axes.text(BESIDE, at, name, transform=beside, size=theme.TEXT_SIZE, color=theme.INK, ha="right", va="center")
    time_axis(axes, trace.makespan, unit)


def _write(axes: Axes, pieces: Sequence[_Piece], unit: Unit, inches: float) -> None:
    """On each the best text that fits, in the largest size in which it does. `inches` is the length of a second."""
    by_size: dict[float, list[Place]] = {}
    for piece in pieces:
        room = (piece.end - piece.start) * inches - 2 * MARGIN
        fitting = [(text, size) for text in piece.texts for size in theme.LABEL_SIZES if text_width(text, size) <= room]
        if fitting:
            text, size = fitting[0]
            hatched = piece.kind in theme.HATCHES
            ink = theme.INK if hatched else theme.ink_on(theme.shade(piece.kind))
            x = (piece.start + piece.end) / 2 / unit.size
            by_size.setdefault(size, []).append(Place(text, x, piece.middle, ink, hatched))
    for size, places in by_size.items():
        write(axes, places, size)
