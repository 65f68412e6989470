"""Insert the sends and receives between pipeline ranks: wherever a rank reads a value that another rank writes.

A send follows the op that writes the value. A receive comes before the first op that reads it, and receives from one
peer keep the order of the sends, since a channel delivers in order.

What skips stages is carried along: a pipeline rank talks to its neighbours, so a tensor from stage 0 to stage 3 is
handed on by the ranks of stages 1 and 2, which hold it until then; its bytes count at every hop. What belongs to no
microbatch (gradients of copies) goes straight.
"""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import cached_property

from pdlab.mesh import Axis
from pdlab.ops import Kind, Lane, Op, Stream, Value, receiving, sending
from pdlab.program import Program, RankProgram, Type

Place = tuple[int, int]
"""A rank and a position in its list; -1 is before the first op."""

Message = tuple[int, int, Value]
"""After which op of its sender it is sent, before which op of its receiver it is received, and what it is."""

Inserted = defaultdict[int, list[Op]]
"""The ops that come in before or after a position."""


def insert_messages(program: Program) -> Program:
    """Messages go between the ranks of one pipeline, that is, along the pp axis."""
    result = list(program.ranks)
    for rank in range(program.mesh.size):
        line = program.mesh.group(rank, Axis.PP)
        if line[0] == rank and len(line) > 1:
            for member, with_messages in _Line({r: program.ranks[r] for r in line}).connected().items():
                result[member] = with_messages
    return program.with_ranks(result)


@dataclass
class _Line:
    """The ranks of one pipeline. `arrives[r]` says where in its list rank r needs what it does not make, `messages`
    what goes from one rank to another, `relayed[r]` what rank r only hands on."""

    ranks: dict[int, RankProgram]
    homes: dict[Value, Place] = field(default_factory=dict)
    arrives: dict[int, dict[Value, int]] = field(default_factory=dict)
    messages: defaultdict[tuple[int, int], list[Message]] = field(default_factory=lambda: defaultdict(list))
    relayed: dict[int, dict[Value, Type]] = field(default_factory=dict)

    def connected(self) -> dict[int, RankProgram]:
        for r, rank in self.ranks.items():
            self._read(r, rank)
        needs = [(value, (r, use)) for r, found in self.arrives.items() for value, use in found.items()]
        for value, use in needs:
            home = self.homes.get(value)
            if home and home[0] != use[0]:
                self._bring(value, home, use)
        return self._with_messages()

    def _read(self, r: int, rank: RankProgram) -> None:
        """Where each value comes from, and what is read here that never is made here."""
        here = set(rank.live_in)
        needed: dict[Value, int] = {}
        homes = self.homes
        homes.update(dict.fromkeys(here, (r, -1)))
        for i, op in enumerate(rank.ops):
            for value in op.inputs:
                if value not in here:
                    here.add(value)
                    needed[value] = i
            place = (r, i)
            for value in op.writes:
                here.add(value)
                homes[value] = place
        self.arrives[r] = needed

    # --- from the rank that makes a value to the one that reads it

    def _bring(self, value: Value, home: Place, use: Place) -> None:
        source = home
        for relay, position in self._between(home, use):
            if value not in self.arrives[relay]:
                self._send(value, source, (relay, position))
                self.arrives[relay][value] = position
                self.relayed.setdefault(relay, {})[value] = self.ranks[home[0]].types[value]
            source = relay, self.arrives[relay][value]
        self._send(value, source, use)

    def _send(self, value: Value, source: Place, target: Place) -> None:
        self.messages[source[0], target[0]].append((source[1], target[1], value))

    def _between(self, home: Place, use: Place) -> list[Place]:
        """The other ranks on the way from stage to stage, and where the same microbatch is on each. A way that comes
        back to a rank (the turn of a V) is cut short there."""
        if home[1] < 0:
            return []
        made, read = self.ranks[home[0]].ops[home[1]], self.ranks[use[0]].ops[use[1]]
        if -2 < read.stage - made.stage < 2 or min(made.stage, read.stage) < 0:
            return []
        step = 1 if read.stage > made.stage else -1
        keys = [(step, stage, read.microbatch) for stage in range(made.stage + step, read.stage, step)]
        way = [home]
        for place in (*(self._passes[key] for key in keys if key in self._passes), use):
            ranks = [rank for rank, _ in way]
            way = way[: ranks.index(place[0]) + 1] if place[0] in ranks else [*way, place]
        return [place for place in way[1:] if place[0] != use[0]]

    @cached_property
    def _passes(self) -> dict[tuple[int, int, int], Place]:
        """The first op of each pass: 1 (forward) or -1 (back), stage, microbatch."""
        steps = {Kind.FORWARD: 1, Kind.BACKWARD: -1, Kind.BACKWARD_INPUT: -1}
        found: dict[tuple[int, int, int], Place] = {}
        for r, rank in self.ranks.items():
            for i, op in enumerate(rank.ops):
                if op.kind in steps:
                    found.setdefault((steps[op.kind], op.stage, op.microbatch), (r, i))
        return found

    # --- the lists with what was found

    def _with_messages(self) -> dict[int, RankProgram]:
        sends: dict[int, Inserted] = {r: defaultdict(list) for r in self.ranks}
        receives: dict[int, Inserted] = {r: defaultdict(list) for r in self.ranks}
        for (source, target), messages in self.messages.items():
            to, origin = Stream(Lane.TO, peer=target), Stream(Lane.FROM, peer=source)
            leaving, coming, latest = sends[source], receives[target], len(self.ranks[target].ops)
            for position, use, value in sorted(messages, reverse=True):
                latest = min(latest, use)
                leaving[position].append(sending(value, target, to))
                coming[latest].append(receiving(value, source, origin))
        return {r: self._merged(r, sends[r], receives[r]) for r in self.ranks}

    def _merged(self, r: int, sends: Inserted, receives: Inserted) -> RankProgram:
        """Both were found from the last to the first."""
        ops: list[Op] = sends.get(-1, [])[::-1]
        for i, op in enumerate(self.ranks[r].ops):
            if i in receives:
                ops += receives[i][::-1]
            ops.append(op)
            if i in sends:
                ops += sends[i][::-1]
        types, relayed = self.ranks[r].types, self.relayed.get(r)
        return replace(self.ranks[r], ops=tuple(ops), types=types | relayed if relayed else types)
