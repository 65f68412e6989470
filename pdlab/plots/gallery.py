"""Several strategies under each other on one time axis, to be compared at a glance."""

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.figure import Figure

from pdlab import theme
from pdlab.plots.lanes import Lanes
from pdlab.plots.page import page
from pdlab.plots.timeline import name, summary, time_axis
from pdlab.plots.units import Unit, time_unit
from pdlab.trace import Trace


def gallery(traces: Sequence[Trace], *, title: str = "", unit: Unit | None = None) -> Figure:
    """One timeline for each trace, its makespan and bubble above it."""
    unit = unit or time_unit(*traces)
    until = max(trace.makespan for trace in traces)
    lanes = [Lanes(trace, until) for trace in traces]
    entries: dict[str, Artist] = {str(entry.get_label()): entry for one in lanes for entry in one.legend()}
    heights = [one.height for one in lanes]
    figure, panels = page(title, heights, list(entries.values()), theme.small_print(*traces[:1]))
    for one, axes, trace in zip(lanes, panels, traces, strict=True):
        one.draw(axes, f"{name(trace.program)}: {summary(trace, unit)}", unit)
        time_axis(axes, until, unit, named=axes is panels[-1])
    return figure
