"""Post every receive as early as possible, on one channel for each rank: what looks like overlap, and is a trap.

A receive that is posted before its message exists holds the channel (NCCL runs the batched messages of a group on one
stream). A send that is ready stands behind it, whoever waits for that send comes late, and so do its own sends: the
delay runs through all ranks. Receiving just before the value is used, which is what `insert_messages` writes, never
makes a send wait: what is listed after that use cannot be ready before it anyway.

    compute   |1F0|     |1B0|                1B0 is ready to be sent on ...
    channel       |RECV h1:1 .........|SEND|  ... behind a message that comes later
"""

from dataclasses import replace

from pdlab.depend import build
from pdlab.ops import P2P_KINDS, TOKEN, Kind, Op, Value
from pdlab.order import order
from pdlab.passes.consume import consume_last_uses
from pdlab.program import Program, RankProgram, Role, Type


def receive_early(program: Program) -> Program:
    """Each receive where its rank stands when the send is listed, and each send behind the receives before it.

    The lists grow as those of torch.distributed.pipelining do by default: ranks take turns, each adds its next op if
    what it reads has come, and with the op its sends, and the receives to the lists of their ranks. Turns are not
    time: a message may pass all ranks in one round.
    """
    order(build(program))
    if any(len(op.inputs) + len(op.writes) > 1 for rank in program.ranks for op in rank.ops if op.kind in P2P_KINDS):
        raise ValueError(f"{program.name} has messages that wait for more than their value; take one without pairs")
    computes = [[op for op in rank.ops if op.kind not in P2P_KINDS] for rank in program.ranks]
    listed = [(r, op) for r, rank in enumerate(program.ranks) for op in rank.ops]
    sends: dict[tuple[int, Value], list[Op]] = {}
    for r, op in listed:
        if op.kind is Kind.SEND:
            sends.setdefault((r, op.inputs[0]), []).append(op)
    receives = {(r, op.writes[0]): op for r, op in listed if op.kind is Kind.RECV}
    lists: list[list[Op]] = [[] for _ in program.ranks]
    here: list[set[Value]] = [set(rank.live_in) for rank in program.ranks]

    def deliver(r: int, value: Value) -> None:
        """Send what a rank has just got, if it is to be sent on."""
        here[r].add(value)
        for send in sends.pop((r, value), ()):
            lists[r].append(send)
            lists[send.peer].append(receives[send.peer, value])
            deliver(send.peer, value)

    for r, rank in enumerate(program.ranks):
        for value in sorted(rank.live_in):
            deliver(r, value)
    turn = [0] * len(program.ranks)
    for _ in range(sum(map(len, computes))):  # each round at least one op, or the rest would wait for ever
        for r, ops in enumerate(computes):
            if turn[r] < len(ops) and here[r].issuperset(ops[turn[r]].inputs):
                lists[r].append(ops[turn[r]])
                for value in ops[turn[r]].writes:
                    deliver(r, value)
                turn[r] += 1
    assert not sends and turn == [len(ops) for ops in computes]
    ranks = [_behind_receives(rank, ops) for rank, ops in zip(program.ranks, lists, strict=True)]
    return consume_last_uses(program.with_ranks(ranks))


def _behind_receives(rank: RankProgram, ops: list[Op]) -> RankProgram:
    """A token from the last receive before each send."""
    types, last = dict(rank.types), -1
    for i, op in enumerate(ops):
        if op.kind is Kind.RECV:
            last = i
        elif op.kind is Kind.SEND and last >= 0:
            token = f"{TOKEN}posted {ops[last].writes[0]}"
            types[token] = Type(Role.TOKEN, 0)
            ops[i] = op._replace(inputs=(*op.inputs, token))
            if token not in ops[last].writes:
                ops[last] = ops[last]._replace(writes=(*ops[last].writes, token))
    return replace(rank, ops=tuple(ops), types=types)
