"""Give every op its stream: what runs in order with what.

Compute is one stream, each process group one, and each peer one *per direction*. The direction matters: with one
in-order channel for each pair of ranks, textbook 1F1B deadlocks under rendezvous already with two stages and two
microbatches, since a send of an activation and a send of a gradient wait for each other.
"""

from dataclasses import replace
from enum import Enum

from pdlab.mesh import Axis
from pdlab.ops import COLLECTIVE_KINDS, COMMUNICATION_KINDS, COMPUTE, Kind, Lane, Op, Stream
from pdlab.program import Program


class Channels(Enum):
    """How messages to and from one peer share streams: one per direction, one per pair, or all in the list's own
    order."""

    PER_DIRECTION = "direction"
    PER_PAIR = "pair"
    ONE_LIST = "list"


def assign_streams(program: Program, channels: Channels = Channels.PER_DIRECTION) -> Program:
    """Streams for every op of every rank."""
    divided = frozenset() if channels is Channels.ONE_LIST else COMMUNICATION_KINDS
    known: dict[tuple[Kind, Axis | None, int], Stream] = {}

    def assigned(op: Op) -> Op:
        found = COMPUTE if op.kind not in divided else stream(op)
        return op if op.stream == found else op._replace(stream=found)

    def stream(op: Op) -> Stream:
        key = op.kind, op.axis, op.peer
        if key not in known:
            known[key] = _stream(op, channels)
        return known[key]

    return program.with_ranks([replace(rank, ops=tuple(map(assigned, rank.ops))) for rank in program.ranks])


def _stream(op: Op, channels: Channels) -> Stream:
    if op.kind in COLLECTIVE_KINDS:
        return Stream(Lane.GROUP, op.axis)
    if channels is Channels.PER_PAIR:
        return Stream(Lane.PAIR, peer=op.peer)
    return Stream(Lane.TO if op.kind is Kind.SEND else Lane.FROM, peer=op.peer)
