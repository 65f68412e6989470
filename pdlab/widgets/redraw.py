"""When to draw: at once for code, soon and only once for the page.

A slider that is dragged sends changes faster than pictures are drawn. While a draw is due, further changes only change
what it will find, so it always shows the newest state and nothing queues up.
"""

import asyncio
from collections.abc import Callable

DELAY_S = 0.01
"""How long to wait for more changes before drawing: time to read what has come in meanwhile."""


class Redraw:
    """`draw` is what to do, `failed` is told what it raises when nobody waits for it."""

    def __init__(self, draw: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        self._draw = draw
        self._failed = failed
        self._due: asyncio.TimerHandle | None = None

    def now(self) -> None:
        """For changes by code: what goes wrong is shown, and raised."""
        try:
            self._draw()
        except Exception as error:
            self._failed(error)
            raise

    def soon(self) -> None:
        """For changes on the page: on the event loop that brought them."""
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(DELAY_S, self._late)

    def _late(self) -> None:
        self._due = None
        try:
            self._draw()
        except Exception as error:
            self._failed(error)
