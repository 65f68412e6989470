"""The form of each op by itself: a message has one value and a peer, a collective an axis, and every value a type.

The other rules rely on it, so it comes first. How many operands a pass has depends on its segment and is for `layouts`.
"""

from math import inf

from pdlab.depend import ProgramError
from pdlab.ops import COLLECTIVE_KINDS, P2P_KINDS, PASS_KINDS, TOKEN, Kind, Op, Value, payload
from pdlab.program import Program

NUM_OPERANDS = {
    Kind.SEND: ((1, 1), (0, 0)),
    Kind.RECV: ((0, 0), (1, 1)),
    Kind.ALL_REDUCE: ((1, inf), (1, inf)),
    Kind.ALL_GATHER: ((1, 1), (1, 1)),
    Kind.REDUCE_SCATTER: ((1, 1), (1, 1)),
    Kind.ALL_TO_ALL: ((1, 3), (1, 1)),
    Kind.STEP: ((2, 4), (1, 2)),
    Kind.ADD: ((2, 2), (1, 1)),
    Kind.FINITE: ((1, inf), (1, 1)),
    Kind.FREE: ((1, inf), (0, 0)),
    Kind.SPLIT: ((1, 1), (1, 1)),
}
"""The least and the most values, tokens apart, that an op reads and writes."""


def check_shapes(program: Program) -> None:
    for rank, of_rank in enumerate(program.ranks):
        for position, op in enumerate(of_rank.ops):
            values = payload(op.inputs), payload(op.writes)
            wrong = _wrong_names(op, *values) or _wrong_numbers(op, *map(len, values))
            wrong = wrong or _wrong_partner(program, rank, op)
            if wrong:
                raise ProgramError(f"rank {rank}, op {position} ({op}) {wrong}", ((rank, position),))


def _wrong_names(op: Op, given: tuple[Value, ...], written: tuple[Value, ...]) -> str | None:
    if not op.consumes.issubset(op.operands):
        extra = sorted(op.consumes.difference(op.operands))
        return f"consumes {extra[0]!r}, which it does not read; name it among the inputs or leave it alone"
    every = (*op.operands, *op.writes)
    if len(set(every)) < len(every):
        twice = next(value for value in every if every.count(value) > 1)
        return f"names {twice!r} twice; an op names each value once, and what it changes gets a new name"
    if op.inputs[: len(given)] != given or op.writes[: len(written)] != written:
        return f"has a value after a token; put what begins with {TOKEN!r} last"
    return None


def _wrong_numbers(op: Op, given: int, written: int) -> str | None:
    if op.kind in PASS_KINDS:
        return None
    (least, most), (least_written, most_written) = NUM_OPERANDS[op.kind]
    if op.kind is Kind.ALL_REDUCE and given != written:
        return f"reads {given} values and writes {written}; it writes one sum for each value"
    if least <= given <= most and least_written <= written <= most_written:
        return None
    takes = f"it reads {_between(least, most)} and writes {_between(least_written, most_written)}"
    return f"reads {given} values and writes {written}; {takes}"


def _between(least: float, most: float) -> str:
    return f"{least}" if least == most else f"at least {least}" if most == inf else f"{least} to {most}"


def _wrong_partner(program: Program, rank: int, op: Op) -> str | None:
    last = program.mesh.size - 1
    if op.kind in P2P_KINDS and (op.peer == rank or not 0 <= op.peer <= last):
        return f"names rank {op.peer} as its peer; name another of the ranks 0 to {last}"
    if (op.kind in COLLECTIVE_KINDS or op.kind is Kind.SPLIT) and op.axis is None:
        return "names no mesh axis; what it moves or cuts lies along the ranks of one axis"
    return None


def check_types(program: Program) -> None:
    """Every value that is held or named has a type, by which the other rules, memory and messages know what it is."""
    for rank, of_rank in enumerate(program.ranks):
        types, what = of_rank.types, f"has no type; add it to the types of rank {rank}"
        for value in sorted(of_rank.live_in):
            if value not in types:
                raise ProgramError(f"rank {rank} starts with {value!r}, which {what}")
        for position, op in enumerate(of_rank.ops):
            for value in (*op.operands, *op.writes):
                if value not in types:
                    message = f"rank {rank}, op {position} ({op}) names {value!r}, which {what}"
                    raise ProgramError(message, ((rank, position),))
