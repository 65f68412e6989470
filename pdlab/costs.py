"""Where durations come from.

`Uniform` is the teaching model: one number for each kind of op on a stage, one for a message, in any unit of time.
`Analytic` counts FLOP and bytes. `Stretched` lets a program that is too large to run set the pace of a small one.
All name a link model: `independent` lets messages of one stream overlap, as the
zero-bubble paper assumes (each takes its latency plus its time on the wire), `channel` makes a stream exclusive.
"""

from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Protocol, assert_never

from pdlab.mesh import Axis
from pdlab.models.model import Model
from pdlab.models.spec import Flops, Segment
from pdlab.ops import COLLECTIVE_KINDS, COMMUNICATION_KINDS, PASS_KINDS, Kind, Op, label, payload
from pdlab.program import Facts, Program, Role, Sized, num_bytes


class Link(Enum):
    INDEPENDENT = "independent"
    CHANNEL = "channel"


class Costs(Protocol):
    """Seconds (or time units) of one op of a rank."""

    @property
    def link(self) -> Link: ...

    def seconds(self, op: Op, rank: int, program: Program, facts: Facts) -> float: ...


def wire_factor(kind: Kind, members: int) -> float:
    """What a ring puts on each link, as a share of the size S (nccl-tests, doc/PERFORMANCE.md)."""
    share = (members - 1) / members
    return 2 * share if kind is Kind.ALL_REDUCE else share if kind in COLLECTIVE_KINDS else 1.0


def ring_rounds(kind: Kind, members: int) -> int:
    """How many rounds of messages a ring takes, one after the other."""
    return (2 if kind is Kind.ALL_REDUCE else 1) * (members - 1)


def moved_bytes(op: Op, rank: int, program: Program, facts: Facts) -> int:
    """The size S of a communication (nccl-tests): all-gather its output, others their input; messages at the sender."""
    if op.kind is Kind.RECV:
        return 0
    shard = op.writes if op.kind is Kind.REDUCE_SCATTER else op.inputs
    values = shard if op.kind is Kind.ALL_REDUCE else shard[:1]
    types = program.ranks[rank].types
    size = sum(num_bytes(types[v].size, facts, rank) for v in values)
    whole = op.kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER) and op.axis is not None
    return size * program.mesh.degree(op.axis) if whole and op.axis else size


def flops_of(kind: Kind, flops: Flops) -> int:
    """FLOP per row of an F, R, B, I or W op."""
    backward = flops.backward_input + flops.backward_weight
    return {
        Kind.FORWARD: flops.forward,
        Kind.RECOMPUTE: flops.forward,
        Kind.BACKWARD: backward,
        Kind.BACKWARD_INPUT: flops.backward_input,
        Kind.BACKWARD_WEIGHT: flops.backward_weight,
    }[kind]


LARGEST = 1e15
"""Of a cost or a scale; sums and products of such stay finite."""

COST_NAMES = ("F", "B", "I", "W", "FB", "comm", "step")


