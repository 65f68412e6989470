"""How much of a pipeline is idle, and what that costs in memory: every schedule over microbatches and over ranks.

There are two ways to count. A step that is alone takes its makespan, and what of ranks x makespan nobody computes in is
idle. In training step follows step, and a rank that is done early can begin the next one early (Qi et al. 2024,
arXiv:2401.10241, section 4): then only what is idle between a rank's first and last op counts, and the shift of the
ranks against each other does not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pdlab import metrics
from pdlab.costs import Uniform
from pdlab.lab import lab_nominal
from pdlab.mesh import Axis
from pdlab.ops import COMPUTE
from pdlab.program import Program
from pdlab.simulate import simulate
from pdlab.strategies import STRATEGIES, Plan, Strategy, Times, build, get
from pdlab.trace import Trace

PIPELINES = tuple(s.name for s in STRATEGIES if s.axis is Axis.PP and not (s.stale or s.accumulates))
"""The schedules of the catalog that spread over pipeline ranks and flush once."""


@dataclass(frozen=True)
class Point:
    """One schedule on `p` ranks with `m` microbatches, simulated.

    `bubble` is the idle share of ranks x makespan, `within` that of the longest time from a rank's first op to its
    last, `idle` the longest time that a rank is idle within its own, `peak` the most M_B that a rank holds for
    backwards.
    """

    strategy: str
    p: int
    m: int
    bubble: float
    within: float
    idle: float
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
    idle, span = max(_idle_and_span(trace), key=lambda of: of[1], default=(0.0, 0.0))
    return idle / span if span else 0.0


def idle_between(trace: Trace) -> float:
    """The longest time that a rank is idle between its first compute op and its last one."""
    return max((idle for idle, _ in _idle_and_span(trace)), default=0.0)


def _idle_and_span(trace: Trace) -> list[tuple[float, float]]:
    """Of every rank that computes."""
    found = []
    for rank, busy in enumerate(metrics.busy_per_rank(trace)):
        rows = zip(trace.rows_of(rank), trace.program.ranks[rank].ops, strict=True)
        compute = [row for row, op in rows if op.stream == COMPUTE and op.kind in metrics.COMPUTE_KINDS]
        if compute:
            span = max(trace.ends[row] for row in compute) - min(trace.starts[row] for row in compute)
            found.append((span - busy, span))
    return found


def predicted(name: str, p: int, m: int, costs: Uniform | None = None) -> Point:
    """ValueError for a shape that the schedule refuses."""
    costs = costs or Uniform()
    return _point(name, m, _program(name, p, m, costs), costs)


def _program(name: str, p: int, m: int, costs: Uniform) -> Program:
    plan = planned(get(name), p, m, costs)
    return build(get(name), plan, lab_nominal(plan.pp, plan.num_stages))


def _point(name: str, m: int, program: Program, costs: Uniform) -> Point:
    trace, p = simulate(program, costs), program.mesh.size
    peak = max(metrics.peak_activations_per_rank(trace, unit_bytes(trace.program)))
    return Point(name, p, m, metrics.bubble_fraction(trace), within_span(trace), idle_between(trace), peak)


def planned(strategy: Strategy, p: int, m: int, costs: Uniform) -> Plan:
    """Where an order is searched for, it knows the costs. What a W still needs counts as a whole M_B, as in the
    nominal model."""
    return strategy.chosen(Plan(pp=p, microbatches=m, times=Times.of(costs, M_W=1.0)))


@dataclass(frozen=True)
class ClosedForm:
    """What the papers give for the idle time between a rank's first op and its last, by p, m and costs."""

    text: str
    idle: Callable[[int, int, float, float, float, float], float]
    """Of p, m, F, I, W and FB, with B = I + W."""


CLOSED_FORMS: dict[str, ClosedForm] = {
    "naive": ClosedForm("m (p - 1) (F + B)", lambda p, m, F, I, W, FB: m * (p - 1) * (F + I + W)),
    "gpipe": ClosedForm("(p - 1) (F + B)", lambda p, m, F, I, W, FB: (p - 1) * (F + I + W)),
    "1f1b": ClosedForm("(p - 1) (F + B)", lambda p, m, F, I, W, FB: (p - 1) * (F + I + W)),
    "interleaved_1f1b": ClosedForm("(p - 1) (F + B) / v", lambda p, m, F, I, W, FB: (p - 1) * (F + I + W) / 2),
    "zb_h1": ClosedForm("(p - 1) (F + I - W)", lambda p, m, F, I, W, FB: (p - 1) * (F + I - W)),
    "zb_h2": ClosedForm("(p - 1) (F + I - 2W)", lambda p, m, F, I, W, FB: (p - 1) * (F + I - 2 * W)),
    "zb_v": ClosedForm("0", lambda p, m, F, I, W, FB: 0.0),
    "dualpipe": ClosedForm("(p / 2 - 1) (FB + B - 3W)", lambda p, m, F, I, W, FB: (p / 2 - 1) * (FB + I - 2 * W)),
    "dualpipe_v": ClosedForm("(p - 1) (FB + B - 3W) / 2", lambda p, m, F, I, W, FB: (p - 1) * (FB + I - 2 * W) / 2),
}
"""GPipe's and 1F1B's in Narayanan et al. 2021 (arXiv:2104.04473, section 2.2), interleaved there too, with v = 2 as
here; ZB in Qi et al. 2024 (arXiv:2401.10241, table 2; arXiv:2405.15362 for V, at F = I = W), DualPipe in DeepSeek-AI
2024 (arXiv:2412.19437, table 2). They suppose free messages, and enough microbatches."""


@dataclass(frozen=True)
class Check:
    """The idle time of one schedule by its closed form and simulated, in the unit of the costs."""

    strategy: str
    formula: str
    closed_form: float
    simulated: float

    @property
    def agrees(self) -> bool:
        return abs(self.simulated - self.closed_form) < 1e-9 * max(1.0, self.simulated)


def closed_form(name: str, p: int, m: int, costs: Uniform) -> float | None:
    """The idle time of a schedule as the papers have it; None where they have no form."""
    assert costs.I is not None and costs.W is not None
    beside = costs.F + costs.I + costs.W if costs.FB is None else costs.FB
    form = CLOSED_FORMS.get(name)
    return form.idle(p, m, costs.F, costs.I, costs.W, beside) if form else None


def check(p: int, m: int, costs: Uniform | None = None) -> list[Check]:
    """Every schedule that has a closed form and takes the shape."""
    costs = costs or Uniform()
    found = []
    for name, form in CLOSED_FORMS.items():
        expected, point = closed_form(name, p, m, costs), _tried(name, p, m, costs)
        if expected is not None and point is not None:
            found.append(Check(name, form.text, expected, point.idle))
    return found


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
        program = _program(name, p, m, costs)
    except ValueError:
        return None
    return _point(name, m, program, costs)
