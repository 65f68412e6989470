"""How long a minibatch takes once the pipeline is full: what a training without flush is chosen for.

Its makespan says little, since a program of a few minibatches is mostly the way in and the way out.
"""

from collections import Counter
from itertools import pairwise, takewhile
from math import lcm
from statistics import mean

from pdlab.ops import BACKWARD_KINDS, COMPUTE, Kind, Op
from pdlab.program import Program
from pdlab.trace import Trace


def seconds_per_minibatch(trace: Trace) -> float | None:
    """The mean over the rounds of the steady state. None where the program is too short for a round."""
    rounds = steady_rounds(trace)
    return mean(rounds) if rounds else None


def steady_rounds(trace: Trace) -> list[float]:
    """Seconds per minibatch of each round, from when each replica of a stage has ended one until the pipeline drains.
    After a round everything happens again, so in a simulation all rounds take as long."""
    program, ends = trace.program, _ends(trace)
    first, of_round = _replicas(program) - 1, _round(program)
    last = min((_first_of_the_drain(rank.ops) for rank in program.ranks), default=0)
    return [(ends[end] - ends[begin]) / of_round for begin, end in pairwise(range(first, last + 1, of_round))]


def _ends(trace: Trace) -> list[float]:
    """When each minibatch was through: the end of the last op that names it, its step included."""
    ends = [0.0] * trace.program.num_microbatches
    for (_, op), end in zip(trace.rows(), trace.ends, strict=True):
        if op.stream == COMPUTE and op.microbatch >= 0:
            ends[op.microbatch] = max(ends[op.microbatch], end)
    return ends


def _replicas(program: Program) -> int:
    """How many ranks take turns at a stage, or the least common multiple where stages differ."""
    most: dict[int, int] = {}
    for rank in program.ranks:
        forwards = {(op.stage, op.microbatch) for op in rank.ops if op.kind is Kind.FORWARD}
        for stage, num in Counter(stage for stage, _ in forwards).items():
            most[stage] = max(num, most.get(stage, 0))
    return lcm(*(-(-program.num_microbatches // num) for num in most.values()))


def _round(program: Program) -> int:
    """After how many minibatches everything happens again: an update on every stage, and, where several minibatches are
    under way during an update, so many. (Where messages take time they wait for each other.)"""
    updates = lcm(*(_update(rank.ops, program.num_microbatches) for rank in program.ranks))
    if not any(rank.steps_in_flight for rank in program.ranks):
        return updates
    ahead: dict[int, set[int]] = {}
    for rank in program.ranks:
        before = takewhile(lambda op: op.kind not in BACKWARD_KINDS, rank.ops)
        for op in (op for op in before if op.kind is Kind.FORWARD):
            ahead.setdefault(op.stage, set()).add(op.microbatch)
    return lcm(updates, max(map(len, ahead.values())))


def _update(ops: tuple[Op, ...], num_minibatches: int) -> int:
    """How many minibatches an update of a rank's weights takes."""
    steps = sorted({op.microbatch for op in ops if op.kind is Kind.STEP})
    return steps[1] - steps[0] if len(steps) > 1 else num_minibatches


def _first_of_the_drain(ops: tuple[Op, ...]) -> int:
    """The minibatch whose backward is the first after the last forward of a rank; those after it go faster."""
    last = max((i for i, op in enumerate(ops) if op.kind is Kind.FORWARD), default=0)
    return next((op.microbatch for op in ops[last:] if op.kind in BACKWARD_KINDS), 0)
