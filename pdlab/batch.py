"""The samples of one step, and whether a program can be run on them."""

from dataclasses import dataclass, fields

import numpy as np

from pdlab.models.digits import CLASSES, INTENSITIES
from pdlab.models.spec import Feed
from pdlab.program import Program

IGNORED = -100
"""The label of a sample that counts for nothing, as in `torch.nn.functional.cross_entropy`."""


@dataclass(frozen=True)
class Batch:
    """The samples of one step over the whole mesh: pixels [n, 64] (0..16), labels [n] (`IGNORED` counts for nothing),
    the keys [n] that dropout is drawn from, where there is any, and for a model that reads samples of different lengths
    how many tokens each has [n]."""

    pixels: np.ndarray
    labels: np.ndarray
    keys: np.ndarray | None = None
    lengths: np.ndarray | None = None

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """What is given, by name."""
        every = {of.name: getattr(self, of.name) for of in fields(self)}
        return {name: array for name, array in every.items() if array is not None}

    def __len__(self) -> int:
        return len(self.labels)


def check_batch(program: Program, batch: Batch) -> None:
    """ValueError for samples that the program is not made for."""
    if len(batch) != program.batch:
        raise ValueError(f"the program is for a batch of {program.batch} samples and was given {len(batch)}")
    _check_arrays(batch)
    for t in program.model.feeds:
        if t.feed is Feed.TOKENS:
            _check_tokens(batch, t.shape[0])
        if t.feed is Feed.KEYS and batch.keys is None:
            raise ValueError("the model has dropout and the batch no keys to draw it from; give it pdlab.noise.keys")
    _check_lengths(program, batch)
    for microbatch in range(program.num_microbatches):
        counted(program, batch, microbatch)


def _check_arrays(batch: Batch) -> None:
    count, keys = len(batch), batch.keys
    if batch.pixels.shape[:1] != (count,) or batch.pixels.ndim != 2 or batch.labels.ndim != 1:
        raise ValueError(f"pixels of {batch.pixels.shape} and labels of {batch.labels.shape}; give [n, 64] and [n]")
    if batch.labels.dtype.kind not in "iu":
        raise ValueError(f"labels are {batch.labels.dtype}; give whole numbers")
    wrong = [int(y) for y in batch.labels if y != IGNORED and not 0 <= y < CLASSES]
    if wrong:
        raise ValueError(f"a label is {wrong[0]}; labels are 0 to {CLASSES - 1}, or {IGNORED} to be ignored")
    if keys is not None and (keys.shape != (count,) or keys.dtype.kind not in "iu"):
        raise ValueError(f"keys are {keys.dtype} of {keys.shape}; give a whole number for each of the {count} samples")


def _check_tokens(batch: Batch, num_tokens: int) -> None:
    if num_tokens != batch.pixels.shape[1]:
        raise ValueError(
            f"the model reads {num_tokens} tokens and a digit has {batch.pixels.shape[1]}; it can only be predicted"
        )
    least, most = batch.pixels.min(), batch.pixels.max()
    if batch.pixels.dtype.kind not in "iu" or not 0 <= least <= most < INTENSITIES:
        raise ValueError(f"pixels are {batch.pixels.dtype} from {least} to {most}; tokens are 0 to {INTENSITIES - 1}")


def _check_lengths(program: Program, batch: Batch) -> None:
    feeds, lengths = program.model.feeds, batch.lengths
    if not any(t.feed is Feed.LENGTHS for t in feeds):
        if lengths is not None:
            raise ValueError("the batch has lengths and the model reads all of each sample; leave them out")
        return
    if lengths is None:
        raise ValueError("the model reads samples of different lengths and the batch has none; give it lengths")
    tokens = next(t.shape[0] for t in feeds if t.feed is Feed.TOKENS)
    if lengths.shape != (len(batch),) or lengths.dtype.kind not in "iu":
        raise ValueError(
            f"lengths are {lengths.dtype} of {lengths.shape}; give a whole number for each of the {len(batch)} samples"
        )
    wrong = [int(length) for length in lengths if not 1 <= length <= tokens]
    if wrong:
        raise ValueError(f"a length is {wrong[0]}; each sample has 1 to {tokens} tokens")


def counted(program: Program, batch: Batch, microbatch: int) -> int:
    """Over how many samples the loss of a microbatch's step is averaged: those whose label is not ignored."""
    if not program.steps_each_microbatch:
        return labelled(batch.labels)
    return labelled_rows(program, batch, microbatch)


def labelled_rows(program: Program, batch: Batch, microbatch: int) -> int:
    """How many of a microbatch's samples count, over all data shards."""
    return sum(labelled(batch.labels[rows(program, shard, microbatch)]) for shard in range(len(program.rows)))


def labelled(labels: np.ndarray) -> int:
    """How many labels are not ignored; ValueError if none is left."""
    count = int((labels != IGNORED).sum())
    if not count:
        raise ValueError(f"all {len(labels)} labels of a step are {IGNORED}, which is ignored; give at least one label")
    return count


def rows(program: Program, shard: int, microbatch: int) -> slice:
    """The samples of a batch that a data shard has in a microbatch."""
    start = sum(map(sum, program.rows[:shard])) + sum(program.rows[shard][:microbatch])
    return slice(start, start + program.rows[shard][microbatch])
