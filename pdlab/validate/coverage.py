"""Every microbatch's gradient exactly once at every step: the program is run on sets of samples instead of numbers.

A value stands for the samples that it was made of. A pass hands them on, a sum joins them, and what is summed must not
overlap, or it would count twice. At a step the set must be full. Who loses or doubles a microbatch still trains, and
converges, to something else; here it is an error.
"""

from collections.abc import Iterable
from typing import assert_never

from pdlab.depend import Graph, ProgramError
from pdlab.mesh import DATA_AXES, LOCAL
from pdlab.ops import COLLECTIVE_KINDS, P2P_KINDS, Kind, Op, Value, payload
from pdlab.program import Role, Sized, Type
from pdlab.validate.faults import fault, types_of
from pdlab.validate.needs import Needs
from pdlab.validate.samples import UNKNOWN, Samples

FLOWING = frozenset(
    {Role.FEED, Role.ACTIVATION, Role.ACTIVATION_GRADIENT, Role.SAVED, Role.PENDING, Role.LOSS, Role.FACT}
)
"""Values made of one microbatch. Weights are made of all that ever were, and stand for none."""

SOURCES = {
    Kind.FORWARD: FLOWING,
    Kind.RECOMPUTE: FLOWING,
    Kind.BACKWARD: frozenset({Role.ACTIVATION_GRADIENT}),
    Kind.BACKWARD_INPUT: frozenset({Role.ACTIVATION_GRADIENT}),
    Kind.BACKWARD_WEIGHT: frozenset({Role.PENDING}),
}
"""The operands of a pass that decide whose samples its results are made of: backward, what flows back from the loss."""


def check_coverage(graph: Graph, events: list[int], needs: Needs) -> None:
    """`events` is an order in which they can happen."""
    sets = _Sets(graph, needs)
    for event in events:
        rows = graph.members[event]
        kind = graph.ops[rows[0]].kind
        if kind in P2P_KINDS:
            sets.message(*rows)
        elif kind in COLLECTIVE_KINDS:
            sets.collective(rows)
        else:
            sets.alone(rows[0])


