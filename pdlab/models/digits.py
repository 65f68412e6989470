"""The digits as a model sees them: what it is fed, and what it answers."""

from pdlab.models.spec import Feed, Tensor

PIXELS, CLASSES, INTENSITIES = 64, 10, 17

TOKENS = Tensor("x", (PIXELS,), 8, grad=None, feed=Feed.TOKENS)
TARGET = Tensor("target", (), 8, grad=None, feed=Feed.LABELS)
KEYS = Tensor("keys", (), 8, grad=None, feed=Feed.KEYS)
"""What dropout is drawn from."""
LENGTHS = Tensor("lengths", (), 8, grad=None, feed=Feed.LENGTHS)
"""How many tokens of each sample are its own."""


def loss_tensor(itemsize: int) -> Tensor:
    """The sum of the losses of a microbatch."""
    return Tensor("loss", (), itemsize, per_row=False)
