"""The form of each op by itself: a message has one value and a peer, a collective an axis, and every value a type.

The other rules rely on it, so it comes first. How many operands a pass has depends on its segment and is for `layouts`.
"""

from pdlab.depend import ProgramError
from pdlab.ops import COLLECTIVE_KINDS, Kind, Op, payload
from pdlab.program import Program

NUM_OPERANDS = {Kind.SEND: (1, 1, 0), Kind.RECV: (0, 0, 1), Kind.ADD: (2, 2, 1), Kind.STEP: (2, 4, 0)}
"""The least and the most inputs without tokens, and how many writes (0: as many as there are)."""


def check_shapes(program: Program) -> None:
    for rank, of_rank in enumerate(program.ranks):
        for position, op in enumerate(of_rank.ops):
            wrong = _wrong(program, rank, op)
            if wrong:
                raise ProgramError(f"rank {rank}, op {position} ({op}) {wrong}", ((rank, position),))


def _wrong(program: Program, rank: int, op: Op) -> str | None:
    if not op.consumes <= set(op.operands):
        extra = sorted(op.consumes - set(op.operands))
        return f"consumes {extra[0]!r}, which it does not read; name it among the inputs or leave it alone"
    if op.kind in COLLECTIVE_KINDS:
        return _wrong_collective(op)
    if op.kind in NUM_OPERANDS:
        least, most, num_writes = NUM_OPERANDS[op.kind]
        given, written = len(payload(op.inputs)), len(payload(op.writes))
        if not least <= given <= most or (num_writes and written != num_writes):
            takes = f"{least} to {most}" if least < most else f"{least}"
            return (
                f"has {given} inputs and {written} outputs; it takes {takes} inputs and {num_writes or 'some'} outputs"
            )
    if op.kind in (Kind.SEND, Kind.RECV) and (op.peer == rank or not 0 <= op.peer < program.mesh.size):
        return f"names rank {op.peer} as its peer; name another of the ranks 0 to {program.mesh.size - 1}"
    return None


def _wrong_collective(op: Op) -> str | None:
    given, written = len(payload(op.inputs)), len(payload(op.writes))
    if op.axis is None:
        return "names no mesh axis; a collective joins the ranks of one axis"
    if op.kind is Kind.ALL_REDUCE:
        return None if given == written > 0 else f"has {given} inputs and {written} outputs; each input has its sum"
    allowed = (1, 3) if op.kind is Kind.ALL_TO_ALL else (1,)
    if given not in allowed or written != 1:
        takes = " or ".join(map(str, allowed))
        return f"has {given} inputs and {written} outputs; it takes {takes} inputs and 1 output"
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
