"""What a real run is doing, for a progress bar that is honest about what it knows."""

from typing import NamedTuple


class Stage(NamedTuple):
    """A part of a run: `steps` are timed after one to warm up, `share` (0 to 1) is how much is done, None where nobody
    knows."""

    doing: str
    steps: int = 0
    share: float | None = None

    def __str__(self) -> str:
        if not self.steps:
            return self.doing
        step = min(int((self.share or 0.0) * (self.steps + 1)), self.steps)
        return f"{self.doing}: step {step} of {self.steps}" if step else f"{self.doing}: warming up"
