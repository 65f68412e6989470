"""Synchronous pipelines: the same gradients as one process, in an order that keeps the ranks busy.

p stages, one per rank, m microbatches. With forward time F and backward time B everywhere, GPipe and 1F1B both take
(m + p - 1)(F + B); they differ in what they hold: GPipe m activations, 1F1B min(p - s, m) on stage s.
"""

from collections.abc import Iterator

from pdlab.ops import STEP, B, F, I, Op, W


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


def zb_h1(stage: int, num_stages: int, num_microbatches: int) -> Iterator[Op]:
    """1F1B with the backward split: `I` keeps the pipeline moving, `W` fills what would be bubbles (Qi et al. 2024,
    arXiv:2401.10241, section 2.3). Stage s puts off s of its weight gradients, so no rank holds more than 1F1B's first.

        rank 0  |F0|F1|  |I0|W0|F2|I1|W1|F3|I2|W2|  |I3|W3|
        rank 1     |F0|I0|F1|I1|W0|F2|I2|W1|F3|I3|W2|W3|
    """
    warm_up = min(num_stages - 1 - stage, num_microbatches)
    put_off = min(stage, num_microbatches)
    for i in range(warm_up):
        yield F(stage, i)
    for i in range(num_microbatches):
        if i + warm_up < num_microbatches:
            yield F(stage, i + warm_up)
        yield I(stage, i)
        if i >= put_off:
            yield W(stage, i - put_off)
    for i in range(num_microbatches - put_off, num_microbatches):
        yield W(stage, i)
    yield STEP(stage)
