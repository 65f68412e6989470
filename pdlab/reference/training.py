"""Gradients and synchronous SGD on the whole batch, and how far two sets of gradients are apart."""

from collections.abc import Iterable
from math import inf, isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from pdlab.models.model import Model
from pdlab.reference.lengths import Lengths, check_lengths, one_by_one
from pdlab.reference.networks import Batch, skeleton, without_dropout

Parameters = dict[str, Tensor]


def gradients(
    model: Model,
    parameters: Parameters,
    x: Tensor,
    target: Tensor,
    keys: NDArray[np.int64] | None = None,
    lengths: Lengths | None = None,
) -> tuple[float, Parameters]:
    """The mean cross-entropy of a batch and its gradient, in the dtype of the parameters. `keys` is for dropout,
    `lengths` for samples of different lengths."""
    leaves = leaves_of(parameters)
    smoothing = float(dict(model.recipe[1]).get("smoothing", 0))
    loss = functional.cross_entropy(answers(model, leaves, x, keys, lengths), target, label_smoothing=smoothing)
    return loss.item(), differentiate(loss, leaves)


def logits(model: Model, parameters: Parameters, x: Tensor, lengths: Lengths | None = None) -> Tensor:
    """What the network answers, [n, classes]; nothing is dropped."""
    with torch.no_grad():
        return answers(without_dropout(model), parameters, x, lengths=lengths)


def answers(
    model: Model,
    parameters: Parameters,
    x: Tensor,
    keys: NDArray[np.int64] | None = None,
    lengths: Lengths | None = None,
) -> Tensor:
    """The logits [n, classes]; ValueError for parameters that are not the network's, and for lengths that it does not
    want or lacks."""
    network = skeleton(model, keys)
    _require_alike(parameters, dict(network.named_parameters()))
    check_lengths(model, x, lengths)
    if lengths is not None:
        return one_by_one(model, parameters, x, lengths, keys)
    found: Tensor = functional_call(network, parameters, x)
    return found


def leaves_of(parameters: Parameters) -> Parameters:
    return {name: weight.detach().requires_grad_() for name, weight in parameters.items()}


def differentiate(loss: Tensor, leaves: Parameters, seed: Tensor | None = None) -> Parameters:
    found = torch.autograd.grad(loss, list(leaves.values()), seed, materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def descend(parameters: Parameters, grads: Parameters, lr: float) -> Parameters:
    return {name: weight - lr * grads[name] for name, weight in parameters.items()}


def sgd(model: Model, parameters: Parameters, batches: Iterable[Batch], lr: float) -> list[Parameters]:
    """The parameters after each step of synchronous training, one batch per step."""
    trajectory = [parameters]
    for x, target in batches:
        trajectory.append(descend(trajectory[-1], gradients(model, trajectory[-1], x, target)[1], lr))
    return trajectory[1:]


def relative_errors(ours: Parameters, reference: Parameters) -> dict[str, float]:
    """Per parameter: the largest deviation over the largest entry of its reference.

    Some gradients are truly zero (a key bias, an idle expert) and would compare noise with noise, so the scale is never
    below 1e-6 of the largest entry of all. A NaN counts as infinitely wrong, lest `max` and `<` overlook it.
    """
    _require_alike(ours, reference)
    largest = {name: value.abs().max().item() for name, value in reference.items()}
    floor = 1e-6 * max(largest.values(), default=0.0)
    return {name: _ratio(ours[name], reference[name], max(largest[name], floor)) for name in reference}


def _ratio(value: Tensor, reference: Tensor, scale: float) -> float:
    deviation = (value.double() - reference.double()).abs().max().item()
    if deviation == 0:
        return 0.0
    return deviation / scale if scale and isfinite(deviation) else inf


def _require_alike(ours: Parameters, reference: Parameters) -> None:
    """ValueError unless both have the same names and shapes."""
    missing, extra = sorted(reference.keys() - ours.keys()), sorted(ours.keys() - reference.keys())
    if missing or extra:
        raise ValueError(f"{len(missing)} parameters are missing {missing}, {len(extra)} are extra {extra}")
    for name, value in reference.items():
        if ours[name].shape != value.shape:
            raise ValueError(f"{name} has shape {tuple(ours[name].shape)}, the reference has {tuple(value.shape)}")
