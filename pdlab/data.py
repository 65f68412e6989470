"""The digits: 1797 images of 8 x 8 pixels with intensities 0 to 16, the data of every experiment in the lab.

They ship with the package, so a lesson needs no network, and they are few, so one process can redo a distributed run.
Samples are drawn by name, from (seed, step) alone: every rank finds the same batch without asking another, and a step
can be repeated without replaying the ones before it.

Source: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, its test part.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

NUM_SAMPLES, NUM_PIXELS = 1797, 64
FILE = Path(__file__).parent.parent / "data" / "digits.csv.gz"


@dataclass(frozen=True, eq=False)
class Digits:
    """`pixels` is uint8 [1797, 64], `labels` int64 [1797]; both are read-only, for everyone shares them."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]


@cache
def digits() -> Digits:
    """All samples, in the order of the file."""
    return _read(FILE)


def _read(file: Path) -> Digits:
    if not file.is_file():
        raise ValueError(
            f"the {NUM_SAMPLES} digits are expected in {file}, which is missing; restore it with git checkout"
        )
    table = np.loadtxt(file, dtype=np.uint8, delimiter=",", ndmin=2)
    if table.shape != (NUM_SAMPLES, NUM_PIXELS + 1):
        raise ValueError(
            f"{file} holds a table of {table.shape}, not {(NUM_SAMPLES, NUM_PIXELS + 1)}; restore it with git checkout"
        )
    pixels, labels = table[:, :NUM_PIXELS].copy(), table[:, NUM_PIXELS].astype(np.int64)
    pixels.flags.writeable = labels.flags.writeable = False
    return Digits(pixels, labels)


def sample_indices(seed: int, step: int, batch: int) -> NDArray[np.int64]:
    """Which samples make up this step's batch: drawn without replacement, the same on every rank."""
    if not 1 <= batch <= NUM_SAMPLES:
        raise ValueError(f"a batch of {batch} cannot be drawn from {NUM_SAMPLES} digits; use 1 to {NUM_SAMPLES}")
    return np.random.default_rng([seed, step]).choice(NUM_SAMPLES, batch, replace=False)


HELD_OUT = 297
"""The last digits of the file, which no epoch trains on."""


def num_train() -> int:
    """Samples of an epoch."""
    return NUM_SAMPLES - HELD_OUT


def held_out() -> NDArray[np.int64]:
    """Samples to test on."""
    return np.arange(num_train(), NUM_SAMPLES)


def epoch_order(seed: int, epoch: int) -> NDArray[np.int64]:
    """The training samples in the order of one epoch, the same on every rank."""
    return np.random.default_rng([seed, epoch, NUM_SAMPLES]).permutation(num_train())
