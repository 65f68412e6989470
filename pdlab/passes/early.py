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
    time: a message may pass all ranks in one round. ValueError where messages wait for more than their value (pairs).
    """
    order(build(program))
    if any(len(op.inputs) + len(op.writes) > 1 for rank in program.ranks for op in rank.ops if op.kind in P2P_KINDS):
        raise ValueError(f"{program.name} has messages that wait for more than their value; take one without pairs")
    grown = _Lists(program).grown()
    ranks = [_behind_receives(rank, ops) for rank, ops in zip(program.ranks, grown, strict=True)]
    return consume_last_uses(program.with_ranks(ranks))


class _Lists:
    """The lists of all ranks while they grow; `here[r]` is what rank r has by then."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.lists: list[list[Op]] = [[] for _ in program.ranks]
        self.here: list[set[Value]] = [set() for _ in program.ranks]
        self.sends: dict[tuple[int, Value], list[Op]] = {}
        self.receives: dict[tuple[int, Value], Op] = {}
        for r, op in ((r, op) for r, rank in enumerate(program.ranks) for op in rank.ops):
            if op.kind is Kind.SEND:
                self.sends.setdefault((r, op.inputs[0]), []).append(op)
            elif op.kind is Kind.RECV:
                self.receives[r, op.writes[0]] = op

    def grown(self) -> list[list[Op]]:
        for r, rank in enumerate(self.program.ranks):
            for value in sorted(rank.live_in):
                self._deliver(r, value)
        computes = [[op for op in rank.ops if op.kind not in P2P_KINDS] for rank in self.program.ranks]
        turn = [0] * len(computes)
        for _ in range(sum(map(len, computes))):  # each round at least one op, or the rest would wait for ever
            for r, ops in enumerate(computes):
                if turn[r] < len(ops) and self.here[r].issuperset(ops[turn[r]].inputs):
                    self.lists[r].append(ops[turn[r]])
                    for value in ops[turn[r]].writes:
                        self._deliver(r, value)
                    turn[r] += 1
        assert not self.sends and turn == [len(ops) for ops in computes]
        return self.lists

    def _deliver(self, r: int, value: Value) -> None:
        """Send what a rank has just got to those who want it."""
        self.here[r].add(value)
        for send in self.sends.pop((r, value), ()):
            self.lists[r].append(send)
            self.lists[send.peer].append(self.receives[send.peer, value])
            self._deliver(send.peer, value)


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
