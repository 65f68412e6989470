"""The controls of the explorer, and the difference between a change made on the page and one made by code.

A change made by code should raise where it is made. One made on the page comes as a message that nobody waits for:
what goes wrong then has to be shown.
"""

from typing import Any

import ipywidgets

from pdlab.widgets.scenario import Scenario, pipeline_schedules

STYLE = {"description_width": "11em"}
LAYOUT = {"width": "28em"}

DIGITS = 6
"""Decimals of a cost."""


class FromPage(ipywidgets.Widget):
    """A control that knows whether the change it is telling of comes from the page."""

    from_page = False

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """ipywidgets calls this for every change that arrives from the page, and for no other."""
        self.from_page = True
        try:
            super().set_state(sync_data)
        finally:
            self.from_page = False


class Choice(FromPage, ipywidgets.Dropdown):
    pass


class Whole(FromPage, ipywidgets.IntSlider):
    pass


class Cost(FromPage, ipywidgets.FloatSlider):
    pass


Controls = dict[str, Choice | Whole | Cost]
"""By the name of the field of `Scenario` that they set."""


def controls(start: Scenario) -> Controls:
    """A control for each field of a scenario."""
    made: Controls = {
        "strategy": Choice(options=pipeline_schedules(), description="schedule", style=STYLE, layout=LAYOUT),
        "pp": _whole("stages p (ranks)", 8),
        "microbatches": _whole("microbatches m", 16),
        "F": _cost("F: forward", 0.1, 4.0),
        "I": _cost("I: backward, input", 0.1, 4.0),
        "W": _cost("W: backward, weights", 0.0, 4.0),
        "comm": _cost("comm: one message", 0.0, 2.0),
    }
    for name, control in made.items():
        put(name, control, getattr(start, name))
    return made


def put(name: str, control: Choice | Whole | Cost, value: Any) -> None:
    """Set a control from code; ValueError for what it does not offer (a slider would silently go to its end)."""
    if isinstance(control, Choice):
        if value not in control.options:
            raise ValueError(f"{name} is {value!r}; choose one of {', '.join(control.options)}")
    elif not control.min <= value <= control.max:
        raise ValueError(f"{name} is {value:g}; the slider goes from {control.min:g} to {control.max:g}")
    control.value = value


def read(made: Controls) -> Scenario:
    """What the controls say now."""
    values: dict[str, Any] = {name: _meant(control.value) for name, control in made.items()}
    return Scenario(**values)


def _meant(value: Any) -> Any:
    """A slider's 0.30000000000000004 was meant as 0.3."""
    return round(value, DIGITS) if isinstance(value, float) else value


def board(made: Controls) -> ipywidgets.Box:
    """The controls side by side: what is run on the left, what it costs on the right."""
    left = [control for control in made.values() if not isinstance(control, Cost)]
    right = [control for control in made.values() if isinstance(control, Cost)]
    columns = [ipywidgets.VBox(column) for column in (left, right)]
    return ipywidgets.Box(columns, layout={"flex_flow": "row wrap"})


def _whole(description: str, most: int) -> Whole:
    return Whole(min=1, max=most, description=description, style=STYLE, layout=LAYOUT)


def _cost(description: str, least: float, most: float) -> Cost:
    return Cost(
        min=least, max=most, step=0.1, description=description, style=STYLE, layout=LAYOUT, readout_format=".1f"
    )
