"""One run of a scenario on real processes, which another thread may watch and cancel.

A cancelled run loses its processes: that is what makes it stop, whatever it is doing. The next run starts new ones.
"""

import threading
from typing import TYPE_CHECKING

from pdlab.errors import Cancelled
from pdlab.widgets.explored import Explored
from pdlab.widgets.stage import Stage
from pdlab.widgets.warm import WarmPool

if TYPE_CHECKING:
    from pdlab.compare import Comparison
    from pdlab.launch import Ranks

AGAIN_S = 0.05
"""How often a cancelled run is told so until it has ended."""


class RealRun:
    """`run` in one thread, `stage` and `cancel` in another."""

    def __init__(self, scenario: Explored, pool: WarmPool, steps: int) -> None:
        if steps < 1:
            raise ValueError(f"a run of {steps} steps; give at least 1")
        self.scenario = scenario
        self.stage = Stage("loading PyTorch")
        self._pool = pool
        self._ranks: Ranks | None = None
        self._steps = steps
        self._cancelled = threading.Event()
        self._ended = threading.Event()

    def run(self) -> "Comparison":
        """Predict, run, check the gradients. Raises `Cancelled`, or what went wrong."""
        try:
            return self._run()
        except Exception as error:
            if self._cancelled.is_set():
                raise Cancelled("cancelled") from error
            raise
        finally:
            self._ended.set()

    def cancel(self) -> None:
        """End the run and its processes; returns at once, and `run` raises soon after."""
        self._cancelled.set()
        self.stage = Stage("cancelling")
        threading.Thread(target=self._end, daemon=True).start()

    def _run(self) -> "Comparison":
        from pdlab.widgets.watched import compare_scenario

        self._ranks = self._pool.at_least(self.scenario.num_ranks)
        return compare_scenario(self.scenario, self._ranks, self._steps, self._enter)

    def _enter(self, stage: Stage) -> None:
        if self._cancelled.is_set():
            raise Cancelled("cancelled")
        self.stage = stage

    def _end(self) -> None:
        """More than once, because a run takes a new start for its gradients, and that could be just now."""
        while not self._ended.wait(AGAIN_S):
            if self._ranks is not None:
                self._ranks.cancel()
