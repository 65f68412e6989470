"""Decide where each value ends: the last op that reads it consumes it, unless it is still wanted after the program.

This is the only place where frees come from. Weight stashing needs nothing more: a version lives until its last reader.
"""

from dataclasses import replace

from pdlab.ops import Value, consuming
from pdlab.program import Program, RankProgram


def consume_last_uses(program: Program) -> Program:
    """Recompute `consumes` of every op from the order of the list alone."""
    return program.with_ranks([_consume(rank) for rank in program.ranks])


def _consume(rank: RankProgram) -> RankProgram:
    wanted: set[Value] = set(rank.live_out)
    ops = []
    for op in reversed(rank.ops):
        operands = op.inputs if op.guard is None else op.operands
        ends = [value for value in operands if value not in wanted]
        if ends or op.consumes:
            wanted.update(ends)
            op = consuming(op, frozenset(ends))
        ops.append(op)
    ops.reverse()
    return replace(rank, ops=tuple(ops))
