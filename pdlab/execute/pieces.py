"""A value in pieces over the ranks of an axis: shards along a dim of a tensor, or flat pieces of weights, padded.

Which of the two it is, the type of the piece says, which a gather reads and a scatter or split writes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from pdlab.ops import Kind, Op
from pdlab.program import Program
from pdlab.state import pad


def put_together(program: Program, rank: int, op: Op, pieces: Sequence[Tensor]) -> Tensor:
    """The whole of which every member has a piece."""
    dim = _dim(program, rank, op)
    if dim is not None:
        return torch.cat(list(pieces), dim)
    length = program.model.groups[program.ranks[rank].types[op.writes[0]].of].num_elements
    return torch.cat(list(pieces))[:length]


def cut_up(program: Program, rank: int, op: Op, whole: Tensor, members: int) -> list[Tensor]:
    """The pieces of all members, each with memory of its own."""
    dim = _dim(program, rank, op)
    pieces = pad(whole, members).chunk(members) if dim is None else whole.chunk(members, dim)
    return [piece.clone(memory_format=torch.contiguous_format) for piece in pieces]


def shard_of_value(program: Program, rank: int, op: Op, whole: Tensor) -> Tensor:
    """The piece of one rank."""
    assert op.axis is not None
    mesh = program.mesh
    return cut_up(program, rank, op, whole, mesh.degree(op.axis))[mesh.coordinates[rank][op.axis]]


def _dim(program: Program, rank: int, op: Op) -> int | None:
    assert op.axis is not None
    piece = op.inputs[0] if op.kind is Kind.ALL_GATHER else op.writes[0]
    return program.ranks[rank].types[piece].layout.shard_dim(op.axis)
