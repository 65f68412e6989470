"""The simulator: the interpreter that keeps, for each value, when it is ready and how many bytes it has.

Since a program does not branch, the end of an event is the latest end among what it waits for plus its own duration,
and one pass in dependency order finds all of them. The pass touches lists of numbers only.
"""

from dataclasses import dataclass

from pdlab.collector import paused
from pdlab.costs import Costs, Link, moved_bytes
from pdlab.depend import Graph, build
from pdlab.ops import COLLECTIVE_KINDS, COMMUNICATION_KINDS, P2P_KINDS, PASS_KINDS, Kind, Op, Value
from pdlab.order import deadlock, edges
from pdlab.program import Facts, Program, RankProgram, Role, num_bytes
from pdlab.trace import Mode, Provenance, Trace


def simulate(program: Program, costs: Costs, facts: Facts | None = None) -> Trace:
    """Predict a run. `facts` gives the run-time sizes and flags: a scenario, or the facts of a recorded run.

    A flag that is not given counts as true. Raises `ProgramError` for a program that cannot run, `Deadlock` included.
    """
    plan = start_plan(program, costs, facts or {})
    starts, ends = run_plan(plan)
    return read_trace(plan, starts, ends, costs, facts or {})


def start_plan(program: Program, costs: Costs, facts: Facts | None = None) -> "Plan":
    """All of a simulation that comes before its loop."""
    with paused():
        return compile_plan(build(program), costs, facts or {})


@dataclass(frozen=True)
class Plan:
    """A program in integers: durations and successors of every event. `turn` are successors that wait for a start
    only."""

    graph: Graph
    durations: list[float]
    after: list[list[int]]
    turn: list[list[int]]
    num_waits: list[int]


def compile_plan(graph: Graph, costs: Costs, facts: Facts) -> Plan:
    found = edges(graph)
    after, turn = found.after, [[] for _ in found.after]  # type: list[list[int]], list[list[int]]
    overlapping = costs.link is Link.INDEPENDENT
    for event, following in enumerate(found.next_in_stream):
        is_message = graph.ops[graph.members[event][0]].kind in COMMUNICATION_KINDS
        (turn if overlapping and is_message else after)[event].extend(following)
    return Plan(graph, _durations(graph, costs, facts), after, turn, found.num_waits)


def _durations(graph: Graph, costs: Costs, facts: Facts) -> list[float]:
    """The slowest member sets the duration of a joint event; an op whose guard is false takes none."""
    remembered = _Remembered(graph.program, costs, facts)
    ops, rank_of = graph.ops, graph.rank_of
    durations = []
    for rows in graph.members:
        longest = 0.0
        for row in rows:
            op, rank = ops[row], rank_of[row]
            if op.guard is None or facts.get((rank, op.guard), (1,))[0]:
                longest = max(longest, remembered.seconds(op, rank))
        durations.append(longest)
    return durations


class _Remembered:
    """Ops that run the same segment on as many rows, or send a value of the same type, cost the same: ask once."""

    def __init__(self, program: Program, costs: Costs, facts: Facts) -> None:
        self.program, self.costs, self.facts = program, costs, facts
        self.known: dict[tuple[object, ...], float] = {}
        self.rows = [program.rows[program.mesh.data_shard(rank)] for rank in range(program.mesh.size)]
        self.varying = {name for name, segment in program.model.segments.items() if segment.rows is not None}

    def seconds(self, op: Op, rank: int) -> float:
        key = self._like(op, rank)
        if key is None:
            return self.costs.seconds(op, rank, self.program, self.facts)
        if key not in self.known:
            self.known[key] = self.costs.seconds(op, rank, self.program, self.facts)
        return self.known[key]

    def _like(self, op: Op, rank: int) -> tuple[object, ...] | None:
        """What decides the cost of an op; None where that is not known. A type that is shared is one object."""
        if op.kind in P2P_KINDS:
            value = op.inputs[0] if op.kind is Kind.SEND else op.writes[0]
            return op.kind, rank, id(self.program.ranks[rank].types[value])
        if op.kind not in PASS_KINDS or self.program.stages[op.stage][op.segment] in self.varying:
            return None
        return op.kind, op.stage, op.segment, rank, self.rows[rank][op.microbatch], op.pair >= 0


