"""From a trace to what a timeline shows: boxes in rows. All decisions, no drawing.

A schedule is thought of in stages but runs in segments. Segments of one stage and microbatch that follow each other
without a visible gap become one box, so that a stage of two segments still looks as in the papers; where one had to
wait they stay apart. A forward and a backward that overlap share their time: one above the other, both as long as the
pair.
"""

from collections.abc import Container
from typing import NamedTuple

from pdlab.ops import COMPUTE, PASS_KINDS, Kind, Lane, Op, Stream
from pdlab.trace import Trace

VISIBLE = 1 / 500
"""The share of the makespan below which a gap, or an op that only keeps the books, is not drawn: two pixels."""

BOOKKEEPING = frozenset({Kind.ADD, Kind.FINITE, Kind.FREE})

TALL, THIN, GAP = ((4, 0.4), (8, 0.34), (float("inf"), 0.24)), 0.15, 0.09
"""Inches: a compute row by the largest number of ranks, a communication row, and what separates ranks."""

PAIRED = 1.3
"""How much higher compute rows are where two boxes share one."""

Part = tuple[float, float]
"""From where to where a box goes in its row, as shares of the row's height."""

WHOLE, UPPER, LOWER = (0.0, 1.0), (0.0, 0.5), (0.5, 1.0)


class Box(NamedTuple):
    """One or more ops on one row. Times in seconds; `seams` are where one segment follows another inside it.

    Of a box that is `marked` all ops are, of any other none.
    """

    rank: int
    stream: Stream
    kind: Kind
    stage: int
    microbatch: int
    version: int
    pair: int
    start: float
    end: float
    seams: tuple[float, ...] = ()
    marked: bool = False
    part: Part = WHOLE


class Row(NamedTuple):
    """A row of a timeline: `top` and `height` in inches, downwards."""

    rank: int
    stream: Stream
    top: float
    height: float


def boxes(trace: Trace, marked: Container[int] = ()) -> list[Box]:
    """What took time, rank by rank, segments of a stage merged; where there is only one stage, with the seams.

    Rows that are `marked` merge only with each other.
    """
    visible = trace.makespan * VISIBLE
    one_stage = len(trace.program.stages) == 1
    found: list[Box] = []
    for rank, program in enumerate(trace.program.ranks):
        last: dict[Stream, Box] = {}
        for row, op in zip(trace.rows_of(rank), program.ops, strict=True):
            start, end, mark = trace.starts[row], trace.ends[row], row in marked
            if end <= start or (op.kind in BOOKKEEPING and end - start < visible):
                continue
            before = last.get(op.stream)
            if before and start - before.end < visible and _continues(before, op, mark):
                seams = (*before.seams, start) if one_stage and op.kind in PASS_KINDS else ()
                last[op.stream] = before._replace(end=end, seams=seams)
                continue
            if before:
                found.append(before)
            stage, i = op.stage, op.microbatch
            last[op.stream] = Box(rank, op.stream, op.kind, stage, i, op.version, op.pair, start, end, marked=mark)
        found += last.values()
    return _stacked(found)


def _continues(box: Box, op: Op, mark: bool) -> bool:
    same = (box.kind, box.stage, box.microbatch, box.version) == (op.kind, op.stage, op.microbatch, op.version)
    return same and box.marked == mark and (op.kind in PASS_KINDS or op.kind is Kind.STEP)


def _stacked(found: list[Box]) -> list[Box]:
    """The same with the two boxes of each pair above each other, where nothing comes between them."""
    members: dict[tuple[int, int], list[int]] = {}
    turn: dict[int, int] = {}
    for i, box in enumerate(found):
        if box.stream == COMPUTE:
            turn[i] = len(turn)
            if box.pair >= 0:
                members.setdefault((box.rank, box.pair), []).append(i)
    for of_pair in members.values():
        if len(of_pair) == 2 and turn[of_pair[1]] == turn[of_pair[0]] + 1:
            start, end = found[of_pair[0]].start, found[of_pair[1]].end
            for i, part in zip(of_pair, (UPPER, LOWER), strict=True):
                found[i] = found[i]._replace(start=start, end=end, part=part)
    return found


def rows(found: list[Box], num_ranks: int) -> list[Row]:
    """Compute rows tall, the communication rows of a rank thin below it, rank 0 on top; empty streams have no row."""
    tall = next(height for most, height in TALL if num_ranks <= most)
    streams: list[set[Stream]] = [{COMPUTE} for _ in range(num_ranks)]
    for box in found:
        streams[box.rank].add(box.stream)
    if any(box.part is not WHOLE for box in found):
        tall *= PAIRED
    placed, top = [], GAP
    for rank in range(num_ranks):
        for stream in sorted(streams[rank], key=_place):
            height = tall if stream == COMPUTE else THIN / (1 + (opposite(stream) in streams[rank]))
            placed.append(Row(rank, stream, top, height))
            top += height
        top += GAP
    return placed


def opposite(stream: Stream) -> Stream | None:
    """The stream to the same peer in the other direction; both share a name, so each needs only half the height."""
    other = {Lane.TO: Lane.FROM, Lane.FROM: Lane.TO}.get(stream.lane)
    return stream._replace(lane=other) if other else None


def _place(stream: Stream) -> tuple[int, str, int, bool]:
    lane = 0 if stream.lane is Lane.COMPUTE else 1 if stream.lane is Lane.GROUP else 2
    return lane, stream.axis.value if stream.axis else "", stream.peer, stream.lane is Lane.FROM
