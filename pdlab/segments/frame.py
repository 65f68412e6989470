"""What a segment's function is told besides inputs and weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from pdlab.models.spec import Segment
from pdlab.tape import Tape

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Frame:
    """One run of a segment: its specification, its tape, this rank's place in the tensor group, and the running
    statistics [2, channels] that it is to keep up (None: it has none, or has seen these rows before)."""

    segment: Segment
    tape: Tape
    shard: int = 0
    running: Tensor | None = None

    def option(self, name: str) -> int:
        return self.segment.option(name)


Function = Callable[[Frame, Sequence[Tensor], Weights], tuple[Tensor, ...]]
