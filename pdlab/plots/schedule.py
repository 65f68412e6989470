"""A pipeline schedule: the timeline, and below it on the same time axis what each rank holds meanwhile."""

from matplotlib.figure import Figure

from pdlab import theme
from pdlab.plots.held import Strips, in_M_B
from pdlab.plots.lanes import Lanes
from pdlab.plots.page import HEADING, page
from pdlab.plots.timeline import name, summary, time_axis
from pdlab.plots.units import Unit, time_unit
from pdlab.trace import Trace

HELD = "activations held, and each rank's peak, in forwards of a p-th of the model (M_B)"


def schedule(trace: Trace, *, title: str | None = None, unit: Unit | None = None) -> Figure:
    """Timeline and activations, with makespan, bubble and the largest peak in the title."""
    unit = unit or time_unit(trace)
    lanes, strips = Lanes(trace, trace.makespan), Strips(trace)
    peak = f"peak {in_M_B(max(strips.peaks))} M_B"
    heading = f"{title or name(trace.program)}: {trace.provenance.how} {summary(trace, unit)}, {peak}"
    heights, entries = [lanes.height, strips.height], [*lanes.legend(), *strips.legend()]
    figure, [upper, lower] = page(heading, heights, entries, theme.small_print(trace), heading=(0.0, HEADING))
    lanes.draw(upper, "", unit)
    strips.draw(lower, HELD, unit)
    for axes in (upper, lower):
        time_axis(axes, trace.makespan, unit, named=axes is lower)
    return figure
