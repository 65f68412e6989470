"""The ways to cut a chain: PipeDream's, and equal shares."""

from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import accumulate
from typing import assert_never

from pdlab.partition.layer import Layer, span
from pdlab.partition.links import Links, stage_seconds
from pdlab.partition.result import Partition
from pdlab.partition.search import Costs, search

MOST_LAYERS, MOST_STEPS = 1000, 10**8
"""A table of all stages of more layers would not fit into memory; of the dynamic programme's steps there are some six
million in a second."""


class By(Enum):
    """What every stage is to have the same share of."""

    COUNT = "count"
    TIME = "time"
    PARAMETERS = "parameters"


def pipedream(layers: Iterable[Layer], ranks: int, links: Links | None = None, *, may_idle: bool = False) -> Partition:
    """The partition with the highest throughput, replicas and communication counted: PipeDream's dynamic programme.

    All `ranks` are used, as the paper has it, even where more replicas only make a stage wait for its sums; with
    `may_idle` the fewest ranks that reach the highest throughput. Of equally fast partitions it takes the one with the
    fewest stages, then the fewest replicas in the first stage (in the second, ...), then the most even one, then the
    one with the longer stages first. With free links that is always one stage on all ranks: nothing is faster than
    data parallelism that costs nothing.

    100 layers on 16 ranks take under a second. ValueError for no layers and for fewer than one rank.
    """
    chain, links = _chain(layers), links or Links()
    _check_whole(ranks, "ranks")
    _check_size(len(chain), ranks, len(chain) ** 2 * ranks**2 // 4)
    lengths, replicas = search(_costs(chain, ranks, links), ranks, may_idle=may_idle)
    return Partition(chain, lengths, replicas, links, how="PipeDream's dynamic programme")


def balanced(layers: Iterable[Layer], num_stages: int, by: By = By.TIME, links: Links | None = None) -> Partition:
    """Stages on one rank each, of which the largest has as little as can be of the layers, of the time or of the
    parameters; then the most even ones; then the longer ones first. By count that is how `Model.stages` cuts.

    The links do not change the cut, only what it is predicted to do. ValueError for more stages than layers.
    """
    chain = _chain(layers)
    _check_whole(num_stages, "stages")
    if num_stages > len(chain):
        raise ValueError(
            f"{num_stages} stages are more than the {len(chain)} layers ({span(chain)}); use at most {len(chain)} "
            "stages or a model of more layers"
        )
    _check_size(len(chain), num_stages, len(chain) ** 2 * num_stages // 2)
    weights = [_weight(layer, by) for layer in chain]
    stages = [[(weight,) for weight in accumulate(weights[start:])] for start in range(len(chain))]
    lengths, replicas = search(Costs(stages, [0.0] * (len(chain) + 1)), num_stages)
    return Partition(chain, lengths, replicas, links or Links(), how=f"balanced by {by.value}")


def _weight(layer: Layer, by: By) -> float:
    match by:
        case By.COUNT:
            return 1
        case By.TIME:
            return layer.seconds
        case By.PARAMETERS:
            return layer.parameter_bytes
        case _:
            assert_never(by)


def _costs(chain: Sequence[Layer], ranks: int, links: Links) -> Costs:
    seconds, sizes = [layer.seconds for layer in chain], [layer.parameter_bytes for layer in chain]
    stages = [
        [
            [stage_seconds(time, size, m, links) for m in range(1, ranks + 1)]
            for time, size in zip(accumulate(seconds[start:]), accumulate(sizes[start:]), strict=True)
        ]
        for start in range(len(chain))
    ]
    return Costs(stages, [0.0, *(links.message_seconds(layer.activation_bytes) for layer in chain[:-1]), 0.0])


def _chain(layers: Iterable[Layer]) -> tuple[Layer, ...]:
    chain = tuple(layers)
    if not chain:
        raise ValueError("no layers to partition; give at least 1")
    return chain


def _check_whole(value: object, what: str) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"{value!r} {what}; give a whole number of at least 1")


def _check_size(num_layers: int, ranks: int, steps: int) -> None:
    if num_layers > MOST_LAYERS or steps > MOST_STEPS:
        raise ValueError(
            f"{num_layers} layers on {ranks} ranks are too many to partition: at most {MOST_LAYERS} layers, and "
            f"{MOST_STEPS:.0e} steps of the search, which needs {steps:.0e}; join layers to blocks, or use fewer ranks"
        )
