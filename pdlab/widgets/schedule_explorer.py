"""The explorer of pipeline schedules: turn the costs, see the timeline, run it for real.

In a cell: `explorer = ScheduleExplorer("1f1b"); explorer`.
"""

from typing import TYPE_CHECKING

from pdlab.widgets.controls import Controls, choice, controlled, cost, whole
from pdlab.widgets.explorer import Explorer
from pdlab.widgets.scenario import UNIT_S, Scenario, pipeline_schedules

if TYPE_CHECKING:
    from pdlab.launch import Ranks

HINT = f"Paced on real processes, one for each stage; a unit of cost takes {1e3 * UNIT_S:g} ms."


class ScheduleExplorer(Explorer[Scenario]):
    """Controls, the predicted timeline, the Python that makes it, and a real run beside its prediction."""

    strategy = controlled("strategy", "The name of the schedule.")
    pp = controlled("pp", "How many stages, each on a rank of its own.")
    microbatches = controlled("microbatches", "How many microbatches a batch is cut into.")
    F = controlled("F", "Units of time for the forward of a stage on a microbatch.")
    I = controlled("I", "Units for the backward for the input.")
    W = controlled("W", "Units for the backward for the weights.")
    comm = controlled("comm", "Units for a message.")

    def __init__(
        self,
        strategy: str = "1f1b",
        *,
        pp: int = 4,
        microbatches: int = 8,
        F: float = 1.0,
        I: float = 1.0,
        W: float = 1.0,
        comm: float = 0.1,
        pool: "Ranks | None" = None,
        steps: int = 3,
    ) -> None:
        start = Scenario(strategy, pp, microbatches, F, I, W, comm)
        super().__init__(start, _columns(), hint=HINT, pool=pool, steps=steps)


def _columns() -> tuple[Controls, Controls]:
    """What is run on the left, what it costs on the right."""
    what: Controls = {
        "strategy": choice("schedule", pipeline_schedules()),
        "pp": whole("stages p (ranks)", 8),
        "microbatches": whole("microbatches m", 16),
    }
    costs: Controls = {
        "F": cost("F: forward", 0.1, 4.0),
        "I": cost("I: backward, input", 0.1, 4.0),
        "W": cost("W: backward, weights", 0.0, 4.0),
        "comm": cost("comm: one message", 0.0, 2.0),
    }
    return what, costs
