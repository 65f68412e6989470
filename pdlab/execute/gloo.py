"""Communication between processes with gloo: one call per op, blocking its own stream's thread and no other.

Point-to-point messages carry a tag for what they are, so a payload is never mistaken for a time stamp. Each mesh axis has its own
process group, and each group is used by one stream only.
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from pdlab.execute.exchange import reduces_by_and, split_sizes, whole_length
from pdlab.execute.store import Store
from pdlab.mesh import Axis, Mesh
from pdlab.ops import Kind, Op
from pdlab.program import Role
from pdlab.state import FLOAT, microbatch_of, pad

_PAYLOAD, _STAMP = 1, 2


class Gloo:
    """The groups of one mesh, and each communication op as calls of torch.distributed.

    Every process of the pool has to construct it, also those that the mesh leaves idle: making a group is collective.
    """

    def __init__(self, mesh: Mesh, rank: int, timeout: float) -> None:
        self.timeout = timedelta(seconds=timeout)
        self.groups: dict[Axis, dist.ProcessGroup] = {}
        self.everyone = dist.new_group(list(range(mesh.size)), timeout=self.timeout, backend="gloo")
        for axis, degree in mesh.degrees:
            for first in range(mesh.size if degree > 1 else 0):
                members = mesh.group(first, axis)
                if members[0] == first:
                    group = dist.new_group(list(members), timeout=self.timeout, backend="gloo")
                    if rank in members:
                        self.groups[axis] = group

    def close(self) -> None:
        for group in self.groups.values():
            dist.destroy_process_group(group)

    def communicate(self, op: Op, store: Store) -> tuple[list[Tensor], int]:
        """What the op writes, and the bytes that were handed to the library (size S as nccl-tests define it)."""
        inputs = store.tensors(op.inputs)
        match op.kind:
            case Kind.SEND:
                self._wait(dist.isend(inputs[0].contiguous(), op.peer, tag=_PAYLOAD))
                return [], _bytes(inputs[0])
            case Kind.RECV:
                buffer = _buffer(op, store)
                self._wait(dist.irecv(buffer, op.peer, tag=_PAYLOAD))
                return [buffer], 0
        assert op.axis is not None
        group = self.groups[op.axis]
        match op.kind:
            case Kind.ALL_REDUCE:
                return self._all_reduce(op, inputs, store, group)
            case Kind.ALL_GATHER:
                whole = inputs[0].new_empty(len(inputs[0]) * group.size())
                dist.all_gather_into_tensor(whole, inputs[0], group=group)
                return [whole[: whole_length(store.program, store.rank, op)]], _bytes(whole)
            case Kind.REDUCE_SCATTER:
                padded = pad(inputs[0], group.size())
                piece = padded.new_empty(len(padded) // group.size())
                dist.reduce_scatter_tensor(piece, padded, group=group)
                return [piece], _bytes(padded)
            case Kind.ALL_TO_ALL:
                return self._all_to_all(inputs, group)
        raise AssertionError(f"{op} is not a communication")

    def _all_reduce(
        self, op: Op, inputs: list[Tensor], store: Store, group: dist.ProcessGroup
    ) -> tuple[list[Tensor], int]:
        """Several values travel as one buffer."""
        flat = torch.cat([t.reshape(-1) for t in inputs])
        both = reduces_by_and(store.program, store.rank, op.inputs[0])
        dist.all_reduce(flat, dist.ReduceOp.MIN if both else dist.ReduceOp.SUM, group=group)
        pieces = flat.split([t.numel() for t in inputs])
        return [piece.view(t.shape) for piece, t in zip(pieces, inputs, strict=True)], _bytes(flat)

    def _all_to_all(self, inputs: list[Tensor], group: dist.ProcessGroup) -> tuple[list[Tensor], int]:
        """Pieces of one row, or sized by the two split values that follow the payload."""
        sent = inputs[0].contiguous()
        if len(inputs) == 1:
            received = torch.empty_like(sent)
            dist.all_to_all_single(received, sent, group=group)
            return [received], _bytes(sent)
        out, into = split_sizes(inputs[1]), split_sizes(inputs[2])
        received = sent.new_empty(sum(into), *sent.shape[1:])
        dist.all_to_all_single(received, sent, into, out, group=group)
        return [received], _bytes(sent)

    def agree(self, moment: float) -> float:
        """The latest of all ranks' proposals for when to begin."""
        stamp = torch.tensor([moment], dtype=torch.float64)
        dist.all_reduce(stamp, dist.ReduceOp.MAX, group=self.everyone)
        return stamp.item()

    def last_arrival(self, op: Op, arrival: float) -> float:
        """When the last member of a communication arrived, on the clock that they share."""
        stamp = torch.tensor([arrival], dtype=torch.float64)
        if op.axis is not None:
            dist.all_reduce(stamp, dist.ReduceOp.MAX, group=self.groups[op.axis])
            return stamp.item()
        other = torch.empty(1, dtype=torch.float64)
        # One channel carries the stamps of both directions' messages apart: sends answer receives and the reverse.
        outward = op.kind is Kind.SEND
        mine, theirs = (_STAMP, _STAMP + 1) if outward else (_STAMP + 1, _STAMP)
        sending, receiving = dist.isend(stamp, op.peer, tag=mine), dist.irecv(other, op.peer, tag=theirs)
        self._wait(sending)
        self._wait(receiving)
        return max(arrival, other.item())

    def _wait(self, work: dist.Work | None) -> None:
        if work is not None:
            work.wait(self.timeout)


def _buffer(op: Op, store: Store) -> Tensor:
    """Room for a received activation or gradient: rows of its microbatch times the shape in the model."""
    value = op.writes[0]
    program = store.program
    t = program.ranks[store.rank].types[value]
    spec = program.model.tensors[t.of]
    assert t.role in (Role.ACTIVATION, Role.ACTIVATION_GRADIENT)
    rows = program.rows[program.mesh.data_shard(store.rank)][microbatch_of(value)]
    return torch.empty(rows, *spec.shape, dtype=FLOAT[spec.itemsize])


def _bytes(t: Tensor) -> int:
    return t.numel() * t.element_size()
