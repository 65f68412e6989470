"""What a step does to a flat piece of weights, given its gradient.

Every rule is elementwise, so a step on a shard is the shard of the step, and a strategy never has to know which rule it
trains with. The state of a piece of n weights is a tensor [rows, n]: what is kept for each weight, row by row.
"""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor, dtype, float32


class Optimizer(ABC):
    """A rule with its numbers. `rows` is how many numbers it keeps for each weight, here in the weight's own precision
    and zero at first."""

    rows: int

    def bytes_per_weight(self, itemsize: int) -> int:
        """What `Plan.optimizer_bytes` has to be for weights of `itemsize` bytes."""
        return self.rows * itemsize

    def initial_state(self, weight: Tensor, dtype: dtype) -> Tensor:
        """[rows, n] for weights [n] in double precision, which a rank holds as `dtype`."""
        return weight.new_zeros(self.rows, len(weight), dtype=dtype)

    @abstractmethod
    def step(self, weight: Tensor, gradient: Tensor, state: Tensor | None, count: int) -> Tensor:
        """Update weight and state in place. `count` is 1 at the first step of a training."""

    def precise(self, weight: Tensor, state: Tensor | None) -> Tensor:
        """The weights in the precision that the rule steps in."""
        return weight


@dataclass(frozen=True)
class Sgd(Optimizer):
    """w <- w - lr g."""

    lr: float = 0.1
    rows = 0

    def step(self, weight: Tensor, gradient: Tensor, state: Tensor | None, count: int) -> Tensor:
        return weight.sub_(gradient, alpha=self.lr)


@dataclass(frozen=True)
class MasterSgd(Optimizer):
    """SGD on a float32 copy of half-precision weights (Micikevicius et al. 2018, arXiv:1710.03740, section 3.1)."""

    lr: float = 0.1
    rows = 1

    def bytes_per_weight(self, itemsize: int) -> int:
        return 4

    def initial_state(self, weight: Tensor, dtype: dtype) -> Tensor:
        return weight.to(float32).unsqueeze(0).clone()

    def step(self, weight: Tensor, gradient: Tensor, state: Tensor | None, count: int) -> Tensor:
        assert state is not None
        state[0].sub_(gradient.to(float32), alpha=self.lr)
        return weight.copy_(state[0])

    def precise(self, weight: Tensor, state: Tensor | None) -> Tensor:
        assert state is not None
        return state[0]


@dataclass(frozen=True)
class Momentum(Optimizer):
    """v <- momentum v + g; w <- w - lr v (Polyak's heavy ball as `torch.optim.SGD` has it)."""

    lr: float = 0.05
    momentum: float = 0.9
    rows = 1

    def step(self, weight: Tensor, gradient: Tensor, state: Tensor | None, count: int) -> Tensor:
        assert state is not None
        velocity = state[0].mul_(self.momentum).add_(gradient)
        return weight.sub_(velocity, alpha=self.lr)


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam with bias correction (Kingma and Ba 2015, arXiv:1412.6980, algorithm 1)."""

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    rows = 2

    def step(self, weight: Tensor, gradient: Tensor, state: Tensor | None, count: int) -> Tensor:
        assert state is not None
        first = state[0].lerp_(gradient, 1 - self.beta1) / (1 - self.beta1**count)
        second = state[1].mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2) / (1 - self.beta2**count)
        return weight.addcdiv_(first, second.sqrt_().add_(self.eps), value=-self.lr)


RULES: dict[str, type[Sgd] | type[MasterSgd] | type[Momentum] | type[Adam]] = {
    "sgd": Sgd,
    "momentum": Momentum,
    "adam": Adam,
    "master_sgd": MasterSgd,
}


def named(name: str, lr: float | None = None) -> Optimizer:
    """A rule by its name, with its own learning rate unless another is given; ValueError lists the names."""
    if name not in RULES:
        raise ValueError(f"unknown optimizer {name!r}; choose one of {', '.join(RULES)}")
    if lr is not None and not 0 < lr < float("inf"):
        raise ValueError(f"a learning rate of {lr:g}; give a number above 0")
    rule: Optimizer = RULES[name]() if lr is None else RULES[name](lr=lr)
    return rule


def to_message(optimizer: Optimizer) -> list[Any]:
    """The rule's name and its numbers."""
    name = next(name for name, rule in RULES.items() if type(optimizer) is rule)
    return [name, asdict(optimizer)]  # type: ignore[call-overload]


def from_message(message: list[Any]) -> Optimizer:
    name, numbers = message
    rule: Optimizer = replace(RULES[name](), **numbers)
    return rule
