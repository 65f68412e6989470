"""A loss curve with its times, and whether it has diverged: what is left of a training with stale gradients."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from pdlab.models.digits import CLASSES

WINDOW = 10
"""Minibatches whose mean loss is looked at."""

GUESSING = log(CLASSES)
"""Nats: the loss of who gives each digit the same chance."""

AS_GOOD_AS_GUESSING, FAR_ABOVE = 0.95 * GUESSING, 1.25 * GUESSING


@dataclass(frozen=True)
class Curve:
    """One training. `losses[i]` is what minibatch i lost before it updated anything, `predicted_s[i]` and
    `measured_s[i]` when that was known (None: not timed)."""

    name: str
    losses: list[float]
    predicted_s: list[float]
    measured_s: list[float] | None

    @property
    def diverged(self) -> int | None:
        """The minibatch from which on the loss (the mean of `WINDOW`) was never again better than guessing, if it had
        been or went far above; None for a training that learns, or has not begun to."""
        means = _means(self.losses)[WINDOW - 1 :]
        lost = len(means)
        while lost and not means[lost - 1] < AS_GOOD_AS_GUESSING:
            lost -= 1
        learned, exploded = lost > 0, any(not x < FAR_ABOVE for x in means[lost:])
        return lost + WINDOW - 1 if len(means) - lost >= WINDOW and (learned or exploded) else None

    @property
    def final_loss(self) -> float:
        """The mean of the last minibatches."""
        return _means(self.losses)[-1]


def _means(values: Sequence[float]) -> list[float]:
    windows = (values[max(0, i + 1 - WINDOW) : i + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]
