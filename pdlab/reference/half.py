"""One step of mixed precision with loss scaling, on one process."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from pdlab.models.model import Model
from pdlab.reference.networks import Batch
from pdlab.reference.training import Parameters, answers, descend, differentiate, leaves_of


def half_precision_step(
    model: Model, master: Parameters, shards: Sequence[Batch], lr: float, loss_scale: float
) -> tuple[Parameters, bool]:
    """One mixed-precision step (Micikevicius et al. 2018, arXiv:1710.03740): new weights, and whether it was taken.

    One shard per data-parallel rank. Gradients are computed and summed in fp16; overflow in a shard or
    in the sum skips the step.
    """
    seed = torch.tensor(loss_scale / sum(len(target) for _, target in shards), dtype=torch.float16)
    halves = {name: weight.half() for name, weight in master.items()}
    found = [_half_gradients(model, halves, batch, seed) for batch in shards]
    total = found[0]
    for grads in found[1:]:
        total = {name: grad + grads[name] for name, grad in total.items()}
    if not all(grad.isfinite().all() for grads in (*found, total) for grad in grads.values()):
        return master, False
    return descend(master, {name: grad.to(master[name].dtype) / loss_scale for name, grad in total.items()}, lr), True


def _half_gradients(model: Model, halves: Parameters, batch: Batch, seed: Tensor) -> Parameters:
    x, target = batch
    leaves = leaves_of(halves)
    logits = answers(model, leaves, x.half() if x.is_floating_point() else x)
    return differentiate(functional.cross_entropy(logits, target, reduction="sum"), leaves, seed)
