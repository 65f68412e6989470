"""A forward and a backward that overlap on one rank (DualPipe's F&B): they begin together and end together.

On a GPU the kernels of the two share the machine, each one's messages hidden under the other's arithmetic. Here they
are ops of one stream that stand side by side. What makes them a pair is two kinds of token and a cost of their own
(`Uniform.FB`): the first op waits for what either of them receives, and nothing that they make is sent before the last
one is done. What stands between them (collectives, sums, a second forward) belongs to the pair, at its own cost.
"""

from collections.abc import Sequence
from dataclasses import replace

from pdlab.ops import TOKEN, Kind, Op, Value
from pdlab.program import Program, RankProgram, Role, Type


def join_pairs(program: Program) -> Program:
    """Add the tokens, after the messages are there."""
    if all(op.pair < 0 for rank in program.ranks for op in rank.ops):
        return program
    return program.with_ranks([_joined(rank) for rank in program.ranks])


def _joined(rank: RankProgram) -> RankProgram:
    ops, types = _sends_last(rank.ops), dict(rank.types)
    members = _members(ops)
    read_by: dict[Value, int] = {}
    written_by: dict[Value, int] = {}
    for pair, found in members.items():
        for op in ops[found[0] : found[-1] + 1]:
            for value in op.inputs if op.kind is not Kind.SEND else ():
                read_by.setdefault(value, pair)
            written_by.update(dict.fromkeys(op.writes if op.kind is not Kind.RECV else (), pair))

    def token(name: Value) -> tuple[Value]:
        types[name] = Type(Role.TOKEN, 0)
        return (name,)

    for i, op in enumerate(ops):
        if op.kind is Kind.RECV and op.writes[0] in read_by and i < (first := members[read_by[op.writes[0]]][0]):
            arrived = token(f"{TOKEN}arrived {op.writes[0]}")
            ops[i] = op._replace(writes=(*op.writes, *arrived))
            ops[first] = ops[first]._replace(inputs=(*ops[first].inputs, *arrived))
        elif op.kind is Kind.SEND and op.inputs[0] in written_by:
            last = members[written_by[op.inputs[0]]][-1]
            done = token(f"{TOKEN}pair {written_by[op.inputs[0]]}")
            ops[i] = op._replace(inputs=(*op.inputs, *done))
            if done[0] not in ops[last].writes:
                ops[last] = ops[last]._replace(writes=(*ops[last].writes, *done))
    return replace(rank, ops=tuple(ops), types=types)


def _members(ops: Sequence[Op]) -> dict[int, list[int]]:
    """For each pair the positions of its ops."""
    found: dict[int, list[int]] = {}
    for i, op in enumerate(ops):
        if op.pair >= 0:
            found.setdefault(op.pair, []).append(i)
    return found


def _sends_last(ops: Sequence[Op]) -> list[Op]:
    """Between the ops of a pair a receive comes first and a send last, so that each stands after what it waits for."""
    turned = list(ops)
    for found in _members(ops).values():
        inside = slice(found[0], found[-1] + 1)
        turned[inside] = sorted(ops[inside], key=_turn)
    return turned


def _turn(op: Op) -> int:
    return {Kind.RECV: 0, Kind.SEND: 2}.get(op.kind, 1)
