"""ZeRO-3 or tensor parallelism, for real: both on real processes, paced by the durations that the study predicts with.

What is compared are the overlap, the waiting and the messages of real processes, not the speed of this machine; and
the gradients, which have to be those of one process whichever of the two it is.
"""

from collections.abc import Sequence
from dataclasses import replace

from tqdm.auto import tqdm

from pdlab.compare import compare
from pdlab.execute.settings import Settings
from pdlab.launch import Ranks
from pdlab.models.digits import PIXELS
from pdlab.optimizers import Adam
from pdlab.program import Program
from pdlab.study import LAB, LAB_BANDWIDTH, TENSOR, ZERO3, Measured, Setup, program

SINGLE_BYTES = 4
"""Bytes of a number in a timed run."""

BATCHES = (4, 12, 20)
"""One where tensor parallelism wins, one near the crossover, one where ZeRO-3 wins."""


def measure(
    pool: Ranks,
    batches: Sequence[int] = BATCHES,
    *,
    setup: Setup = LAB,
    bandwidth: float = LAB_BANDWIDTH,
    strategies: Sequence[str] = (ZERO3, TENSOR),
    steps: int = 3,
) -> list[Measured]:
    """Run each strategy on each batch, `steps` steps after one to warm up, and say what was predicted.

    What the costs take for free (norms, sums, the optimizer's step, the interpreter between two ops) takes real time,
    some tens of milliseconds a step, so the shortest step has the largest error. What is predicted is the ranking.

    ValueError for a setup that is not one of the digits with Adam in single precision, and for a pool too small.
    """
    if steps < 1 or not batches:
        raise ValueError(f"{steps} steps, batches {list(batches)}; give at least one of each")
    _check(pool, setup)
    runs = [(strategy, batch) for batch in batches for strategy in strategies]
    bar = tqdm(runs, desc="running", unit="run", leave=False)
    return [_measure(pool, setup, strategy, batch, bandwidth, steps) for strategy, batch in bar]


def _check(pool: Ranks, setup: Setup) -> None:
    needs = (PIXELS, SINGLE_BYTES, Adam().bytes_per_weight(SINGLE_BYTES))
    if (setup.tokens, setup.itemsize, setup.optimizer_bytes) != needs:
        raise ValueError(
            f"{setup.tokens} tokens, {setup.itemsize} bytes per number, {setup.optimizer_bytes} bytes of optimizer "
            f"state per weight; the digits are run with {needs[0]}, {needs[1]} and Adam's {needs[2]}"
        )
    if pool.size < setup.ranks:
        raise ValueError(f"{setup.ranks} ranks are more than the {pool.size} of the pool; start Ranks({setup.ranks})")


def _measure(pool: Ranks, setup: Setup, strategy: str, batch: int, bandwidth: float, steps: int) -> Measured:
    optimizer = Adam()

    def program_of(itemsize: int) -> Program:
        state = optimizer.bytes_per_weight(itemsize)
        return program(replace(setup, itemsize=itemsize, optimizer_bytes=state), strategy, batch)

    settings = Settings(optimizer)
    found = compare(program_of, pool, costs=setup.costs(bandwidth), steps=steps, settings=settings)
    assert found.predicted_s is not None and found.measured_s is not None and found.error_pct is not None
    return Measured(
        strategy=strategy,
        batch=batch,
        bandwidth=bandwidth,
        predicted_s=found.predicted_s,
        measured_s=found.measured_s,
        error_pct=found.error_pct,
        grad_max_rel_error=found.grad_max_rel_error,
        made=str(found.measured.provenance),
    )
