"""Cut a program in two between minibatches, where nothing flushes: what is in flight at the cut is `live_out` of the
first part.

Training without a flush is one endless program. To look at a loss, write a checkpoint or stop, it is cut, and the
second part goes on from the values that the first part left. Cut before `insert_messages`: a value that is made in
the first part and read in the second by another rank is then sent when the second part begins.
"""

from dataclasses import replace

from pdlab.mesh import Axis
from pdlab.ops import Kind, Op, Value
from pdlab.program import Program, RankProgram


def cut(program: Program, after: int) -> tuple[Program, Program]:
    """Two programs: every rank up to its last step on microbatch `after`, and the rest."""
    positions = [_position(rank.ops, after) for rank in program.ranks]
    parts = [(rank.ops[:at], rank.ops[at:]) for rank, at in zip(program.ranks, positions, strict=True)]
    had = [rank.live_in | _touched(first) for rank, (first, _) in zip(program.ranks, parts, strict=True)]
    firsts, seconds = [], []
    for r, (rank, (first, second)) in enumerate(zip(program.ranks, parts, strict=True)):
        unsent = {
            value
            for member in program.mesh.group(r, Axis.PP)
            for value in _touched(parts[member][1]) - had[member]
            if member != r
        }
        carried = had[r] & (_touched(second) | rank.live_out) | (rank.live_in | _written(first)) & unsent
        firsts.append(RankProgram(first, rank.types, rank.live_in, carried))
        seconds.append(RankProgram(second, rank.types, carried, rank.live_out))
    name = program.name
    return (
        replace(program, name=f"{name}, up to {after}", ranks=tuple(firsts)),
        replace(program, name=f"{name}, after {after}", ranks=tuple(seconds)),
    )


def _position(ops: tuple[Op, ...], after: int) -> int:
    steps = [i for i, op in enumerate(ops) if op.kind is Kind.STEP and op.microbatch == after]
    if not steps:
        raise ValueError(
            f"no step on microbatch {after}: only a program that steps on each microbatch can be cut there"
        )
    return steps[-1] + 1


def _touched(ops: tuple[Op, ...]) -> set[Value]:
    return {value for op in ops for value in op.operands} | _written(ops)


def _written(ops: tuple[Op, ...]) -> set[Value]:
    return {value for op in ops for value in op.writes}
