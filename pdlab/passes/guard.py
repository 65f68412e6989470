"""Mixed precision's loss scaling: step only where every gradient on every rank is finite.

The decision is data, and a program does not branch, so it becomes a flag: each rank checks its own gradients, the
flags are and-ed over all axes, and the step is guarded by the result (Micikevicius et al. 2018, arXiv:1710.03740,
section 3.2).
"""

from dataclasses import replace

from pdlab.mesh import PARTIAL, REPLICATED, Mesh
from pdlab.ops import Kind, Op
from pdlab.program import Program, RankProgram, Role, Type

FLAG, SCALE = "finite", "loss_scale"


def guard_steps(program: Program) -> Program:
    """Guard every step of the program by one flag, and let the steps divide the gradients by the loss scale."""
    return program.with_ranks([_guard(rank, program.mesh) for rank in program.ranks])


def _guard(rank: RankProgram, mesh: Mesh) -> RankProgram:
    """The check comes after every gradient is there: between the steps may stand sums of copies."""
    axes = [axis for axis, degree in mesh.degrees if degree > 1]
    first_step = next(i for i, op in enumerate(rank.ops) if op.kind is Kind.STEP)
    gradients = tuple(op.inputs[1] for op in rank.ops if op.kind is Kind.STEP)
    layout = REPLICATED
    for axis in axes:
        layout = layout.put(axis, PARTIAL)
    flag, checks = FLAG, [Op(Kind.FINITE, inputs=gradients, writes=(FLAG,))]
    types = {**rank.types, FLAG: Type(Role.FLAG, 1, layout), SCALE: Type(Role.SCALE, 8)}
    for axis in axes:
        layout = layout.put(axis, None)
        checks.append(Op(Kind.ALL_REDUCE, inputs=(flag,), writes=(f"{flag}.{axis.value}",), axis=axis))
        flag = f"{flag}.{axis.value}"
        types[flag] = Type(Role.FLAG, 1, layout)
    between = [op for op in rank.ops[first_step:] if op.kind is not Kind.STEP]
    steps = [op._replace(guard=flag, inputs=(*op.inputs, SCALE)) for op in rank.ops if op.kind is Kind.STEP]
    ops = (*rank.ops[:first_step], *between, *checks, *steps)
    return replace(rank, ops=ops, types=types, live_in=rank.live_in | {SCALE}, live_out=rank.live_out | {flag})
