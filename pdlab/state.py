"""From a model to the tensors on each rank, and back.

Initial weights depend on nothing but the seed and the parameter's name, so a run on any mesh starts from the same
model. What a rank holds of it follows from the layout in the value's type; `assemble` undoes that, so results can be
compared by name.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod, sqrt
from typing import assert_never

import numpy as np
import torch
from torch import Tensor

from pdlab.batch import Batch, counted, rows
from pdlab.mesh import LOCAL, Axis, Spread
from pdlab.models.model import Model
from pdlab.models.spec import Feed, Group
from pdlab.ops import Value
from pdlab.optimizers import Optimizer
from pdlab.program import Program, Role, Type

Parameters = dict[str, Tensor]
"""Whole parameters (or gradients) by name: `fc0.weight`, `attn1.q.bias`, `expert.0.up.weight`."""

FLOAT = {2: torch.float16, 4: torch.float32, 8: torch.float64}
"""The floating type of a model, by the size of its elements."""


def full_names(model: Model, group: Group, copies: int = 1) -> list[tuple[str, ...]]:
    """The names of a group's parameters, for each of its `copies` along an axis where every rank has its own."""
    segment = model.segment_of_group[group.name]
    name = segment.layer or segment.name
    local = any(place == LOCAL for _, place in group.layout.places)
    prefixes = [f"{name}.{i}" for i in range(copies)] if local else [name]
    return [tuple(f"{prefix}.{param.name}" for param in group.params) for prefix in prefixes]


def initial_parameters(model: Model, seed: int, dtype: torch.dtype, copies: int = 1) -> Parameters:
    """Every parameter of the model: gains (weights of one dim) near 1, others normal with a spread of 1 / sqrt(fan in).

    `copies` is the degree of the ep axis: each expert starts differently.
    """
    parameters = {}
    for group in model.groups.values():
        for names in full_names(model, group, copies):
            for name, param in zip(names, group.params, strict=True):
                parameters[name] = _draw(name, param.shape, seed).to(dtype)
    return parameters


def _draw(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    key = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little")
    noise = torch.from_numpy(np.random.default_rng(key).standard_normal(shape))
    if name.endswith("weight") and len(shape) == 1:
        return 1 + 0.1 * noise
    return noise / sqrt(max(prod(shape[1:]), 1)) if len(shape) > 1 else 0.1 * noise


@dataclass(frozen=True)
class Start:
    """Where a training stands: parameters by name, optimizer state by name ([rows, *shape]; empty: a fresh one), and
    the steps that were taken."""

    parameters: Parameters
    states: Parameters = field(default_factory=dict)
    steps: int = 0

    def tensors(self) -> dict[str, Tensor]:
        """Everything under one set of names, to travel or to be kept."""
        parameters = {f"parameter {name}": t for name, t in self.parameters.items()}
        return parameters | {f"state {name}": t for name, t in self.states.items()}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], steps: int) -> "Start | None":
        """From what `tensors` gave, whatever else is among it; None if there are no parameters."""
        parts: dict[str, Parameters] = {"parameter": {}, "state": {}}
        for name, t in tensors.items():
            what, _, rest = name.partition(" ")
            if what in parts:
                parts[what][rest] = t
        return cls(parts["parameter"], parts["state"], steps) if parts["parameter"] else None


def initial_values(
    program: Program, rank: int, start: Start, batch: Batch, optimizer: Optimizer, loss_scale: float = 1.0
) -> dict[Value, Tensor]:
    """The `live_in` values of a rank that come from outside: feeds, seeds of the backward, weights, optimizer state."""
    dtype = FLOAT[program.model.itemsize]
    values = batch_values(program, rank, batch, loss_scale)
    for value in sorted(program.ranks[rank].live_in):
        t = program.ranks[rank].types[value]
        if t.role is Role.WEIGHT:
            values[value] = shard_of(program, rank, t, start.parameters).to(dtype)
        elif t.role is Role.OPTIMIZER:
            values[value] = _optimizer_state(program, rank, t, start, optimizer, dtype)
    return values


def batch_values(program: Program, rank: int, batch: Batch, loss_scale: float) -> dict[Value, Tensor]:
    """Those of them that are new in every step: feeds, seeds of the backward, the loss scale."""
    dtype = FLOAT[program.model.itemsize]
    values: dict[Value, Tensor] = {}
    for value in sorted(program.ranks[rank].live_in):
        t = program.ranks[rank].types[value]
        if t.role is Role.FEED:
            values[value] = _feed(program, rank, value, t, batch, dtype)
        elif t.role is Role.ACTIVATION_GRADIENT:
            values[value] = torch.tensor(loss_scale / counted(program, batch, microbatch_of(value)), dtype=dtype)
        elif t.role is Role.SCALE:
            values[value] = torch.tensor(float(t.of or loss_scale), dtype=torch.float64)
    return values


def _optimizer_state(
    program: Program, rank: int, t: Type, start: Start, optimizer: Optimizer, dtype: torch.dtype
) -> Tensor:
    if not start.states:
        return optimizer.initial_state(shard_of(program, rank, t, start.parameters), dtype)
    rows = [{name: state[row] for name, state in start.states.items()} for row in range(optimizer.rows)]
    return torch.stack([shard_of(program, rank, t, row) for row in rows])


