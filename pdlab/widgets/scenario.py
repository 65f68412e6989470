"""A pipeline schedule as the controls say it: from it follow the program, the prediction and the Python call.

Costs are in units of one's own choice; a real run takes `UNIT_S` seconds for each unit.
"""

from dataclasses import dataclass, replace

from matplotlib.figure import Figure

from pdlab import metrics, plots, strategies
from pdlab.costs import Uniform
from pdlab.lab import lab_nominal, lab_transformer
from pdlab.mesh import Axis
from pdlab.models.nominal import MEGABYTE
from pdlab.plots.units import UNITS, percent, three_digits
from pdlab.program import Program
from pdlab.simulate import simulate
from pdlab.strategies import Plan, Times
from pdlab.strategies.catalog import STRATEGIES
from pdlab.trace import Trace
from pdlab.widgets.explored import ROWS

UNIT_S = 0.040
"""Seconds of a real run for one unit of cost: long against the scheduling noise of an operating system."""

CALL = """\
from pdlab import lab, plots, strategies
from pdlab.costs import Uniform
from pdlab.simulate import simulate
strategy = strategies.get({strategy!r})
plan = strategy.chosen(strategies.Plan(pp={pp}, microbatches={m}))
program = strategies.build(strategy, plan, lab.lab_nominal(plan.pp, plan.num_stages))
plots.timeline(simulate(program, Uniform(F={F:g}, I={I:g}, W={W:g}, comm={comm:g})))"""


def pipeline_schedules() -> tuple[str, ...]:
    """The names of the strategies of the catalog that spread over pipeline stages."""
    return tuple(strategy.name for strategy in STRATEGIES if strategy.axis is Axis.PP)


@dataclass(frozen=True)
class Scenario:
    """A pipeline schedule on `pp` stages with `microbatches`, and costs per stage and microbatch (units).

    The full backward is B = I + W, so schedules that split it and schedules that do not are compared fairly.
    """

    strategy: str
    pp: int = 4
    microbatches: int = 8
    F: float = 1.0
    I: float = 1.0
    W: float = 1.0
    comm: float = 0.1

    def __post_init__(self) -> None:
        if self.strategy not in pipeline_schedules():
            known = ", ".join(pipeline_schedules())
            raise ValueError(f"{self.strategy!r} is not a pipeline schedule; choose one of {known}")

    @property
    def plan(self) -> Plan:
        times = Times(F=self.F, I=self.I, W=self.W, comm=self.comm)
        return strategies.get(self.strategy).chosen(Plan(pp=self.pp, microbatches=self.microbatches, times=times))

    @property
    def num_ranks(self) -> int:
        return self.pp

    def program(self) -> Program:
        """The schedule on a model of equal layers, one for each stage."""
        plan = self.plan
        return strategies.build(strategies.get(self.strategy), plan, lab_nominal(plan.pp, plan.num_stages))

    def costs(self, unit: float = 1.0) -> Uniform:
        """The costs, with `unit` seconds for each unit."""
        return Uniform(F=self.F * unit, I=self.I * unit, W=self.W * unit, comm=self.comm * unit)

    def predict(self) -> Trace:
        return simulate(self.program(), self.costs())

    def draw(self) -> tuple[Figure, str]:
        predicted = self.predict()
        return plots.timeline(predicted), summary(predicted)

    def python(self) -> str:
        """The Python that makes the picture of this scenario, with what it imports."""
        costs = {"F": self.F, "I": self.I, "W": self.W, "comm": self.comm}
        return CALL.format(strategy=self.strategy, pp=self.pp, m=self.microbatches, **costs)

    def lab_program(self, itemsize: int) -> Program:
        """The schedule on the lab's transformer, made deep enough for the stages."""
        plan = replace(self.plan, batch=ROWS * self.microbatches)
        model = lab_transformer(plan, itemsize)
        return strategies.build(strategies.get(self.strategy), plan, model)

    def pace(self) -> Uniform:
        return self.costs(UNIT_S)

    def pace_note(self) -> str:
        return f"{1e3 * UNIT_S:g} ms for a unit of cost"


def summary(predicted: Trace) -> str:
    """Makespan, bubble and what each rank holds at most, in forwards of one stage."""
    peaks = ", ".join(map(three_digits, metrics.peak_activations_per_rank(predicted, MEGABYTE)))
    bubble = percent(metrics.bubble_fraction(predicted))
    makespan = UNITS.text(predicted.makespan)
    return f"makespan {makespan} · bubble {bubble} · peak activations of ranks 0, 1, …: {peaks} microbatches"
