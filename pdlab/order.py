"""An order in which all events can happen, or the reason why there is none.

A deadlock is a cycle of waits: each rank is blocked at an op whose partner, or whose operand, stands behind another
blocked op. The report names, for each rank, the op it is blocked at and what it waits for, because that is where the
mend is.
"""

from collections import deque
from dataclasses import dataclass

from pdlab.depend import Graph, ProgramError
from pdlab.ops import label


class Deadlock(ProgramError):
    """Some events can never start."""


@dataclass(frozen=True)
class Edges:
    """The graph between events: `after[e]` wait for the end of e, `next_in_stream[e]` for its turn; how many waits
    each has."""

    after: list[list[int]]
    next_in_stream: list[list[int]]
    num_waits: list[int]


def edges(graph: Graph) -> Edges:
    """Data edges and stream edges apart, since a link model may let messages of one stream overlap."""
    count = len(graph.members)
    after: list[list[int]] = [[] for _ in range(count)]
    following: list[list[int]] = [[] for _ in range(count)]
    num_waits = [0] * count
    event_of, waits, previous = graph.event_of, graph.waits, graph.previous
    for event, rows in enumerate(graph.members):
        before = {event_of[w] for row in rows for w in waits[row]}
        turns = {event_of[previous[row]] for row in rows if previous[row] >= 0}
        for e in before:
            after[e].append(event)
        for e in turns:
            following[e].append(event)
        num_waits[event] = len(before) + len(turns)
    return Edges(after, following, num_waits)


def order(graph: Graph) -> list[int]:
    """Events in an order that respects every dependency, first come first served. Raises `Deadlock` if there is
    none."""
    found = edges(graph)
    num_waits = list(found.num_waits)
    queue = deque(e for e, n in enumerate(num_waits) if n == 0)
    result = []
    while queue:
        event = queue.popleft()
        result.append(event)
        for follower in (*found.after[event], *found.next_in_stream[event]):
            num_waits[follower] -= 1
            if num_waits[follower] == 0:
                queue.append(follower)
    if len(result) < len(num_waits):
        raise deadlock(graph, set(result))
    return result


def deadlock(graph: Graph, done: set[int]) -> Deadlock:
    """Name each blocked rank's first op that waits for another rank, or for something behind such an op."""
    lines, cells = [], []
    for rank in range(len(graph.first_row)):
        row = _blocked(graph, rank, done)
        if row is not None:
            cells.append(graph.cell(row))
            lines.append(
                f"  rank {rank} is blocked at op {cells[-1][1]} ({label(graph.ops[row])}): {_why(graph, row, done)}"
            )
    return Deadlock(
        "deadlock: these ops wait for each other\n" + "\n".join(lines) + "\n"
        "  remedy: reorder the ops, or give messages one stream per peer and direction (assign_streams)",
        tuple(cells),
    )


def _rows_of(graph: Graph, rank: int) -> range:
    ends = [*graph.first_row[1:], len(graph.ops)]
    return range(graph.first_row[rank], ends[rank])


def _blocked(graph: Graph, rank: int, done: set[int]) -> int | None:
    """The first row in list order that has not happened although everything before it on this rank has."""
    for row in _rows_of(graph, rank):
        if graph.event_of[row] in done:
            continue
        local = [*graph.waits[row], *([graph.previous[row]] if graph.previous[row] >= 0 else [])]
        if all(graph.event_of[w] in done for w in local):
            return row
    return next((row for row in _rows_of(graph, rank) if graph.event_of[row] not in done), None)


def _why(graph: Graph, row: int, done: set[int]) -> str:
    for partner in graph.members[graph.event_of[row]]:
        if partner == row:
            continue
        ahead = [*graph.waits[partner], *([graph.previous[partner]] if graph.previous[partner] >= 0 else [])]
        blocked = next((w for w in ahead if graph.event_of[w] not in done), None)
        if blocked is not None:
            return (
                f"it waits for {graph.describe(partner)}, which waits for {label(graph.ops[blocked])} on its own rank"
            )
    return "its partner waits for another member"
