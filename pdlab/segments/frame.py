"""What a segment's function is told besides inputs and weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from pdlab.models.spec import Segment
from pdlab.tape import Tape

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Frame:
    """One run of a segment: its specification, its tape, and this rank's place in the tensor group."""

    segment: Segment
    tape: Tape
    shard: int = 0

    def option(self, name: str) -> int:
        return self.segment.option(name)


Function = Callable[[Frame, Sequence[Tensor], Weights], tuple[Tensor, ...]]
