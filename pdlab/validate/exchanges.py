"""What crosses between ranks: both sides agree on the type, and each collective turns one layout into another.

    ALL_REDUCE      partial -> replicated          ALL_GATHER   flat or shard  -> replicated
    REDUCE_SCATTER  partial -> flat or shard       ALL_TO_ALL   shard or local -> shard or local
    SPLIT           replicated -> shard (nothing moves)

A collective on an activation is one that the model asks for: one of its exchanges, forward or backward. Only cutting a
value and gathering its pieces is always allowed, since that changes nothing but where it lies.
"""

from pdlab.depend import Graph, ProgramError
from pdlab.mesh import DATA_AXES, Axis, Layout, Spread
from pdlab.ops import Kind, Op, payload
from pdlab.program import Program, Role, Type
from pdlab.validate.faults import fault, joint_fault, say, types_of
from pdlab.validate.needs import Exchanges, exchanges_of

TURNS: dict[Kind, tuple[tuple[Spread | None, ...], tuple[Spread | None, ...]]] = {
    Kind.ALL_REDUCE: ((Spread.PARTIAL,), (None,)),
    Kind.ALL_GATHER: ((Spread.FLAT, Spread.SHARD), (None,)),
    Kind.REDUCE_SCATTER: ((Spread.PARTIAL,), (Spread.FLAT, Spread.SHARD)),
    Kind.ALL_TO_ALL: ((Spread.SHARD, Spread.LOCAL), (Spread.SHARD, Spread.LOCAL)),
    Kind.SPLIT: ((None,), (Spread.SHARD,)),
}
"""What a collective takes and makes along its own axis; None is replicated."""

MOVES = frozenset({Kind.SPLIT, Kind.ALL_GATHER})
"""What leaves a value as it is, and only lays it out differently."""

ROW_ROLES = frozenset({Role.FEED, Role.ACTIVATION, Role.ACTIVATION_GRADIENT, Role.FACT, Role.LOSS})
"""Values with a row for each sample, or made of such: what the exchanges of a model move."""


def check_degrees(program: Program) -> None:
    """A model that is split for another number of ranks would run, and be wrong."""
    mesh, model = program.mesh, program.model
    made_for = {(Axis.TP, group.tp) for group in model.groups.values() if group.tp > 1}
    for (_, axis, *_), exchange in exchanges_of(model).items():
        sizes = [t.shape[0] for s in model.segments.values() for t in s.outputs if t.name in exchange.splits]
        made_for |= {(axis, size) for size in sizes}
    for axis, degree in sorted(made_for, key=str):
        if mesh.degree(axis) != degree:
            name, here = axis.value, mesh.degree(axis)
            raise ProgramError(
                f"model {program.model.name} is split for {name} {degree}, and the mesh has {name} {here}; "
                "make the model for the mesh"
            )


def check_message(graph: Graph, first: int, second: int) -> None:
    send, recv = (first, second) if graph.ops[first].kind is Kind.SEND else (second, first)
    value = graph.ops[send].inputs[0]
    given, taken = types_of(graph, send)[value], types_of(graph, recv)[value]
    if given.role in (Role.SAVED, Role.PENDING, Role.TOKEN):
        raise fault(graph, send, f"sends {value!r}, which is {given.role.value} and stays on its rank; do not send it")
    if given != taken:
        text = f"sends {value!r} as {_sized(given)} to {graph.describe(recv)}, which takes {_sized(taken)}"
        raise joint_fault(graph, (send, recv), f"{text}; both sides must give it one type")
    here, there = (graph.program.mesh.coordinates[graph.rank_of[row]] for row in (send, recv))
    for axis, place in given.layout.places:
        if here[axis] != there[axis]:
            text = f"sends {value!r}, which is {axis.value}:{place}, across {axis.value} to {graph.describe(recv)}"
            raise joint_fault(
                graph, (send, recv), f"{text}; what another {axis.value} rank holds of it is not this rank's"
            )


def check_collective(graph: Graph, rows: tuple[int, ...], allowed: Exchanges) -> None:
    """All members handle the same, and it is something that the collective can do."""
    for row in rows:
        check_member(graph, row, allowed)
    first = _side(graph, rows[0])
    for row in rows[1:]:
        other = _side(graph, row)
        if first != other:
            mine, theirs = next(((a, b) for a, b in zip(first, other, strict=False) if a != b), (first[-1], other[-1]))
            text = f"joins {_sized(mine)}, and {graph.describe(row)} joins {_sized(theirs)}"
            text += "; the members of a collective handle the same values in the same order"
            raise joint_fault(graph, (rows[0], row), text)


def _sized(t: Type) -> str:
    return f"{say(t)}, {t.size} bytes"


