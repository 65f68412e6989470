"""Errors on the page: ipywidgets writes what a callback raises into a log that nobody reads, so they are shown here."""

import traceback
from html import escape

import ipywidgets

BOX = "border-left: 4px solid #D55E00; padding: 4px 10px; margin: 4px 0; line-height: 1.4;"


class TroublePanel(ipywidgets.HTML):
    """Empty while all is well. `error` keeps the exception for those who want to `raise` it in a cell."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        super().__init__(layout={"display": "none"})

    def show(self, error: Exception) -> None:
        """A sentence for what the user can mend (ValueError); anything else with its traceback to unfold."""
        self.error = error
        self.value = f'<div style="{BOX}">{_sentence(error)}{_details(error)}</div>'
        self.layout.display = "block"

    def clear(self) -> None:
        self.error = None
        self.value = ""
        self.layout.display = "none"


def _sentence(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    return escape(text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}")


def _details(error: Exception) -> str:
    if isinstance(error, ValueError):
        return ""
    text = escape("".join(traceback.format_exception(error)))
    return f'<details><summary>traceback</summary><pre style="line-height: 1.2">{text}</pre></details>'
