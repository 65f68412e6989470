"""The explorer of pipeline schedules: turn the costs, see the timeline, run it for real.

In a cell: `explorer = ScheduleExplorer("1f1b"); explorer`.
"""

from typing import TYPE_CHECKING

from pdlab.bubbles import PIPELINES
from pdlab.widgets.controls import Control, Controls, choice, controlled, cost, whole
from pdlab.widgets.explorer import Explorer
from pdlab.widgets.scenario import UNIT_S, Scenario, takers

if TYPE_CHECKING:
    from pdlab.launch import Ranks

HINT = f"Paced on real processes, one for each rank; a unit of cost takes {1e3 * UNIT_S:g} ms."


class ScheduleExplorer(Explorer[Scenario]):
    """Controls, the predicted schedule, the Python that makes it, and a real run beside its prediction.

    A control that the schedule does not take is greyed out. One that is chosen starts with its own number of stages
    and, where it may be told a limit, with that of 1F1B.
    """

    strategy = controlled("strategy", "The name of the schedule.")
    pp = controlled("pp", "How many ranks the pipeline has.")
    microbatches = controlled("microbatches", "How many microbatches a batch is cut into.")
    virtual = controlled("virtual", "How many stages a rank holds.")
    limit = controlled("limit", "How many M_B a rank may hold.")
    F = controlled("F", "Units of time for the forward of a p-th of the model on a microbatch.")
    I = controlled("I", "Units for the backward for the input.")
    W = controlled("W", "Units for the backward for the weights.")
    beside = controlled("beside", "What an F and a B that overlap take, as a share of F + B.")
    comm = controlled("comm", "Units for a message.")

    def __init__(
        self,
        strategy: str = "1f1b",
        *,
        pp: int = 4,
        microbatches: int = 8,
        virtual: int | None = None,
        limit: float | None = None,
        F: float = 1.0,
        I: float = 1.0,
        W: float = 1.0,
        beside: float | None = None,
        comm: float = 0.1,
        pool: "Ranks | None" = None,
        steps: int = 3,
    ) -> None:
        start = Scenario(strategy, pp, microbatches, virtual, limit, F, I, W, beside, comm)
        super().__init__(start, _columns(), hint=HINT, pool=pool, steps=steps)

    def _adapt(self, changed: Control | None) -> None:
        usual = Scenario(self.strategy, self.pp)
        for name in ("virtual", "limit", "beside"):
            control, value = self.controls[name], getattr(usual, name)
            control.only_for = takers(name)
            control.disabled = self.strategy not in control.only_for
            if changed is self.controls["strategy"] and value is not None:
                control.value = value


def _columns() -> tuple[Controls, Controls]:
    """What is run on the left, what it costs on the right."""
    what: Controls = {
        "strategy": choice("schedule", PIPELINES),
        "pp": whole("ranks p", 8),
        "microbatches": whole("microbatches m", 16),
        "virtual": whole("stages of a rank v", 4),
        "limit": cost("limit (M_B)", 1.0, 16.0, step=0.5),
    }
    what["limit"].value = 4.0
    costs: Controls = {
        "F": cost("F: forward", 0.1, 4.0),
        "I": cost("I: backward, input", 0.1, 4.0),
        "W": cost("W: backward, weights", 0.0, 4.0),
        "beside": cost("F beside B, of F + B", 0.5, 1.0, step=0.05),
        "comm": cost("comm: one message", 0.0, 2.0),
    }
    costs["beside"].value = 1.0
    return what, costs
