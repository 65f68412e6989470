"""Insert the sends and receives between pipeline ranks: wherever a rank reads a value that another rank writes.

A send follows the op that writes the value. A receive comes before the first op that reads it, and receives from one
peer keep the order of the sends, since a channel delivers in order.
"""

from pdlab.mesh import Axis
from pdlab.ops import Kind, Op, Value
from pdlab.program import Program, RankProgram


def insert_messages(program: Program) -> Program:
    """Messages go between the ranks of one pipeline, that is, along the pp axis."""
    result = list(program.ranks)
    for rank in range(program.mesh.size):
        line = program.mesh.group(rank, Axis.PP)
        if line[0] == rank:
            for member, with_messages in zip(line, _connect(program, line), strict=True):
                result[member] = with_messages
    return program.with_ranks(result)


def _connect(program: Program, line: tuple[int, ...]) -> list[RankProgram]:
    home = _homes(program, line)
    sends: dict[tuple[int, int], list[Op]] = {}
    receives: dict[tuple[int, int], list[Op]] = {}
    for rank in line:
        first_use = _missing(program.ranks[rank])
        incoming: dict[int, list[tuple[int, int, Value]]] = {}
        for value, use in first_use.items():
            if value in home:
                source, position = home[value]
                incoming.setdefault(source, []).append((position, use, value))
        for source, messages in incoming.items():
            latest = len(program.ranks[rank].ops)
            for position, use, value in sorted(messages, reverse=True):
                latest = min(latest, use)
                receives.setdefault((rank, latest), []).insert(0, Op(Kind.RECV, writes=(value,), peer=source))
                sends.setdefault((source, position), []).insert(0, Op(Kind.SEND, inputs=(value,), peer=rank))
    return [_rebuild(program.ranks[rank], rank, sends, receives) for rank in line]


def _homes(program: Program, line: tuple[int, ...]) -> dict[Value, tuple[int, int]]:
    """For each value the rank that has it, and after which of its ops (-1: from the start)."""
    homes = {value: (rank, -1) for rank in line for value in program.ranks[rank].live_in}
    for rank in line:
        homes |= {value: (rank, i) for i, op in enumerate(program.ranks[rank].ops) for value in op.writes}
    return homes


def _missing(rank: RankProgram) -> dict[Value, int]:
    """Values that a rank reads but neither writes nor holds at the start, each with the position of its first
    reader."""
    written = {value for op in rank.ops for value in op.writes}
    missing: dict[Value, int] = {}
    for i, op in enumerate(rank.ops):
        for value in op.inputs:
            if value not in written and value not in rank.live_in:
                missing.setdefault(value, i)
    return missing


def _rebuild(
    program: RankProgram,
    rank: int,
    sends: dict[tuple[int, int], list[Op]],
    receives: dict[tuple[int, int], list[Op]],
) -> RankProgram:
    ops: list[Op] = [*sends.get((rank, -1), [])]
    for i, op in enumerate(program.ops):
        ops += receives.get((rank, i), [])
        ops.append(op)
        ops += sends.get((rank, i), [])
    return RankProgram(tuple(ops), program.types, program.live_in, program.live_out)
