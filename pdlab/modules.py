"""Modules of the user's own as segments: a list of `torch.nn.Module`, each taking what the one before gives.

A module runs with weights from outside, like every segment. Its linears are the ones of `pdlab.layers` while it does,
so that a split backward splits it too; any other layer has its weight gradients found with the input gradient.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from pdlab.importing import blame, locate
from pdlab.layers import linear
from pdlab.tape import Tape


def listed(path: str) -> list[nn.Module]:
    """The modules that an import path names: a list of them, or a function that makes it. ValueError otherwise."""
    found = locate(path)
    try:
        modules = found() if callable(found) and not isinstance(found, nn.Module) else found
    except (Exception, SystemExit) as error:
        raise ValueError(f"{path}: {blame(error)}") from error
    if not isinstance(modules, list | tuple | nn.Sequential) or not len(modules):
        raise ValueError(f"{path} is a {type(modules).__name__}; give a list of torch.nn.Module, or a function of it")
    for i, module in enumerate(modules):
        if not isinstance(module, nn.Module):
            raise ValueError(f"{path}: entry {i} is a {type(module).__name__}, not a torch.nn.Module")
    return list(modules)


@lru_cache(maxsize=8)
def loaded(path: str, stamp: int, dtype: torch.dtype) -> tuple[nn.Module, ...]:
    """The modules of a path in a precision, ready to be called. `stamp` tells apart what the file has held."""
    return tuple(deepcopy(module).to(dtype).train() for module in listed(path))


def call(module: nn.Module, tape: Tape, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """The module's output for weights from outside, recorded on the tape."""
    with _OwnLinear(tape, weights):
        y: Tensor = functional_call(module, dict(weights), (x,))
    return y


class _OwnLinear(TorchFunctionMode):
    """While this is on, a linear with weights of the segment is that of `pdlab.layers`."""

    def __init__(self, tape: Tape, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.tape, self.weights = tape, weights
        self.names = {id(t): name for name, t in weights.items()}

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is nn.functional.linear and not kwargs:
            x, weight, bias = (*args, None)[:3]
            prefix = self.names.get(id(weight), "").removesuffix("weight")
            known = self.weights.get(f"{prefix}bias")
            if self.names.get(id(weight)) == f"{prefix}weight" and known is bias:
                return linear(self.tape, x, self.weights, prefix)
        return function(*args, **(kwargs or {}))
