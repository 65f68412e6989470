"""What a run amounts to: pure functions from a trace to one number, or to one per rank or per kind of communication.

A simulated and a measured trace go through the same functions, so prediction and run are compared by one yardstick.
Times are in seconds (or in the costs' own unit), memory and traffic in bytes.
"""

from collections.abc import Iterator

from pdlab.costs import wire_factor
from pdlab.ops import COMMUNICATION_KINDS, COMPUTE, PASS_KINDS, Kind, Op
from pdlab.program import Role, num_bytes
from pdlab.trace import Trace

COMPUTE_KINDS = PASS_KINDS | {Kind.STEP}
"""What keeps a rank usefully busy; the rest of its compute stream is bookkeeping."""

ACTIVATION_ROLES = frozenset({Role.SAVED, Role.PENDING})
"""What a forward, or the input half of a split backward, leaves for the backward that follows."""


def busy_per_rank(trace: Trace) -> list[float]:
    """Seconds that each rank spends in forwards, backwards and steps."""
    return [sum(trace.ends[row] - trace.starts[row] for row, _ in _compute(trace, rank)) for rank in _ranks(trace)]


def bubble_fraction(trace: Trace) -> float:
    """The idle share of ranks x makespan: (p-1)/(m+p-1) for GPipe and 1F1B where messages take no time."""
    available = len(trace.program.ranks) * trace.makespan
    return 1 - sum(busy_per_rank(trace)) / available if available else 0.0


def largest_rank_span(trace: Trace) -> float:
    """The longest time from the start of a rank's first compute op to the end of its last one, in seconds."""
    return max((_span(trace, rank) for rank in _ranks(trace)), default=0.0)


def peak_bytes_per_rank(trace: Trace) -> list[int]:
    """The most that each rank holds at once, weights included."""
    return [max(held for _, held in _live(trace, rank)) for rank in _ranks(trace)]


def peak_activations_per_rank(trace: Trace, unit_bytes: int) -> list[float]:
    """The most that is held for backwards at once, in units of M_B: the `unit_bytes` that a stage saves in one forward.

    A forward adds M_B, a full backward frees it; of a split one I frees M_B - M_W and W frees M_W. So GPipe peaks at m,
    and rank s of 1F1B at min(p - s, m).
    """
    if unit_bytes <= 0:
        raise ValueError(f"unit_bytes is {unit_bytes}; give the bytes that one forward saves, at least 1")
    return [max(held_over_time(trace, rank, ACTIVATION_ROLES)[1]) / unit_bytes for rank in _ranks(trace)]


def bytes_by_collective(trace: Trace) -> dict[str, int]:
    """Bytes moved, summed over all ranks, by the name of the kind; a message counts once, as a SEND."""
    total: dict[str, int] = {}
    for op, moved in _moves(trace):
        total[op.kind.name] = total.get(op.kind.name, 0) + moved
    return total


def wire_bytes_by_collective(trace: Trace) -> dict[str, float]:
    """The same as what ring algorithms put on the wire."""
    total: dict[str, float] = {}
    for op, moved in _moves(trace):
        members = trace.program.mesh.degree(op.axis) if op.axis else 1
        total[op.kind.name] = total.get(op.kind.name, 0.0) + wire_factor(op.kind, members) * moved
    return total


def live_over_time(trace: Trace, rank: int) -> tuple[list[float], list[int]]:
    """All that a rank holds, as a step function: times and the bytes held from each of them until the next."""
    points = list(_live(trace, rank))
    return [time for time, _ in points], [held for _, held in points]


def held_over_time(trace: Trace, rank: int, roles: frozenset[Role]) -> tuple[list[float], list[int]]:
    """The part of `live_over_time` that is due to some roles, followed from what each op writes and consumes."""
    program = trace.program.ranks[rank]
    size = {v: num_bytes(t.size, trace.facts, rank) for v, t in program.types.items() if t.role in roles}
    held = sum(size.get(value, 0) for value in program.live_in)
    times, bytes_held = [0.0], [held]
    first = trace.rows_of(rank).start
    for row in _by_end(trace, rank):
        op = program.ops[row - first]
        held += sum(size.get(v, 0) for v in op.writes) - sum(size.get(v, 0) for v in op.consumes)
        times.append(trace.ends[row])
        bytes_held.append(held)
    return times, bytes_held


def _ranks(trace: Trace) -> range:
    return range(len(trace.program.ranks))


def _compute(trace: Trace, rank: int) -> list[tuple[int, Op]]:
    rows = zip(trace.rows_of(rank), trace.program.ranks[rank].ops, strict=True)
    return [(row, op) for row, op in rows if op.stream == COMPUTE and op.kind in COMPUTE_KINDS]


def _span(trace: Trace, rank: int) -> float:
    rows = [row for row, _ in _compute(trace, rank)]
    return max(trace.ends[row] for row in rows) - min(trace.starts[row] for row in rows) if rows else 0.0


def _moves(trace: Trace) -> Iterator[tuple[Op, int]]:
    """Every communication with its bytes, but for receives: those are counted at their senders."""
    for (_, op), moved in zip(trace.rows(), trace.moved, strict=True):
        if op.kind in COMMUNICATION_KINDS and op.kind is not Kind.RECV:
            yield op, moved


def _by_end(trace: Trace, rank: int) -> list[int]:
    """The order in which values come and go; ops that end together count in list order, as in the simulator."""
    return sorted(trace.rows_of(rank), key=lambda row: (trace.ends[row], row))


def _live(trace: Trace, rank: int) -> Iterator[tuple[float, int]]:
    yield 0.0, trace.live_before[rank]
    for row in _by_end(trace, rank):
        yield trace.ends[row], trace.live[row]
