"""When the ops of a table can run if each cell takes a unit of time: the order it cannot keep, the column it stands too
early in, and how many columns it needs at least.

The unit is what makes a drawn schedule comparable: 1F1B of m microbatches on p ranks takes 2 (m + p - 1) columns with
F = B = 1 (Narayanan et al. 2021, arXiv:2104.04473, section 2.2), and a drawing with fewer runs something before its
input is there.
"""

from itertools import pairwise

from pdlab.forms.fault import FormError
from pdlab.forms.needs import At, Index
from pdlab.forms.typed import Place, Table


def check_time(table: Table) -> None:
    """FormError for an order in which the ranks wait for each other; in a table with blank cells also for an op that
    stands no later than what it needs. What `check_needs` refuses is not there any more."""
    index = Index(table)
    earliest = _earliest(index)
    if not table.timed:
        return
    for at in index.everything:
        for other in _before(index, at):
            if other.column >= at.column:
                raise _too_early(index, at, other, max(earliest.values()))


def fewest_columns(table: Table) -> int:
    """The columns that the order of a table needs where each cell takes one: its longest chain of dependencies."""
    return max(_earliest(Index(table)).values())


def _before(index: Index, at: At) -> list[At]:
    return [index.done[deed] for deed in index.needed(at.op)]


def _too_early(index: Index, at: At, other: At, fewest: int) -> FormError:
    column, there = at.column + 1, other.column + 1
    sentence = (
        f"{at.op} in column {column} needs {other.op}, which stands in column {there}; move it to column {there + 1} "
        "or later (or take all blank cells out: then rows say an order and no times)"
    )
    columns = max(len(row) for row in index.table.rows)
    if columns < fewest:
        sentence += f"\nthe table has {columns} columns; the dependencies of this order need at least {fewest}"
    return index.table.fault(sentence, at.place)


def _earliest(index: Index) -> dict[Place, int]:
    """For each cell with ops the first column (from 1) that it can stand in, after the one before it in its row and
    after all that it needs."""
    waits: dict[Place, set[Place]] = {at.place: set() for at in index.everything}
    for at in index.everything:
        waits[at.place] |= {other.place for other in _before(index, at)}
    for row in _rows(index):
        for before, place in pairwise(row):
            waits[place].add(before)
    after: dict[Place, list[Place]] = {place: [] for place in waits}
    for place, others in waits.items():
        for other in others:
            after[other].append(place)
    left = {place: len(others) for place, others in waits.items()}
    ready = [place for place, n in left.items() if not n]
    found: dict[Place, int] = {}
    for place in ready:  # grows as it goes
        found[place] = 1 + max((found[other] for other in waits[place]), default=0)
        for follower in after[place]:
            left[follower] -= 1
            if not left[follower]:
                ready.append(follower)
    if len(found) < len(waits):
        raise _deadlock(index, found)
    return found


def _rows(index: Index) -> list[list[Place]]:
    return [
        [(rank, column) for column, cell in enumerate(row) if cell.ops] for rank, row in enumerate(index.table.rows)
    ]


def _deadlock(index: Index, found: dict[Place, int]) -> FormError:
    """Follow from a rank that cannot go on what it waits for, until a rank comes round again."""
    heads = {row[0][0]: next((place for place in row if place not in found), None) for row in _rows(index)}
    rank = next(rank for rank, head in heads.items() if head is not None)
    steps: dict[int, tuple[At, At]] = {}
    while rank not in steps:
        stuck = [at for at in index.everything if at.place == heads[rank]]
        at, other = next((at, o) for at in stuck for o in _before(index, at) if o.place not in found)
        steps[rank] = at, other
        rank = other.rank
    circle = list(steps)[list(steps).index(rank) :]
    said = [_waits(*steps[r], steps[steps[r][1].rank][0]) for r in circle]
    return index.table.fault(
        f"deadlock: {'; '.join(said)}; change the order on one of these ranks", *(steps[r][0].place for r in circle)
    )


def _waits(at: At, other: At, head: At) -> str:
    behind = f", which stands behind {head.op}" if head.place != other.place else ""
    return f"{at.op} on rank {at.rank} waits for {other.op} on rank {other.rank}{behind}"