@dataclass(frozen=True)
class Uniform:
    """The same cost for every stage, shared equally by its layers (see `share`), however a layer is split.

    F, B (full), I (for the input), W (for the weights) are what a p-th of the model takes for a microbatch on p
    pipeline ranks: where a rank has v stages, each takes a v-th. B = I + W: of what is not given, I and W are half of
    B, or 1. `FB` is an F and a B that overlap on one rank (None: as long as one after the other). `comm` is one
    message, however large; a collective takes as many of them as its ring has rounds. `step` is the optimizer step of
    a p-th of the model. With `scale` the stages differ: stage s takes `scale[s]` times as long.
    """

    F: float = 1.0
    B: float | None = None
    I: float | None = None
    W: float | None = None
    FB: float | None = None
    comm: float = 0.0
    step: float = 0.0
    link: Link = Link.CHANNEL
    scale: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for factor in self.scale:
            if not (isinstance(factor, int | float) and 0 <= factor <= LARGEST):
                raise ValueError(f"scale {factor!r} of a stage; give numbers from 0 to {LARGEST:g}, one for each stage")
        for name in COST_NAMES:
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and 0 <= value <= LARGEST):
                raise ValueError(f"cost {name}={value}; a cost is a number from 0 to {LARGEST:g}")
        for name, value in zip("BIW", _split(self.B, self.I, self.W), strict=True):
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, link: Link = Link.CHANNEL, scale: tuple[float, ...] = (), **given: float) -> "Uniform":
        """From names as a user types them; ValueError lists them for an unknown one."""
        unknown = sorted(set(given) - set(COST_NAMES))
        if unknown:
            raise ValueError(f"unknown cost {unknown[0]!r}; costs are {', '.join(COST_NAMES)}, and MB, MW")
        return cls(link=link, scale=scale, **given)

    def __str__(self) -> str:
        stages = f", stages scaled by {' '.join(f'{factor:g}' for factor in self.scale)}" if self.scale else ""
        given = {name: getattr(self, name) for name in COST_NAMES}
        return "costs " + " ".join(f"{name}={value:g}" for name, value in given.items() if value is not None) + stages

    def seconds(self, op: Op, rank: int, program: Program, facts: Facts) -> float:
        match op.kind:
            case Kind.FORWARD | Kind.RECOMPUTE | Kind.BACKWARD | Kind.BACKWARD_INPUT | Kind.BACKWARD_WEIGHT:
                stage = program.stages[op.stage]
                beside = self._beside() if op.pair >= 0 else 1.0
                each = beside * self._of_stage(op.kind) * self._of_p(op.stage, program)
                return each * share(program.model, stage[op.segment], stage)
            case Kind.STEP:
                weights = sum(num_bytes(program.ranks[rank].types[v].size, facts, rank) for v in op.inputs[:1])
                return self.step * self._of_p(op.stage, program) * weights / _stage_weights(op.stage, program)
            case Kind.SEND | Kind.RECV:
                return self.comm
            case Kind.ALL_REDUCE | Kind.ALL_GATHER | Kind.REDUCE_SCATTER | Kind.ALL_TO_ALL:
                assert op.axis is not None
                return self.comm * ring_rounds(op.kind, program.mesh.degree(op.axis))
            case Kind.ADD | Kind.FINITE | Kind.FREE | Kind.SPLIT:
                return 0.0
            case _:
                assert_never(op.kind)

    def _of_p(self, stage: int, program: Program) -> float:
        """A stage as a share of a p-th of the model."""
        if self.scale and len(self.scale) != len(program.stages):
            raise ValueError(
                f"scale has {len(self.scale)} numbers for the {len(program.stages)} stages of {program.name}; give one "
                "for each stage"
            )
        scale = self.scale[stage] if self.scale else 1.0
        return scale * program.mesh.degree(Axis.PP) / len(program.stages)

    def _beside(self) -> float:
        """What an op of a pair takes, as a share of what it takes alone."""
        assert self.B is not None
        return 1.0 if self.FB is None or not self.F + self.B else self.FB / (self.F + self.B)

    def _of_stage(self, kind: Kind) -> float:
        assert self.B is not None and self.I is not None and self.W is not None
        return {
            Kind.FORWARD: self.F,
            Kind.RECOMPUTE: self.F,
            Kind.BACKWARD: self.B,
            Kind.BACKWARD_INPUT: self.I,
            Kind.BACKWARD_WEIGHT: self.W,
        }[kind]


LIGHT = 0.05
"""What a norm or a residual counts for beside the attention or feed-forward that it belongs to: a teaching constant, of
the order of what sequence parallelism saves of a layer (Korthikanti et al. 2022, arXiv:2205.05198, table 4)."""


def share(model: Model, segment: str, stage: tuple[str, ...]) -> float:
    """A segment's share of the work of a stage where all layers do the same: by the FLOP of its forward within its
    layer. What does not multiply counts for a `LIGHT` part of what does."""
    layer = model.layer_of[segment]
    flops = {name: model.segments[name].flops.forward for name in stage if model.layer_of[name] == layer}
    light = LIGHT * sum(flops.values()) or 1.0
    total = sum(n or light for n in flops.values())
    return (flops[segment] or light) / total / len({model.layer_of[name] for name in stage})


def _stage_weights(stage: int, program: Program) -> int:
    return sum(g.bytes for name in program.stages[stage] for g in program.model.segments[name].groups) or 1


def _split(B: float | None, I: float | None, W: float | None) -> tuple[float, float, float]:
    """Fill in B = I + W."""
    if B is None:
        I, W = 1.0 if I is None else I, 1.0 if W is None else W
        return I + W, I, W
    I = I if I is not None else B / 2 if W is None else B - W
    W = W if W is not None else B - I
    if min(I, W) < 0 or abs(I + W - B) > 1e-9 * B:
        raise ValueError(f"costs B={B:g}, I={I:g}, W={W:g}; B is I + W, so give two of the three")
    return B, I, W


