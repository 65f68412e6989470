"""A schedule as a table: what a student types, and what `pdlab show --format csv` prints.

    0F0,0F1,0B0,0B1,0STEP
    1F0,1B0,1F1,1B1,1STEP

One row per rank, the order of its ops. Which weight version a backward meets is not in it: a forward meets the newest,
a backward that of its forward.
"""

import csv

from pdlab.forms.cells import cells, is_pass_or_step
from pdlab.forms.fault import FormError, short
from pdlab.ops import STEP, Kind, Op, parse
from pdlab.program import Program

LONGEST_CELL = 24


def schedule_csv(program: Program) -> str:
    """One row per rank with its stage-level ops."""
    rows = [[cell.text for cell in cells(rank.ops) if is_pass_or_step(cell.op)] for rank in program.ranks]
    return "".join(",".join(row) + "\n" for row in rows)


def parse_csv(text: str) -> list[list[Op]]:
    """The ops of each row. Empty cells and lines say nothing; where a row has no step, its stages step at its end."""
    rows: list[list[tuple[str, Op]]] = []
    reader = csv.reader(text.removeprefix("\ufeff").splitlines())
    try:
        for texts in reader:
            if any(cell.strip() for cell in texts):
                rows.append(_row(texts, reader.line_num))
    except csv.Error as error:
        raise FormError(f"row {reader.line_num} is not CSV ({error}); write ops with commas between: 0F0,0B0") from None
    if not rows:
        raise FormError("the table has no ops; write one row per rank, as in 0F0,0F1,0B0,0B1")
    every = [cell for row in rows for cell in row]
    _check_numbers("stage", {op.stage: where for where, op in every})
    _check_numbers("microbatch", {op.microbatch: where for where, op in every if op.microbatch >= 0})
    return [_with_steps([op for _, op in row]) for row in rows]


def _row(texts: list[str], line: int) -> list[tuple[str, Op]]:
    places = [(f"row {line}, column {i}", text.strip()) for i, text in enumerate(texts, start=1)]
    return [(where, _op(text, where)) for where, text in places if text]


def _op(text: str, where: str) -> Op:
    allowed = "write stage, kind, microbatch, as in 2F0, 2B0, 2I0, 2W0, or 2STEP"
    if len(text) > LONGEST_CELL or not text.isascii():
        raise FormError(f"{where}: {short(text)} is not an op; {allowed}")
    try:
        op = parse(text)
    except ValueError as error:
        raise FormError(f"{where}: {error}") from None
    if op.segment >= 0:
        raise FormError(f"{where}: {text!r} names a segment, and a schedule orders whole stages; {allowed}")
    return op


def _check_numbers(what: str, seen: dict[int, str]) -> None:
    """A gap is a slip of the keyboard more often than a wish."""
    largest = max(seen, default=-1)
    if len(seen) <= largest:
        gap = next(number for number in range(largest) if number not in seen)
        raise FormError(
            f"{seen[largest]} names {what} {largest}, and no cell names {what} {gap}; number them from 0 without gaps"
        )


def _with_steps(ops: list[Op]) -> list[Op]:
    stepped = {op.stage for op in ops if op.kind is Kind.STEP}
    graded = [op.stage for op in ops if op.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT)]
    return ops + [STEP(stage) for stage in dict.fromkeys(graded) if stage not in stepped]
