"""How much of a pipeline is idle, and what that costs in memory: every schedule over microbatches and over ranks.

There are two ways to count. A step that is alone takes its makespan, and what of ranks x makespan nobody computes in is
idle. In training step follows step, and a rank that is done early can begin the next one early (Qi et al. 2024,
arXiv:2401.10241, section 4): then only what is idle between a rank's first and last op counts, and the shift of the
ranks against each other does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pdlab import metrics
from pdlab.costs import Uniform
from pdlab.lab import lab_nominal
from pdlab.mesh import Axis
from pdlab.program import Program
from pdlab.simulate import simulate
from pdlab.strategies import STRATEGIES, Plan, Strategy, Times, build, get
from pdlab.trace import Trace

PIPELINES = tuple(strategy.name for strategy in STRATEGIES if strategy.axis is Axis.PP)
"""The schedules of the catalog that spread over pipeline ranks."""


@dataclass(frozen=True)
class Point:
    """One schedule on `p` ranks with `m` microbatches, simulated.

    `bubble` is the idle share of ranks x makespan, `within` that of the longest time from a rank's first op to its
    last, `peak` the most that a rank holds for backwards, in M_B.
    """

    strategy: str
    p: int
    m: int
    bubble: float
    within: float
    peak: float


@dataclass(frozen=True)
class Bubbles:
    """Two sweeps: over microbatches on `p` ranks, and over ranks with `m` microbatches."""

    p: int
    m: int
    over_microbatches: tuple[Point, ...]
    over_ranks: tuple[Point, ...]
    costs: Uniform


def unit_bytes(program: Program) -> float:
    """M_B: the bytes that a p-th of the model saves in the forward of a microbatch, if all stages are as large as the
    largest. At least 1, for a model that saves nothing."""
    segments = program.model.segments
    most = max(sum(segments[name].saved.per_row for name in stage) for stage in program.stages)
    stages_of_p = len(program.stages) / program.mesh.degree(Axis.PP)
    return max(1.0, most * max(map(max, program.rows)) * stages_of_p)


def within_span(trace: Trace) -> float:
    """The idle share of the longest time from a rank's first compute op to its last one."""
    span = metrics.largest_rank_span(trace)
    return 1 - max(metrics.busy_per_rank(trace)) / span if span else 0.0


def predicted(name: str, p: int, m: int, costs: Uniform | None = None) -> Point:
    """ValueError for a shape that the schedule refuses."""
    costs = costs or Uniform()
    strategy = get(name)
    plan = planned(strategy, p, m, costs)
    trace = simulate(build(strategy, plan, lab_nominal(plan.pp, plan.num_stages)), costs)
    peak = max(metrics.peak_activations_per_rank(trace, unit_bytes(trace.program)))
    return Point(name, p, m, metrics.bubble_fraction(trace), within_span(trace), peak)


def planned(strategy: Strategy, p: int, m: int, costs: Uniform) -> Plan:
    """Where an order is searched for, it knows the costs. What a W still needs counts as a whole M_B, as in the
    nominal model."""
    assert costs.I is not None and costs.W is not None
    times = Times(F=costs.F, I=costs.I, W=costs.W, comm=costs.comm, M_W=1.0)
    return strategy.chosen(Plan(pp=p, microbatches=m, times=times))


def sweep(
    p: int = 8,
    microbatches: Sequence[int] = (8, 16, 32, 64),
    ranks: Sequence[int] = (2, 4, 8, 16),
    m: int = 32,
    costs: Uniform | None = None,
    names: Sequence[str] = PIPELINES,
) -> Bubbles:
    """Both sweeps, without the points whose shape a schedule refuses."""
    costs = costs or Uniform()
    over_m = [point for name in names for i in microbatches if (point := _tried(name, p, i, costs))]
    over_p = [point for name in names for i in ranks if (point := _tried(name, i, m, costs))]
    return Bubbles(p, m, tuple(over_m), tuple(over_p), costs)


def _tried(name: str, p: int, m: int, costs: Uniform) -> Point | None:
    try:
        get(name).schedule(planned(get(name), p, m, costs))
    except ValueError:
        return None
    return predicted(name, p, m, costs)
