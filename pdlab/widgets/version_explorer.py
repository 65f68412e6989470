"""The explorer of weight versions: which weights a minibatch meets on its way there and back, and what that costs.

In a cell: `explorer = VersionExplorer("pipedream"); explorer`.
"""

from typing import TYPE_CHECKING

from pdlab.widgets.controls import Control, Controls, choice, controlled, cost, whole
from pdlab.widgets.explorer import Explorer
from pdlab.widgets.scenario import UNIT_S
from pdlab.widgets.version_scenario import VARIANTS, VersionScenario, takers

if TYPE_CHECKING:
    from pdlab.launch import Ranks

HINT = (
    f"Paced on real processes, one for each rank, on the lab's MLP; a unit of cost takes {1e3 * UNIT_S:g} ms. All "
    "versions of the weights are held to the rule of the variant."
)


class VersionExplorer(Explorer[VersionScenario]):
    """Controls, the versions that each forward and backward meets, what the ledger says of them, the Python that makes
    the picture, and a real run beside its prediction.

    A control that the variant does not take is greyed out. With another variant or number of ranks p, an update takes p
    microbatches again, and the first stage is on no more ranks than there are.
    """

    strategy = controlled("strategy", "The name of the variant.")
    pp = controlled("pp", "How many ranks the pipeline has.")
    minibatches = controlled("minibatches", "How many minibatches go through it.")
    first = controlled("first", "How many of the ranks share the first stage.")
    accumulate = controlled("accumulate", "How many microbatches an update takes.")
    F = controlled("F", "Units of time for the forward of a p-th of the model on a minibatch.")
    B = controlled("B", "Units for the backward.")
    comm = controlled("comm", "Units for a message.")

    def __init__(
        self,
        strategy: str = "pipedream",
        *,
        pp: int = 4,
        minibatches: int = 12,
        first: int | None = None,
        accumulate: int | None = None,
        F: float = 1.0,
        B: float = 2.0,
        comm: float = 0.1,
        pool: "Ranks | None" = None,
        steps: int = 3,
    ) -> None:
        start = VersionScenario(strategy, pp, minibatches, first, accumulate, F, B, comm)
        super().__init__(start, _columns(start), hint=HINT, pool=pool, steps=steps)

    def _adapt(self, changed: Control | None) -> None:
        for name in ("first", "accumulate"):
            control = self.controls[name]
            control.only_for = takers(name)
            control.disabled = self.strategy not in control.only_for
        if changed in (self.controls["strategy"], self.controls["pp"]):
            self.controls["first"].value = min(self.first, self.pp)
            self.controls["accumulate"].value = self.pp


def _columns(start: VersionScenario) -> tuple[Controls, Controls]:
    """What is run on the left, what it costs on the right."""
    what: Controls = {
        "strategy": choice("variant", VARIANTS),
        "pp": whole("ranks p", 8),
        "minibatches": whole("minibatches m", 30),
        "first": whole("ranks of stage 0", 8),
        "accumulate": whole("microbatches/update", 30),
    }
    what["accumulate"].value = start.pp
    costs: Controls = {
        "F": cost("F: forward", 0.1, 4.0),
        "B": cost("B: backward", 0.1, 8.0),
        "comm": cost("comm: one message", 0.0, 2.0),
    }
    return what, costs
