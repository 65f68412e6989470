"""Stop in the middle of a stream: nothing new goes in, what is in flight comes out, every minibatch counts once.

A pipeline that never flushes has minibatches under way whenever it is stopped. To throw them away would lose work; to
go on is not to stop. So it drains: the program up to the last step that was wanted, and one that lets out what the
first had let in. What is in flight between the two (tapes, activations, stashed versions) is what the first leaves and
the second begins with.
"""

from dataclasses import replace

from pdlab.models.model import Model
from pdlab.ops import Kind
from pdlab.passes import cut
from pdlab.program import Program
from pdlab.strategies.catalog import Schedule, Strategy, connected, unconnected
from pdlab.strategies.plan import Plan


def stopped(strategy: Strategy, plan: Plan, model: Model, after: int) -> tuple[Program, Program]:
    """The stream of `plan`, stopped when every stage has stepped on minibatch `after`: what runs until then, and the
    drain, to be run one after the other (`ranks.run(stopped(...), batch)`) on a batch of as many samples as
    `programs[0].batch` says, for the minibatches that had gone in. ValueError where no step is taken on `after`."""
    if type(after) is not int:
        raise ValueError(f"after is {after!r}; give the number of a minibatch")
    plan = strategy.chosen(plan)
    schedule = strategy.schedule(plan)
    known = sorted(set.intersection(*({op.microbatch for op in ops if op.kind is Kind.STEP} for ops in schedule)))
    if known == [-1]:
        raise ValueError(f"{strategy.name} steps once, at its end; there is nothing to stop")
    if after not in known:
        on = ", ".join(map(str, known[:8])) + (", ..." if len(known) > 8 else "")
        raise ValueError(f"{strategy.name} takes no step on minibatch {after!r} on every stage; stop after one of {on}")
    entered = _entered(schedule, after)
    shorter = replace(plan, microbatches=entered, batch=sum(sum(rows[:entered]) for rows in plan.rows))
    first, rest = cut(unconnected(strategy, shorter, model), after)
    return connected(first), connected(rest)


def _entered(schedule: Schedule, after: int) -> int:
    """How many minibatches have gone forward anywhere when all stages have stepped on `after`."""
    last = 0
    for ops in schedule:
        for op in ops:
            if op.kind is Kind.FORWARD:
                last = max(last, op.microbatch)
            if op.kind is Kind.STEP and op.microbatch == after:
                break
    return last + 1
