"""A variant of PipeDream as the controls say it: from it follow the program, the prediction and the Python call.

Costs are in units of one's own choice, as for the other pipelines. A stage on several ranks has as much more to do, so
that all ranks are equally busy: that is what a stage is replicated for.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from matplotlib.figure import Figure

from pdlab import plots, strategies
from pdlab.costs import Uniform
from pdlab.lab import lab_mlp, lab_nominal
from pdlab.ledger import Ledger
from pdlab.program import Program
from pdlab.simulate import simulate
from pdlab.strategies import STRATEGIES, Plan
from pdlab.trace import Trace
from pdlab.widgets.explored import ROWS
from pdlab.widgets.scenario import UNIT_S

VARIANTS = tuple(s.name for s in STRATEGIES if s.stale or s.accumulates)

CALL = """\
from pdlab import lab, plots, strategies
from pdlab.costs import Uniform
from pdlab.simulate import simulate
plan = strategies.Plan({plan})
model = lab.lab_nominal(plan.pp, plan.num_stages)
program = strategies.build(strategies.get({strategy!r}), plan, model)
plots.versions(simulate(program, Uniform({costs})))"""


@lru_cache
def takers(field: str) -> tuple[str, ...]:
    """The variants that `first` acts on, or `accumulate`."""
    variants = map(strategies.get, VARIANTS)
    return tuple(s.name for s in variants if (s.replicated if field == "first" else s.accumulates))


@dataclass(frozen=True)
class VersionScenario:
    """A variant on `pp` ranks with `minibatches` (microbatches, where several share an update), and costs per p-th of
    the model and minibatch, in units.

    Two fields are not for every variant: `first` of the ranks share the first stage (None: 1), and an update takes
    `accumulate` microbatches (None: p). ValueError for one that the variant does not take. What is None is filled in,
    so that scenarios that mean the same are equal.
    """

    strategy: str = "pipedream"
    pp: int = 4
    minibatches: int = 12
    first: int | None = None
    accumulate: int | None = None
    F: float = 1.0
    B: float = 2.0
    comm: float = 0.1

    def __post_init__(self) -> None:
        if self.strategy not in VARIANTS:
            raise ValueError(f"{self.strategy!r} is no variant of PipeDream; choose one of {', '.join(VARIANTS)}")
        for field, usual in (("first", 1), ("accumulate", self.pp)):
            given, takes = getattr(self, field), self.strategy in takers(field)
            if given is not None and not takes:
                only = ", ".join(takers(field))
                raise ValueError(f"{field} is {given} with {self.strategy}; only {only} can be told, so leave it out")
            object.__setattr__(self, field, usual if takes and given is None else given)
        if self.first is not None and not 1 <= self.first <= max(1, self.pp):
            raise ValueError(f"the first stage is on {self.first} of {self.pp} ranks; give 1 to {self.pp}")

    @property
    def replicas(self) -> tuple[int, ...] | None:
        """How many ranks each stage is on; None where it is one each."""
        first = self.first or 1
        return (first,) + (1,) * (self.pp - first) if first > 1 else None

    @property
    def plan(self) -> Plan:
        plan = Plan(pp=self.pp, microbatches=self.minibatches, replicas=self.replicas, accumulate=self.accumulate)
        return strategies.get(self.strategy).chosen(plan)

    @property
    def num_ranks(self) -> int:
        return self.pp

    def program(self) -> Program:
        """The variant on a model of equal layers, one for each stage."""
        return strategies.build(strategies.get(self.strategy), self.plan, lab_nominal(self.pp, self.plan.num_stages))

    def costs(self, unit: float = 1.0) -> Uniform:
        """The costs, with `unit` seconds for each unit."""
        return Uniform(self.F * unit, self.B * unit, comm=self.comm * unit, scale=self._scale())

    def predict(self) -> Trace:
        return simulate(self.program(), self.costs())

    def draw(self) -> tuple[Figure, str]:
        predicted = self.predict()
        return plots.versions(predicted), "\n".join(Ledger.of(predicted.program).verdicts())

    def python(self) -> str:
        """The Python that makes the picture of this scenario, with what it imports."""
        plan = f"pp={self.pp}, microbatches={self.minibatches}"
        plan += f", replicas={self.replicas}" if self.replicas else ""
        plan += f", accumulate={self.accumulate}" if self.accumulate else ""
        costs = f"F={self.F:.12g}, B={self.B:.12g}, comm={self.comm:.12g}"
        costs += f", scale={self._scale()}" if self.replicas else ""
        return CALL.format(strategy=self.strategy, plan=plan, costs=costs)

    def lab_program(self, itemsize: int) -> Program:
        """The variant on the lab's MLP, the only model for which there is a reference for all of them."""
        plan = replace(self.plan, batch=ROWS * self.minibatches)
        return strategies.build(strategies.get(self.strategy), plan, lab_mlp(plan, itemsize))

    def pace(self) -> Uniform:
        return self.costs(UNIT_S)

    def pace_note(self) -> str:
        return f"{1e3 * UNIT_S:g} ms for a unit of cost"

    def _scale(self) -> tuple[float, ...]:
        """By stage: its ranks, as a multiple of what a stage has on average."""
        replicas = self.replicas or ()
        return tuple(ranks * len(replicas) / self.pp for ranks in replicas)
