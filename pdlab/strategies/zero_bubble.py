"""Zero bubble: the backward split in two, so that what nobody waits for fills the gaps.

`I` hands the input gradient on and keeps the pipeline moving; `W` may come at any time after it. H1 spends no more
memory than 1F1B, H2 about twice as much for no bubble at all, ZB-V folds the pipeline so that each rank has an early
and a late stage and every rank holds the same (Qi et al. 2024, arXiv:2401.10241 and arXiv:2405.15362).

In units of M_B, with F = I = W: H1 leaves a bubble of (p - 1)(F + I - W), H2 of (p - 1)(F + I - 2W) where m >= 2p - 1,
and stage s holds at most p - s until I and p until W (H1), 2(p - s) - 1 until I and 2p - 1 until W (H2).
"""

from collections.abc import Iterator

from pdlab.ops import STEP, F, I, Op, W
from pdlab.strategies.inorder import InOrder
from pdlab.strategies.interleaved import Pass, passes, warm_up_length


def zb_h1(rank: int, num_ranks: int, num_microbatches: int, virtual: int = 1) -> Iterator[Op]:
    """1F1B with the backward split. Rank r puts off r of its weight gradients, so none holds more than 1F1B's first.

        rank 0  |F0|F1|  |I0|W0|F2|I1|W1|F3|I2|W2|  |I3|W3|
        rank 1     |F0|I0|F1|I1|W0|F2|I2|W1|F3|I3|W2|W3|

    With several stages per rank it is the interleaved form (ZB-1P with virtual stages).
    """
    order = passes(rank, num_ranks, num_microbatches, virtual)
    warm_up = warm_up_length(rank, num_ranks, num_microbatches, virtual, each_rank=1)
    yield from _split(*order, warm_up, put_off=rank)
    for stage in range(rank, num_ranks * virtual, num_ranks):
        yield STEP(stage)


def zb_h2(stage: int, num_stages: int, num_microbatches: int) -> Iterator[Op]:
    """Twice the forwards in the warm-up and twice the weight gradients put off: a parallelogram instead of a triangle
    at either end, and no bubble between.

        rank 0  |F0|F1|F2|I0|W0|F3|I1|W1|I2|W2|I3|W3|
        rank 1     |F0|I0|F1|I1|F2|I2|W0|F3|I3|W1|W2|W3|
    """
    forwards, backwards = passes(stage, num_stages, num_microbatches, 1)
    warm_up = min(2 * (num_stages - 1 - stage), num_microbatches)
    yield from _split(forwards, backwards, warm_up, put_off=2 * stage)
    yield STEP(stage)


def _split(forwards: list[Pass], backwards: list[Pass], warm_up: int, put_off: int) -> Iterator[Op]:
    """Forwards and input gradients in turn after the warm-up, weight gradients `put_off` backwards later."""
    for stage, i in forwards[:warm_up]:
        yield F(stage, i)
    for turn, (stage, i) in enumerate(backwards):
        if warm_up + turn < len(forwards):
            yield F(*forwards[warm_up + turn])
        yield I(stage, i)
        if turn >= put_off:
            yield W(*backwards[turn - put_off])
    for stage, i in backwards[max(0, len(backwards) - put_off) :]:
        yield W(stage, i)


def zb_v(rank: int, num_ranks: int, num_microbatches: int) -> Iterator[Op]:
    """ZB-V: of 2p stages rank r holds r on the way there and 2p - 1 - r on the way back; the last rank has the turn.

    Every rank holds at most 2p halves of a rank's layers, which is p M_B, and at F = I = W there is no bubble between.
    With fewer than 2p - 1 microbatches it is the schedule of so many, without the ops of those that do not exist:
    microbatches do not wait for each other.

        rank 0  |0F0|0F1|0F2|   |   |3F0|3I0|3W0|...      p = 2
        rank 1      |1F0|2F0|1F1|2F1|2I0|2W0|...
    """
    there, back = rank, 2 * num_ranks - 1 - rank
    m = max(num_microbatches, 2 * num_ranks - 1)
    todo = InOrder(dict.fromkeys((there, back), range(m)))
    _zb_v(rank, num_ranks, m, todo, there, back)
    yield from todo.existing(num_microbatches)
    yield STEP(there)
    yield STEP(back)


def _zb_v(rank: int, num_ranks: int, num_microbatches: int, todo: InOrder, there: int, back: int) -> None:
    after = num_ranks - rank
    for _ in range(2 * after - 1):
        todo.forward(there)
    for _ in range(rank):
        todo.forward(back)
        todo.forward(there)
    for _ in range(after):
        todo.forward(back)
        todo.backward_input(back)
        todo.weight(back)
    for turn in range(num_microbatches - num_ranks):
        if turn < num_microbatches - (2 * num_ranks - rank - 1):
            todo.forward(there)
        todo.backward_input(there)
        todo.weight(there)
        todo.forward(back)
        todo.backward_input(back)
        todo.weight(back)
    for _ in range(rank):
        todo.backward_input(there)
        todo.backward_input(back)
    for _ in range(after):
        todo.backward_input(there)
        todo.weight(there)
    for stage in (back, there):
        for _ in range(todo.num_put_off(stage)):
            todo.weight(stage)
