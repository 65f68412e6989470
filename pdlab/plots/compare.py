"""Predict, run, compare: the measured timeline under the predicted one, on one time axis."""

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pdlab import theme
from pdlab.metrics import peak_bytes_per_rank
from pdlab.plots.memory import OVER, UNDER, bytes_axis, draw_live, line_entry
from pdlab.plots.page import page, plain
from pdlab.plots.timeline import Lanes, name, summary, time_axis
from pdlab.plots.units import BYTES, Unit, suited, time_unit
from pdlab.trace import Mode, Trace

MEMORY = 1.1
"""Inches: the height of the panel of live bytes."""


def compare(predicted: Trace, measured: Trace, *, title: str | None = None, unit: Unit | None = None) -> Figure:
    """Two timelines of one program, and below them what the most loaded rank holds."""
    unit = unit or time_unit(predicted, measured)
    until = max(predicted.makespan, measured.makespan)
    upper, lower = Lanes(predicted, until), Lanes(measured, until)
    figure, panels = page(
        title or name(predicted.program),
        [upper.height, lower.height, MEMORY],
        _legend(upper, lower),
        theme.small_print(predicted, measured),
    )
    upper.draw(panels[0], f"predicted: {summary(predicted, unit)}", unit)
    lower.draw(panels[1], f"{_how(measured)}: {summary(measured, unit)}, {_error(predicted, measured)}", unit)
    _draw_memory(panels[2], predicted, measured, unit)
    for axes in panels:
        time_axis(axes, until, unit, named=axes is panels[-1])
    return figure


def _how(measured: Trace) -> str:
    """A run held to modelled durations is not a measured speed; say so."""
    made = measured.provenance
    return made.how if made.mode is Mode.MEASURED else f"measured ({made.mode.value})"


def _error(predicted: Trace, measured: Trace) -> str:
    if not predicted.makespan:
        return "nothing predicted"
    if measured.provenance.oversubscribed:
        return "no prediction: more ranks than cores"
    return f"error {100 * (measured.makespan / predicted.makespan - 1):+.1f} %"


def _legend(upper: Lanes, lower: Lanes) -> list[Artist]:
    entries = {str(entry.get_label()): entry for lanes in (upper, lower) for entry in lanes.legend()}
    return [*entries.values(), line_entry("predicted bytes", UNDER), line_entry("measured bytes", OVER)]


def _draw_memory(axes: Axes, predicted: Trace, measured: Trace, unit: Unit) -> None:
    peaks = peak_bytes_per_rank(predicted)
    rank = peaks.index(max(peaks))
    reached = peak_bytes_per_rank(measured)[rank]
    largest = max(peaks[rank], reached)
    scale = suited(BYTES, largest)
    both = f"{scale.text(peaks[rank])} predicted, {scale.text(reached)} measured"
    plain(axes, f"live bytes of rank {rank}, the most loaded: peak {both}")
    draw_live(axes, predicted, rank, unit, scale, UNDER)
    draw_live(axes, measured, rank, unit, scale, OVER)
    bytes_axis(axes, largest, scale)
