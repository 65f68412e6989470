"""PipeDream: a pipeline that never flushes. Every minibatch updates the weights, and several are in flight.

A minibatch that goes forward through stage s of p comes back p - 1 - s updates later. What its backward then meets is
all that tells these schedules apart:

    pipedream_naive           the newest weights: not those of its forward, so what it finds is no gradient
    pipedream                 weight stashing: the weights of its forward, other ones on every stage
    pipedream_vertical_sync   the weights that were newest on stage 0 when it came in, the same on every stage
    pipedream_2bw             the weights before the newest, the same on every stage; an update has m >= p microbatches
    pipedream_flush           the newest weights, since nothing is in flight during an update: 1F1B

(Harlap et al. 2018, arXiv:1806.03377, section 3.3; Narayanan et al. 2021, arXiv:2006.09503, section 3.) So a variant is
the order of ops and the version that each names. No op frees anything: a version lives until its last reader, and what
lives besides the newest one is the stash.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm

from pdlab.named import colons
from pdlab.ops import STEP, B, F, Kind, Op
from pdlab.strategies.pipeline import one_f_one_b


@dataclass(frozen=True)
class Replica:
    """One of the ranks of a stage: `turn` counts those of the same stage, `replicas` how many each stage has."""

    stage: int
    turn: int
    replicas: tuple[int, ...]

    @property
    def count(self) -> int:
        """The replicas of its stage; a round is one minibatch for each."""
        return self.replicas[self.stage]

    @property
    def warm_up(self) -> int:
        """Forwards before it begins to alternate forward and backward: p - 1 - s where no stage is replicated."""
        return (sum(self.replicas[self.stage :]) - 1) // self.count


def replicas_of(replicas: tuple[int, ...]) -> list[Replica]:
    """By rank, those of stage 0 first."""
    return [Replica(stage, turn, replicas) for stage, count in enumerate(replicas) for turn in range(count)]


def pipedream(replica: Replica, num_minibatches: int) -> Iterator[Op]:
    """1F1B over minibatches, a step after each backward. A backward meets the weights of its forward if nothing else is
    said.

    rank 0  |F0|F1|  |B0 |F2|B1 |F3|B2 |...      F2 is the first to see an update
    rank 1     |F0|B0 |F1|B1 |F2|B2 |...         F1 sees one already

    On a stage with k replicas minibatch i belongs to replica i mod k (1F1B-RR), and a step takes the mean of a round:
    one minibatch from each replica, or those that are left in the last. All replicas take every step.
    """
    mine = range(replica.turn, num_minibatches, replica.count)
    warm_up = min(replica.warm_up, len(mine))
    for i in mine[:warm_up]:
        yield F(replica.stage, i)
    for turn, start in enumerate(range(0, num_minibatches, replica.count)):
        if turn + warm_up < len(mine):
            yield F(replica.stage, mine[turn + warm_up])
        if turn < len(mine):
            yield B(replica.stage, mine[turn])
        yield STEP(replica.stage, min(start + replica.count, num_minibatches) - 1)


def pipedream_naive(replica: Replica, num_minibatches: int) -> Iterator[Op]:
    """One copy of the weights: a backward meets whatever they are by then."""
    steps = 0
    for op in pipedream(replica, num_minibatches):
        steps += op.kind is Kind.STEP
        yield op._replace(version=steps) if op.kind is Kind.BACKWARD else op


def pipedream_vertical_sync(replica: Replica, num_minibatches: int) -> Iterator[Op]:
    """The version that was newest when a minibatch came in goes along with it. ValueError where stages with different
    numbers of replicas never have a version in common."""
    rounds_meet = lcm(*replica.replicas)
    if len(set(replica.replicas)) > 1 and rounds_meet > num_minibatches:
        raise ValueError(
            f"stages on {colons(replica.replicas)} ranks have a version in common after every "
            f"{rounds_meet} minibatches, and there are {num_minibatches}; give at least {rounds_meet} "
            "(--microbatches), or as many replicas to every stage"
        )
    for op in pipedream(replica, num_minibatches):
        if op.kind is Kind.FORWARD:
            included = _included_at_entry(op.microbatch, replica.replicas) // rounds_meet * rounds_meet
            op = op._replace(version=included // replica.count)
        yield op


def _included_at_entry(minibatch: int, replicas: tuple[int, ...]) -> int:
    """How many minibatches the newest weights of stage 0 include when a minibatch comes in."""
    first = Replica(0, minibatch % replicas[0], replicas)
    return max(0, minibatch // first.count - first.warm_up) * first.count


def pipedream_2bw(rank: int, num_ranks: int, num_microbatches: int, accumulate: int) -> Iterator[Op]:
    """Two versions of the weights are enough where an update takes `accumulate` >= p microbatches: those of update t
    use version t - 1, which every stage has by then. ValueError for fewer."""
    if accumulate < num_ranks:
        raise ValueError(
            f"an update of {accumulate} microbatches on {num_ranks} ranks: with two versions of the weights it takes "
            f"at least as many as ranks; give --accumulate {num_ranks} or more"
        )
    for op in pipedream(Replica(rank, 0, (1,) * num_ranks), num_microbatches):
        if op.kind is Kind.FORWARD:
            yield op._replace(version=max(0, op.microbatch // accumulate - 1))
        elif op.kind is Kind.BACKWARD or _ends(op.microbatch, num_microbatches, accumulate):
            yield op


def _ends(microbatch: int, num_microbatches: int, accumulate: int) -> bool:
    """Whether an update is complete with this microbatch."""
    return (microbatch + 1) % accumulate == 0 or microbatch + 1 == num_microbatches


def pipedream_flush(rank: int, num_ranks: int, num_microbatches: int, accumulate: int | None) -> Iterator[Op]:
    """Synchronous: 1F1B of `accumulate` microbatches, a step, and only then the next. None takes all of them, which is
    1F1B to the last op."""
    if accumulate is None:
        yield from one_f_one_b(rank, num_ranks, num_microbatches)
        return
    for start in range(0, num_microbatches, accumulate):
        update = range(start, min(start + accumulate, num_microbatches))
        for op in one_f_one_b(rank, num_ranks, len(update)):
            yield op._replace(microbatch=update[op.microbatch])  # a step's -1 is the last
