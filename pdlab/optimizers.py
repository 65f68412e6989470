"""What a step does to a flat piece of weights, given its gradient."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, float32


class Optimizer(Protocol):
    """Whether it keeps state is said by the program: `optimizer_bytes` per weight element, as a value of its own."""

    def initial_state(self, weight: Tensor) -> Tensor: ...

    def step(self, weight: Tensor, gradient: Tensor, state: Tensor | None) -> Tensor:
        """Update weight and state in place."""
        ...


@dataclass(frozen=True)
class Sgd:
    """w <- w - lr g."""

    lr: float = 0.1

    def initial_state(self, weight: Tensor) -> Tensor:
        return weight.new_zeros(0)

    def step(self, weight: Tensor, gradient: Tensor, state: Tensor | None) -> Tensor:
        return weight.sub_(gradient, alpha=self.lr)


@dataclass(frozen=True)
class MasterSgd:
    """SGD on a float32 copy of half-precision weights (Micikevicius et al. 2018, arXiv:1710.03740, section 3.1)."""

    lr: float = 0.1

    def initial_state(self, weight: Tensor) -> Tensor:
        return weight.to(float32)

    def step(self, weight: Tensor, gradient: Tensor, state: Tensor | None) -> Tensor:
        assert state is not None
        state.sub_(gradient.to(float32), alpha=self.lr)
        return weight.copy_(state)
