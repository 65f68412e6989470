"""What a run amounts to: pure functions from a trace to one number, or to one per rank or per kind of communication.

A simulated and a measured trace go through the same functions, so prediction and run are compared by one yardstick.
Times are in seconds (or in the costs' own unit), memory and traffic in bytes.
"""

from collections.abc import Iterable, Iterator

from pdlab.costs import wire_factor
from pdlab.ops import COMMUNICATION_KINDS, COMPUTE, PASS_KINDS, Kind, Op, Value
from pdlab.program import Role, num_bytes
from pdlab.trace import Trace

COMPUTE_KINDS = PASS_KINDS | {Kind.STEP}
"""What keeps a rank usefully busy; the rest of its compute stream is bookkeeping."""

ACTIVATION_ROLES = frozenset({Role.SAVED, Role.PENDING})
"""What a forward, or the input half of a split backward, leaves for the backward that follows."""

KEPT_ROLES = frozenset({Role.SAVED, Role.ACTIVATION})
"""What is held between a forward and its backward: saved tensors, and inputs that the backward needs again."""


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


def peak_activations_per_rank(trace: Trace, unit_bytes: float) -> list[float]:
    """The most that is held for backwards at once, in units of M_B: the `unit_bytes` that a stage saves in one forward.

    A forward adds M_B, a full backward frees it; of a split one I frees M_B - M_W and W frees M_W. So GPipe peaks at m,
    and rank s of 1F1B at min(p - s, m).
    """
    if unit_bytes <= 0:
        raise ValueError(f"unit_bytes is {unit_bytes}; give the bytes that one forward saves, at least 1")
    return [max(held_over_time(trace, rank, ACTIVATION_ROLES)[1]) / unit_bytes for rank in _ranks(trace)]


def held_for_backward_per_rank(trace: Trace) -> list[int]:
    """Activation bytes that each rank holds between its last forward and its first backward, or the second forward that
    recomputation puts before it; without what is still wanted after the program.

    ValueError where there is no such moment, because forwards and backwards take turns.
    """
    return [_between_passes(trace, rank) for rank in _ranks(trace)]


def exposed_communication_per_rank(trace: Trace) -> list[float]:
    """Seconds in which each rank communicates and computes nothing: what more overlap could hide."""
    exposed = []
    for rank in _ranks(trace):
        rows = zip(trace.rows_of(rank), trace.program.ranks[rank].ops, strict=True)
        moving = [row for row, op in rows if op.kind in COMMUNICATION_KINDS]
        busy = [row for row, _ in _compute(trace, rank)]
        exposed.append(_covered(trace, (*moving, *busy)) - _covered(trace, busy))
    return exposed


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
    return _held_over_time(trace, rank, _sizes(trace, rank, roles))


def _held_over_time(trace: Trace, rank: int, size: dict[Value, int]) -> tuple[list[float], list[int]]:
    """Of the values that have a size here."""
    held = sum(size.get(value, 0) for value in trace.program.ranks[rank].live_in)
    times, bytes_held = [0.0], [held]
    for row, op in _by_end(trace, rank):
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


def _covered(trace: Trace, rows: Iterable[int]) -> float:
    """Seconds in which at least one of the rows runs."""
    covered, until = 0.0, float("-inf")
    for start, end in sorted((trace.starts[row], trace.ends[row]) for row in rows):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered


def _sizes(trace: Trace, rank: int, roles: frozenset[Role]) -> dict[Value, int]:
    """Bytes of the values with some roles."""
    types = trace.program.ranks[rank].types.items()
    return {value: num_bytes(t.size, trace.facts, rank) for value, t in types if t.role in roles}


def _between_passes(trace: Trace, rank: int) -> int:
    """The least that is held there: a checkpoint is cut up after the forward, and gathered before the second one."""
    order = [op for _, op in _by_end(trace, rank)]
    forwards = [i for i, op in enumerate(order) if op.kind is Kind.FORWARD]
    others = [i for i, op in enumerate(order) if op.kind in PASS_KINDS and op.kind is not Kind.FORWARD]
    if not (forwards and others and forwards[-1] < others[0]):
        raise ValueError(
            f"rank {rank} of {trace.program.name} has no moment between its forwards and its backwards; "
            "take a program that runs all forwards first, one of a single microbatch for example"
        )
    stays = trace.program.ranks[rank].live_out
    size = {value: held for value, held in _sizes(trace, rank, KEPT_ROLES).items() if value not in stays}
    return min(_held_over_time(trace, rank, size)[1][forwards[-1] + 1 : others[0] + 1])


def _moves(trace: Trace) -> Iterator[tuple[Op, int]]:
    """Every communication with its bytes, but for receives: those are counted at their senders."""
    for (_, op), moved in zip(trace.rows(), trace.moved, strict=True):
        if op.kind in COMMUNICATION_KINDS and op.kind is not Kind.RECV:
            yield op, moved


def _by_end(trace: Trace, rank: int) -> list[tuple[int, Op]]:
    """The order in which values come and go; ops that end together count in list order, as in the simulator."""
    rows = zip(trace.rows_of(rank), trace.program.ranks[rank].ops, strict=True)
    return sorted(rows, key=lambda of: (trace.ends[of[0]], of[0]))


def _live(trace: Trace, rank: int) -> Iterator[tuple[float, int]]:
    yield 0.0, trace.live_before[rank]
    for row, _ in _by_end(trace, rank):
        yield trace.ends[row], trace.live[row]
