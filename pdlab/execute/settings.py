"""What a run is told besides its program: where it starts, how it steps, what it records."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import float64

from pdlab.execute.store import Store
from pdlab.mesh import Axis
from pdlab.optimizers import MasterSgd, Optimizer, Sgd
from pdlab.program import Program, Role
from pdlab.state import Batch, initial_parameters, initial_values


@dataclass(frozen=True)
class Settings:
    """`master` steps on a float32 copy of the weights; `record` keeps what every step reads and writes."""

    seed: int = 0
    lr: float = 0.1
    loss_scale: float = 1.0
    master: bool = False
    record: bool = False

    @property
    def optimizer(self) -> Optimizer:
        return MasterSgd(self.lr) if self.master else Sgd(self.lr)

    def to_message(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> "Settings":
        return replace(cls(), **message)


def new_store(program: Program, rank: int, batch: Batch, settings: Settings) -> Store:
    """A rank at the start of a program: initial weights from the seed, its share of the batch."""
    keeps = any(t.role is Role.OPTIMIZER for t in program.ranks[rank].types.values())
    if keeps is not settings.master:
        with_or_without = "with" if keeps else "without"
        raise ValueError(
            f"the program is {with_or_without} optimizer state and the settings say master={settings.master}; "
            "build the program with optimizer_bytes=4 for a float32 master copy, and with 0 for plain SGD"
        )
    copies = program.mesh.degree(Axis.EP)
    parameters = initial_parameters(program.model, settings.seed, float64, copies)
    store = Store(program, rank, settings.optimizer, settings.record)
    values = initial_values(program, rank, parameters, batch, settings.optimizer, settings.loss_scale)
    for value, t in values.items():
        store.put(value, t)
    return store
