"""Training by a rule: an engine that knows versions and steps, and of the model no more than a gradient function.

Minibatch i only meets versions that end before i, so it is enough to take the minibatches in order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from pdlab.reference.pipedream.rules import StageRule
from pdlab.reference.training import Parameters

Gradient = Callable[[int, Parameters, Parameters], tuple[float, Parameters]]
"""Minibatch, weights of its forward, weights of its backward -> its loss and what is taken for its gradient."""


@dataclass(frozen=True)
class Trajectory:
    """All that a training went through.

    `versions`: by parameter, then by the last minibatch that is included (-1: the start). `losses`: of each minibatch,
    as its forward saw it. `stages`: the versions that each stage met.
    """

    versions: dict[str, dict[int, Tensor]]
    losses: list[float]
    stages: tuple[StageRule, ...]

    def at(self, version: int) -> Parameters:
        """All parameters at a version that every stage has made."""
        return {name: made[version] for name, made in self.versions.items()}

    @property
    def final(self) -> Parameters:
        return self.at(len(self.losses) - 1)


def follow(
    stages: Sequence[StageRule], stage_of: Mapping[str, int], start: Parameters, lr: float, gradient: Gradient
) -> Trajectory:
    """Each step is w <- w - lr * (mean of the gradients since the last one); `stage_of` is by parameter."""
    versions = {name: {-1: weight} for name, weight in start.items()}
    since: dict[str, list[Tensor]] = {name: [] for name in start}
    losses = []

    def at(met: list[int]) -> Parameters:
        return {name: made[met[stage_of[name]]] for name, made in versions.items()}

    for i in range(len(stages[0].forward)):
        loss, grads = gradient(i, at([s.forward[i] for s in stages]), at([s.backward[i] for s in stages]))
        losses.append(loss)
        for name, made in versions.items():
            since[name].append(grads[name])
            if stages[stage_of[name]].steps_after(i):
                made[i] = made[max(made)] - lr * (sum(since[name]) / len(since[name]))
                since[name].clear()
    return Trajectory(versions, losses, tuple(stages))
