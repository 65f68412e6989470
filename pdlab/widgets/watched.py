"""The real run of a scenario, telling what it is doing. Loads torch, so it is imported only when something is run."""

from collections.abc import Callable

from pdlab.compare import Comparison, compare
from pdlab.launch import Ranks
from pdlab.widgets.explored import Explored
from pdlab.widgets.stage import Stage

Enter = Callable[[Stage], None]
"""Told what a run is doing now; may raise to end it."""


def compare_scenario(scenario: Explored, ranks: Ranks, steps: int, enter: Enter) -> Comparison:
    """`compare` on the small model of the scenario, at its pace."""

    def tell(share: float) -> None:
        enter(Stage("running", steps, share) if share < 1 else Stage("checking gradients"))

    enter(Stage(f"waiting for {ranks.size} processes"))
    return compare(scenario.lab_program, ranks, costs=scenario.pace(), steps=steps, watch=tell)
