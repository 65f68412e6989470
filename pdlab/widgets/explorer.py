"""The explorer of pipeline schedules: turn the costs, see the timeline, run it for real.

In a cell: `explorer = ScheduleExplorer("1f1b"); explorer`. From then on the picture follows the controls and the code:
`explorer.pp = 6` does the same as the slider, and raises where it cannot be drawn.
"""

import threading
import weakref
from base64 import b64encode
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets
from IPython.display import HTML, display

from pdlab import plots
from pdlab.collector import paused
from pdlab.widgets.controls import board, controls, put, read
from pdlab.widgets.picture import for_readers, frame, png
from pdlab.widgets.redraw import Redraw
from pdlab.widgets.runpanel import RunPanel
from pdlab.widgets.scenario import Scenario, summary
from pdlab.widgets.trouble import TroublePanel
from pdlab.widgets.warm import WarmPool

if TYPE_CHECKING:
    from pdlab.compare import Comparison
    from pdlab.launch import Ranks


def _controlled(name: str, doc: str) -> Any:
    """An attribute that is what its control says."""

    def get(explorer: "ScheduleExplorer") -> Any:
        return explorer.controls[name].value

    def set_(explorer: "ScheduleExplorer", value: Any) -> None:
        put(name, explorer.controls[name], value)

    return property(get, set_, doc=doc)


class ScheduleExplorer:
    """Controls, the predicted timeline, the Python that makes it, and a real run beside its prediction.

    `pool` are ranks to run on, if there are any already; otherwise processes are started for the first real run and
    kept until `close()`. `steps` are timed in a real run. `page` is the widget, to be put beside others. (The explorer
    itself is none: widgets have attributes of their own, `comm` among them.)
    """

    strategy = _controlled("strategy", "The name of the schedule.")
    pp = _controlled("pp", "How many stages, each on a rank of its own.")
    microbatches = _controlled("microbatches", "How many microbatches a batch is cut into.")
    F = _controlled("F", "Units of time for the forward of a stage on a microbatch.")
    I = _controlled("I", "Units for the backward for the input.")
    W = _controlled("W", "Units for the backward for the weights.")
    comm = _controlled("comm", "Units for a message.")

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
        self.controls = controls(Scenario(strategy, pp, microbatches, F, I, W, comm))
        self.summary, self.python = ipywidgets.HTML(), ipywidgets.HTML()
        self.trouble, self.picture = TroublePanel(), frame()
        self._drawing = threading.RLock()  # a cell and the page may be served by two threads
        self._redraw = Redraw(self._draw, self.trouble.show)
        warm = WarmPool(pool)
        self.real = RunPanel(lambda: self.scenario, warm, steps)
        self._end_processes = weakref.finalize(self, warm.close)
        self._redraw.now()
        for control in self.controls.values():
            control.observe(self._changed, "value")
        top = [board(self.controls), self.summary, self.trouble, self.picture]
        self.page = ipywidgets.VBox([*top, self.real, self.python])

    @property
    def scenario(self) -> Scenario:
        """What the controls say."""
        return read(self.controls)

    def run(self, steps: int | None = None) -> "Comparison":
        """Run the schedule on real processes, paced, and wait for it; what the button does, but errors are raised."""
        return self.real.run(steps)

    def close(self) -> None:
        """End the processes and take the explorer off the page."""
        self._end_processes()
        self.page.close()

    def _changed(self, change: Any) -> None:
        if change["owner"].from_page:
            self._redraw.soon()
        else:
            self._redraw.now()

    def _draw(self) -> None:
        """All is made before anything is shown, so that a scenario that cannot be drawn leaves the last one whole."""
        with self._drawing:
            scenario = self.scenario
            with paused():
                predicted = scenario.predict()
                picture = png(plots.timeline(predicted))
            self.picture.value = picture
            self.summary.value = escape(summary(predicted))
            self.python.value = f'<pre style="line-height: 1.3">{escape(scenario.python())}</pre>'
            self.trouble.clear()

    def _ipython_display_(self) -> None:
        """The live explorer, and below it, for those who read the saved notebook without a kernel, the picture of now.

        Viewers that know widgets prefer them to a picture of the same output, even where they cannot show them: so the
        picture is an output of its own.
        """
        display(self._repr_mimebundle_(), raw=True)
        display(HTML(for_readers(self.picture.value)))

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """The live explorer, and its picture for viewers that do not know widgets."""
        bundle: dict[str, Any] = self.page._repr_mimebundle_(**kwargs)
        text = f"ScheduleExplorer: {self.scenario}"
        return bundle | {"text/plain": text, "image/png": b64encode(self.picture.value).decode()}
