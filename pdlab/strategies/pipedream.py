"""PipeDream: a pipeline that never flushes. Every minibatch updates the weights, and several are in flight.

A minibatch that goes forward through stage s comes back p - 1 - s updates later. With *weight stashing* its backward
meets the weights of its forward again; without, it meets the newest, and the gradient belongs to no weights at all
(Harlap et al. 2018, arXiv:1806.03377, section 3.3). The two programs differ only in the version that the backward
names.
"""

from collections.abc import Iterator

from pdlab.ops import STEP, B, F, Op


def pipedream(stage: int, num_stages: int, num_minibatches: int, *, stashing: bool = True) -> Iterator[Op]:
    """1F1B over minibatches, a step after each backward.

    rank 0  |F0|F1|  |B0 |F2|B1 |F3|B2 |...      F2 is the first to see an update (its version is 1)
    rank 1     |F0|B0 |F1|B1 |F2|B2 |...         F1 sees one already
    """
    warm_up = min(num_stages - 1 - stage, num_minibatches)
    for i in range(warm_up):
        yield F(stage, i, version=0)
    for i in range(num_minibatches):
        if i + warm_up < num_minibatches:
            yield F(stage, i + warm_up, version=i)
        yield B(stage, i, version=max(0, i - warm_up) if stashing else i)
        yield STEP(stage, i)
