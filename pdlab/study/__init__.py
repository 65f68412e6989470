"""ZeRO-3 or tensor parallelism? The same transformer, samples and ranks; which is faster, which needs less memory.

Both leave 1/n of the layers' weights and optimizer state on each of n ranks. What they move differs:

    ZeRO-3    weights       two all-gathers and a reduce-scatter of them       3 (n-1)/n x parameter bytes
    tensor    activations   four all-reduces of b s h for each block           8 (n-1)/n x b s h e
    sequence  activations   as many bytes, and in the backward two             10 (n-1)/n x b s h e
                            all-gathers of b s h again

(per step and rank, bytes on the wire of a ring; `volumes` has the sources.) So what tensor parallelism moves grows with
the batch b, and what ZeRO-3 moves does not. ZeRO-3 gathers ahead, under the computation; the collectives of tensor
parallelism stand between two computations, so all of their time is added to the step.

In memory it is the other way round: ZeRO-3 holds a few segments whole, whatever n is, and the activations of its own
b / n samples; tensor parallelism never holds more than its part of a layer, but for all b samples, and what lies
between the blocks is whole on every rank (`sequence` splits that too).
"""

from pdlab.study.points import (
    SEQUENCE,
    TENSOR,
    ZERO3,
    Measured,
    Point,
    Ranking,
    can_run,
    least_batch,
    predicted,
    program,
    rankings,
    simulated,
    table,
)
from pdlab.study.search import Study, largest_batch, simulated_crossover, study
from pdlab.study.setup import GPT3_BLOCKS, LAB, LAB_BANDWIDTH, Setup
from pdlab.study.volumes import crossover_batch, hidden_crossover_batch, tensor_wire_bytes, zero3_wire_bytes

__all__ = [
    "GPT3_BLOCKS",
    "LAB",
    "LAB_BANDWIDTH",
    "SEQUENCE",
    "TENSOR",
    "ZERO3",
    "Measured",
    "Point",
    "Ranking",
    "Setup",
    "Study",
    "can_run",
    "crossover_batch",
    "hidden_crossover_batch",
    "largest_batch",
    "least_batch",
    "predicted",
    "program",
    "rankings",
    "simulated",
    "simulated_crossover",
    "study",
    "table",
    "tensor_wire_bytes",
    "zero3_wire_bytes",
]
