"""The one dependency rule, compiled once into integers.

An op may start when it is at the head of its stream, everything it reads or consumes has been written, and all
earlier readers of what it consumes have finished. A communication op is one joint event of its members. The
validator, the simulator, the executor and the plots all read this graph; nobody states the rule a second time.

A *row* is one op of one rank, numbered rank by rank in list order. An *event* is a row, or the rows that communicate
together.
"""

from dataclasses import dataclass, field

from pdlab.mesh import Mesh
from pdlab.ops import COLLECTIVE_KINDS, Kind, Op, Stream, Value, label, payload
from pdlab.program import Program, RankProgram


class ProgramError(ValueError):
    """A program that cannot run. `cells` are the (rank, position) of the ops at fault."""

    def __init__(self, message: str, cells: tuple[tuple[int, int], ...] = ()) -> None:
        super().__init__(message)
        self.cells = cells


@dataclass(frozen=True)
class Graph:
    """What waits for what. `waits[row]` are rows of the same rank; `previous[row]` is the row before it in its
    stream, or -1."""

    program: Program
    ops: list[Op]
    rank_of: list[int]
    first_row: list[int]
    waits: list[list[int]]
    previous: list[int]
    event_of: list[int]
    members: list[tuple[int, ...]]

    def cell(self, row: int) -> tuple[int, int]:
        rank = self.rank_of[row]
        return rank, row - self.first_row[rank]

    def describe(self, row: int) -> str:
        rank, position = self.cell(row)
        return f"rank {rank}, op {position} ({label(self.ops[row])})"


def build(program: Program) -> Graph:
    """Compile a program. Raises `ProgramError` for a value read before it is written, written twice or used after its
    end, and for a message or collective without its counterpart."""
    graph = Graph(program, [], [], [], [], [], [], [])
    for r, rank in enumerate(program.ranks):
        graph.first_row.append(len(graph.ops))
        _add_rank(graph, r, rank)
    _join(graph)
    return graph


@dataclass
class _Life:
    """How far a value has come on one rank."""

    writer: int
    readers: list[int] = field(default_factory=list)
    end: int = -1


def _add_rank(graph: Graph, r: int, rank: RankProgram) -> None:
    values = {value: _Life(-1) for value in rank.live_in}
    heads: dict[Stream, int] = {}
    for position, op in enumerate(rank.ops):
        row = len(graph.ops)
        waits = []
        for value in _once(graph, r, position, op):
            life = values.get(value)
            if life is None or life.end >= 0:
                _bad_use(graph, r, position, op, value, life)
            elif life.writer >= 0:
                waits.append(life.writer)
            if life and value in op.consumes:
                waits += life.readers
                life.end = row
            elif life:
                life.readers.append(row)
        for value in op.writes:
            if value in values:
                other = values[value].writer
                by = f"op {other - graph.first_row[r]} ({graph.ops[other]})" if other >= 0 else "the start (live_in)"
                raise ProgramError(
                    f"rank {r}, op {position} ({op}) writes {value!r}, which {by} has written already; "
                    "a value is written once: give the second one another name",
                    ((r, position),),
                )
            values[value] = _Life(row)
        graph.ops.append(op)
        graph.rank_of.append(r)
        graph.previous.append(heads.get(op.stream, -1))
        heads[op.stream] = row
        graph.waits.append(sorted(set(waits)))


def _once(graph: Graph, r: int, position: int, op: Op) -> tuple[Value, ...]:
    """The operands of an op, each named only once."""
    for values, verb in ((op.operands, "is given"), (op.writes, "writes")):
        if len(set(values)) < len(values):
            twice = next(value for value in values if values.count(value) > 1)
            raise ProgramError(
                f"rank {r}, op {position} ({op}) {verb} {twice!r} twice; give the second one another name",
                ((r, position),),
            )
    return op.operands


