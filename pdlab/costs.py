"""Where durations come from.

`Uniform` is the teaching model: one number for each kind of op on a stage, one for a message, in any unit of time.
`Analytic` counts FLOP and bytes. Both name a link model: `independent` lets messages of one stream overlap, as the
zero-bubble paper assumes (each takes its latency plus its time on the wire), `channel` makes a stream exclusive.
"""

from dataclasses import dataclass, fields
from enum import Enum
from typing import Protocol

from pdlab.models.spec import Flops, Segment
from pdlab.ops import COLLECTIVE_KINDS, PASS_KINDS, Kind, Op
from pdlab.program import Facts, Program, Sized, num_bytes


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
    """FLOP per row of an F, B, I or W op."""
    backward = flops.backward_input + flops.backward_weight
    return {
        Kind.FORWARD: flops.forward,
        Kind.BACKWARD: backward,
        Kind.BACKWARD_INPUT: flops.backward_input,
        Kind.BACKWARD_WEIGHT: flops.backward_weight,
    }[kind]


@dataclass(frozen=True)
class Uniform:
    """The same cost for every stage, shared equally by its segments.

    F, B (full), I (for the input), W (for the weights) are per stage and microbatch, B = I + W. `comm` is one
    message, however large; a collective takes `wire_factor` of it, as a ring does whose steps cost that much
    together. `step` is the optimizer step of a stage.
    """

    F: float = 1.0
    B: float = 2.0
    I: float = 1.0
    W: float = 1.0
    comm: float = 0.0
    step: float = 0.0
    link: Link = Link.CHANNEL

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "link" and not (isinstance(value, int | float) and 0 <= value < float("inf")):
                raise ValueError(f"cost {field.name}={value}; a cost is a finite number of at least 0")

    @classmethod
    def of(cls, link: Link = Link.CHANNEL, **given: float) -> "Uniform":
        """Fill in what is not given: B is I + W, and where only B is known I and W are half of it each."""
        unknown = set(given) - {field.name for field in fields(cls)}
        if unknown:
            raise ValueError(f"unknown cost {sorted(unknown)[0]!r}; costs are F, B, I, W, comm, step")
        if "B" in given and not {"I", "W"} & set(given):
            given |= {"I": given["B"] / 2, "W": given["B"] / 2}
        elif "B" in given and "I" not in given:
            given["I"] = given["B"] - given["W"]
        elif "B" in given and "W" not in given:
            given["W"] = given["B"] - given["I"]
        given.setdefault("I", 1.0)
        given.setdefault("W", 1.0)
        given.setdefault("B", given["I"] + given["W"])
        return cls(link=link, **given)

    def __str__(self) -> str:
        return "costs " + " ".join(f"{f.name}={getattr(self, f.name):g}" for f in fields(self) if f.name != "link")

    def seconds(self, op: Op, rank: int, program: Program, facts: Facts) -> float:
        if op.kind in PASS_KINDS:
            return self._of_stage(op.kind) / len(program.stages[op.stage])
        if op.kind is Kind.STEP:
            weights = sum(num_bytes(program.ranks[rank].types[v].size, facts, rank) for v in op.inputs[:1])
            return self.step * weights / _stage_weights(op.stage, program) if self.step else 0.0
        if op.kind in (Kind.SEND, Kind.RECV):
            return self.comm
        if op.kind in COLLECTIVE_KINDS:
            assert op.axis is not None
            return self.comm * wire_factor(op.kind, program.mesh.degree(op.axis))
        return 0.0

    def _of_stage(self, kind: Kind) -> float:
        return {
            Kind.FORWARD: self.F,
            Kind.BACKWARD: self.B,
            Kind.BACKWARD_INPUT: self.I,
            Kind.BACKWARD_WEIGHT: self.W,
        }[kind]


def _stage_weights(stage: int, program: Program) -> int:
    return sum(g.bytes for name in program.stages[stage] for g in program.model.segments[name].groups) or 1


@dataclass(frozen=True)
class Analytic:
    """FLOP over a rate, and for communications latency plus ring bytes over bandwidth (bytes per second)."""

    flops_per_second: float
    bandwidth: float
    latency: float = 0.0
    link: Link = Link.CHANNEL

    def __str__(self) -> str:
        rate, width = self.flops_per_second / 1e9, self.bandwidth / 1e9
        return f"{rate:g} GFLOP/s, links {width:g} GB/s + {self.latency * 1e6:g} us"

    def seconds(self, op: Op, rank: int, program: Program, facts: Facts) -> float:
        if op.kind in PASS_KINDS:
            segment = program.model.segments[program.stages[op.stage][op.segment]]
            return (
                flops_of(op.kind, segment.flops) * _num_rows(op, rank, segment, program, facts) / self.flops_per_second
            )
        if op.kind in COLLECTIVE_KINDS:
            assert op.axis is not None
            wire = wire_factor(op.kind, program.mesh.degree(op.axis)) * moved_bytes(op, rank, program, facts)
            return self.latency + wire / self.bandwidth
        if op.kind is Kind.SEND:
            return self.latency + moved_bytes(op, rank, program, facts) / self.bandwidth
        return 0.0


def _num_rows(op: Op, rank: int, segment: Segment, program: Program, facts: Facts) -> int:
    if segment.rows is None:
        return program.rows[program.mesh.data_shard(rank)][op.microbatch]
    return num_bytes(Sized(f"{segment.rows}:{op.microbatch}", each=1), facts, rank)
