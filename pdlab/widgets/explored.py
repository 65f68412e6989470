"""What an explorer explores: a scenario that knows its picture, its Python call and how it is run for real."""

from typing import Protocol

from matplotlib.figure import Figure

from pdlab.costs import Costs
from pdlab.program import Program

ROWS = 8
"""Samples of each microbatch of a real run."""


class Explored(Protocol):
    """What the controls say, as one value."""

    @property
    def num_ranks(self) -> int:
        """Processes that a real run needs."""
        ...

    def draw(self) -> tuple[Figure, str]:
        """The predicted picture, and a line or several that sum it up."""
        ...

    def python(self) -> str:
        """The Python that makes the picture, with what it imports."""
        ...

    def lab_program(self, itemsize: int) -> Program:
        """What a real run does: the same on a model that is small enough, its numbers of `itemsize` bytes."""
        ...

    def pace(self) -> Costs:
        """How long each op of a real run is made to take, in seconds."""
        ...

    def pace_note(self) -> str:
        """The same in a few words."""
        ...
