"""A chain cut into stages: how fast a full pipeline of them is, and which part of it is the reason."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING, NamedTuple, assert_never

from pdlab.named import colons
from pdlab.partition.layer import Layer, span
from pdlab.partition.links import Links
from pdlab.strategies.pipedream import replicas_of

if TYPE_CHECKING:
    import pandas as pd

ROUNDED = 0.9995
"""What is at least this much of a unit is written as one."""

COLUMNS = ("stage", "layers", "ranks", "compute", "gradient sums", "message to next", "warm-up")


class What(Enum):
    """What a pipeline can be waiting for."""

    COMPUTE = "compute"
    SUMS = "gradient sums"
    MESSAGE = "message"


class Load(NamedTuple):
    """Seconds per minibatch that something of a stage takes; a message is the one to the next stage."""

    what: What
    stage: int
    seconds: float


@dataclass(frozen=True)
class Partition:
    """Stage s has the next `layers[s]` layers of the chain and is on `replicas[s]` ranks; what follows from that.

    `layers` and `replicas` are what `pdlab.strategies.Plan` takes under these names, with `pp` = `num_ranks`. `how`
    says who chose it.
    """

    chain: tuple[Layer, ...]
    layers: tuple[int, ...]
    replicas: tuple[int, ...]
    links: Links = field(default_factory=Links)
    how: str = "given"

    def __post_init__(self) -> None:
        for name in ("layers", "replicas"):
            given = tuple(getattr(self, name))
            if not given or any(type(each) is not int or each < 1 for each in given):
                raise ValueError(f"{name} is {given!r}; give a whole number of at least 1 for each stage")
            object.__setattr__(self, name, given)
        if sum(self.layers) != len(self.chain) or len(self.layers) != len(self.replicas):
            raise ValueError(
                f"stages of {colons(self.layers)} layers on {colons(self.replicas)} ranks, for a chain of "
                f"{len(self.chain)} layers; give both for each stage, and {len(self.chain)} layers together"
            )

    @property
    def num_stages(self) -> int:
        return len(self.layers)

    @property
    def num_ranks(self) -> int:
        return sum(self.replicas)

    @property
    def shape(self) -> str:
        s, r = self.num_stages, self.num_ranks
        return f"{s} stage{'s' * (s > 1)} on {r} rank{'s' * (r > 1)}"

    @cached_property
    def stages(self) -> tuple[tuple[Layer, ...], ...]:
        """The layers of each stage."""
        ends = list(accumulate(self.layers))
        return tuple(self.chain[end - count : end] for end, count in zip(ends, self.layers, strict=True))

    @property
    def warm_up(self) -> tuple[int, ...]:
        """How many forwards each rank of a stage does before it alternates: as many more minibatches are then in
        flight from here on as there are ranks (NOAM, section 3.3 of arXiv:1806.03377; p - 1 - s without replicas)."""
        return tuple(replica.warm_up for replica in replicas_of(self.replicas) if not replica.turn)

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """Everything that takes time, in the order compute, sums, messages, each from the first stage to the last."""
        of_stages = list(enumerate(zip(self.stages, self.replicas, strict=True)))
        compute = [Load(What.COMPUTE, s, _seconds(stage) / m) for s, (stage, m) in of_stages]
        sums = [Load(What.SUMS, s, self._sum_seconds(s) / m) for s, (_, m) in of_stages]
        messages = [Load(What.MESSAGE, s, self._message_seconds(s)) for s in range(self.num_stages - 1)]
        return (*compute, *sums, *messages)

    @property
    def limit(self) -> Load:
        """The largest of the loads, the first of those that are equal."""
        return max(self.loads, key=lambda load: load.seconds)

    @property
    def seconds(self) -> float:
        """Seconds per minibatch of a full pipeline."""
        return self.limit.seconds

    @property
    def throughput(self) -> float:
        """Minibatches per second; inf where nothing takes time."""
        return 1 / self.seconds if self.seconds else inf

    @property
    def bottleneck(self) -> str:
        """The limit in words."""
        what, s, seconds = self.limit
        stage, m = self.stages[s], self.replicas[s]
        on = f" on {m} ranks" if m > 1 else ""
        match what:
            case What.COMPUTE:
                return f"stage {s} ({span(stage)}){on}: compute {_shared(_seconds(stage), m)}"
            case What.SUMS:
                each = _shared(self._sum_seconds(s), m)
                return f"the gradient sums of stage {s}'s {m} replicas ({span(stage)}): {each}"
            case What.MESSAGE:
                size = f"{stage[-1].activation_bytes:,.0f} bytes there and back in {duration(seconds)}"
                return f"the message between stage {s} and {s + 1}, after {stage[-1].name}: {size}"
            case _:
                assert_never(what)

    def load(self, what: What, stage: int) -> float:
        """Seconds per minibatch; 0 for what there is not."""
        return next((load.seconds for load in self.loads if load[:2] == (what, stage)), 0.0)

    def frame(self) -> "pd.DataFrame":
        """One line per stage: its layers, ranks and loads (seconds per minibatch)."""
        import pandas as pd

        lines = [
            (s, stage[0].name, stage[-1].name, len(stage), m, *(self.load(what, s) for what in What), warm_up)
            for s, (stage, m, warm_up) in enumerate(zip(self.stages, self.replicas, self.warm_up, strict=True))
        ]
        loads = [f"{what.value.replace(' ', '_')}_s" for what in What]
        columns = ["stage", "first_layer", "last_layer", "num_layers", "replicas", *loads, "warm_up"]
        return pd.DataFrame(lines, columns=columns)

    def __str__(self) -> str:
        lines = [COLUMNS, *(self._cells(s) for s in range(self.num_stages))]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        what = f"{self.shape}, {self.how}; {self.links}; times per minibatch"
        speed = f"predicted: {self.throughput:.4g} minibatches per second, one every {duration(self.seconds)}"
        return "\n".join([what, *table, speed, f"bottleneck: {self.bottleneck}"])

    def _cells(self, s: int) -> tuple[str, ...]:
        loads = [self.load(what, s) for what in What]
        names = f"{self.layers[s]}: {span(self.stages[s])}"
        return (
            str(s),
            names,
            str(self.replicas[s]),
            *(duration(seconds) if seconds else "-" for seconds in loads),
            str(self.warm_up[s]),
        )

    def _sum_seconds(self, s: int) -> float:
        return self.links.sum_seconds(sum(layer.parameter_bytes for layer in self.stages[s]), self.replicas[s])

    def _message_seconds(self, s: int) -> float:
        return self.links.message_seconds(self.stages[s][-1].activation_bytes)


def _seconds(stage: Sequence[Layer]) -> float:
    return sum(layer.seconds for layer in stage)


def _shared(seconds: float, m: int) -> str:
    return duration(seconds) + (f" / {m}" if m > 1 else "")


def duration(seconds: float) -> str:
    """Three digits, in the largest unit of which there is one."""
    name, size = next((unit for unit in (("s", 1.0), ("ms", 1e-3)) if seconds >= ROUNDED * unit[1]), ("µs", 1e-6))
    amount = seconds / size
    digits = 2 if amount < 10 * ROUNDED else 1 if amount < 100 * ROUNDED else 0
    return f"{amount:,.{digits}f} {name}"