def microbatch_of(value: Value) -> int:
    """The microbatch in the name of an activation: 3 in `h2:3`."""
    return int(value.rsplit(":", 1)[1])


def _feed(program: Program, rank: int, value: Value, t: Type, batch: Batch, dtype: torch.dtype) -> Tensor:
    mine = rows(program, program.mesh.data_shard(rank), microbatch_of(value))
    spec = program.model.tensors[t.of]
    pixels = torch.from_numpy(batch.pixels[mine].astype(np.int64))
    match spec.feed:
        case Feed.LABELS:
            return torch.from_numpy(batch.labels[mine].astype(np.int64))
        case Feed.TOKENS:
            return pixels
        case Feed.SCALED_PIXELS:
            dim = t.layout.shard_dim(Axis.TP)
            if dim is not None:
                pixels = pixels.chunk(program.mesh.degree(Axis.TP), dim)[program.mesh.coordinates[rank][Axis.TP]]
            return (pixels.to(dtype) / 16).reshape(-1, *spec.shape)
        case Feed.KEYS:
            assert batch.keys is not None
            return torch.from_numpy(batch.keys[mine].astype(np.int64))
        case Feed.LENGTHS:
            assert batch.lengths is not None
            return torch.from_numpy(batch.lengths[mine].astype(np.int64))
        case None:
            raise ValueError(f"model {program.model.name} does not say what its input {t.of!r} is; run another model")
        case _:
            assert_never(spec.feed)


def shard_of(program: Program, rank: int, t: Type, parameters: Mapping[str, Tensor]) -> Tensor:
    """The flat piece of a group of parameters that a rank holds under a layout."""
    group, here, mesh = program.model.groups[t.of], program.mesh.coordinates[rank], program.mesh
    names = full_names(program.model, group, mesh.degree(Axis.EP))
    mine = names[here[Axis.EP] if len(names) > 1 else 0]
    pieces = []
    for name, param in zip(mine, group.params, strict=True):
        whole = parameters[name]
        if param.shard is not None and group.tp > 1:
            whole = _filled_up(whole, param.shard, group.tp).chunk(group.tp, param.shard)[here[Axis.TP]]
        pieces.append(whole.reshape(-1))
    flat = torch.cat(pieces)
    for axis, place in t.layout.places:
        if place.spread is Spread.FLAT:
            flat = pad(flat, mesh.degree(axis)).chunk(mesh.degree(axis))[here[axis]]
    return flat.clone()


def _filled_up(whole: Tensor, dim: int, pieces: int) -> Tensor:
    """Zeros at the end of a dim until it divides."""
    missing = -whole.shape[dim] % pieces
    shape = [missing if i == dim else size for i, size in enumerate(whole.shape)]
    return torch.cat([whole, whole.new_zeros(shape)], dim) if missing else whole


def pad(flat: Tensor, pieces: int) -> Tensor:
    """Zeros at the end until the length divides."""
    missing = -len(flat) % pieces
    return torch.cat([flat, flat.new_zeros(missing)]) if missing else flat


def assemble(program: Program, shards: Mapping[tuple[int, Value], Tensor]) -> Parameters:
    """Whole parameters by name from the pieces that (rank, value) hold; replicas must agree, or ValueError says
    where."""
    wholes: Parameters = {}
    for rank, value in shards:
        for name, tensor in _whole(program, rank, value, program.ranks[rank].types[value], shards):
            known = wholes.setdefault(name, tensor)
            if not torch.equal(known, tensor) and not torch.allclose(known, tensor, 0, 0, equal_nan=True):
                worst = (known - tensor).abs().max().item()
                raise ValueError(f"{name} differs by up to {worst:.3g} between ranks or versions (seen on rank {rank})")
    return wholes


def _whole(
    program: Program, rank: int, value: Value, t: Type, shards: Mapping[tuple[int, Value], Tensor]
) -> list[tuple[str, Tensor]]:
    group, mesh, model = program.model.groups[t.of], program.mesh, program.model
    names = full_names(model, group, mesh.degree(Axis.EP))
    mine = names[mesh.coordinates[rank][Axis.EP] if len(names) > 1 else 0]
    parts = [_unflatten(program, r, value, t, group, shards) for r in mesh.group(rank, Axis.TP)]
    return [
        (
            name,
            torch.cat([part[i] for part in parts], param.shard).narrow(param.shard, 0, param.shape[param.shard])
            if param.shard is not None and group.tp > 1
            else parts[0][i],
        )
        for i, (name, param) in enumerate(zip(mine, group.params, strict=True))
    ]


def _unflatten(
    program: Program, rank: int, value: Value, t: Type, group: Group, shards: Mapping[tuple[int, Value], Tensor]
) -> list[Tensor]:
    flat = shards[rank, value]
    for axis, place in t.layout.places:
        if place.spread is Spread.FLAT:
            flat = torch.cat([shards[member, value] for member in program.mesh.group(rank, axis)])
    return views(flat, group)


def views(flat: Tensor, group: Group) -> list[Tensor]:
    """The parameters of a group as views of its flat value, in order."""
    found, at = [], 0
    for param in group.params:
        shape = group.local_shape(param)
        found.append(flat[at : at + prod(shape)].view(shape))
        at += prod(shape)
    return found
