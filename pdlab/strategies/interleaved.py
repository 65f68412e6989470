"""Several stages on each rank: a microbatch passes every rank v times, and the pipeline fills v times as fast.

Of p v stages rank r holds r, p + r, 2p + r, ... Microbatches go in rounds of p: a round runs through the rank's first
stage, then through its second, and so on. The bubble falls from (p - 1)(F + B) to a v-th of it, for v times the
messages and more activations in flight (Narayanan et al. 2021, arXiv:2104.04473, section 2.2).

    rank 0  |0F0|0F1|2F0|2F1|   |2B0|...       p = 2, v = 2: stages 0 and 2
    rank 1      |1F0|1F1|3F0|3B0|3F1|3B1|...   stages 1 and 3
"""

from collections.abc import Iterator
from itertools import pairwise

from pdlab.ops import STEP, B, F, Op

Pass = tuple[int, int]
"""A stage and a microbatch."""


def rounds(num_ranks: int, num_microbatches: int) -> list[range]:
    """The microbatches that go through a stage together: p of them or more, since with fewer the first rank would wait
    for its own second stage. The paper asks for m divisible by p; here what is left over makes the first rounds
    longer, so that any m will do."""
    count = max(1, num_microbatches // num_ranks)
    each, extra = divmod(num_microbatches, count)
    starts = [i * each + min(i, extra) for i in range(count + 1)]
    return [range(start, end) for start, end in pairwise(starts)]


def passes(rank: int, num_ranks: int, num_microbatches: int, virtual: int) -> tuple[list[Pass], list[Pass]]:
    """The order of a rank's forwards and that of its backwards, which takes the stages the other way round."""
    stages = range(rank, num_ranks * virtual, num_ranks)
    groups = rounds(num_ranks, num_microbatches)
    forwards = [(stage, i) for group in groups for stage in stages for i in group]
    backwards = [(stage, i) for group in groups for stage in reversed(stages) for i in group]
    return forwards, backwards


def warm_up_length(rank: int, num_ranks: int, num_microbatches: int, virtual: int, each_rank: int) -> int:
    """Forwards before the first backward: on the last rank a whole round through all stages but its last one, and
    `each_rank` more for every rank before that."""
    first_round = len(rounds(num_ranks, num_microbatches)[0])
    length = (virtual - 1) * first_round + each_rank * (num_ranks - 1 - rank)
    return min(length, virtual * num_microbatches)


def interleaved_1f1b(rank: int, num_ranks: int, num_microbatches: int, virtual: int = 2) -> Iterator[Op]:
    """1F1B over a rank's `virtual` stages. The warm-up of rank r has (v - 1) p + 2 (p - 1 - r) forwards: one rank
    earlier, the first backward comes back one forward and one backward later, and forwards of the next round fill that
    time. With one stage per rank there is one forward to do meanwhile, and it is 1F1B."""
    forwards, backwards = passes(rank, num_ranks, num_microbatches, virtual)
    warm_up = warm_up_length(rank, num_ranks, num_microbatches, virtual, each_rank=2 if virtual > 1 else 1)
    for stage, i in forwards[:warm_up]:
        yield F(stage, i)
    for turn, (stage, i) in enumerate(backwards):
        if warm_up + turn < len(forwards):
            yield F(*forwards[warm_up + turn])
        yield B(stage, i)
    for stage in range(rank, num_ranks * virtual, num_ranks):
        yield STEP(stage)
