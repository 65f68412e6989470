"""DualPipe: two pipelines run through the same ranks in opposite directions, and one's forwards fill the other's gaps.

Of p stages rank r holds r and p - 1 - r, so every weight is on two ranks, and half of the microbatches enter at either
end. DualPipeV cuts it in half: 2p stages on p ranks in a V, each weight once (DeepSeek-AI 2024, arXiv:2412.19437,
section 3.2.1, and the DualPipe repository; the V is Qi et al.'s). Where F&B is the time of a forward and a backward of
different microbatches that overlap on one rank, the bubble is (p / 2 - 1)(F&B + B - 3W), with the full backward B and p
ranks of DualPipe, for at most p + 1 activations held.

    rank 0  |0F0|0F1|...|3F4|...     p = 4: stage 0 for microbatches 0, 1, ... and stage 3 for the others
    rank 3  |0F4|0F5|...|3F0|...
"""

from collections.abc import Iterator

from pdlab.ops import STEP, Op
from pdlab.strategies.inorder import InOrder


def dualpipe(rank: int, num_ranks: int, num_microbatches: int) -> Iterator[Op]:
    """Microbatches of the first half go from rank 0 to rank p - 1, the others the other way.

    ValueError unless p and m are even and m >= 2p: the eight steps below need two whole pipelines of p microbatches.
    """
    p, m = num_ranks, num_microbatches
    _check(p, m)
    halves = range(m // 2), range(m // 2, m)
    near, far = min(rank, p - 1 - rank), max(rank, p - 1 - rank)
    mine, other = halves if rank < p // 2 else halves[::-1]
    todo = InOrder({near: mine, far: other})
    _eight_steps(near, p // 2, m // 2, todo, near, far)
    yield from todo.ops
    yield STEP(near)
    yield STEP(far)


def _check(p: int, m: int) -> None:
    valid_p, valid_m = p + p % 2, max(m + m % 2, 2 * (p + p % 2))
    if (p, m) != (valid_p, valid_m):
        raise ValueError(
            f"dualpipe with {p} ranks and {m} microbatches; both must be even, and the microbatches at least twice the "
            f"ranks: take {valid_p} ranks and {valid_m} microbatches, or dualpipe_v"
        )


def dualpipe_v(rank: int, num_ranks: int, num_microbatches: int) -> Iterator[Op]:
    """Of 2p stages rank r holds r and 2p - 1 - r. With m < 2p it is the schedule of 2p microbatches without the ops of
    those that do not exist."""
    p, there, back = num_ranks, rank, 2 * num_ranks - 1 - rank
    m = max(num_microbatches, 2 * p)
    todo = InOrder(dict.fromkeys((there, back), range(m)))
    _eight_steps(rank, p, m, todo, there, back)
    yield from todo.existing(num_microbatches)
    yield STEP(there)
    yield STEP(back)


def _eight_steps(place: int, depth: int, each: int, todo: InOrder, first: int, second: int) -> None:
    """Write the ops of a rank that is `place` places from the end where its own direction enters, of `depth` up to the
    turn. `first` is its stage in that direction, through which `each` microbatches go, `second` the other one."""
    after = depth - 1 - place
    for _ in range(2 * after):
        todo.forward(first)
    for _ in range(place + 1):
        todo.forward(first)
        todo.forward(second)
    for _ in range(after):
        todo.backward_input(second)
        todo.weight()
        todo.forward(second)
    for turn in range(each - 2 * depth + place + 1):
        if turn or after:
            todo.overlapped(first, second)
        else:  # at the turn the first forward need not wait for what the backward receives
            todo.forward(first)
            todo.backward(second)
        todo.overlapped(second, first)
    for _ in range(after):
        todo.backward(second)
        todo.overlapped(second, first)
    for turn in range(2 * (place + 1)):
        stage = first if turn % 2 else second
        if turn <= place:
            todo.backward(stage)
        else:
            todo.backward_input(stage)
    for _ in range(after):
        todo.weight()
        todo.backward_input(first)
    for _ in range(place + 1):
        todo.weight()
