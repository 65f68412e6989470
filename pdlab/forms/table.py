"""A schedule as a table: what a student types, and what `pdlab show --format csv` prints.

    0F0,0F1,0B0,0B1
    1F0,1B0,1F1,1B1

One row per rank of the pipeline, the order of its ops; replicas do the same. A stage steps once at the end where no
cell says otherwise (`0STEP`, or `0STEP3` on the microbatches up to 3 that no step has taken). A table with blank cells
says when each op runs besides: there a column is a unit of time. Which weight version a backward meets is not in it: a
forward meets the newest, a backward that of its forward.

It is the form that torch.distributed.pipelining reads and writes (`_load_csv`, `_dump_csv`), but for steps, which it
has none of, and for messages, which are left out here.
"""

import csv

from pdlab.forms.cells import cells
from pdlab.forms.columns import check_time
from pdlab.forms.fault import FormError
from pdlab.forms.needs import check_needs
from pdlab.forms.typed import Place, Table, Typed, ops_of_cell, pair_text, shown, with_steps
from pdlab.mesh import Axis
from pdlab.ops import PASS_KINDS, SCHEDULED_KINDS, Kind, Op
from pdlab.program import Program


def schedule_csv(program: Program) -> str:
    """One row per rank of the first pipeline with its stage-level ops. Steps are left out if all come at the end.

    FormError for what an order of stages cannot say: full backwards that were split within their stage, and weights
    other than the newest in a forward or than its forward's in a backward.
    """
    line = program.mesh.group(0, Axis.PP)
    for rank in line:
        _check_whole_backwards(program.ranks[rank].ops)
        _check_versions(program.ranks[rank].ops)
    rows = [_order(program.ranks[rank].ops) for rank in line]
    bare = [[op for op in row if op.kind is not Kind.STEP] for row in rows]
    return rows_csv(bare if [with_steps(row) for row in bare] == rows else rows)


def _check_whole_backwards(ops: tuple[Op, ...]) -> None:
    full = {(op.stage, op.microbatch) for op in ops if op.kind is Kind.BACKWARD}
    split = next((op for op in ops if op.kind is Kind.BACKWARD_INPUT and (op.stage, op.microbatch) in full), None)
    if split is not None:
        raise FormError(
            f"{split.stage}B{split.microbatch} is split within its stage (--overlap), which a table of stages cannot "
            "say; write the program without it, or as JSON"
        )


def _check_versions(ops: tuple[Op, ...]) -> None:
    steps: dict[int, set[int]] = {}
    met: dict[tuple[int, int], int] = {}
    for op in ops:
        taken = steps.setdefault(op.stage, set())
        if op.kind is Kind.STEP:
            taken.add(op.microbatch)
        elif op.kind in PASS_KINDS and op.version >= 0:
            usual = met.setdefault((op.stage, op.microbatch), len(taken))
            if op.version != usual:
                raise FormError(
                    f"{op.stage}{op.kind.value}{op.microbatch} meets weights that have seen {op.version} steps, not "
                    f"{usual} as a table would have it, which names no versions; write the program as JSON (--format "
                    "json)"
                )


def rows_csv(rows: list[list[Op]]) -> str:
    """The ops of each rank as a table without blanks."""
    return "".join(",".join(_texts(row)) + "\n" for row in rows)


def _order(ops: tuple[Op, ...]) -> list[Op]:
    """The ops of a rank as a schedule has them: a stage and a microbatch and no more."""
    found = [cell.op for cell in cells([op for op in ops if op.kind in SCHEDULED_KINDS])]
    return [Op(op.kind, op.stage, microbatch=op.microbatch, pair=op.pair) for op in found]


def _texts(row: list[Op]) -> list[str]:
    texts: list[str] = []
    for i, op in enumerate(row):
        if i and op.pair >= 0 and op.pair == row[i - 1].pair:
            texts[-1] = pair_text(row[i - 1], op)
        else:
            texts.append(str(op))
    return texts


def parse_csv(text: str) -> list[list[Op]]:
    """The ops of each pipeline rank; `read_table` says what is refused."""
    return read_table(text).schedule


def read_table(text: str) -> Table:
    """A table as it was typed. FormError shows it with the faulty cell marked: where a cell is no op, where an op lacks
    what it needs or stands before it, and where blank cells make columns units of time, where it is too early."""
    texts = _rows(text)
    table = Table(tuple(_typed(texts, rank) for rank in range(len(texts))))
    _check_numbers(table, "stage", {op.stage: place for op, place in _placed(table)})
    _check_numbers(table, "microbatch", {op.microbatch: place for op, place in _placed(table) if op.microbatch >= 0})
    check_needs(table)
    check_time(table)
    return table


def _rows(text: str) -> list[list[str]]:
    """The cells of each row that has any, without the blank ones at its end."""
    rows = []
    reader = csv.reader(text.removeprefix("\ufeff").splitlines())
    try:
        for row in reader:
            cells_of_row = [cell.strip() for cell in row]
            while cells_of_row and not cells_of_row[-1]:
                cells_of_row.pop()
            if cells_of_row:
                rows.append(cells_of_row)
    except csv.Error as error:
        raise FormError(f"row {reader.line_num} is not CSV ({error}); write ops with commas between: 0F0,0B0") from None
    if not rows:
        raise FormError("the table has no ops; write one row per pipeline rank, as in 0F0,0F1,0B0,0B1")
    return rows


def _typed(texts: list[list[str]], rank: int) -> tuple[Typed, ...]:
    found, pairs = [], 0
    for column, text in enumerate(texts[rank]):
        try:
            ops = ops_of_cell(text) if text else ()
        except ValueError as error:
            where = f"rank {rank}, column {column + 1}"
            raise FormError(f"{where}: {error}\n{shown(texts, [(rank, column)])}") from None
        if len(ops) > 1:
            ops = tuple(op._replace(pair=pairs) for op in ops)
            pairs += 1
        found.append(Typed(text, ops))
    if not any(cell.ops for cell in found):
        raise FormError(f"rank {rank} has no ops; write what it does, or leave its row out\n{shown(texts, [])}")
    return tuple(found)


def _placed(table: Table) -> list[tuple[Op, Place]]:
    return [
        (op, (rank, column))
        for rank, row in enumerate(table.rows)
        for column, cell in enumerate(row)
        for op in cell.ops
    ]


def _check_numbers(table: Table, what: str, seen: dict[int, Place]) -> None:
    """A gap is a slip of the keyboard more often than a wish."""
    largest = max(seen, default=-1)
    if len(seen) <= largest:
        gap = next(number for number in range(largest) if number not in seen)
        rank, column = seen[largest]
        raise table.fault(
            f"rank {rank}, column {column + 1} names {what} {largest}, and no cell names {what} {gap}; "
            "number them from 0 without gaps",
            seen[largest],
        )
