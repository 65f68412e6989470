"""The alphabet: one op is one action of one rank, over named values.

Everything in the lab is a list of these. A strategy writes them without operands (`F(2, 0)`, stage 2's forward of
microbatch 0); passes fill in the operands, the messages and the streams; the interpreters walk them. The order of
`inputs` and `writes` is fixed by `pdlab.signature`, so an interpreter knows which operand plays which role without
asking what strategy it is in.
"""

import re
from enum import Enum
from typing import NamedTuple

from pdlab.mesh import Axis

Value = str
"""The name of a thing on a rank: `h3:0` (activation of microbatch 0), `fc1.w@2` (weights, version 2), `fc1.g#1`
(gradient)."""


TOKEN = "~"
"""Values whose name starts so have no bytes: they only order ops, and stand after the other operands."""


class Kind(Enum):
    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    RECOMPUTE = "R"
    STEP = "STEP"
    ADD = "ADD"
    FINITE = "FINITE"
    FREE = "FREE"
    SPLIT = "SPLIT"
    SEND = "SEND"
    RECV = "RECV"
    ALL_REDUCE = "ALL_REDUCE"
    ALL_GATHER = "ALL_GATHER"
    REDUCE_SCATTER = "REDUCE_SCATTER"
    ALL_TO_ALL = "ALL_TO_ALL"

    __hash__ = object.__hash__  # members are singletons, and Enum's own hash runs in Python


FORWARD_KINDS = frozenset({Kind.FORWARD, Kind.RECOMPUTE})
PASS_KINDS = FORWARD_KINDS | {Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT}
"""Ops that run a segment forward or backward; they carry a stage and a microbatch."""

SCHEDULED_KINDS = PASS_KINDS - {Kind.RECOMPUTE} | {Kind.STEP}
"""What a schedule of stages may hold; passes put in the rest."""

BACKWARD_KINDS = PASS_KINDS - FORWARD_KINDS

P2P_KINDS = frozenset({Kind.SEND, Kind.RECV})
COLLECTIVE_KINDS = frozenset({Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL})
COMMUNICATION_KINDS = P2P_KINDS | COLLECTIVE_KINDS


class Lane(Enum):
    COMPUTE = "compute"
    GROUP = "group"
    PAIR = "pair"
    TO = "to"
    FROM = "from"

    __hash__ = object.__hash__  # members are singletons, and Enum's own hash runs in Python


class Stream(NamedTuple):
    """What runs in order on a rank. `peer` is a rank for the point-to-point lanes, `axis` names the group's mesh
    axis."""

    lane: Lane
    axis: Axis | None = None
    peer: int = -1

    def __str__(self) -> str:
        if self.lane is Lane.GROUP and self.axis:
            return f"{self.axis.value} group"
        return self.lane.value if self.lane is Lane.COMPUTE else f"{self.lane.value} {self.peer}"


COMPUTE = Stream(Lane.COMPUTE)
NOTHING: frozenset[Value] = frozenset()


class Op(NamedTuple):
    """One action.

    `stage`, `segment` (within the stage) and `microbatch` are -1 where they do not apply. `consumes` is the part of
    `inputs` that is freed or updated in place; the rest is only read. `axis` names the group of a collective or
    split, `peer` the other rank of a message. Where the value `guard` is false the op takes no time and hands on its
    inputs. `version` says how many steps the weights it uses have seen; -1 means the newest for a forward, and the
    forward's own for a backward. A forward and a backward of the same `pair` (from 0 on each rank) overlap.
    """

    kind: Kind
    stage: int = -1
    segment: int = -1
    microbatch: int = -1
    inputs: tuple[Value, ...] = ()
    writes: tuple[Value, ...] = ()
    consumes: frozenset[Value] = frozenset()
    axis: Axis | None = None
    peer: int = -1
    guard: Value | None = None
    stream: Stream = COMPUTE
    version: int = -1
    pair: int = -1

    @property
    def reads(self) -> tuple[Value, ...]:
        return tuple(v for v in self.inputs if v not in self.consumes)

    @property
    def operands(self) -> tuple[Value, ...]:
        return self.inputs if self.guard is None else (*self.inputs, self.guard)

    def __str__(self) -> str:
        return label(self)


