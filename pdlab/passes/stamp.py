"""What a pass over a stage looks like does not depend on the microbatch: it is lowered once and stamped for the others.

The names say why that works: all that belongs to a microbatch ends in its number (`h3:0`), and only the gradients that
add up are numbered in their own way. A pipeline of 64 ranks with 512 microbatches has 500,000 passes and as many kinds
of pass as stages.
"""

from dataclasses import dataclass

from pdlab.models.spec import Segment
from pdlab.ops import PASS_KINDS, Kind, Op, Value, stamped
from pdlab.passes.naming import Names
from pdlab.program import Role, Sized, Type

HOLE = ":"
"""What a name ends in where the number of a microbatch goes."""


@dataclass(frozen=True)
class Stamp:
    """The ops of a pass. Each with the operands that are not gradients of weights, and the segment whose gradients it
    adds up, if it does. `types`, `fed` and `losses` are of the values that end in a hole."""

    ops: tuple[tuple[Op, tuple[str, ...], tuple[str, ...], Segment | None], ...]
    types: dict[str, Type]
    fed: tuple[str, ...]
    losses: tuple[str, ...]


def cut(ops: list[Op], segments: dict[tuple[int, int], Segment], names: Names, microbatch: int) -> Stamp | None:
    """The stamp of ops that were lowered for one microbatch; None where a size depends on what comes at run time.
    `segments` are those of each stage, by their number."""
    number = str(microbatch)

    def hollow(value: Value) -> str:
        return value[: -len(number)] if value.endswith(HOLE + number) else value

    def holes(values: tuple[Value, ...]) -> tuple[str, ...]:
        return tuple(hollow(value) for value in values if names.types[value].role is not Role.GRADIENT)

    used = dict.fromkeys(value for op in ops for value in (*op.inputs, *op.writes))
    types = {hollow(value): names.types[value] for value in used}
    types = {part: t for part, t in types.items() if part.endswith(HOLE)}
    if any(isinstance(t.size, Sized) for t in types.values()):
        return None
    adds = (Kind.BACKWARD, Kind.BACKWARD_WEIGHT)
    return Stamp(
        tuple(
            (op, holes(op.inputs), holes(op.writes), segments[op.stage, op.segment] if op.kind in adds else None)
            for op in ops
        ),
        types,
        tuple(part for part in types if part + number in names.live_in),
        tuple(part for part in types if part + number in names.losses),
    )


def press(stamp: Stamp, of: Op, names: Names) -> list[Op]:
    """The ops of the same pass on the microbatch of `of`."""
    microbatch = of.microbatch
    number = str(microbatch)
    named = {part: part + number for part in stamp.types}
    names.types.update(zip(named.values(), stamp.types.values(), strict=True))
    names.live_in.update([named[part] for part in stamp.fed])
    names.losses.update([named[part] for part in stamp.losses])
    ops = []
    for op, inputs, writes, segment in stamp.ops:
        given = tuple([named.get(part, part) for part in inputs])
        made = tuple([named.get(part, part) for part in writes])
        if segment is not None:
            so_far, written = names.accumulate(of, segment)
            given, made = given + so_far, made + written
        ops.append(stamped(op, microbatch, given, made, of.pair if op.kind in PASS_KINDS else -1))
    return ops
