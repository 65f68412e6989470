"""Tensor and sequence parallelism by `torch.distributed.tensor.parallel`: weights become DTensors, and torch finds the
collectives."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy

from pdlab import models, reference
from pdlab.compare import digits_batch
from pdlab.models import Model
from pdlab.state import FLOAT, initial_parameters

Styles = dict[str, ParallelStyle]

STYLED = {"mlp": ("tensor",), "transformer": ("tensor", "sequence")}
"""What is split here, by the makers of models."""


def step(
    maker: str, arguments: dict[str, int], split: str, batch: int, steps: int = 3, seed: int = 0
) -> dict[str, float]:
    """One rank's side of a step on the digits, over all ranks of the default group.

    `maker` is "mlp" or "transformer", `arguments` what it is given (without tp); `split` is "tensor" or "sequence".
    Returns the median seconds of `steps` steps in float32, after one to warm up, as fast as they go, and the worst
    deviation of a float64 gradient from plain PyTorch on one process, scaled as in `reference.relative_errors`.
    """
    makers: dict[str, Callable[..., Model]] = {"mlp": models.mlp, "transformer": models.transformer}
    if split not in STYLED.get(maker, ()) or {"dropout", "smoothing"} & set(arguments) or steps < 1:
        raise ValueError(
            f"{steps} steps of {maker}({arguments}), split {split!r}; give at least 1 step of an mlp (tensor) or a "
            "transformer (tensor or sequence), without dropout or smoothing"
        )
    make = makers[maker]
    seconds = [_seconds(make(**arguments, itemsize=4), split, batch, seed) for _ in range(steps + 1)]
    error = _error(make(**arguments, itemsize=8), split, batch, seed)
    return {"seconds": median(seconds[1:]), "grad_max_rel_error": error}


def _seconds(model: Model, split: str, batch: int, seed: int) -> float:
    network, (x, target) = _network(model, split, seed), _inputs(model, batch, seed)
    dist.barrier()
    began = time.perf_counter()
    cross_entropy(network(x), target).backward()
    return time.perf_counter() - began


def _error(model: Model, split: str, batch: int, seed: int) -> float:
    network, (x, target) = _network(model, split, seed), _inputs(model, batch, seed)
    cross_entropy(network(x), target).backward()
    ours = {name: _whole(p.grad) for name, p in network.named_parameters() if p.grad is not None}
    _, expected = reference.gradients(model, initial_parameters(model, seed, torch.float64), x, target)
    return max(reference.relative_errors(ours, expected).values())


def _whole(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


def _inputs(model: Model, batch: int, seed: int) -> reference.Batch:
    digits = digits_batch(batch, seed)
    return reference.inputs(model, digits.pixels, digits.labels, FLOAT[model.itemsize])


def _network(model: Model, split: str, seed: int) -> nn.Module:
    """The reference's network with the lab's initial weights, spread over all ranks."""
    dtype = FLOAT[model.itemsize]
    network = reference.build(model).to(dtype)
    network.load_state_dict(initial_parameters(model, seed, dtype))
    everyone = dist.group.WORLD
    assert everyone is not None
    mesh = DeviceMesh.from_group(everyone, "cpu")
    blocks = [name for name, _ in network.named_children() if name.startswith("attn")]
    styles = _of_transformer(network, blocks, split, mesh.size()) if blocks else _of_mlp(network)
    return parallelize_module(network, mesh, styles)


def _of_mlp(network: nn.Module) -> Styles:
    """Columns and rows in turn; a last linear without a partner stays whole."""
    linears = [name for name, module in network.named_children() if isinstance(module, nn.Linear)]
    pairs = zip(linears[::2], linears[1::2], strict=False)
    styles: list[Styles] = [{first: ColwiseParallel(), second: RowwiseParallel()} for first, second in pairs]
    return {name: style for pair in styles for name, style in pair.items()}


def _of_transformer(network: nn.Module, attentions: list[str], split: str, tp: int) -> Styles:
    sequence = split == "sequence"
    between = Shard(1) if sequence else Replicate()
    styles: Styles = {}
    for attention in attentions:
        feed_forward = attention.replace("attn", "ffn")
        module = network.get_submodule(attention)
        assert isinstance(module, reference.Attention)
        module.heads //= tp
        columns = [f"{attention}.q", f"{attention}.k", f"{attention}.v", f"{feed_forward}.up"]
        styles |= {name: ColwiseParallel(input_layouts=between) for name in columns}
        rows = [f"{attention}.out", f"{feed_forward}.down"]
        styles |= {name: RowwiseParallel(output_layouts=between) for name in rows}
        if sequence:
            styles |= {f"{block}.norm": SequenceParallel() for block in (attention, feed_forward)}
    if sequence:
        styles["embed"] = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=between)
        styles["head"] = PrepareModuleInput(
            input_layouts=between, desired_input_layouts=Replicate(), use_local_output=True
        )
    return styles


def arguments_of(model: Model) -> dict[str, Any]:
    """What `step` is to be given for a model of the lab."""
    maker, said = model.recipe
    left_out = ("itemsize", "tp", "split")
    return {"maker": maker, "arguments": {name: value for name, value in said if name not in left_out}}
