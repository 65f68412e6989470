"""What a run is told besides its program: where it starts, how it steps, what it records."""

from dataclasses import dataclass, field
from typing import Any

from torch import float64

from pdlab.batch import Batch, check_batch
from pdlab.execute.store import Store
from pdlab.mesh import Axis
from pdlab.optimizers import Optimizer, Sgd, from_message, to_message
from pdlab.program import Program, Role
from pdlab.state import Start, initial_parameters, initial_values


@dataclass(frozen=True)
class Settings:
    """`record` keeps what every step reads and writes."""

    optimizer: Optimizer = field(default_factory=Sgd)
    seed: int = 0
    loss_scale: float = 1.0
    record: bool = False

    def to_message(self) -> dict[str, Any]:
        return {**vars(self), "optimizer": to_message(self.optimizer)}

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> "Settings":
        return cls(**{**message, "optimizer": from_message(message["optimizer"])})


def new_store(program: Program, rank: int, batch: Batch, settings: Settings, start: Start | None = None) -> Store:
    """A rank at the start of a program: weights from the seed or from elsewhere, its share of the batch."""
    check_start(program, batch, settings)
    copies = program.mesh.degree(Axis.EP)
    start = start or Start(initial_parameters(program.model, settings.seed, float64, copies))
    store = Store(program, rank, settings.optimizer, settings.record, counted=start.steps)
    for value, t in initial_values(program, rank, start, batch, settings.optimizer, settings.loss_scale).items():
        store.put(value, t)
    return store


def check_start(program: Program, batch: Batch, settings: Settings) -> None:
    """ValueError for samples or an optimizer that the program is not made for."""
    check_batch(program, batch)
    _check_state(program, settings.optimizer)


def _check_state(program: Program, optimizer: Optimizer) -> None:
    """The state that the program makes room for is the one that the optimizer keeps."""
    for rank in program.ranks:
        state = next((t for t in rank.types.values() if t.role is Role.OPTIMIZER), None)
        group = program.model.groups[state.of] if state else next(iter(program.model.groups.values()), None)
        if group is None:
            continue
        weight = next((t for t in rank.types.values() if t.role is Role.WEIGHT and t.of == group.name), None)
        if weight is None or not isinstance(weight.size, int):
            continue
        has = round(int(str(state.size)) / weight.size * group.itemsize) if state else 0
        needs = optimizer.bytes_per_weight(group.itemsize)
        if has != needs:
            raise ValueError(
                f"the program has {has} bytes of optimizer state for each weight and {type(optimizer).__name__} keeps "
                f"{needs}; build the program with Plan(optimizer_bytes={needs})"
            )
