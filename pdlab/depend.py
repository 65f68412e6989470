"""The one dependency rule, compiled once into integers.

An op may start when it is at the head of its stream, everything it reads or consumes has been written, and all
earlier readers of what it consumes have finished. A communication op is one joint event of its members. The
validator, the simulator, the executor and the plots all read this graph; nobody states the rule a second time.

A *row* is one op of one rank, numbered rank by rank in list order. An *event* is a row, or the rows that communicate
together.
"""

from collections import deque
from dataclasses import dataclass, field

from pdlab.mesh import Mesh
from pdlab.ops import COLLECTIVE_KINDS, P2P_KINDS, Kind, Op, Stream, Value, label, payload
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
class _Values:
    """How far the values of one rank have come: who wrote them (-1: there from the start), has read them, has consumed
    them."""

    writer: dict[Value, int]
    readers: dict[Value, list[int]] = field(default_factory=dict)
    end: dict[Value, int] = field(default_factory=dict)


def _add_rank(graph: Graph, r: int, rank: RankProgram) -> None:
    values = _Values(dict.fromkeys(rank.live_in, -1))
    heads: dict[Stream, int] = {}
    for position, op in enumerate(rank.ops):
        row = len(graph.ops)
        waits = _awaited(graph, r, position, op, values)
        _once(r, position, op, op.writes, "writes")
        for value in op.writes:
            if value in values.writer:
                raise _written_twice(graph, r, position, op, value, values.writer[value])
            values.writer[value] = row
        graph.ops.append(op)
        graph.rank_of.append(r)
        graph.previous.append(heads.get(op.stream, -1))
        heads[op.stream] = row
        graph.waits.append(waits if len(waits) < 2 else sorted(set(waits)))


def _awaited(graph: Graph, r: int, position: int, op: Op, values: _Values) -> list[int]:
    """The rows that an op waits for by what it reads and consumes."""
    row, waits = len(graph.ops), []
    writer, readers, end = values.writer, values.readers, values.end
    operands = op.operands
    _once(r, position, op, operands, "is given")
    for value in operands:
        made = writer.get(value)
        if made is None or value in end:
            raise _bad_use(graph, r, position, op, value, end.get(value))
        if made >= 0:
            waits.append(made)
        if value in op.consumes:
            waits += readers.pop(value, ())
            end[value] = row
        elif value in readers:
            readers[value].append(row)
        else:
            readers[value] = [row]
    return waits


def _once(r: int, position: int, op: Op, values: tuple[Value, ...], verb: str) -> None:
    """Each value is named only once among the operands of an op."""
    if len(values) > 1 and len(set(values)) < len(values):
        twice = next(value for value in values if values.count(value) > 1)
        raise ProgramError(
            f"rank {r}, op {position} ({op}) {verb} {twice!r} twice; give the second one another name",
            ((r, position),),
        )


def _written_twice(graph: Graph, r: int, position: int, op: Op, value: Value, other: int) -> ProgramError:
    by = f"op {other - graph.first_row[r]} ({graph.ops[other]})" if other >= 0 else "the start (live_in)"
    return ProgramError(
        f"rank {r}, op {position} ({op}) writes {value!r}, which {by} has written already; "
        "a value is written once: give the second one another name",
        ((r, position),),
    )


def _bad_use(graph: Graph, r: int, position: int, op: Op, value: Value, end: int | None) -> ProgramError:
    where = f"rank {r}, op {position} ({op})"
    if end is None:
        return ProgramError(
            f"{where} reads {value!r} before anything writes it; "
            "put the op that writes it (or the receive) earlier in this rank's list",
            ((r, position),),
        )
    last = end - graph.first_row[r]
    again = "consumes" if value in op.consumes else "reads"
    return ProgramError(
        f"{where} {again} {value!r}, which op {last} ({graph.ops[end]}) has consumed; "
        "a value is consumed once, by its last reader",
        ((r, last), (r, position)),
    )


def _join(graph: Graph) -> None:
    """Number the events: match the k-th send with the k-th receive, and the k-th collectives of a group."""
    waiting: dict[tuple[object, ...], list[int]] = {}
    turn: dict[tuple[object, ...], int] = {}
    open_ends: dict[tuple[int, int, Kind], deque[int]] = {}
    mesh = graph.program.mesh
    graph.event_of.extend([-1] * len(graph.ops))
    for row, op in enumerate(graph.ops):
        if op.kind in P2P_KINDS:
            _pair_up(graph, row, op, open_ends)
        elif op.kind in COLLECTIVE_KINDS:
            channel = _channel(mesh, graph.rank_of[row], op)
            side = (*channel, graph.rank_of[row])
            key = (*channel, turn.setdefault(side, 0))
            turn[side] += 1
            waiting.setdefault(key, []).append(row)
            if len(waiting[key]) == channel[-1]:
                _match(graph, waiting.pop(key))
        else:
            graph.event_of[row] = len(graph.members)
            graph.members.append((row,))
    for rows in waiting.values():
        _unmatched(graph, rows)
    for ends in open_ends.values():
        for row in ends:
            _unmatched(graph, [row])


def _pair_up(graph: Graph, row: int, op: Op, open_ends: dict[tuple[int, int, Kind], deque[int]]) -> None:
    """Match a message's side with the first of the other side that is still alone, or let it wait."""
    rank = graph.rank_of[row]
    ends = (rank, op.peer) if op.kind is Kind.SEND else (op.peer, rank)
    other = Kind.RECV if op.kind is Kind.SEND else Kind.SEND
    partners = open_ends.get((*ends, other))
    if partners:
        _match(graph, [partners.popleft(), row])
    else:
        open_ends.setdefault((*ends, op.kind), deque()).append(row)


def _channel(mesh: Mesh, rank: int, op: Op) -> tuple[object, ...]:
    """What identifies the counterparts of a collective; the last entry is the number of members."""
    if op.axis is None:
        raise ProgramError(f"rank {rank}: {op} names no axis; a collective says which group it is of")
    members = mesh.group(rank, op.axis)
    return ("group", op.axis, members, len(members))


def _match(graph: Graph, rows: list[int]) -> None:
    """One event of several rows. They must agree on what they do: the same collective, the same message."""
    first = graph.ops[rows[0]]
    for row in rows[1:]:
        if not _agree(first, graph.ops[row]):
            raise ProgramError(
                f"{graph.describe(rows[0])} meets {graph.describe(row)}; both sides of a communication must name "
                "the same operation and value, in the same order on every member",
                tuple(graph.cell(x) for x in rows),
            )
    for row in rows:
        graph.event_of[row] = len(graph.members)
    graph.members.append(tuple(rows))


def _agree(first: Op, op: Op) -> bool:
    if first.kind in P2P_KINDS:
        send, receive = (first, op) if first.kind is Kind.SEND else (op, first)
        return send.inputs[:1] == receive.writes[:1] or payload(send.inputs)[:1] == payload(receive.writes)[:1]
    return op.kind is first.kind and len(op.writes) == len(first.writes)


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
