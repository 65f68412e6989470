"""What strategies send: bytes by kind of communication, and what ring algorithms make of them on the wire."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pdlab import metrics, theme
from pdlab.ops import Kind
from pdlab.plots.labels import MARGIN
from pdlab.plots.page import PANEL_WIDTH, page, plain, text_width
from pdlab.plots.timeline import name
from pdlab.plots.units import BYTES, Unit, suited, three_digits
from pdlab.trace import Trace

PANEL, BAR = 0.5, 0.4
"""Inches for the two bars of a program, and the part of each bar's half that it fills, up and down from its middle."""

MOVED, WIRE = 0, 1
"""The places of the two bars, downwards."""

AXIS_NAME = "; moved: as nccl-tests count it, a message once at its sender; wire: what ring algorithms send"


class Bar(NamedTuple):
    """Bytes by name of the kind, and where in its panel."""

    amounts: Mapping[str, float]
    place: int

    @property
    def total(self) -> float:
        return sum(self.amounts.values())


class Panel(NamedTuple):
    """What is drawn of one program."""

    heading: str
    bars: tuple[Bar, ...]


def bytes_by_collective(
    traces: Sequence[Trace], measured: Sequence[Trace] = (), *, title: str = "Bytes by collective, sums over all ranks"
) -> Figure:
    """Two bars for each trace on one axis: bytes moved, and on the wire. Of as many `measured` traces of the same
    programs it says whether they moved the same."""
    if measured and len(measured) != len(traces):
        raise ValueError(f"{len(traces)} predicted and {len(measured)} measured traces; give one measured for each")
    panels = [_panel(trace, run) for trace, run in zip_longest(traces, measured)]
    bars = [bar for panel in panels for bar in panel.bars]
    scale = suited(BYTES, max((bar.total for bar in bars), default=0.0))
    until = max((bar.total / _share_of_width(bar, scale) for bar in bars), default=0.0) or scale.size
    heights = [PANEL] * len(panels)
    figure, drawn = page(title, heights, _legend(bars), theme.small_print(*traces[:1], *measured[:1]))
    for panel, axes in zip(panels, drawn, strict=True):
        plain(axes, panel.heading)
        for bar in panel.bars:
            _draw(axes, bar, until, scale)
        _axes(axes, until, scale, named=axes is drawn[-1])
    return figure


def _panel(trace: Trace, measured: Trace | None) -> Panel:
    moved = metrics.bytes_by_collective(trace)
    bars = (Bar(moved, MOVED), Bar(metrics.wire_bytes_by_collective(trace), WIRE))
    verdict = "" if measured is None else f": {_verdict(moved, metrics.bytes_by_collective(measured))}"
    return Panel(name(trace.program) + verdict, bars)


def _verdict(moved: Mapping[str, int], measured: Mapping[str, int]) -> str:
    """Whether a run moved what was predicted; of the kinds that differ the one that differs most is named."""
    both = [(kind, measured.get(kind.name, 0), moved.get(kind.name, 0)) for kind in Kind]
    kind, counted, expected = max(both, key=lambda one: abs(one[1] - one[2]))
    if counted == expected:
        return "measured the same"
    return f"measured {counted:,} bytes of {theme.WORDS[kind]}, not {expected:,}"


def _legend(bars: Sequence[Bar]) -> list[Artist]:
    there = {kind for bar in bars for kind in bar.amounts}
    return [Patch(label=theme.WORDS[kind], fc=theme.shade(kind)) for kind in Kind if kind.name in there]


def _draw(axes: Axes, bar: Bar, until: float, scale: Unit) -> None:
    """A stack with the number of each part in it where it fits, and the sum behind it."""
    left = 0.0
    for kind in (kind for kind in Kind if kind.name in bar.amounts):
        width = bar.amounts[kind.name]
        colour, text = theme.shade(kind), three_digits(width / scale.size)
        axes.barh(bar.place, width / scale.size, 2 * BAR, left / scale.size, color=colour, ec=theme.PAPER, lw=0.6)
        if len(bar.amounts) > 1 and _width(text) + MARGIN <= width / until * PANEL_WIDTH:
            middle, ink = (left + width / 2) / scale.size, theme.ink_on(colour)
            axes.text(middle, bar.place, text, size=theme.LABEL_SIZES[0], color=ink, ha="center", va="center_baseline")
        left += width
    axes.text(
        left / scale.size, bar.place, _sum(bar, scale), size=theme.LABEL_SIZES[0], color=theme.INK, va="center_baseline"
    )


def _sum(bar: Bar, scale: Unit) -> str:
    return f" {scale.text(bar.total)}" if bar.total else " none"


def _width(text: str) -> float:
    return text_width(text, theme.LABEL_SIZES[0])


def _share_of_width(bar: Bar, scale: Unit) -> float:
    """The part of the panel's width that is left for a bar beside its sum."""
    return 1 - _width(_sum(bar, scale) + " ") / PANEL_WIDTH


def _axes(axes: Axes, until: float, scale: Unit, *, named: bool) -> None:
    axes.set_xlim(0, until / scale.size)
    axes.set_ylim(WIRE + 0.5, MOVED - 0.5)
    axes.set_yticks([MOVED, WIRE], ["moved", "wire"])
    axes.tick_params(axis="y", length=0)
    axes.tick_params(labelbottom=named)
    if named:
        axes.set_xlabel(f"{scale.name}{AXIS_NAME}", size=theme.TEXT_SIZE, color=theme.INK)
