"""The real run of a scenario, telling what it is doing. Loads torch, so it is imported only when something is run."""

from collections.abc import Callable

from pdlab.compare import Comparison, compare
from pdlab.lab import lab_transformer
from pdlab.launch import Ranks
from pdlab.program import Program
from pdlab.strategies import Plan, build, get
from pdlab.widgets.scenario import Scenario
from pdlab.widgets.stage import Stage

ROWS = 8
"""Samples of each microbatch."""

Enter = Callable[[Stage], None]
"""Told what a run is doing now; may raise to end it."""


def compare_scenario(scenario: Scenario, unit: float, ranks: Ranks, steps: int, enter: Enter) -> Comparison:
    """`compare` on the lab's transformer, made deep enough for the stages, with `unit` seconds for a unit of cost."""
    plan = Plan(pp=scenario.pp, microbatches=scenario.microbatches, batch=ROWS * scenario.microbatches)

    def program_of(itemsize: int) -> Program:
        return build(get(scenario.strategy), plan, lab_transformer(plan, itemsize, depth_for(scenario.pp)))

    def tell(share: float) -> None:
        enter(Stage("running", steps, share) if share < 1 else Stage("checking gradients"))

    enter(Stage(f"waiting for {ranks.size} processes"))
    return compare(program_of, ranks, costs=scenario.costs(unit), steps=steps, watch=tell)


def depth_for(stages: int) -> int:
    """The fewest layers with a segment for each stage: a transformer has two in a layer, and two around them."""
    return max(1, (stages - 1) // 2)
