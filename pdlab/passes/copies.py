"""Where several ranks of a pipeline hold the same weights, their gradients are summed before each step.

DualPipe keeps each stage twice; embeddings that are tied to the classifier live on the first and on the last stage;
PipeDream puts a slow stage on several ranks. In all three a rank has found the gradient of its own uses only, and a
copy that steps on that alone drifts away from the others. So the ranks send each other what they have and all add it
up *in the same order*: the copies stay equal to the last bit.

The sum comes after that over data-parallel replicas. The other way round the replicas of either stage would add in an
order of their own (a ring begins each chunk at another rank), and the copies would differ in their last digits.
"""

from dataclasses import replace
from functools import cached_property

from pdlab.mesh import Axis
from pdlab.ops import Kind, Op, Value
from pdlab.program import Program, RankProgram, Type


def sum_copies(program: Program) -> Program:
    """Add up the gradients of every group of weights that more than one rank of a pipeline steps, step by step. Sends
    and receives are for `insert_messages`."""
    ranks = list(program.ranks)
    for rank in range(program.mesh.size):
        line = program.mesh.group(rank, Axis.PP)
        if line[0] == rank and len(line) > 1:
            holders = {r: _Holder(ranks[r], program.mesh.coordinates[r][Axis.PP]) for r in line}
            for group, steps in _shared(holders).items():
                _check_steps(program, group, steps)
                for turn, joint in enumerate(zip(*steps.values(), strict=True)):
                    _share(group, turn, [(holders[r], op) for r, op in zip(steps, joint, strict=True)])
            for r, holder in holders.items():
                ranks[r] = holder.summed()
    return program.with_ranks(ranks)


class _Holder:
    """A rank of a pipeline: what it calls its own gradients when they are to be summed, and what each step sums."""

    def __init__(self, rank: RankProgram, place: int) -> None:
        self.rank, self.place = rank, place
        self.names: dict[Value, Value] = {}
        self.terms: dict[Value, dict[Value, Type]] = {}

    @cached_property
    def written(self) -> set[Value]:
        return {value for op in self.rank.ops for value in op.writes}

    def summed(self) -> RankProgram:
        if not self.terms:
            return self.rank
        types = {value: t for value, t in self.rank.types.items() if value not in self.terms}
        ops: list[Op] = []
        for op in self.rank.ops:
            if op.kind is Kind.STEP and op.inputs[1] in self.terms:
                gradient = op.inputs[1]
                total = self._add_up(op.stage, self.terms[gradient], ops, types)
                ops.append(op._replace(inputs=(op.inputs[0], total, *op.inputs[2:])))
            else:
                ops.append(_renamed(op, self.names))
        return replace(self.rank, ops=tuple(ops), types=types)

    def _add_up(self, stage: int, terms: dict[Value, Type], ops: list[Op], types: dict[Value, Type]) -> Value:
        types |= terms
        total, *others = terms
        for term in others:
            following = f"{term}.sum"
            types[following] = terms[term]
            ops.append(Op(Kind.ADD, stage, inputs=(total, term), writes=(following,)))
            total = following
        return total


def _shared(holders: dict[int, _Holder]) -> dict[str, dict[int, list[Op]]]:
    """The groups that several ranks step, and these steps."""
    steps: dict[str, dict[int, list[Op]]] = {}
    for r, holder in holders.items():
        for op in holder.rank.ops:
            if op.kind is Kind.STEP:
                steps.setdefault(holder.rank.types[op.inputs[0]].of, {}).setdefault(r, []).append(op)
    return {group: found for group, found in steps.items() if len(found) > 1}


def _check_steps(program: Program, group: str, steps: dict[int, list[Op]]) -> None:
    """Copies take the same steps. Where they are of different stages (tied weights), minibatches in flight between two
    steps would meet other versions at one end than at the other."""
    known, expected = next(iter(steps.items()))
    for r, found in steps.items():
        if [op.microbatch for op in found] != [op.microbatch for op in expected]:
            raise ValueError(
                f"{program.name}: ranks {known} and {r} hold {group} and step after {_after(expected)} and after "
                f"{_after(found)}; copies are kept equal by the same steps, so let both step after the same ones"
            )
        if found[0].stage != expected[0].stage and any(program.ranks[x].steps_in_flight for x in (known, r)):
            raise ValueError(
                f"{program.name}: {group} is on stage {expected[0].stage} of rank {known} and on stage "
                f"{found[0].stage} of rank {r}, which step while microbatches are in flight; give the weights one "
                "stage, or take a schedule that flushes"
            )


def _after(steps: list[Op]) -> str:
    """Which microbatches a rank steps after, in words."""
    if steps[0].microbatch < 0:
        return "all microbatches"
    return f"microbatches {', '.join(str(op.microbatch) for op in steps[:6])}{', ...' * (len(steps) > 6)}"


def _share(group: str, turn: int, steps: list[tuple[_Holder, Op]]) -> None:
    """One step of all holders: each that has found a gradient gives it a name of its own, and all sum the same."""
    terms = {}
    for holder, op in steps:
        if op.inputs[1] in holder.written:
            own = f"{group}.g{turn}/rank{holder.place}"
            holder.names[op.inputs[1]] = own
            terms[own] = holder.rank.types[op.inputs[1]]
    for holder, op in steps:
        holder.terms[op.inputs[1]] = terms


def _renamed(op: Op, names: dict[Value, Value]) -> Op:
    if names.keys().isdisjoint(op.inputs) and names.keys().isdisjoint(op.writes):
        return op
    return op._replace(
        inputs=tuple(names.get(value, value) for value in op.inputs),
        writes=tuple(names.get(value, value) for value in op.writes),
    )
