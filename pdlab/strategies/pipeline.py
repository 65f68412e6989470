"""Synchronous pipelines of one stage per rank: the same gradients as one process, in an order that keeps ranks busy.

p stages, m microbatches. With forward time F and backward time B everywhere, GPipe and 1F1B both take
(m + p - 1)(F + B); they differ in what they hold: GPipe m activations, 1F1B min(p - s, m) on stage s.
"""

from collections.abc import Iterator

from pdlab.ops import STEP, B, F, Op


def naive(stage: int, num_stages: int, num_microbatches: int) -> Iterator[Op]:
    """One microbatch at a time goes all the way there and back: model parallelism without a pipeline. One rank works,
    p - 1 wait.

        rank 0  |F0|      |B0 |F1|      |B1 |
        rank 1     |F0|B0 |      |F1|B1 |
    """
    for i in range(num_microbatches):
        yield F(stage, i)
        yield B(stage, i)
    yield STEP(stage)


def gpipe(stage: int, num_stages: int, num_microbatches: int) -> Iterator[Op]:
    """All forwards, then all backwards (Huang et al. 2019, arXiv:1811.06965). Backwards go in the order of the
    forwards; the paper draws them reversed, which takes as long.

    rank 0  |F0|F1|F2|F3|        ·        |B0 |B1 |B2 |B3 |
    rank 1     |F0|F1|F2|F3|          |B0 |B1 |B2 |B3 |
    """
    for i in range(num_microbatches):
        yield F(stage, i)
    for i in range(num_microbatches):
        yield B(stage, i)
    yield STEP(stage)


def one_f_one_b(stage: int, num_stages: int, num_microbatches: int) -> Iterator[Op]:
    """As many forwards as there are later stages, then one backward after each forward, then the remaining backwards
    (PipeDream-Flush, Narayanan et al. 2021, arXiv:2006.09503).

        rank 0  |F0|F1|   |B0 |F2|B1 |F3|B2 |   |B3 |
        rank 1     |F0|B0 |F1|B1 |F2|B2 |F3|B3 |
    """
    warm_up = min(num_stages - 1 - stage, num_microbatches)
    for i in range(warm_up):
        yield F(stage, i)
    for i in range(warm_up, num_microbatches):
        yield F(stage, i)
        yield B(stage, i - warm_up)
    for i in range(num_microbatches - warm_up, num_microbatches):
        yield B(stage, i)
    yield STEP(stage)
