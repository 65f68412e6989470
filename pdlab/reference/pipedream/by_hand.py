"""Backpropagation through an MLP by hand, for a backward that meets other weights than its forward has met.

Autograd refuses that, and rightly: what comes out is the gradient of no function.
"""

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from pdlab.models.model import Model
from pdlab.reference.networks import CLASSES, MLP_BLOCKS, blocks_of
from pdlab.reference.training import Parameters


def require_mlp(model: Model) -> None:
    if not blocks_of(model) <= MLP_BLOCKS:
        raise ValueError(f"model {model.name!r} has no reference without stashing, only a whole MLP has one")


def backprop(
    ahead: Parameters, back: Parameters, layers: Sequence[str], x: Tensor, target: Tensor
) -> tuple[float, Parameters]:
    """The loss with the weights `ahead`, and gradients from the activations of that with the weights `back`."""
    entered: list[Tensor] = []
    y = x
    for layer in layers:
        entered.append(y.relu() if entered else x)
        y = entered[-1] @ ahead[f"{layer}.weight"].T + ahead[f"{layer}.bias"]
    counted = (target >= 0)[:, None]
    dy = counted * (y.softmax(dim=1) - functional.one_hot(target.clamp(min=0), CLASSES)) / counted.sum()
    grads: Parameters = {}
    for layer, h in zip(reversed(layers), reversed(entered), strict=True):
        grads |= {f"{layer}.weight": dy.T @ h, f"{layer}.bias": dy.sum(dim=0)}
        dy = (dy @ back[f"{layer}.weight"]) * (h > 0)
    return functional.cross_entropy(y, target).item(), grads