@dataclass(frozen=True)
class Analytic:
    """What computes takes its FLOP over a rate and the bytes of all that it reads and writes over `memory_bandwidth`;
    communications take latency plus ring bytes over bandwidth (bytes per second).

    What an `I` leaves for its `W` is not copied, so the two read and write what a `B` does. Without a memory bandwidth,
    norms, residuals and optimizer steps are free; sums and splits, which real kernels do on the way, always are.
    """

    flops_per_second: float
    bandwidth: float
    latency: float = 0.0
    link: Link = Link.CHANNEL
    memory_bandwidth: float = inf

    def __str__(self) -> str:
        rate, width = _prefixed(self.flops_per_second, "FLOP/s"), _prefixed(self.bandwidth, "B/s")
        memory = f", memory {_prefixed(self.memory_bandwidth, 'B/s')}" if self.memory_bandwidth < inf else ""
        return f"{rate}{memory}, links {width} + {self.latency * 1e6:g} us"

    def seconds(self, op: Op, rank: int, program: Program, facts: Facts) -> float:
        if op.kind not in COMMUNICATION_KINDS:
            return self._computing(op, rank, program, facts) + self._moving(op, rank, program, facts)
        if op.kind in COLLECTIVE_KINDS:
            assert op.axis is not None
            wire = wire_factor(op.kind, program.mesh.degree(op.axis)) * moved_bytes(op, rank, program, facts)
            return self.latency + wire / self.bandwidth
        if op.kind is Kind.SEND:
            return self.latency + moved_bytes(op, rank, program, facts) / self.bandwidth
        return 0.0

    def _computing(self, op: Op, rank: int, program: Program, facts: Facts) -> float:
        if op.kind not in PASS_KINDS:
            return 0.0
        segment = program.model.segments[program.stages[op.stage][op.segment]]
        flops = flops_of(op.kind, segment.flops) * _num_rows(op, rank, segment, program, facts)
        return flops / self.flops_per_second

    def _moving(self, op: Op, rank: int, program: Program, facts: Facts) -> float:
        if self.memory_bandwidth == inf or not (op.kind in PASS_KINDS or op.kind is Kind.STEP):
            return 0.0
        types = program.ranks[rank].types
        values = [v for v in (*payload(op.inputs), *payload(op.writes)) if types[v].role is not Role.PENDING]
        return sum(num_bytes(types[v].size, facts, rank) for v in values) / self.memory_bandwidth


def _prefixed(number: float, unit: str) -> str:
    size, prefix = next((p for p in ((1e12, "T"), (1e9, "G"), (1e6, "M")) if number >= p[0]), (1.0, ""))
    return f"{number / size:g} {prefix}{unit}"


def _num_rows(op: Op, rank: int, segment: Segment, program: Program, facts: Facts) -> int:
    if segment.rows is None:
        return program.rows[program.mesh.data_shard(rank)][op.microbatch]
    return num_bytes(Sized(f"{segment.rows}:{op.microbatch}", each=1), facts, rank)


@dataclass(frozen=True)
class Stretched:
    """Each op takes `factor` times as long as, at `costs`, the same op of `program`, which names the same values on the
    same ranks: the same strategy on the same form of a model of other sizes."""

    program: Program
    costs: Costs
    factor: float

    def __post_init__(self) -> None:
        if not 0 < self.factor < float("inf"):
            raise ValueError(f"times stretched by {self.factor:g}; the factor is a finite number above 0")

    @property
    def link(self) -> Link:
        return self.costs.link

    def __str__(self) -> str:
        return f"{self.factor:.4g} times {self.program.model.name} at {self.costs}"

    def seconds(self, op: Op, rank: int, program: Program, facts: Facts) -> float:
        """ValueError for an op of which the other program does not know a value."""
        ranks = self.program.ranks
        known = ranks[rank].types if rank < len(ranks) else {}
        for value in (*op.inputs, *op.writes):
            if value not in known:
                raise ValueError(
                    f"rank {rank}: {label(op)} has no pace, because the program that sets it has no {value} there; "
                    "take one with the same ops"
                )
        return self.factor * self.costs.seconds(op, rank, self.program, facts)
