"""Processes that stay up from one real run to the next. Loads torch only when the first of them is started."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdlab.launch import Ranks


class WarmPool:
    """A pool of ranks that grows when it has to. One that was given is used as long as it is large enough, and is
    left to whoever gave it."""

    def __init__(self, given: "Ranks | None" = None) -> None:
        self._given = given
        self._own: Ranks | None = None

    def at_least(self, size: int) -> "Ranks":
        """A pool with `size` ranks or more, its processes perhaps not yet started."""
        for pool in (self._given, self._own):
            if pool is not None and pool.size >= size:
                return pool
        from pdlab.launch import Ranks

        self.close()
        self._own = Ranks(size, started=lambda up: None)  # the page has a bar of its own
        return self._own

    def close(self) -> None:
        """End the processes that were started here. Safe to call twice."""
        if self._own is not None:
            self._own.close()
            self._own = None
