"""What the controls of the explorer say, as one value: from it follow the program, the prediction and the Python call.

Costs are in units of one's own choice; a real run takes `UNIT_S` seconds for each unit.
"""

from dataclasses import dataclass

from pdlab import metrics, models, strategies
from pdlab.costs import Uniform
from pdlab.mesh import Axis
from pdlab.models.nominal import MEGABYTE
from pdlab.plots.units import UNITS, percent, three_digits
from pdlab.program import Program
from pdlab.simulate import simulate
from pdlab.strategies import Plan
from pdlab.strategies.catalog import STRATEGIES
from pdlab.trace import Trace

UNIT_S = 0.040
"""Seconds of a real run for one unit of cost: long against the scheduling noise of an operating system."""

CALL = """\
from pdlab import models, plots, strategies
from pdlab.costs import Uniform
from pdlab.simulate import simulate
program = strategies.build(strategies.get({strategy!r}), strategies.Plan(pp={pp}, microbatches={m}), models.nominal({pp}))
plots.timeline(simulate(program, Uniform(F={F:g}, I={I:g}, W={W:g}, comm={comm:g})))"""  # noqa: E501


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

    def program(self) -> Program:
        """The schedule on a model of equal layers, one for each stage."""
        plan = Plan(pp=self.pp, microbatches=self.microbatches)
        return strategies.build(strategies.get(self.strategy), plan, models.nominal(self.pp))

    def costs(self, unit: float = 1.0) -> Uniform:
        """The costs, with `unit` seconds for each unit."""
        return Uniform(F=self.F * unit, I=self.I * unit, W=self.W * unit, comm=self.comm * unit)

    def predict(self) -> Trace:
        return simulate(self.program(), self.costs())

    def python(self) -> str:
        """The Python that makes the picture of this scenario, with what it imports."""
        costs = {"F": self.F, "I": self.I, "W": self.W, "comm": self.comm}
        return CALL.format(strategy=self.strategy, pp=self.pp, m=self.microbatches, **costs)


def summary(predicted: Trace) -> str:
    """Makespan, bubble and what each rank holds at most, in forwards of one stage."""
    peaks = ", ".join(map(three_digits, metrics.peak_activations_per_rank(predicted, MEGABYTE)))
    bubble = percent(metrics.bubble_fraction(predicted))
    makespan = UNITS.text(predicted.makespan)
    return f"makespan {makespan} · bubble {bubble} · peak activations of ranks 0, 1, …: {peaks} microbatches"
