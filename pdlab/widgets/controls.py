"""The controls of an explorer, and the difference between a change made on the page and one made by code.

A change made by code should raise where it is made. One made on the page comes as a message that nobody waits for:
what goes wrong then has to be shown.
"""

from collections.abc import Sequence
from math import log10
from typing import Any

import ipywidgets

STYLE = {"description_width": "11em"}
LAYOUT = {"width": "28em"}

DIGITS = 6
"""Decimals of a cost."""


class FromPage(ipywidgets.Widget):
    """A control that knows whether the change it is telling of comes from the page, and which choices elsewhere let it
    act; with others it is disabled."""

    from_page = False
    only_for: tuple[str, ...] = ()

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """ipywidgets calls this for every change that arrives from the page, and for no other."""
        self.from_page = True
        try:
            super().set_state(sync_data)
        finally:
            self.from_page = False


class Choice(FromPage, ipywidgets.Dropdown):
    """One of a few names."""


class Stops(FromPage, ipywidgets.SelectionSlider):
    """One of a few sizes, in their order."""


class Switch(FromPage, ipywidgets.Checkbox):
    """On or off."""


class Whole(FromPage, ipywidgets.IntSlider):
    """A whole number."""


class Cost(FromPage, ipywidgets.FloatSlider):
    """A number with few decimals."""


class Rate(FromPage, ipywidgets.FloatLogSlider):
    """A number that may be ten or a thousand times as large. Dragged, it stops at three digits."""

    def set_state(self, sync_data: dict[str, Any]) -> None:
        if "value" in sync_data:
            sync_data = sync_data | {"value": float(f"{sync_data['value']:.3g}")}
        super().set_state(sync_data)


Control = Choice | Stops | Switch | Whole | Cost | Rate

Controls = dict[str, Control]
"""By the name of the field of the scenario that they set."""


def controlled(name: str, doc: str) -> Any:
    """An attribute of an explorer that is what its control says."""

    def get(explorer: Any) -> Any:
        return explorer.controls[name].value

    def set_(explorer: Any, value: Any) -> None:
        put(name, explorer.controls[name], value)

    return property(get, set_, doc=doc)


def put(name: str, control: Control, value: Any) -> None:
    """Set a control from code; ValueError for what it does not offer (a slider would silently go to its end)."""
    if control.disabled:
        raise ValueError(f"{name} cannot be set here; only {', '.join(control.only_for)} can be told")
    if isinstance(control, Choice | Stops):
        if value not in control.options:
            raise ValueError(f"{name} is {value!r}; choose one of {', '.join(map(str, control.options))}")
    elif isinstance(control, Switch):
        if not isinstance(value, bool):
            raise ValueError(f"{name} is {value!r}; give True or False")
    else:
        whole = not isinstance(control, Rate) and isinstance(control.value, int)
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise ValueError(f"{name} is {value!r}; give a {'whole ' if whole else ''}number")
        least, most = (
            (10.0**control.min, 10.0**control.max) if isinstance(control, Rate) else (control.min, control.max)
        )
        if not least <= value <= most:
            raise ValueError(f"{name} is {value:g}; the slider goes from {least:g} to {most:g}")
    control.value = value


def values(made: Controls) -> dict[str, Any]:
    """What the controls say now that act."""
    return {name: _meant(control.value) for name, control in made.items() if not control.disabled}


def _meant(value: Any) -> Any:
    """A slider's 0.30000000000000004 was meant as 0.3."""
    return round(value, DIGITS) if isinstance(value, float) else value


def board(columns: Sequence[Controls]) -> ipywidgets.Box:
    """Columns of controls side by side, below each other where the page is narrow."""
    boxes = [ipywidgets.VBox(list(column.values())) for column in columns]
    return ipywidgets.Box(boxes, layout={"flex_flow": "row wrap"})


def choice(description: str, options: Sequence[str]) -> Choice:
    return Choice(options=options, description=description, style=STYLE, layout=LAYOUT)


def stops(description: str, options: Sequence[int]) -> Stops:
    return Stops(options=options, description=description, style=STYLE, layout=LAYOUT)


def switch(description: str) -> Switch:
    return Switch(description=description, style=STYLE, layout=LAYOUT)


def whole(description: str, most: int) -> Whole:
    return Whole(min=1, max=most, description=description, style=STYLE, layout=LAYOUT)


def cost(description: str, least: float, most: float, step: float = 0.1) -> Cost:
    form = ".1f" if step >= 0.1 else ".2f"
    ends = {"min": least, "max": most, "step": step}
    return Cost(**ends, description=description, style=STYLE, layout=LAYOUT, readout_format=form)


def rate(description: str, least: float, most: float) -> Rate:
    """From one power of ten to another."""
    ends = {"min": log10(least), "max": log10(most), "value": least}
    return Rate(**ends, step=0.05, description=description, style=STYLE, layout=LAYOUT, readout_format=".3g")
