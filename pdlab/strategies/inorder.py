"""For schedules that are written down in steps: each rank takes the microbatches of a stage in order, so a step need
only say which stage goes forward or back next."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pdlab.ops import B, F, I, Kind, Op, W


@dataclass
class InOrder:
    """One rank's list while it is written. `microbatches[stage]` are those that pass through a stage, in order."""

    microbatches: dict[int, Iterable[int]]
    ops: list[Op] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._forwards = {stage: iter(order) for stage, order in self.microbatches.items()}
        self._backwards = {stage: iter(order) for stage, order in self.microbatches.items()}
        self._put_off: list[tuple[int, int]] = []
        self._num_pairs = 0

    def forward(self, stage: int) -> None:
        self.ops.append(F(stage, next(self._forwards[stage])))

    def backward(self, stage: int) -> None:
        """A full backward."""
        self.ops.append(B(stage, next(self._backwards[stage])))

    def overlapped(self, forward: int, backward: int) -> None:
        """A forward of one stage beside a full backward of another."""
        self.forward(forward)
        self.backward(backward)
        self.ops[-2:] = [op._replace(pair=self._num_pairs) for op in self.ops[-2:]]
        self._num_pairs += 1

    def backward_input(self, stage: int) -> None:
        """A backward whose weight gradient is put off."""
        i = next(self._backwards[stage])
        self.ops.append(I(stage, i))
        self._put_off.append((stage, i))

    def weight(self, stage: int | None = None) -> None:
        """The weight gradient that was put off first, of one stage or of all."""
        turn = next(n for n, (of, _) in enumerate(self._put_off) if stage in (None, of))
        self.ops.append(W(*self._put_off.pop(turn)))

    def existing(self, num_microbatches: int) -> list[Op]:
        """What has been written, without the ops of microbatches that do not exist."""
        found = [op for op in self.ops if op.microbatch < num_microbatches]
        forwards, backwards = ({op.pair for op in found if op.kind is k} for k in (Kind.FORWARD, Kind.BACKWARD))
        whole = {pair: number for number, pair in enumerate(sorted((forwards & backwards) - {-1}))}
        return [op._replace(pair=whole.get(op.pair, -1)) for op in found]

    def num_put_off(self, stage: int) -> int:
        return sum(of == stage for of, _ in self._put_off)
