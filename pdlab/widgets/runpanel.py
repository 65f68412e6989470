"""The button "Run for real": starts a run in a thread, follows it, shows its picture or what went wrong."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import ipywidgets

from pdlab import plots
from pdlab.errors import Cancelled
from pdlab.plots.timeline import name
from pdlab.widgets.background import in_thread
from pdlab.widgets.explored import Explored
from pdlab.widgets.picture import frame, png
from pdlab.widgets.realrun import RealRun
from pdlab.widgets.stage import Stage
from pdlab.widgets.trouble import TroublePanel
from pdlab.widgets.warm import WarmPool

if TYPE_CHECKING:
    from pdlab.compare import Comparison

LOOK_S = 0.1
"""How often the progress bar is brought up to date."""


class RunPanel(ipywidgets.VBox):
    """`scenario` says what to run when the button is pressed; `steps` are timed. The `hint` says what will happen."""

    def __init__(self, scenario: Callable[[], Explored], pool: WarmPool, steps: int, hint: str) -> None:
        self._scenario = scenario
        self._pool = pool
        self._steps = steps
        self._running: RealRun | None = None
        self.follower: asyncio.Task[None] | None = None
        self.run_button = ipywidgets.Button(description="Run for real", icon="play", button_style="primary")
        self.cancel_button = ipywidgets.Button(description="Cancel", icon="stop", disabled=True)
        self.bar = ipywidgets.FloatProgress(min=0, max=1, layout={"width": "14em", "display": "none"})
        self.status = ipywidgets.HTML(hint)
        self.trouble = TroublePanel()
        self.picture = frame()
        self.picture.layout.display = "none"
        self.run_button.on_click(lambda _: self.start())
        self.cancel_button.on_click(lambda _: self.cancel())
        line = ipywidgets.Box([self.run_button, self.cancel_button, self.bar, self.status])
        line.layout = {"flex_flow": "row wrap", "align_items": "center"}
        super().__init__([line, self.trouble, self.picture])

    def run(self, steps: int | None = None) -> "Comparison":
        """Run here and now, show the result, raise what goes wrong."""
        found = self._begin(self._steps if steps is None else steps)
        try:
            comparison = found.run()
        finally:
            self._end()
        self._show(found.scenario, comparison)
        return comparison

    def start(self) -> None:
        """Run beside the page, on the event loop that the button's message came on; what goes wrong is shown."""
        try:
            run = self._begin(self._steps)
        except Exception as error:
            self.trouble.show(error)
        else:
            self.follower = asyncio.get_running_loop().create_task(self._follow(run))

    def cancel(self) -> None:
        """End the run that is going on, if there is one."""
        if self._running is not None:
            self.cancel_button.disabled = True
            self._running.cancel()

    async def _follow(self, run: RealRun) -> None:
        """Nobody awaits this: whatever goes wrong is shown."""
        try:
            self._show(run.scenario, await self._watch(run))
        except Cancelled:
            self.status.value = "cancelled; the processes have ended"
        except Exception as error:
            self.status.value = "failed"
            self.trouble.show(error)
        finally:
            self._end()

    async def _watch(self, run: RealRun) -> "Comparison":
        result = in_thread(run.run)
        while not result.done():
            self._tell(run.stage)
            await asyncio.wait([result], timeout=LOOK_S)
        return result.result()

    def _begin(self, steps: int) -> RealRun:
        if self._running is not None:
            raise ValueError("a run is going on; wait for it, or cancel it")
        run = RealRun(self._scenario(), self._pool, steps)
        self._running = run
        self.trouble.clear()
        self.run_button.disabled, self.cancel_button.disabled = True, False
        self.bar.layout.display = ""
        return run

    def _end(self) -> None:
        self._running = None
        self.run_button.disabled, self.cancel_button.disabled = False, True
        self.bar.layout.display = "none"

    def _tell(self, stage: Stage) -> None:
        """A full, grey bar stands for a part whose length nobody knows."""
        known = stage.share is not None
        self.status.value = str(stage)
        self.bar.value = stage.share if known else 1.0
        self.bar.style.bar_color = None if known else "#D0D0D0"

    def _show(self, scenario: Explored, found: "Comparison") -> None:
        note = scenario.pace_note()
        title = f"{name(found.predicted.program)}, {note}"
        self.picture.value = png(plots.compare(found.predicted, found.measured, title=title))
        self.picture.layout.display = ""
        what = "weights" if found.predicted.program.steps_each_microbatch else "gradient"
        time, exact = f"time error {found.error_pct:+.1f} %", f"{what} error {found.grad_max_rel_error:.1e}"
        self.status.value = f"{time}, {exact} against plain PyTorch; {note}"