class _Sets:
    """What each value of each rank stands for, as far as the program has run."""

    def __init__(self, graph: Graph, needs: Needs) -> None:
        self.graph, self.needs = graph, needs
        self.samples = Samples(graph.program)
        self.held: list[dict[Value, int]] = [self._at_start(rank) for rank in range(len(graph.program.ranks))]
        self.stepped: set[tuple[int, Value]] = set()

    def _at_start(self, rank: int) -> dict[Value, int]:
        of_rank = self.graph.program.ranks[rank]
        held = {}
        for value in sorted(of_rank.live_in):
            t = of_rank.types[value]
            if t.role is Role.GRADIENT:
                held[value] = UNKNOWN
            elif t.role in FLOWING:
                held[value] = self._in_flight(rank, value, t)
        return held

    def _in_flight(self, rank: int, value: Value, t: Type) -> int:
        """What is fed or was begun before the program says in its name which microbatch it is of: 3 in `h2:3`."""
        count = self.graph.program.num_microbatches
        _, _, number = value.rpartition(":")
        if not (number.isdecimal() and number.isascii() and len(number) < 10 and int(number) < count):
            raise ProgramError(
                f"rank {rank} starts with {value!r}, whose name ends in none of the {count} microbatches; "
                "name what is made of samples like h2:3, with the microbatch last"
            )
        mixed = isinstance(t.size, Sized) or any(place == LOCAL for _, place in t.layout.places)
        bit = 1 << self.samples.first_bit[rank] + int(number)
        return self.samples.microbatches[int(number)] if mixed else bit

    # --- ops of one rank

    def alone(self, row: int) -> None:
        op = self.graph.ops[row]
        match op.kind:
            case Kind.FORWARD | Kind.RECOMPUTE | Kind.BACKWARD | Kind.BACKWARD_INPUT | Kind.BACKWARD_WEIGHT:
                self._pass(row, op)
            case Kind.STEP:
                self._step(row, op)
            case Kind.ADD:
                self._add(row, op)
            case Kind.SPLIT:
                self._split(row, op)
            case Kind.FINITE | Kind.FREE:
                pass
            case Kind.SEND | Kind.RECV | Kind.ALL_REDUCE | Kind.ALL_GATHER | Kind.REDUCE_SCATTER | Kind.ALL_TO_ALL:
                raise AssertionError(f"{op} concerns other ranks")
            case _:
                assert_never(op.kind)

    def _pass(self, row: int, op: Op) -> None:
        rank = self.graph.rank_of[row]
        held, given = self.held[rank], payload(op.inputs)
        pattern = self.needs.of(op)
        assert pattern is not None
        own = 1 << self.samples.first_bit[rank] + op.microbatch
        others, sources = ~self.samples.microbatches[op.microbatch], SOURCES[op.kind]
        fresh, seen, so_far = 0, 0, []
        for value, need in zip(given, pattern[0], strict=True):
            if need.role is Role.GRADIENT:
                so_far.append(held[value])
            elif need.role in FLOWING:
                found = held[value]
                if found != own and (need.own_rows or not found or found & others):
                    raise self._foreign(row, value, found)
                seen |= found
                if need.role in sources:
                    fresh |= found
        fresh = fresh or seen  # a layer before all weights has no gradient to take up
        groups, segment = iter(so_far), self.graph.program.stages[op.stage][op.segment]
        for value, need in zip(payload(op.writes), pattern[1], strict=True):
            if need.role is Role.GRADIENT:
                found = self.samples.of_user(need.of, segment, fresh)
                held[value] = self._sum(row, value, (next(groups, 0), found))
            else:
                held[value] = fresh

    def _foreign(self, row: int, value: Value, found: int) -> ProgramError:
        op, say = self.graph.ops[row], self.samples.say
        own = 1 << self.samples.first_bit[self.graph.rank_of[row]] + op.microbatch
        text = f"works on {say(own)} and is given {value!r}, which is made of {say(found)}"
        return fault(self.graph, row, f"{text}; give it its own microbatch's value, or correct its number")

    def _sum(self, row: int, result: Value, terms: tuple[int, int]) -> int:
        first, second = terms
        if UNKNOWN in terms:
            return UNKNOWN
        if first & second:
            text = f"adds {self.samples.say(first & second)} into {result!r} a second time"
            raise fault(self.graph, row, f"{text}: it would count twice; add each microbatch's gradient once")
        return first | second

    def _add(self, row: int, op: Op) -> None:
        held = self.held[self.graph.rank_of[row]]
        first, second = (held[value] for value in payload(op.inputs))
        (total,) = payload(op.writes)
        if types_of(self.graph, row)[total].role is Role.GRADIENT:
            held[total] = self._sum(row, total, (first, second))
        else:
            held[total] = self._one_microbatch(row, first | second)

    def _split(self, row: int, op: Op) -> None:
        """A shard of every sample's values is made of as many samples."""
        held = self.held[self.graph.rank_of[row]]
        (whole,), (piece,) = payload(op.inputs), payload(op.writes)
        held[piece] = held[whole]

    def _step(self, row: int, op: Op) -> None:
        rank, samples = self.graph.rank_of[row], self.samples
        gradient = payload(op.inputs)[1]
        found = self.held[rank][gradient]
        if (rank, gradient) in self.stepped:
            raise fault(self.graph, row, f"steps on gradient {gradient!r} a second time; one step for each gradient")
        self.stepped.add((rank, gradient))
        if not -1 <= op.microbatch < self.graph.program.num_microbatches:
            raise fault(self.graph, row, f"names none of the {self.graph.program.num_microbatches} microbatches")
        wanted = self._taken(row, op)
        wanted = samples.of_all_users(types_of(self.graph, row)[gradient].of, wanted)
        if found in (wanted, UNKNOWN):
            return
        if wanted & ~found:
            text = f"takes gradient {gradient!r}, which lacks {samples.say(wanted & ~found)}"
            raise fault(self.graph, row, f"{text}; run that backward before the step and add its gradient")
        text = f"takes gradient {gradient!r}, which also holds {samples.say(found & ~wanted)}"
        raise fault(self.graph, row, f"{text}; this step is for {samples.say(wanted)} alone")

    def _taken(self, row: int, op: Op) -> int:
        """What a step is for: all samples, or as many microbatches up to its own as it takes the mean of."""
        if op.microbatch < 0:
            return self.samples.everything
        types = types_of(self.graph, row)
        count = next((int(types[v].of) for v in payload(op.inputs) if types[v].role is Role.SCALE and types[v].of), 1)
        return _union(self.samples.microbatches[i] for i in range(max(0, op.microbatch + 1 - count), op.microbatch + 1))

    # --- ops of several ranks

    def message(self, first: int, second: int) -> None:
        ops, rank_of = self.graph.ops, self.graph.rank_of
        send, recv = (first, second) if ops[first].kind is Kind.SEND else (second, first)
        value = ops[send].inputs[0]
        if value in self.held[rank_of[send]]:
            self.held[rank_of[recv]][value] = self.held[rank_of[send]][value]

    def collective(self, rows: tuple[int, ...]) -> None:
        for i, value in enumerate(payload(self.graph.ops[rows[0]].writes)):
            role = types_of(self.graph, rows[0])[value].role
            if role is Role.GRADIENT:
                joined = self._gradients(rows, i)
            elif role in FLOWING:
                joined = self._rows(rows, i)
            else:
                continue
            for row in rows:
                written, rank = payload(self.graph.ops[row].writes)[i], self.graph.rank_of[row]
                t = types_of(self.graph, row)[written]
                visible = self.samples.visible(rank, t)
                if role is Role.GRADIENT:
                    visible = self.samples.of_all_users(t.of, visible)
                self.held[rank][written] = joined if joined == UNKNOWN else joined & visible

    def _gradients(self, rows: tuple[int, ...], i: int) -> int:
        """Along a data axis the members add different samples, along the others parts of the same samples."""
        op, given = self.graph.ops[rows[0]], [self._given(row)[i] for row in rows]
        if UNKNOWN in given:
            return UNKNOWN
        if op.axis in DATA_AXES and op.kind in (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER):
            total = 0
            for row, found in zip(rows, given, strict=True):
                total = self._sum(row, payload(self.graph.ops[row].writes)[i], (total, found))
            return total
        for row, found in zip(rows, given, strict=True):
            if found != given[0]:
                value, say = payload(op.inputs)[i], self.samples.say
                text = f"joins {value!r}, made of {say(given[0])}, with that of {self.graph.describe(row)}"
                text += f", made of {say(found)}; all members must have seen the same microbatches by then"
                raise fault(self.graph, rows[0], text)
        return given[0]

    def _rows(self, rows: tuple[int, ...], i: int) -> int:
        """Samples of one microbatch, from all members; so are the counts by which an all-to-all splits them."""
        given = [self._given(row) for row in rows]
        split = self.graph.ops[rows[0]].kind is Kind.ALL_TO_ALL
        self._one_microbatch(rows[0], _union(found for sets in given for found in (sets if split else sets[i : i + 1])))
        return _union(sets[i] for sets in given)

    def _given(self, row: int) -> list[int]:
        held = self.held[self.graph.rank_of[row]]
        return [held[value] for value in payload(self.graph.ops[row].inputs)]

    def _one_microbatch(self, row: int, found: int) -> int:
        lowest = (found & -found).bit_length() - 1
        count = self.graph.program.num_microbatches
        if found & ~self.samples.microbatches[lowest % count]:
            text = f"joins {self.samples.say(found)}; rows of different microbatches do not belong together"
            raise fault(self.graph, row, f"{text}: hand each the value of one microbatch")
        return found


def _union(sets: Iterable[int]) -> int:
    total = 0
    for found in sets:
        total |= found
    return total
