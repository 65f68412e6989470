"""What all explorers are: controls, a picture that follows them, the Python that makes it, and a real run.

The picture follows the controls and the code: `explorer.pp = 6` does the same as the slider, and raises where it
cannot be drawn. An explorer of something new is a scenario (`pdlab.widgets.explored`) and a control for each of its
fields.
"""

import threading
import weakref
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import ipywidgets
from IPython.display import HTML, display

from pdlab.collector import paused
from pdlab.widgets.controls import Control, Controls, board, put, values
from pdlab.widgets.explored import Explored
from pdlab.widgets.picture import for_readers, frame, png
from pdlab.widgets.redraw import Redraw
from pdlab.widgets.runpanel import RunPanel
from pdlab.widgets.trouble import TroublePanel
from pdlab.widgets.warm import WarmPool

if TYPE_CHECKING:
    from pdlab.compare import Comparison
    from pdlab.launch import Ranks

S = TypeVar("S", bound=Explored)


class Explorer(Generic[S]):
    """Controls in `columns`, set to what `start` says, and read as another scenario of its kind.

    `pool` are ranks to run on, if there are any already; otherwise processes are started for the first real run and
    kept until `close()`. `steps` are timed in a real run, and the `hint` says what it will be like. `page` is the
    widget, to be put beside others. (The explorer itself is none: widgets have attributes of their own, `comm` among
    them.)
    """

    def __init__(
        self,
        start: S,
        columns: Sequence[Controls],
        *,
        hint: str,
        pool: "Ranks | None" = None,
        steps: int = 3,
    ) -> None:
        self.controls: Controls = {name: control for column in columns for name, control in column.items()}
        for name, control in self.controls.items():
            if (value := getattr(start, name)) is not None:
                put(name, control, value)
        self._kind, self._adapting = type(start), False
        self._adapt(None)
        self.summary, self.python = ipywidgets.HTML(), ipywidgets.HTML()
        self.trouble, self.picture = TroublePanel(), frame()
        self._drawing = threading.RLock()  # a cell and the page may be served by two threads
        self._redraw = Redraw(self._draw, self._refuse)
        warm = WarmPool(pool)
        self.real = RunPanel(lambda: self.scenario, warm, steps, hint)
        self._end_processes = weakref.finalize(self, warm.close)
        self._redraw.now()
        for control in self.controls.values():
            control.observe(self._changed, "value")
        top = [board(columns), self.summary, self.trouble, self.picture]
        self.page = ipywidgets.VBox([*top, self.real, self.python])

    @property
    def scenario(self) -> S:
        """What the controls say."""
        return self._kind(**values(self.controls))

    def run(self, steps: int | None = None) -> "Comparison":
        """Run on real processes, paced, and wait for it; what the button does, but errors are raised."""
        return self.real.run(steps)

    def close(self) -> None:
        """End the processes and take the explorer off the page."""
        self._end_processes()
        self.page.close()

    def _adapt(self, changed: Control | None) -> None:
        """Disable the controls that do not act with what is chosen; after a change of one, set those that follow it."""

    def _changed(self, change: Any) -> None:
        if self._adapting:
            return
        self._adapting = True
        try:
            self._adapt(change["owner"])
        finally:
            self._adapting = False
        if change["owner"].from_page:
            self._redraw.soon()
        else:
            self._redraw.now()

    def _draw(self) -> None:
        """All is made before anything is shown, so that a scenario that cannot be drawn leaves the last one whole."""
        with self._drawing:
            scenario = self.scenario
            with paused():
                figure, summary = scenario.draw()
                picture = png(figure)
            self.picture.value = picture
            self.summary.value = escape(summary).replace("\n", "<br>")
            self.python.value = f'<pre style="line-height: 1.3">{escape(scenario.python())}</pre>'
            self.trouble.clear()
            for part in (self.picture, self.summary, self.python):
                part.layout.visibility = "visible"

    def _refuse(self, error: Exception) -> None:
        """The error in place of the picture. What was there keeps its room, so that nothing moves."""
        self.trouble.show(error)
        for part in (self.picture, self.summary, self.python):
            part.layout.visibility = "hidden"

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
        text = f"{type(self).__name__}: {self.scenario}"
        return bundle | {"text/plain": text, "image/png": b64encode(self.picture.value).decode()}
