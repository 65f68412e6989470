"""Weight versions: which one each forward and backward meets, and below on the same time axis which ones are held.

rank 0  |F0|F1|   |B0 |F2|B1 |F3|     each in the colour of its version
rank 1     |F0|B0 |F1|B1 |F2|B2 |
rank 0  ____________|==|===|===       how many versions are there
"""

from matplotlib.figure import Figure

from pdlab import theme
from pdlab.mesh import Axis
from pdlab.named import colons
from pdlab.plots.page import HEADING, page
from pdlab.plots.timeline import time_axis
from pdlab.plots.units import Unit, time_unit
from pdlab.plots.version_lanes import VersionLanes, Versions
from pdlab.plots.version_strips import Stash
from pdlab.program import Program
from pdlab.steady import seconds_per_minibatch
from pdlab.trace import Trace

HELD = "versions of the weights held, and the most of each rank in versions and in bytes"

NO_BREAK = "\N{NO-BREAK SPACE}"


def versions(trace: Trace, *, title: str | None = None, unit: Unit | None = None) -> Figure:
    """The timeline in the colours of the versions that the passes meet, and the versions that each rank holds. The
    title says how long a minibatch takes, how many versions each stage holds, and whether backwards find gradients.

    ValueError for a program that begins with some of its steps taken.
    """
    unit, met = unit or time_unit(trace), Versions(trace.program)
    lanes, stash = VersionLanes(trace, met, trace.makespan), Stash(trace, met)
    heading = f"{title or name(trace.program, met)}: {trace.provenance.how} {_pace(trace, met, unit)}, {_verdict(met)}"
    heights, entries = [lanes.height, stash.height], lanes.legend()
    figure, [upper, lower] = page(heading, heights, entries, theme.small_print(trace), heading=(0.0, HEADING))
    lanes.draw(upper, "", unit)
    stash.draw(lower, HELD, unit)
    for axes in (upper, lower):
        time_axis(axes, trace.makespan, unit, named=axes is lower)
    return figure


def name(program: Program, met: Versions) -> str:
    """`pipedream on pp 4 (3:1), 10 minibatches`."""
    ranks: dict[int, set[int]] = {}
    for entry in met.ledger.entries:
        ranks.setdefault(entry.stage, set()).add(entry.rank)
    of_pipeline = program.mesh.degree(Axis.PP)
    replicas = [len(of) * of_pipeline // program.mesh.size for _, of in sorted(ranks.items())]
    placed = f" ({colons(replicas)})" if len(replicas) < of_pipeline == sum(replicas) else ""
    m = program.num_microbatches
    return f"{program.name} on {program.mesh}{placed}, {m} {met.word}{'es' * (m > 1)}"


def _pace(trace: Trace, met: Versions, unit: Unit) -> str:
    steady = seconds_per_minibatch(trace)
    return unit.text(trace.makespan) if steady is None else f"{unit.text(steady)} per {met.word}"


def _verdict(met: Versions) -> str:
    """`versions held 4 3 2 1`, kept on one line, and what is wrong with the backwards, if anything is."""
    held = NO_BREAK.join(("versions", "held", *map(str, met.ledger.most_by_stage)))
    wrong, backwards = len(met.ledger.inconsistent), len(met.ledger.entries)
    return f"{held}; INCONSISTENT: {wrong} of {backwards} backwards" if wrong else held
