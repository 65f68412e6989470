"""The timeline: one row per rank and stream, time to the right, what waits left blank.

rank 0  |F0|F1|F2|F3|        |B0   |B1   |B2   |B3   |
rank 1     |F0|F1|F2|F3|  |B0   |B1   |B2   |B3   |
"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pdlab import theme
from pdlab.metrics import bubble_fraction
from pdlab.plots.lanes import Lanes
from pdlab.plots.page import page
from pdlab.plots.units import Unit, percent, time_unit
from pdlab.program import Program
from pdlab.trace import Trace

PAST = 1.004
"""The end of the time axis as a multiple of the makespan: what ends last is seen to end."""


def timeline(trace: Trace, *, title: str | None = None, unit: Unit | None = None) -> Figure:
    """What every rank does when, with makespan and bubble in the title."""
    unit = unit or time_unit(trace)
    lanes = Lanes(trace, trace.makespan)
    heading = f"{title or name(trace.program)}: {trace.provenance.how} {summary(trace, unit)}"
    figure, [axes] = page(heading, [lanes.height], lanes.legend(), theme.small_print(trace), heading=0.0)
    lanes.draw(axes, "", unit)
    time_axis(axes, trace.makespan, unit)
    return figure


def name(program: Program) -> str:
    """The program as a title names it."""
    m = program.num_microbatches
    return f"{program.name} on {program.mesh}, {m} microbatch{'es' if m > 1 else ''}"


def summary(trace: Trace, unit: Unit) -> str:
    """Makespan and bubble."""
    return f"{unit.text(trace.makespan)}, bubble {percent(bubble_fraction(trace))}"


def time_axis(axes: Axes, until: float, unit: Unit, *, named: bool = True) -> None:
    """A time axis that ends at `until` seconds; of several under each other only the last one is `named`."""
    axes.set_xlim(0, PAST * (until or 1.0) / unit.size)
    axes.tick_params(labelbottom=named)
    if named:
        axes.set_xlabel(f"time ({unit.name})", size=theme.TEXT_SIZE, color=theme.INK)
