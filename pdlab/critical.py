"""The critical path: the chain of ops that a step is as long as, and what the time on it is spent on.

Speeding up anything else changes nothing (Kelley and Walker 1959, "Critical-Path Planning and Scheduling"). The walk
goes backwards from what ends last: an event was held up by whatever ended latest among all that its members had to wait
for, by the one dependency rule.

rank 0  [F0]─┐ F1   F2      ┌─[B0]  B1
rank 1       └─[F0]──[B0]───┘  F1   B1      what is in brackets holds the others up
"""

from collections.abc import Iterator

from pdlab.depend import Graph, build
from pdlab.ops import COMMUNICATION_KINDS
from pdlab.theme import WORDS
from pdlab.trace import Trace

BETWEEN = "between ops"
"""Where a real run loses time that no op accounts for."""


def critical_path(trace: Trace) -> list[int]:
    """Rows in time order, one for each event on the path: of a communication, the member that came last.

    Exact for a simulation: the first row starts at 0, each other one when the row before it ends. In a real run an op
    starts a little after what held it up, so there the path is the likeliest one. Of several equally long paths it is
    the one that, walking back, stays on a rank while it can.
    """
    if not trace.ends:
        return []
    graph, path = build(trace.program), []
    row = max(range(len(trace.ends)), key=lambda last: (trace.ends[last], -last))
    while row >= 0:
        member, row = _held_up(graph, trace, row)
        path.append(member)
    return path[::-1]


def critical_share(trace: Trace) -> dict[str, float]:
    """Seconds of the critical path by what they go to, in the words of `theme.WORDS`. They add up to the makespan."""
    spent = dict.fromkeys((*WORDS.values(), BETWEEN), 0.0)
    now, ops = 0.0, trace.rows()
    for row in critical_path(trace):
        start, end = max(now, trace.starts[row]), max(now, trace.ends[row])
        spent[BETWEEN] += start - now
        spent[WORDS[ops[row][1].kind]] += end - start
        now = end
    return {word: seconds for word, seconds in spent.items() if seconds > 0}


def _held_up(graph: Graph, trace: Trace, row: int) -> tuple[int, int]:
    """Which member of the row's event came last, and the row that it waited for; -1 if it waited for nothing."""
    best, found = (-1.0, False, False, False), (row, -1)
    for member in graph.members[graph.event_of[row]]:
        for before in _waited_for(graph, trace, member):
            turn = graph.previous[member] == before and before not in graph.waits[member]
            queued = turn and _is_message(graph, before)
            key = (trace.ends[before], not queued, member == row, turn)
            if key > best:
                best, found = key, (member, before)
    return found


def _waited_for(graph: Graph, trace: Trace, row: int) -> Iterator[int]:
    """Everything whose end a row may have waited for.

    A message that is still under way when the next one of its stream starts (independent links) has held that one up by
    its own start only: then whatever held up the first held up both.
    """
    started, todo = {row}, [row]
    while todo:
        message = todo.pop()
        yield from graph.waits[message]
        before = graph.previous[message]
        if before < 0:
            continue
        if not _is_message(graph, before) or trace.ends[before] <= trace.starts[message]:
            yield before
            continue
        members = [member for member in graph.members[graph.event_of[before]] if member not in started]
        started.update(members)
        todo += members


def _is_message(graph: Graph, row: int) -> bool:
    return graph.ops[row].kind in COMMUNICATION_KINDS
