"""A pipeline schedule as the controls say it: from it follow the program, the prediction and the Python call.

Costs are in units of one's own choice; a real run takes `UNIT_S` seconds for each unit.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from matplotlib.figure import Figure

from pdlab import metrics, plots, strategies
from pdlab.bubbles import PIPELINES, unit_bytes, within_span
from pdlab.costs import Uniform
from pdlab.lab import lab_nominal, lab_transformer
from pdlab.plots.held import in_M_B
from pdlab.plots.units import UNITS, percent
from pdlab.program import Program
from pdlab.simulate import simulate
from pdlab.strategies import Plan, Strategy, Times
from pdlab.trace import Trace
from pdlab.widgets.explored import ROWS

UNIT_S = 0.040
"""Seconds of a real run for one unit of cost: long against the scheduling noise of an operating system."""

CALL = """\
from pdlab import lab, plots, strategies
from pdlab.costs import Uniform
from pdlab.simulate import simulate
strategy = strategies.get({strategy!r})
plan = strategy.chosen(strategies.Plan({plan}))
program = strategies.build(strategy, plan, lab.lab_nominal(plan.pp, plan.num_stages))
plots.schedule(simulate(program, Uniform({costs})))"""


@lru_cache
def takers(field: str) -> tuple[str, ...]:
    """The schedules that a field acts on which not all take: `virtual`, `limit` or `beside`."""
    return tuple(name for name in PIPELINES if _takes(strategies.get(name), field))


def _takes(strategy: Strategy, field: str) -> bool:
    if field == "beside":
        return any(op.pair >= 0 for ops in strategy.schedule(Plan(pp=2, microbatches=4)) for op in ops)
    return strategy.limited if field == "limit" else strategy.any_virtual


@dataclass(frozen=True)
class Scenario:
    """A pipeline schedule on `pp` ranks with `microbatches`, and costs per p-th of the model and microbatch (units).

    The full backward is B = I + W, so schedules that split it and schedules that do not are compared fairly.

    Not every schedule takes the rest. A rank holds `virtual` stages (None: as many as the schedule has by itself), at
    most `limit` M_B (None: p), and an F and a B that overlap take `beside` of F + B (None: all of it). ValueError for
    one that the schedule does not take. What is None is filled in, so that scenarios that mean the same are equal.
    """

    strategy: str
    pp: int = 4
    microbatches: int = 8
    virtual: int | None = None
    limit: float | None = None
    F: float = 1.0
    I: float = 1.0
    W: float = 1.0
    beside: float | None = None
    comm: float = 0.1

    def __post_init__(self) -> None:
        if self.strategy not in PIPELINES:
            raise ValueError(f"{self.strategy!r} is not a pipeline schedule; choose one of {', '.join(PIPELINES)}")
        own = strategies.get(self.strategy).virtual
        for field, usual in (("virtual", own), ("limit", float(self.pp)), ("beside", 1.0)):
            given, takes = getattr(self, field), self.strategy in takers(field)
            if given is None:
                object.__setattr__(self, field, usual if takes or field == "virtual" else None)
            elif not takes and (field, given) != ("virtual", own):
                raise ValueError(
                    f"{field} is {given:g} with {self.strategy}; only {', '.join(takers(field))} can be told, so leave "
                    "it out"
                )

    @property
    def plan(self) -> Plan:
        times = Times(F=self.F, I=self.I, W=self.W, comm=self.comm, M_W=1.0)  # as the nominal model has it
        plan = Plan(pp=self.pp, microbatches=self.microbatches, virtual=self.virtual, limit=self.limit, times=times)
        return strategies.get(self.strategy).chosen(plan)

    @property
    def num_ranks(self) -> int:
        return self.pp

    def program(self) -> Program:
        """The schedule on a model of equal layers, one for each stage."""
        plan = self.plan
        return strategies.build(strategies.get(self.strategy), plan, lab_nominal(plan.pp, plan.num_stages))

    def costs(self, unit: float = 1.0) -> Uniform:
        """The costs, with `unit` seconds for each unit."""
        return Uniform(**{name: value * unit for name, value in self._costs().items()})

    def predict(self) -> Trace:
        return simulate(self.program(), self.costs())

    def draw(self) -> tuple[Figure, str]:
        predicted = self.predict()
        return plots.schedule(predicted), summary(predicted)

    def python(self) -> str:
        """The Python that makes the picture of this scenario, with what it imports."""
        plan = f"pp={self.pp}, microbatches={self.microbatches}"
        if self.strategy in takers("virtual"):
            plan += f", virtual={self.virtual}"
        if self.limit is not None:
            times = _arguments({name: getattr(self, name) for name in ("F", "I", "W", "comm")} | {"M_W": 1.0})
            plan += f", limit={self.limit:g}, times=strategies.Times({times})"
        return CALL.format(strategy=self.strategy, plan=plan, costs=_arguments(self._costs()))

    def lab_program(self, itemsize: int) -> Program:
        """The schedule on the lab's transformer, made deep enough for the stages."""
        plan = replace(self.plan, batch=ROWS * self.microbatches)
        model = lab_transformer(plan, itemsize)
        return strategies.build(strategies.get(self.strategy), plan, model)

    def pace(self) -> Uniform:
        return self.costs(UNIT_S)

    def pace_note(self) -> str:
        return f"{1e3 * UNIT_S:g} ms for a unit of cost"

    def _costs(self) -> dict[str, Any]:
        """By the names of `Uniform`."""
        costs = {"F": self.F, "I": self.I, "W": self.W}
        if self.beside not in (None, 1.0):
            costs["FB"] = self.beside * (self.F + self.I + self.W)
        return costs | {"comm": self.comm}


def _arguments(costs: dict[str, float]) -> str:
    return ", ".join(f"{name}={value:.12g}" for name, value in costs.items())


def summary(predicted: Trace) -> str:
    """Makespan, bubble by both ways to count it, and what each rank holds at most, in forwards of a p-th of the
    model."""
    unit = unit_bytes(predicted.program)
    peaks = ", ".join(map(in_M_B, metrics.peak_activations_per_rank(predicted, unit)))
    bubble, within = percent(metrics.bubble_fraction(predicted)), percent(within_span(predicted))
    makespan = UNITS.text(predicted.makespan)
    return f"makespan {makespan} · bubble {bubble}, between a rank's first and last op {within} · peaks {peaks} M_B"
