"""What comes back from a run, wherever it ran."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from pdlab.execute.store import Store
from pdlab.ops import Value
from pdlab.program import Role
from pdlab.trace import Trace

Shards = dict[tuple[int, Value], Tensor]
"""Tensors by (rank, value)."""


@dataclass(frozen=True)
class Result:
    """Traces by repetition and program; of the last repetition the losses, the running statistics [2, channels] by
    (rank, segment) and, where asked for, what steps read and wrote.

    A gradient is recorded as the optimizer saw it, after the loss scale was taken out; losses are sums over rows.
    """

    traces: list[list[Trace]]
    gradients: Shards = field(default_factory=dict)
    weights: Shards = field(default_factory=dict)
    losses: Shards = field(default_factory=dict)
    running: Shards = field(default_factory=dict)

    @property
    def trace(self) -> Trace:
        """The last trace."""
        return self.traces[-1][-1]


def recorded(store: Store) -> dict[str, Mapping[Value, Tensor]]:
    """What a store has to tell after a run."""
    types = store.program.ranks[store.rank].types
    losses = {value: store.tensor(value) for value in store.values if types[value].role is Role.LOSS}
    return {"gradients": store.gradients, "weights": store.weights, "losses": losses, "running": store.running}


def collect(traces: list[list[Trace]], stores: Sequence[Store]) -> Result:
    parts: dict[str, Shards] = {"gradients": {}, "weights": {}, "losses": {}, "running": {}}
    for store in stores:
        for what, tensors in recorded(store).items():
            parts[what] |= {(store.rank, value): t for value, t in tensors.items()}
    return Result(traces, **parts)
