"""The real run of a scenario, telling what it is doing. Loads torch, so it is imported only when something is run."""

from collections.abc import Callable, Sequence

from pdlab.compare import Comparison, compare, lab_transformer
from pdlab.costs import Costs
from pdlab.execute.result import Result
from pdlab.execute.settings import Settings
from pdlab.launch import Ranks, Watch
from pdlab.program import Program
from pdlab.state import Batch
from pdlab.strategies import Plan, build, get
from pdlab.widgets.scenario import Scenario
from pdlab.widgets.stage import Stage

ROWS = 8
"""Samples of each microbatch."""

Enter = Callable[[Stage], None]
"""Told what a run is doing now; may raise to end it."""


class Watched(Ranks):
    """Ranks that belong to somebody else, and a word on how each of their runs gets on."""

    def __init__(self, ranks: Ranks, enter: Enter) -> None:
        super().__init__(ranks.size, timeout=ranks.timeout, start_timeout=ranks.start_timeout)
        self._ranks = ranks
        self._enter = enter

    def run(
        self,
        programs: Program | Sequence[Program],
        batch: Batch,
        *,
        pace: Costs | None = None,
        steps: int = 1,
        settings: Settings | None = None,
        watch: Watch | None = None,
    ) -> Result:
        """A paced run is the one that is timed; its first step warms up."""

        def tell(share: float) -> None:
            self._enter(Stage("running", steps - 1, share) if pace else Stage("checking gradients"))
            if watch is not None:
                watch(share)

        self._enter(Stage(f"waiting for {self.size} processes"))
        return self._ranks.run(programs, batch, pace=pace, steps=steps, settings=settings, watch=tell)


def compare_scenario(scenario: Scenario, unit: float, ranks: Ranks, steps: int, enter: Enter) -> Comparison:
    """`compare` on the lab's transformer, made deep enough for the stages, with `unit` seconds for a unit of cost."""
    plan = Plan(pp=scenario.pp, microbatches=scenario.microbatches, batch=ROWS * scenario.microbatches)

    def program_of(itemsize: int) -> Program:
        return build(get(scenario.strategy), plan, lab_transformer(1, itemsize, depth_for(scenario.pp)))

    return compare(program_of, Watched(ranks, enter), costs=scenario.costs(unit), steps=steps)


def depth_for(stages: int) -> int:
    """The fewest layers with a segment for each stage: a transformer has two in a layer, and two around them."""
    return max(1, (stages - 1) // 2)
