"""Where several ranks of a pipeline hold the same weights, their gradients are summed before the step.

DualPipe keeps each stage twice; embeddings that are tied to the classifier live on the first and on the last stage. In
both cases a rank has found the gradient of its own uses only, and a copy that steps on that alone drifts away from the
other. So the ranks send each other what they have and all add it up *in the same order*: the copies stay equal to the
last bit.

The sum comes after that over data-parallel replicas. The other way round the replicas of either stage would add in an
order of their own (a ring begins each chunk at another rank), and the copies would differ in their last digits.
"""

from dataclasses import replace

from pdlab.mesh import Axis
from pdlab.ops import Kind, Op, Value
from pdlab.program import Program, RankProgram, Type


def sum_copies(program: Program) -> Program:
    """Add up the gradients of every group of weights that more than one rank of a pipeline steps. Sends and receives
    are for `insert_messages`."""
    ranks = list(program.ranks)
    for rank in range(program.mesh.size):
        line = program.mesh.group(rank, Axis.PP)
        if line[0] == rank and len(line) > 1:
            for group, holders in _shared(ranks, line).items():
                _check_once(program, group, holders)
                own = {r: f"{group}.g/rank{program.mesh.coordinates[r][Axis.PP]}" for r in holders}
                for r, finals in holders.items():
                    ranks[r] = _summed(ranks[r], finals[0], own, own[r])
    return program.with_ranks(ranks)


def _shared(ranks: list[RankProgram], line: tuple[int, ...]) -> dict[str, dict[int, list[Value]]]:
    """The groups that several ranks step, and the gradients that these steps read."""
    steps: dict[str, dict[int, list[Value]]] = {}
    for r in line:
        types = ranks[r].types
        for op in ranks[r].ops:
            if op.kind is Kind.STEP:
                steps.setdefault(types[op.inputs[0]].of, {}).setdefault(r, []).append(op.inputs[1])
    return {group: holders for group, holders in steps.items() if len(holders) > 1}


def _check_once(program: Program, group: str, holders: dict[int, list[Value]]) -> None:
    for r, finals in holders.items():
        if len(finals) > 1:
            raise ValueError(
                f"{program.name}: rank {r} steps {group} {len(finals)} times, and {len(holders)} ranks hold it; copies "
                "are kept equal for one step at the end, so give the weights one rank or take a schedule that flushes"
            )


def _summed(rank: RankProgram, gradient: Value, own: dict[int, Value], mine: Value) -> RankProgram:
    """A rank that calls its own gradient `mine`, and steps on the sum."""
    position = next(i for i, op in enumerate(rank.ops) if op.kind is Kind.STEP and gradient in op.inputs)
    types: dict[Value, Type] = dict(rank.types)
    made = types.pop(gradient)
    types |= dict.fromkeys(own.values(), made)
    ops = [_renamed(op, gradient, mine) for op in rank.ops]
    sums, total = [], next(iter(own.values()))
    for value in list(own.values())[1:]:
        following = f"{value}.sum"
        types[following] = made
        sums.append(Op(Kind.ADD, ops[position].stage, inputs=(total, value), writes=(following,)))
        total = following
    ops[position] = _renamed(ops[position], mine, total)
    return replace(rank, ops=(*ops[:position], *sums, *ops[position:]), types=types)


def _renamed(op: Op, old: Value, new: Value) -> Op:
    if old not in op.inputs and old not in op.writes:
        return op
    swap = {old: new}
    return op._replace(
        inputs=tuple(swap.get(value, value) for value in op.inputs),
        writes=tuple(swap.get(value, value) for value in op.writes),
    )