def consuming(op: Op, values: frozenset[Value]) -> Op:
    """The op with what it consumes: `_replace` in a third of the time, for passes that touch every op of a large
    program."""
    return tuple.__new__(Op, (*op[:6], values, *op[7:]))


def sending(value: Value, peer: int, stream: Stream) -> Op:
    """One side of a message, made the short way: a large pipeline has more of these than of all else."""
    return tuple.__new__(Op, (Kind.SEND, -1, -1, -1, (value,), (), NOTHING, None, peer, None, stream, -1, -1))


def receiving(value: Value, peer: int, stream: Stream) -> Op:
    """The other side."""
    return tuple.__new__(Op, (Kind.RECV, -1, -1, -1, (), (value,), NOTHING, None, peer, None, stream, -1, -1))


def stamped(op: Op, microbatch: int, inputs: tuple[Value, ...], writes: tuple[Value, ...], pair: int) -> Op:
    """The op on another microbatch, made the short way."""
    return tuple.__new__(Op, (*op[:3], microbatch, inputs, writes, *op[6:12], pair))


def payload(values: tuple[Value, ...]) -> tuple[Value, ...]:
    """The values that carry something."""
    return tuple(value for value in values if not value.startswith(TOKEN))


def F(stage: int, microbatch: int, version: int = -1) -> Op:
    """Forward of one stage on one microbatch."""
    return Op(Kind.FORWARD, stage, microbatch=microbatch, version=version)


def B(stage: int, microbatch: int, version: int = -1) -> Op:
    """Full backward: the gradients for the input and for the weights."""
    return Op(Kind.BACKWARD, stage, microbatch=microbatch, version=version)


def I(stage: int, microbatch: int) -> Op:  # noqa: E743
    """Backward for the input only; `W` does the rest later."""
    return Op(Kind.BACKWARD_INPUT, stage, microbatch=microbatch)


def W(stage: int, microbatch: int) -> Op:
    """Backward for the weights, after the `I` of the same stage and microbatch."""
    return Op(Kind.BACKWARD_WEIGHT, stage, microbatch=microbatch)


def STEP(stage: int, microbatch: int = -1) -> Op:
    """Optimizer step of a stage, on the gradient of one microbatch or (-1) of all of them."""
    return Op(Kind.STEP, stage, microbatch=microbatch)


def label(op: Op) -> str:
    """The shorthand of the field: `2F0`, `2.1F0`, `1STEP`, `2SEND h3:0 to 1`, `ALL_REDUCE fc0.g#1`."""
    where = (f"{op.stage}" if op.stage >= 0 else "") + (f".{op.segment}" if op.segment >= 0 else "")
    what = f"{where}{op.kind.value}" + (f"{op.microbatch}" if op.microbatch >= 0 else "")
    if op.kind in P2P_KINDS:
        message = (op.inputs or op.writes or ("?",))[0]
        return f"{op.kind.value} {message} {'to' if op.kind is Kind.SEND else 'from'} {op.peer}"
    if op.kind in COLLECTIVE_KINDS or op.kind in (Kind.ADD, Kind.FREE, Kind.FINITE, Kind.SPLIT):
        given = payload(op.inputs)
        more = f" (+{len(given) - 1})" if op.kind is Kind.ALL_REDUCE and len(given) > 1 else ""
        return f"{op.kind.value} {given[0] if given else '?'}{more}"
    return what


_LABEL = re.compile(r"(?P<stage>\d+)(?:\.(?P<segment>\d+))?(?P<kind>STEP|F|B|I|W|R)(?P<microbatch>\d+)?")


def parse(text: str) -> Op:
    """`2F0` back into an op. Messages are not parsed: a pass inserts them."""
    match = _LABEL.fullmatch(text.strip())
    kind = Kind(match["kind"]) if match else None
    if match is None or kind is None or (kind is not Kind.STEP and match["microbatch"] is None):
        raise ValueError(f"{text!r} is not an op; write stage, kind, microbatch, as in 2F0, 2B0, 2I0, 2W0, or 2STEP")
    stage, segment, microbatch = (int(match[key] or -1) for key in ("stage", "segment", "microbatch"))
    return Op(kind, stage, segment, microbatch)