def _side(graph: Graph, row: int) -> list[Type]:
    """What all members must have in common. In an all-to-all each may have its own number of rows."""
    op, types = graph.ops[row], types_of(graph, row)
    found = [types[value] for value in (*payload(op.inputs), *payload(op.writes))]
    return [t._replace(size=0) for t in found] if op.kind is Kind.ALL_TO_ALL else found


def check_member(graph: Graph, row: int, allowed: Exchanges) -> None:
    """One member of a collective, or an op that cuts a value on its own: what it makes of what."""
    op, types = graph.ops[row], types_of(graph, row)
    given = [types[value] for value in payload(op.inputs)]
    made = [types[value] for value in payload(op.writes)]
    for i, (before, after) in enumerate(zip(given, made, strict=False)):
        _check_turn(graph, row, i, before, after)
    if given[0].role in ROW_ROLES and not (op.kind in MOVES and given[0].of == made[0].of):
        _check_exchange(graph, row, given, made, allowed)


def _check_turn(graph: Graph, row: int, i: int, before: Type, after: Type) -> None:
    op, mesh = graph.ops[row], graph.program.mesh
    assert op.axis is not None
    takes, makes = TURNS[op.kind]
    value, result = payload(op.inputs)[i], payload(op.writes)[i]
    if mesh.degree(op.axis) > 1:
        if _spread(before, op.axis) not in takes:
            text = f"takes {value!r}, which is {before.layout}, and over {op.axis.value} it takes {_names(takes)}"
            raise fault(graph, row, f"{text}; {_hint(before, op)}")
        if _spread(after, op.axis) not in makes:
            text = f"writes {result!r} as {after.layout}, and over {op.axis.value} it makes {_names(makes)}"
            raise fault(graph, row, f"{text}; correct its type")
    if after.role is not before.role or (before.role not in ROW_ROLES and after.of != before.of):
        raise fault(graph, row, f"makes {result!r} ({say(after)}) of {value!r} ({say(before)}); correct its type")
    if _beside(before, op.axis) != _beside(after, op.axis):
        text = f"makes {result!r}, {after.layout}, of {value!r}, {before.layout}"
        raise fault(graph, row, f"{text}; it changes the layout over {op.axis.value} only")
    if not _sizes_fit(op, before, after, mesh.degree(op.axis), graph.program.model.itemsize):
        text = f"makes {result!r} with {after.size} bytes of {value!r} with {before.size} bytes"
        raise fault(graph, row, f"{text} on {mesh.degree(op.axis)} ranks; correct their sizes")


def _spread(t: Type, axis: Axis) -> Spread | None:
    place = t.layout.at(axis)
    return place.spread if place else None


def _names(spreads: tuple[Spread | None, ...]) -> str:
    return " or ".join(spread.name.lower() if spread else "replicated" for spread in spreads)


def _hint(before: Type, op: Op) -> str:
    if op.kind is Kind.ALL_REDUCE and before.layout.at(op.axis or Axis.DP) is None:
        return "it is whole already, and summing it again would count it once per rank: remove the op"
    return "give it the value in that layout, or use the collective that fits"


def _beside(t: Type, axis: Axis) -> Layout:
    """The layout on the other axes; rows come and go along data axes, and there the model's own types count."""
    skip = (axis, *DATA_AXES) if t.role in ROW_ROLES else (axis,)
    return Layout(tuple((a, place) for a, place in t.layout.places if a not in skip))


def _sizes_fit(op: Op, before: Type, after: Type, members: int, itemsize: int) -> bool:
    """A flat piece is rounded up, so that all members have as much."""
    if not isinstance(before.size, int) or not isinstance(after.size, int):
        return True
    if op.kind is Kind.ALL_REDUCE:
        return before.size == after.size
    if op.kind is Kind.ALL_TO_ALL:
        return before.size == after.size
    piece, whole = (before.size, after.size) if op.kind is Kind.ALL_GATHER else (after.size, before.size)
    return 0 <= piece * members - whole < members * itemsize


def _check_exchange(graph: Graph, row: int, given: list[Type], made: list[Type], allowed: Exchanges) -> None:
    op = graph.ops[row]
    assert op.axis is not None
    prefix = "d." if given[0].role is Role.ACTIVATION_GRADIENT else ""
    exchange = allowed.get((op.kind, op.axis, f"{prefix}{given[0].of}", f"{prefix}{made[0].of}"))
    fits = exchange is not None and exchange.given.met_by(given[0]) and exchange.made.met_by(made[0])
    if exchange is None or not fits or tuple(t.of for t in given[1:]) != exchange.splits:
        said = f"turns {say(given[0])} into {say(made[0])}" + "".join(f", split by {t.of}" for t in given[1:])
        text = f"{said}; the model has no such exchange over {op.axis.value}"
        raise fault(graph, row, f"{text}: remove it, or correct the types")
