"""A program as text: one row per rank, a column for each step down the dependencies.

    rank 0 | 0F0 0F1 .   0B0 .   0B1 0STEP
    rank 1 | .   1F0 1B0 1F1 1B1 1STEP .

A cell stands one column after the latest of what it waits for, on whatever rank that is, and communication takes no
column. So the grid is the timeline of a machine where every cell takes the same time, and its dots are the bubble.
"""

from collections.abc import Iterable

from pdlab.depend import Graph, ProgramError, build
from pdlab.forms.cells import Cell, cells
from pdlab.order import order
from pdlab.program import Program

IDLE = "."


def grid(program: Program, marked: Iterable[tuple[int, int]] = ()) -> str:
    """The grid, the cells of each (rank, position) in `marked` as `[2F0]!`. What cannot run is shown in list order."""
    at_fault = set(marked)
    rows = [
        cells(rank.ops, {position for r, position in at_fault if r == number})
        for number, rank in enumerate(program.ranks)
    ]
    try:
        graph = build(program)
        columns = _columns(graph, order(graph), rows)
    except (ProgramError, AssertionError, LookupError):  # the last two: an op that is malformed in itself
        columns = [list(range(len(row))) for row in rows]
    return _render(_texts(rows, columns))


def _columns(graph: Graph, events: list[int], rows: list[list[Cell]]) -> list[list[int]]:
    """The column of every cell. The passes inside a cell share it, and what has no cell takes none."""
    cell_of = _cell_of_row(graph, rows)
    column = [[-1] * len(row) for row in rows]
    reached = [-1] * len(graph.members)
    for event in events:
        before = max((reached[e] for row in graph.members[event] for e in _awaited(graph, row)), default=-1)
        reached[event] = before
        for row in graph.members[event]:
            if row in cell_of:
                of_rank, i = column[graph.rank_of[row]], cell_of[row]
                of_rank[i] = max(of_rank[i], before) if of_rank[i] >= 0 else before + 1
                reached[event] = max(reached[event], of_rank[i])
    return column


def _cell_of_row(graph: Graph, rows: list[list[Cell]]) -> dict[int, int]:
    return {
        graph.first_row[rank] + position: i
        for rank, row in enumerate(rows)
        for i, cell in enumerate(row)
        for position in cell.positions
    }


def _awaited(graph: Graph, row: int) -> list[int]:
    previous = graph.previous[row]
    return [graph.event_of[w] for w in (*graph.waits[row], *((previous,) if previous >= 0 else ()))]


def _texts(rows: list[list[Cell]], columns: list[list[int]]) -> list[dict[int, str]]:
    """Column -> text, per rank. A marked message may share its column with what runs at the same time."""
    texts: list[dict[int, str]] = []
    for row, places in zip(rows, columns, strict=True):
        line: dict[int, str] = {}
        for cell, place in zip(row, places, strict=True):
            line[place] = f"{line[place]} {cell.text}" if place in line else cell.text
        texts.append(line)
    return texts


def _render(texts: list[dict[int, str]]) -> str:
    num_columns = 1 + max((place for line in texts for place in line), default=-1)
    width = [len(IDLE)] * num_columns
    for line in texts:
        for place, text in line.items():
            width[place] = max(width[place], len(text))
    digits = len(str(len(texts) - 1))
    return "\n".join(
        f"rank {rank:>{digits}} | "
        + " ".join(line.get(place, IDLE).ljust(width[place]) for place in range(num_columns)).rstrip()
        for rank, line in enumerate(texts)
    )
