"""Randomness from names: what dropout drops depends on the run, the step, the sample, the segment and the element, and
on nothing else.

Not on the rank, the microbatch or the order of the ops. So the ranks of a tensor group that hold the same activations
drop the same, those that hold different shards drop as one process would, replicas of a model drop differently because
their samples differ, and a forward that runs again drops what it dropped before. A run on any mesh equals the
reference.
"""

from zlib import crc32

import numpy as np
from numpy.typing import NDArray


def keys(seed: int, step: int, batch: int) -> NDArray[np.int64]:
    """A number for each sample of a step."""
    return np.random.default_rng([seed, step, crc32(b"dropout")]).integers(2**63, size=batch)


def keep(keys: NDArray[np.int64], name: str, shape: tuple[int, ...], rate: float) -> NDArray[np.bool_]:
    """What is left of the whole of a tensor when a share `rate` of it is dropped: [n, *shape], one draw per sample."""
    word = crc32(name.encode())
    return np.stack([_draw(int(key), word, shape) for key in keys]) >= rate


def _draw(key: int, word: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    return np.random.Generator(np.random.Philox(key=[key, word])).random(shape, dtype=np.float32)
