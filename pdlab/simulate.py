"""The simulator: the interpreter that keeps, for each value, when it is ready and how many bytes it has.

Since a program does not branch, the end of an event is the latest end among what it waits for plus its own duration,
and one pass in dependency order finds all of them. The pass touches lists of numbers only.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pdlab.collector import paused
from pdlab.costs import Costs, Link, moved_bytes
from pdlab.depend import Graph, build
from pdlab.ops import COMMUNICATION_KINDS, PASS_KINDS, Kind, Op
from pdlab.order import deadlock, edges
from pdlab.program import Facts, Program, Role, num_bytes
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
    program = graph.program
    seconds = _remembered(lambda op, rank: costs.seconds(op, rank, program, facts))
    durations = []
    for rows in graph.members:
        durations.append(max(_guarded(graph, row, facts) * seconds(graph.ops[row], graph.rank_of[row]) for row in rows))
    return durations


def _guarded(graph: Graph, row: int, facts: Facts) -> int:
    guard = graph.ops[row].guard
    return facts.get((graph.rank_of[row], guard), (1,))[0] if guard else 1


def _remembered(seconds: Callable[[Op, int], float]) -> Callable[[Op, int], float]:
    """Ops that run the same segment on as many rows, or send the same number of bytes, cost the same: ask once."""
    known: dict[tuple[object, ...], float] = {}

    def ask(op: Op, rank: int) -> float:
        if op.kind not in PASS_KINDS and op.kind not in (Kind.SEND, Kind.RECV):
            return seconds(op, rank)
        key = (op.kind, op.stage, op.segment, rank, op.microbatch if op.kind in PASS_KINDS else op.inputs, op.pair >= 0)
        if key not in known:
            known[key] = seconds(op, rank)
        return known[key]

    return ask


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
    row_starts = [starts[event] for event in graph.event_of]
    row_ends = [ends[event] for event in graph.event_of]
    moved = [
        moved_bytes(op, rank, graph.program, facts) if op.kind in COMMUNICATION_KINDS else 0
        for op, rank in zip(graph.ops, graph.rank_of, strict=True)
    ]
    live, before = _live(graph, row_ends, facts)
    link = f"{costs}, {costs.link.value} links"
    return Trace(graph.program, row_starts, row_ends, moved, live, before, Provenance(Mode.SIMULATED, link), facts)


def _live(graph: Graph, ends: list[float], facts: Facts) -> tuple[list[int], list[int]]:
    """A value is held from the end of the op that writes it to the end of the op that consumes it."""
    live, before = [0] * len(graph.ops), []
    for rank, program in enumerate(graph.program.ranks):
        size = {value: num_bytes(t.size, facts, rank) for value, t in program.types.items() if t.role is not Role.TOKEN}
        held = sum(size.get(value, 0) for value in program.live_in)
        before.append(held)
        first = graph.first_row[rank]
        for row in sorted(range(first, first + len(program.ops)), key=lambda row: (ends[row], row)):
            op = graph.ops[row]
            held += sum(size.get(v, 0) for v in op.writes) - sum(size.get(v, 0) for v in op.consumes)
            live[row] = held
    return live, before
