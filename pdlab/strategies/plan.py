"""What a student chooses before there is a program: degrees, microbatches, samples, and details of the passes."""

from dataclasses import dataclass, field, fields

from pdlab.mesh import Mesh
from pdlab.models.split import Split
from pdlab.named import colons, named
from pdlab.passes import Recompute
from pdlab.program import split_rows
from pdlab.strategies.automatic import Times

MOST_RANKS = 4096
"""A program has a list of ops for each rank; more would take minutes to build."""

MOST_PASSES = 10**6
"""Forwards of all stages of all ranks; more would take minutes too."""

MAY_BE_ZERO = ("prefetch", "optimizer_bytes")
MAY_BE_OPEN = ("batch", "virtual", "limit", "accumulate")


@dataclass(frozen=True)
class Plan:
    """What a student chooses: degrees, microbatches, samples, and details of the passes.

    `batch` counts the samples of a step over all ranks; None is one for each microbatch of each data shard. `virtual`
    is how many stages a pipeline rank holds; None is what the strategy has by itself. `buckets` is how many pieces the
    gradients are summed in, `prefetch` how many gathers of ZeRO-3 run ahead, `optimizer_bytes` the optimizer state per
    weight. `split` says what `tp` ranks split of a layer, `recompute` what is run again before its backward; with
    `overlap` weight gradients run under the collective of their input gradient. An automatic schedule holds at most
    `limit` M_B on a rank (None: p of them) and believes that its ops take `times`.

    Stages may differ: stage s has `layers[s]` layers of the model (None: all as many, the first ones one more) and is
    on `replicas[s]` of the `pp` ranks (None: on one each). Where several updates are in flight, each takes `accumulate`
    microbatches (None: what the strategy has by itself).
    """

    pp: int = 1
    dp: int = 1
    ep: int = 1
    tp: int = 1
    microbatches: int = 1
    batch: int | None = None
    virtual: int | None = None
    buckets: int = 4
    prefetch: int = 1
    optimizer_bytes: int = 0
    split: Split = Split.TENSOR
    recompute: Recompute = Recompute.NONE
    overlap: bool = False
    limit: float | None = None
    times: Times = field(default_factory=Times)
    layers: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    accumulate: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "split", named(Split, self.split))
        object.__setattr__(self, "recompute", named(Recompute, self.recompute))
        for of in fields(self):
            value = getattr(self, of.name)
            if of.type not in (int, int | None) or (of.name in MAY_BE_OPEN and value is None):
                continue
            least = 0 if of.name in MAY_BE_ZERO else 1
            if type(value) is not int or value < least:
                raise ValueError(f"{of.name} is {value!r}; give a whole number of at least {least}")
        self._check_stages()
        if type(self.overlap) is not bool:
            raise ValueError(f"overlap is {self.overlap!r}; give True or False")
        if self.limit is not None and not (type(self.limit) in (int, float) and 1 <= self.limit < float("inf")):
            raise ValueError(f"limit is {self.limit!r}; give a number of at least 1, the M_B that a rank may hold")
        if self.mesh.size > MOST_RANKS:
            raise ValueError(f"a mesh of {self.mesh} has {self.mesh.size} ranks; at most {MOST_RANKS} can be built")
        passes = self.mesh.size * (self.virtual or 1) * self.microbatches
        if passes > MOST_PASSES:
            raise ValueError(
                f"{self.mesh.size} ranks with {self.virtual or 1} stages each and {self.microbatches} microbatches are "
                f"{passes} forwards; at most {MOST_PASSES} can be built"
            )

    @property
    def mesh(self) -> Mesh:
        return Mesh.of(dp=self.dp, ep=self.ep, pp=self.pp, tp=self.tp)

    def _check_stages(self) -> None:
        for name in ("layers", "replicas"):
            given = getattr(self, name)
            if given is not None and not (
                type(given) is tuple and given and all(type(each) is int and each >= 1 for each in given)
            ):
                raise ValueError(
                    f"{name} is {given!r}; give a tuple of whole numbers of at least 1, one for each stage"
                )
        if self.replicas and sum(self.replicas) != self.pp:
            shape = colons(self.replicas)
            raise ValueError(
                f"replicas {shape} are {sum(self.replicas)} ranks and pp is {self.pp}; give pp={sum(self.replicas)}, "
                f"or replicas that add up to {self.pp}"
            )
        if self.layers and self.virtual is not None and len(self.layers) != self.num_stages:
            raise ValueError(
                f"layers {colons(self.layers)} are for {len(self.layers)} stages and there are "
                f"{self.num_stages}; give a number for each"
            )

    @property
    def num_stages(self) -> int:
        return len(self.replicas) if self.replicas else self.pp * (self.virtual or 1)

    @property
    def num_layers(self) -> int | None:
        """Of the model, where the plan says it."""
        return sum(self.layers) if self.layers else None

    @property
    def rows(self) -> tuple[tuple[int, ...], ...]:
        shards = self.dp * self.ep
        return split_rows(self.batch or shards * self.microbatches, shards, self.microbatches)
