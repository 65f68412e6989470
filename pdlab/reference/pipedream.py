"""PipeDream's own rule on one process: what each minibatch's forward and backward meet, written as loops.

Without a flush, stage s of p runs minibatch i forward with weights that are d = p - 1 - s updates old (Harlap et
al. 2018, arXiv:1806.03377):

    stage 0 of 3    F0 F1 F2 B0 F3 B1 F4 ...    before F3 one update is done: version 1 = max(0, 3 - 2)
    stage 2 of 3    F0 B0 F1 B1 F2 B2 F3 ...    before F3 all three are done: version 3
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from pdlab.models.model import Model
from pdlab.reference.networks import CLASSES, MLP_BLOCKS, Batch, blocks_of
from pdlab.reference.training import Parameters, descend, gradients


def pipedream_stashed(
    model: Model, parameters: Parameters, batches: Iterable[Batch], lr: float, num_stages: int
) -> list[Parameters]:
    """PipeDream with stashing: backward meets the forward's weights. Entry i: all stages after i + 1 updates."""
    delay = _delays(model, num_stages)
    versions = [parameters]
    for i, (x, target) in enumerate(batches):
        _, grads = gradients(model, _stale(versions, i, delay), x, target)
        versions.append(descend(versions[-1], grads, lr))
    return versions[1:]


def pipedream_naive(
    model: Model, parameters: Parameters, batches: Iterable[Batch], lr: float, num_stages: int
) -> list[Parameters]:
    """PipeDream with one copy of the weights: backward meets the latest ones, so what it computes is no gradient."""
    delay = _delays(model, num_stages)
    versions = [parameters]
    for i, (x, target) in enumerate(batches):
        grads = _backprop(_stale(versions, i, delay), versions[i], list(delay), x, target)
        versions.append(descend(versions[-1], grads, lr))
    return versions[1:]


def _delays(model: Model, num_stages: int) -> dict[str, int]:
    """Layer -> how many updates its forward lags behind in a full pipeline; earlier stages are the longer ones."""
    layers = list(model.segments)
    if not blocks_of(model) <= MLP_BLOCKS:
        raise ValueError(f"model {model.name!r} has no PipeDream reference, only a whole MLP has one")
    if not 1 <= num_stages <= len(layers):
        raise ValueError(f"{num_stages} stages for the {len(layers)} layers of {model.name!r}; use 1 to {len(layers)}")
    cuts = torch.arange(len(layers)).tensor_split(num_stages)
    return {layers[i]: num_stages - 1 - stage for stage, cut in enumerate(cuts) for i in cut.tolist()}


def _stale(versions: Sequence[Parameters], i: int, delay: dict[str, int]) -> Parameters:
    return {name: versions[max(0, i - delay[name.partition(".")[0]])][name] for name in versions[0]}


def _backprop(ahead: Parameters, back: Parameters, layers: list[str], x: Tensor, target: Tensor) -> Parameters:
    """Backpropagation by hand through an MLP, forward with the weights `ahead` and backward with the weights `back`."""
    seen: list[Tensor] = []
    y = x
    for layer in layers:
        seen.append(y.relu() if seen else x)
        y = seen[-1] @ ahead[f"{layer}.weight"].T + ahead[f"{layer}.bias"]
    dy = (y.softmax(dim=1) - functional.one_hot(target, CLASSES)) / len(target)
    grads: Parameters = {}
    for layer, entered in zip(reversed(layers), reversed(seen), strict=True):
        grads |= {f"{layer}.weight": dy.T @ entered, f"{layer}.bias": dy.sum(dim=0)}
        dy = (dy @ back[f"{layer}.weight"]) * (entered > 0)
    return grads
