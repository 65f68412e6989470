"""What a training leaves behind besides its weights: the loss curve, times, facts and accuracies."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pdlab.execute.fold import Stretch
from pdlab.program import Facts, Program
from pdlab.state import Parameters, Start

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class History:
    """What happened: for each step the mean loss, its seconds and facts; for each epoch the accuracy on held-out
    digits; where the training stands, and how many of the steps are not from a checkpoint."""

    program: Program
    steps_per_epoch: int
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    facts: list[Facts] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    end: Start | None = None
    steps_now: int = 0

    @property
    def parameters(self) -> Parameters:
        """Weights by name."""
        return self.end.parameters if self.end else {}

    def add(self, more: Stretch) -> None:
        self.steps_now += len(more.losses)
        self.losses += more.losses
        self.seconds += more.seconds
        self.facts += more.facts
        self.end = more.end

    def frame(self) -> "pd.DataFrame":
        """One line per step: step, epoch, loss, seconds, and the accuracy where an epoch ends."""
        import pandas as pd

        steps = range(len(self.losses))
        ends = {(i + 1) * self.steps_per_epoch - 1: accuracy for i, accuracy in enumerate(self.accuracies)}
        return pd.DataFrame(
            {
                "step": steps,
                "epoch": [step // self.steps_per_epoch for step in steps],
                "loss": self.losses,
                "seconds": self.seconds,
                "accuracy": [ends.get(step) for step in steps],
            }
        )