def _bad_use(graph: Graph, r: int, position: int, op: Op, value: Value, life: _Life | None) -> None:
    where = f"rank {r}, op {position} ({op})"
    if life is None:
        raise ProgramError(
            f"{where} reads {value!r} before anything writes it; "
            "put the op that writes it (or the receive) earlier in this rank's list",
            ((r, position),),
        )
    end = life.end - graph.first_row[r]
    again = "consumes" if value in op.consumes else "reads"
    raise ProgramError(
        f"{where} {again} {value!r}, which op {end} ({graph.ops[life.end]}) has consumed; "
        "a value is consumed once, by its last reader",
        ((r, end), (r, position)),
    )


def _join(graph: Graph) -> None:
    """Number the events: match the k-th send with the k-th receive, and the k-th collectives of a group."""
    waiting: dict[tuple[object, ...], list[int]] = {}
    turn: dict[tuple[object, ...], int] = {}
    mesh = graph.program.mesh
    graph.event_of.extend([-1] * len(graph.ops))
    for row, op in enumerate(graph.ops):
        rank = graph.rank_of[row]
        channel = _channel(mesh, rank, op)
        if channel is None:
            graph.event_of[row] = len(graph.members)
            graph.members.append((row,))
            continue
        side = (*channel, rank)
        key = (*channel, turn.setdefault(side, 0))
        turn[side] += 1
        waiting.setdefault(key, []).append(row)
        if len(waiting[key]) == channel[-1]:
            _match(graph, waiting.pop(key))
    for rows in waiting.values():
        _unmatched(graph, rows)


def _channel(mesh: Mesh, rank: int, op: Op) -> tuple[object, ...] | None:
    """What identifies the counterpart of a communication op; the last entry is the number of members."""
    if op.kind is Kind.SEND:
        return ("p2p", rank, op.peer, 2)
    if op.kind is Kind.RECV:
        return ("p2p", op.peer, rank, 2)
    if op.kind in COLLECTIVE_KINDS:
        if op.axis is None:
            raise ProgramError(f"rank {rank}: {op} names no axis; a collective says which group it is of")
        members = mesh.group(rank, op.axis)
        return ("group", op.axis, members, len(members))
    return None


def _match(graph: Graph, rows: list[int]) -> None:
    """One event of several rows. They must agree on what they do: the same collective, the same message."""
    first = graph.ops[rows[0]]
    for row in rows[1:]:
        op = graph.ops[row]
        message = first.kind in (Kind.SEND, Kind.RECV)
        same = {op.kind, first.kind} == {Kind.SEND, Kind.RECV} if message else op.kind is first.kind
        carried = {payload(x.inputs if x.kind is Kind.SEND else x.writes)[:1] for x in (op, first)}
        if not same or (len(carried) > 1 if message else len(op.writes) != len(first.writes)):
            raise ProgramError(
                f"{graph.describe(rows[0])} meets {graph.describe(row)}; both sides of a communication must name "
                "the same operation and value, in the same order on every member",
                tuple(graph.cell(x) for x in rows),
            )
    for row in rows:
        graph.event_of[row] = len(graph.members)
    graph.members.append(tuple(rows))


def _unmatched(graph: Graph, rows: list[int]) -> None:
    op, rank = graph.ops[rows[0]], graph.rank_of[rows[0]]
    if op.kind in COLLECTIVE_KINDS and op.axis is not None:
        here = {graph.rank_of[row] for row in rows}
        absent = [r for r in graph.program.mesh.group(rank, op.axis) if r not in here]
        missing = f"rank{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent))} never joins it"
    else:
        other, value = ("RECV", op.inputs[0]) if op.kind is Kind.SEND else ("SEND", op.writes[0])
        missing = f"rank {op.peer} has no matching {other} of {value!r}"
    raise ProgramError(
        f"{graph.describe(rows[0])} has no counterpart: {missing}; add it there or remove it here",
        tuple(graph.cell(row) for row in rows),
    )
