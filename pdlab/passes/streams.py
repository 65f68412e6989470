"""Give every op its stream: what runs in order with what.

Compute is one stream, each process group one, and each peer one *per direction*. The direction matters: with one
in-order channel for each pair of ranks, textbook 1F1B deadlocks under rendezvous already with two stages and two
microbatches, since a send of an activation and a send of a gradient wait for each other.
"""

from dataclasses import replace
from enum import Enum

from pdlab.ops import COLLECTIVE_KINDS, COMPUTE, Kind, Lane, Op, Stream
from pdlab.program import Program


class Channels(Enum):
    """How messages to and from one peer share streams: one per direction, one per pair, or all in the list's own
    order."""

    PER_DIRECTION = "direction"
    PER_PAIR = "pair"
    ONE_LIST = "list"


def assign_streams(program: Program, channels: Channels = Channels.PER_DIRECTION) -> Program:
    """Streams for every op of every rank."""

    def stream(op: Op) -> Stream:
        if channels is Channels.ONE_LIST:
            return COMPUTE
        if op.kind in COLLECTIVE_KINDS:
            return Stream(Lane.GROUP, op.axis)
        if op.kind in (Kind.SEND, Kind.RECV):
            if channels is Channels.PER_PAIR:
                return Stream(Lane.PAIR, peer=op.peer)
            return Stream(Lane.TO if op.kind is Kind.SEND else Lane.FROM, peer=op.peer)
        return COMPUTE

    def assigned(op: Op) -> Op:
        found = stream(op)
        return op if op.stream == found else op._replace(stream=found)

    return program.with_ranks([replace(rank, ops=tuple(map(assigned, rank.ops))) for rank in program.ranks])
