"""What a partitioner has to know of a layer, and nothing else."""

from dataclasses import dataclass
from numbers import Real

LARGEST = 1e30
"""Of seconds and bytes, and (its inverse) the least bandwidth; sums and quotients of such stay finite."""


@dataclass(frozen=True)
class Layer:
    """One layer of a chain.

    `seconds` are its forward and backward of one minibatch on one rank, `activation_bytes` what a minibatch hands on to
    the next layer (it goes forward once, and its gradient comes back once), `parameter_bytes` its weights, and so also
    their gradients.
    """

    name: str
    seconds: float
    activation_bytes: float = 0
    parameter_bytes: float = 0

    def __post_init__(self) -> None:
        for of in ("seconds", "activation_bytes", "parameter_bytes"):
            check_amount(getattr(self, of), f"layer {self.name}: {of}")


def check_amount(value: object, what: str, least: float = 0, most: float = LARGEST) -> None:
    """ValueError for what is no number, nan, or out of bounds."""
    if not isinstance(value, Real) or not least <= value <= most:  # type: ignore[operator]
        raise ValueError(f"{what} is {value!r}; give a number from {least:g} to {most:g}")


def span(layers: tuple[Layer, ...]) -> str:
    """The name of several layers in a row: `fc3..fc5`."""
    return layers[0].name if len(layers) == 1 else f"{layers[0].name}..{layers[-1].name}"
