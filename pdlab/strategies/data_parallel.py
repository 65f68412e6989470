"""One whole model per rank: alone, and with its gradients averaged over data-parallel ranks."""

from collections.abc import Iterator

from pdlab.ops import STEP, B, F, Op


def single(num_microbatches: int) -> Iterator[Op]:
    """Forward and backward of each microbatch in turn, gradients adding up, then one step.

        rank 0  |F0|B0 |F1|B1 |F2|B2 |STEP|

    Data parallelism and ZeRO are this same loop: what they add is communication, and passes put it in.
    """
    for i in range(num_microbatches):
        yield F(0, i)
        yield B(0, i)
    yield STEP(0)
