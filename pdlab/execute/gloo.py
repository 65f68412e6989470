"""Communication between processes with gloo: one call per op, blocking its own stream's thread and no other.

Each mesh axis has its own process group, and each group is used by one stream only.
"""

from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from pdlab.execute.clock import Clock
from pdlab.execute.exchange import num_bytes, reduces_by_and, sent_bytes, split_sizes, together
from pdlab.execute.pieces import cut_up, put_together
from pdlab.execute.store import Store
from pdlab.mesh import Axis, Mesh
from pdlab.ops import Kind, Op
from pdlab.program import Role
from pdlab.state import FLOAT, microbatch_of

LONGEST = timedelta(days=1)
"""How long the library itself waits for a member. Runs wait for less, each for as long as it is told."""


class Posted(NamedTuple):
    """A communication under way: what to wait for, what it will have written, the bytes handed to the library."""

    work: dist.Work | None
    results: list[Tensor]
    moved: int


class Gloo:
    """The groups of one mesh (an axis of degree 1 needs none), and each communication op as calls of torch.distributed.

    Every process of the pool has to construct it, also those that the mesh leaves idle: making a group is collective.
    It outlives runs; `timeout` is that of the one under way.
    """

    def __init__(self, mesh: Mesh, rank: int, clock: Clock) -> None:
        self.clock = clock
        self.timeout = LONGEST
        self.groups: dict[Axis, dist.ProcessGroup] = {}
        self.everyone = dist.new_group(list(range(mesh.size)), timeout=LONGEST, backend="gloo")
        for axis, degree in mesh.degrees:
            for first in range(mesh.size if degree > 1 else 0):
                members = mesh.group(first, axis)
                if members[0] == first:
                    group = dist.new_group(list(members), timeout=LONGEST, backend="gloo")
                    if rank in members:
                        self.groups[axis] = group

    def communicate(self, op: Op, store: Store) -> tuple[list[Tensor], int]:
        """What the op writes, and its size in bytes S (as nccl-tests define it), counted from the tensors handed
        over."""
        posted = self._post(op, store)
        self._wait(posted.work)
        return self._read(op, store, posted), posted.moved

    def agree(self, lead: float) -> float:
        """A moment at which all ranks can begin, `lead` seconds after the last one has asked; on this process's
        clock."""
        stamp = torch.tensor([self.clock.now() + lead], dtype=torch.float64)
        self._wait(dist.all_reduce(stamp, dist.ReduceOp.MAX, group=self.everyone, async_op=True))
        return self.clock.here(stamp.item())

    def _post(self, op: Op, store: Store) -> Posted:
        inputs = store.tensors(op.inputs)
        if op.kind is Kind.SEND:
            return Posted(dist.isend(inputs[0].contiguous(), op.peer), [], num_bytes(inputs[:1]))
        if op.kind is Kind.RECV:
            buffer = _buffer(op, store)
            return Posted(dist.irecv(buffer, op.peer), [buffer], 0)
        assert op.axis is not None
        if op.axis not in self.groups:
            (results,) = together(store.program, op, [store.rank], [inputs])
            return Posted(None, results, sent_bytes(op, store, 1))
        group = self.groups[op.axis]
        match op.kind:
            case Kind.ALL_REDUCE:
                flat = torch.cat([t.reshape(-1) for t in inputs])
                both = reduces_by_and(store.program, store.rank, op.inputs[0])
                how = dist.ReduceOp.MIN if both else dist.ReduceOp.SUM
                return Posted(dist.all_reduce(flat, how, group=group, async_op=True), [flat], num_bytes([flat]))
            case Kind.ALL_GATHER:
                flat = inputs[0].new_empty(inputs[0].numel() * group.size())
                work = dist.all_gather_into_tensor(flat, inputs[0].reshape(-1), group=group, async_op=True)
                return Posted(work, [flat.view(-1, *inputs[0].shape)], num_bytes([flat]))
            case Kind.REDUCE_SCATTER:
                pieces = torch.stack(cut_up(store.program, store.rank, op, inputs[0], group.size()))
                piece = torch.empty_like(pieces[0])
                work = dist.reduce_scatter_tensor(piece.view(-1), pieces.view(-1), group=group, async_op=True)
                return Posted(work, [piece], num_bytes([pieces]))
            case Kind.ALL_TO_ALL:
                return _post_all_to_all(inputs, group)
        raise AssertionError(f"{op} is not a communication")

    def _read(self, op: Op, store: Store, posted: Posted) -> list[Tensor]:
        """The values that the op writes, out of what arrived: several summed values travelled as one buffer."""
        if op.axis not in self.groups:
            return posted.results
        if op.kind is Kind.ALL_REDUCE:
            inputs = store.tensors(op.inputs)
            pieces = posted.results[0].split([t.numel() for t in inputs])
            return [piece.view(t.shape) for piece, t in zip(pieces, inputs, strict=True)]
        if op.kind is Kind.ALL_GATHER:
            return [put_together(store.program, store.rank, op, list(posted.results[0]))]
        return posted.results

    def _wait(self, work: dist.Work | None) -> None:
        if work is not None:
            work.wait(self.timeout)


def _post_all_to_all(inputs: list[Tensor], group: dist.ProcessGroup) -> Posted:
    """Pieces of one row, or sized by the two split values that follow the payload."""
    sent = inputs[0].contiguous()
    out, into = (split_sizes(inputs[1]), split_sizes(inputs[2])) if len(inputs) > 1 else (None, None)
    received = torch.empty_like(sent) if into is None else sent.new_empty(sum(into), *sent.shape[1:])
    work = dist.all_to_all_single(received, sent, into, out, group=group, async_op=True)
    return Posted(work, [received], num_bytes([sent]))


def _buffer(op: Op, store: Store) -> Tensor:
    """Room for what is received: a weight gradient is flat, others are rows of their microbatch times the shape in the
    model."""
    value = op.writes[0]
    program = store.program
    t = program.ranks[store.rank].types[value]
    if t.role is Role.GRADIENT:
        assert isinstance(t.size, int)
        itemsize = program.model.groups[t.of].itemsize
        return torch.empty(t.size // itemsize, dtype=FLOAT[itemsize])
    assert t.role in (Role.ACTIVATION, Role.ACTIVATION_GRADIENT)
    spec = program.model.tensors[t.of]
    rows = program.rows[program.mesh.data_shard(store.rank)][microbatch_of(value)]
    return torch.empty(rows, *spec.shape, dtype=FLOAT[spec.itemsize])