def run_plan(plan: Plan) -> tuple[list[float], list[float]]:
    """Start and end of every event. This loop is the simulation; the rest is translation."""
    durations, after, turn, waits = plan.durations, plan.after, plan.turn, list(plan.num_waits)
    starts = [0.0] * len(durations)
    ends = [0.0] * len(durations)
    ready = [event for event, count in enumerate(waits) if count == 0]
    done = 0
    while ready:
        event = ready.pop()
        done += 1
        start = starts[event]
        end = ends[event] = start + durations[event]
        for follower in after[event]:
            if starts[follower] < end:
                starts[follower] = end
            waits[follower] -= 1
            if not waits[follower]:
                ready.append(follower)
        for follower in turn[event]:
            if starts[follower] < start:
                starts[follower] = start
            waits[follower] -= 1
            if not waits[follower]:
                ready.append(follower)
    if done < len(durations):
        raise deadlock(plan.graph, {event for event, count in enumerate(waits) if count == 0})
    return starts, ends


def read_trace(plan: Plan, starts: list[float], ends: list[float], costs: Costs, facts: Facts) -> Trace:
    """Spread the events back over the rows, and follow what each rank holds."""
    graph = plan.graph
    with paused():
        row_starts = [starts[event] for event in graph.event_of]
        row_ends = [ends[event] for event in graph.event_of]
        moved = _moved(graph, facts)
        live, before, heaviest = _live(graph, row_ends, facts)
    link = f"{costs}, {costs.link.value} links"
    made = Provenance(Mode.SIMULATED, link)
    return Trace(graph.program, row_starts, row_ends, moved, live, before, heaviest, made, facts)


def _moved(graph: Graph, facts: Facts) -> list[int]:
    """Bytes of every communication; messages of one type are as large."""
    moved, known = [], {}  # type: list[int], dict[tuple[int, int], int]
    ranks = graph.program.ranks
    for op, rank in zip(graph.ops, graph.rank_of, strict=True):
        if op.kind is Kind.SEND:
            key = rank, id(ranks[rank].types[op.inputs[0]])
            if key not in known:
                known[key] = moved_bytes(op, rank, graph.program, facts)
            moved.append(known[key])
        else:
            moved.append(moved_bytes(op, rank, graph.program, facts) if op.kind in COLLECTIVE_KINDS else 0)
    return moved


def _live(graph: Graph, ends: list[float], facts: Facts) -> tuple[list[int], list[int], list[int]]:
    """A value is held from the end of the op that writes it to the end of the op that consumes it. Bytes after each
    row, at the start of each rank, and the most of weights on each rank."""
    live, before, heaviest = [0] * len(graph.ops), [], []  # type: list[int], list[int], list[int]
    for rank, program in enumerate(graph.program.ranks):
        size = {value: num_bytes(t.size, facts, rank) for value, t in program.types.items() if t.role is not Role.TOKEN}
        held = sum(size.get(value, 0) for value in program.live_in)
        before.append(held)
        first = graph.first_row[rank]
        last = first + len(program.ops)
        rows = [row for _, row in sorted(zip(ends[first:last], range(first, last), strict=True))]
        heaviest.append(_peak_weights(program, [graph.ops[row] for row in rows], size))
        for row in rows:
            op = graph.ops[row]
            for value in op.writes:
                held += size.get(value, 0)
            for value in op.consumes:
                held -= size.get(value, 0)
            live[row] = held
    return live, before, heaviest


def _peak_weights(rank: RankProgram, ops: list[Op], size: dict[Value, int]) -> int:
    """The most that is held of weights, whose versions come with steps (or with messages and gathers)."""
    weights = {value: size[value] for value, t in rank.types.items() if t.role is Role.WEIGHT}
    held = peak = sum(weights[value] for value in rank.live_in if value in weights)
    for op in ops:
        if not weights.keys().isdisjoint(op.writes) or not weights.keys().isdisjoint(op.consumes):
            held += sum(weights.get(v, 0) for v in op.writes) - sum(weights.get(v, 0) for v in op.consumes)
            peak = max(peak, held)
    return peak
