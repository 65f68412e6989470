"""All-reduce the weight gradients wherever they are partial: this is all of data parallelism, and the tail of tensor
parallelism.

Without buckets every gradient is summed on its own, after the last backward: simple, and all of it exposed. With
buckets a sum starts as soon as the last gradient of its bucket is complete, so it runs under the backwards that
remain (Li et al. 2020, "PyTorch Distributed", arXiv:2006.15704, section 3.2.3):

    compute  |B7|B6|B5|B4|B3|B2|B1|B0|
    dp group       |--bucket--|--bucket--|
"""

from dataclasses import dataclass, replace

from pdlab.mesh import Axis, Mesh
from pdlab.ops import PASS_KINDS, TOKEN, Kind, Op, Value
from pdlab.program import Program, RankProgram, Role, Type, num_bytes

MEGABYTE = 10**6


def all_reduce_gradients(program: Program, *, bucket_bytes: int | None = None) -> Program:
    """Sum what every step reads over the axes along which it is still partial. `bucket_bytes=None` is the naive
    form."""
    if bucket_bytes is not None and bucket_bytes < 1:
        raise ValueError(f"bucket_bytes is {bucket_bytes}; a bucket holds at least 1 byte")
    if all(degree == 1 for axis, degree in program.mesh.degrees if axis is not Axis.PP):
        return program
    return program.with_ranks([_reduce(rank, program.mesh, bucket_bytes) for rank in program.ranks])


@dataclass(frozen=True)
class _Bucket:
    """Gradients summed together, placed after the op at `position`."""

    position: int
    axis: Axis
    gradients: tuple[Value, ...]


def _reduce(rank: RankProgram, mesh: Mesh, bucket_bytes: int | None) -> RankProgram:
    types = dict(rank.types)
    newest: dict[Value, Value] = {}
    finals = _finals(rank)
    ops = list(rank.ops)
    for axis in (axis for axis, degree in reversed(mesh.degrees) if degree > 1):
        partial = [(i, g) for i, g in finals if axis in types[g].layout.partial_axes()]
        current = [(i, newest.get(g, g)) for i, g in partial]
        for bucket in reversed(_buckets(current, axis, types, bucket_bytes, _steps(ops))):
            ops.insert(bucket.position + 1, _all_reduce(bucket, types))
        newest |= {g: f"{newest.get(g, g)}.{axis.value}" for _, g in partial}
        finals = _shift(finals, ops, newest)
    ops = [_rename(op, newest) if op.kind is Kind.STEP else op for op in ops]
    if bucket_bytes is None:
        _wait_for_the_backward(ops, set(newest.values()), types)
    return replace(rank, ops=tuple(ops), types=types)


def _wait_for_the_backward(ops: list[Op], sums: set[Value], types: dict[Value, Type]) -> None:
    """A gradient is complete before the whole backward is: a token keeps its sum from starting then."""
    last = -1
    for i, op in enumerate(ops):
        if op.kind in PASS_KINDS:
            last = i
        elif op.kind is Kind.ALL_REDUCE and sums & set(op.writes) and last >= 0:
            token = f"{TOKEN}backward{last}"
            types[token] = Type(Role.TOKEN, 0)
            ops[i] = op._replace(inputs=(*op.inputs, token))
            if token not in ops[last].writes:
                ops[last] = ops[last]._replace(writes=(*ops[last].writes, token))


def _finals(rank: RankProgram) -> list[tuple[int, Value]]:
    """The gradients that steps read, with the position of the op that completes each, in that order."""
    wanted = {op.inputs[1] for op in rank.ops if op.kind is Kind.STEP}
    return [(i, value) for i, op in enumerate(rank.ops) for value in op.writes if value in wanted]


def _shift(finals: list[tuple[int, Value]], ops: list[Op], newest: dict[Value, Value]) -> list[tuple[int, Value]]:
    home = {value: i for i, op in enumerate(ops) for value in op.writes}
    return sorted((home[newest.get(g, g)], g) for _, g in finals)


def _steps(ops: list[Op]) -> list[int]:
    return [i for i, op in enumerate(ops) if op.kind is Kind.STEP]


def _buckets(
    gradients: list[tuple[int, Value]], axis: Axis, types: dict[Value, Type], limit: int | None, steps: list[int]
) -> list[_Bucket]:
    """A bucket is closed when it is full, and before a step that comes between two gradients."""
    if limit is None:
        return [_Bucket(next(s for s in steps if s > i) - 1, axis, (g,)) for i, g in gradients]
    buckets: list[_Bucket] = []
    filling: list[Value] = []
    filled = 0
    positions = [i for i, _ in gradients]
    after_all = max(steps, default=0) + 1
    for (i, g), following in zip(gradients, [*positions[1:], after_all], strict=False):
        filling.append(g)
        filled += num_bytes(types[g].size, {}, 0)
        if filled >= limit or any(i < step < following for step in steps):
            buckets.append(_Bucket(i, axis, tuple(filling)))
            filling, filled = [], 0
    return buckets


def _all_reduce(bucket: _Bucket, types: dict[Value, Type]) -> Op:
    writes = tuple(f"{g}.{bucket.axis.value}" for g in bucket.gradients)
    for g, summed in zip(bucket.gradients, writes, strict=True):
        types[summed] = types[g]._replace(layout=types[g].layout.put(bucket.axis, None))
    return Op(Kind.ALL_REDUCE, inputs=bucket.gradients, writes=writes, axis=bucket.axis)


def _rename(op: Op, newest: dict[Value, Value]) -> Op:
    return op._replace(inputs=tuple(newest.get(value, value) for value in op.inputs))
