"""Which version of its weights a stage meets, minibatch by minibatch, in each variant of PipeDream.

A version bears the number of the last minibatch that it includes; -1 is the start. Three stages without a flush:

    stage 0   F0 F1 F2 B0 F3 B1 F4 B2 F5 ...   F3 comes after the step of 0 and meets version 0
    stage 1   F0 F1 B0 F2 B1 F3 B2 F4 B3 ...   after those of 0 and 1: version 1
    stage 2   F0 B0 F1 B1 F2 B2 F3 B3 F4 ...   after those of 0, 1 and 2: version 2

So one minibatch sees three versions, each as old as its stage is far from the end, and by the time it comes back every
stage has got to version 2. The variants differ in what F3 | B3 meet on stages 0, 1, 2 (Harlap et al. 2018,
arXiv:1806.03377, section 3.3; replicas are of 3.2, updates of several microbatches of arXiv:2006.09503):

    naive  0 1 2 | 2 2 2        stashing  0 1 2 | 0 1 2        vertical sync  0 0 0 | 0 0 0
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, lcm

Replicas = Sequence[int]
"""How many ranks hold each stage: minibatch i goes to replica i mod k of a stage with k."""


@dataclass(frozen=True)
class StageRule:
    """One stage: how many minibatches a step takes in; by minibatch, the versions that forward and backward meet."""

    every: int
    forward: tuple[int, ...]
    backward: tuple[int, ...]

    def steps_after(self, i: int) -> bool:
        """Whether minibatch i completes a version, as the last one does in any case."""
        return (i + 1) % self.every == 0 or i + 1 == len(self.forward)


def naive(num: int, replicas: Replicas) -> list[StageRule]:
    """One copy of the weights: the forward meets what the warm-up lets it, the backward the newest."""
    depths = zip(replicas, warm_ups(replicas), strict=True)
    return [StageRule(k, behind(num, k, depth), behind(num, k, 0)) for k, depth in depths]


def stashing(num: int, replicas: Replicas) -> list[StageRule]:
    """The forward as without; what it met is kept for the backward."""
    return [StageRule(stage.every, stage.forward, stage.forward) for stage in naive(num, replicas)]


def vertical_sync(num: int, replicas: Replicas) -> list[StageRule]:
    """Minibatch i takes along the newest version of stage 0 as it enters, and meets that one everywhere.

    Where stages have different numbers of replicas, only every lcm-th minibatch ends a version on all of them:

        stage 0, k = 2    1   3   5   7   9  11      of these versions
        stage 1, k = 3      2     5     8    11      only 5 and 11 exist on both
    """
    common = lcm(*replicas)
    if common > num and len(set(replicas)) > 1:
        raise ValueError(
            f"{num} minibatches with replicas {tuple(replicas)}: versions that all stages have come every {common} "
            f"minibatches, so none would be made; train at least {common}, or give all stages as many replicas"
        )
    newest = behind(num, replicas[0], warm_ups(replicas)[0])
    entered = tuple((version + 1) // common * common - 1 for version in newest)
    return [StageRule(k, entered, entered) for k in replicas]


def double_buffering(num: int, num_stages: int, accumulate: int) -> list[StageRule]:
    """All microbatches of an update meet the version before the last, on all stages. With accumulate 2:

        microbatches   0 1   2 3   4 5   6 7
        meet            -1    -1     1     3
        and make         1     3     5     7

    So a stage keeps two: the newest, and the one that microbatches still in flight have met.
    """
    if accumulate < num_stages:
        raise ValueError(
            f"accumulate {accumulate} on {num_stages} stages: an update of PipeDream-2BW takes in at least as many "
            f"microbatches as there are stages; accumulate {num_stages} or more"
        )
    met = behind(num, accumulate, 1)
    return [StageRule(accumulate, met, met)] * num_stages


def flush(num: int, num_stages: int, accumulate: int) -> list[StageRule]:
    """The pipeline runs empty before each update, so all of its microbatches meet the newest version."""
    if accumulate < 1:
        raise ValueError(f"accumulate {accumulate}: an update takes in at least 1 microbatch")
    met = behind(num, accumulate, 0)
    return [StageRule(accumulate, met, met)] * num_stages


def warm_ups(replicas: Replicas) -> list[int]:
    """By stage: how many forwards a replica runs before it alternates, and so how many rounds behind each later one is.

    The ranks that follow, for each replica, rounded up: p - 1 - s where nothing is replicated. With the one that it
    then alternates, a replica of stage 0 has what the paper calls NOAM in flight. With replicas (2, 1):

        stage 0, replica 0    F0 F2 B0 + F4 B2 + F6 ...     warm-up 1; + is the step of a round,
        stage 0, replica 1    F1 F3 B1 + F5 B3 + F7 ...     for which the replicas wait for each other
        stage 1               F0 B0 + F1 B1 + F2 B2 + ...   warm-up 0
    """
    return [ceil(sum(replicas[stage + 1 :]) / k) for stage, k in enumerate(replicas)]


def behind(num: int, every: int, rounds: int) -> tuple[int, ...]:
    """By minibatch: the version made `rounds` rounds before the newest that its own round can meet."""
    return tuple(max(0, i // every - rounds) * every - 1 for i in range(num))
