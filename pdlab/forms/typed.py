"""A table of ops as somebody typed it: its cells with what they say, and how it is shown with a faulty cell marked.

A cell holds one op (`2F0`), or two that overlap on one rank (`(0F1;3B0)OVERLAP_F_B`, as torch.distributed.pipelining
writes them). Torch's tables may also have cells for messages and for sharded weights; they are read and left out, since
what is sent follows from the order.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pdlab.forms.fault import FormError, short
from pdlab.ops import STEP, Kind, Op, parse

IDLE = "."
LONGEST_CELL = 64
MOST_SHOWN = 20_000
"""Cells of a table that an error shows; of a larger one it shows the columns around the fault."""
AROUND = 20

PAIR = re.compile(r"\(([^;()]*);([^;()]*)\)OVERLAP_F_B")
COMPLETED = re.compile(r"[0-9]+((SEND|RECV)_[FB][0-9]+|(UNSHARD|RESHARD|REDUCE_GRAD)[0-9]*)")
"""Cells of torch's `compute_comms` form that say nothing about the order."""

ALLOWED = "write stage, kind, microbatch, as in 2F0, 2B0, 2I0, 2W0, 2STEP or 2STEP3"

Place = tuple[int, int]
"""Rank and column of a cell, both from 0. People are told columns from 1."""


@dataclass(frozen=True)
class Typed:
    """One cell. Without ops it is blank, or one of torch's that say nothing about the order."""

    text: str
    ops: tuple[Op, ...] = ()


@dataclass(frozen=True)
class Table:
    """The cells of each pipeline rank, without what is blank at the end of a row."""

    rows: tuple[tuple[Typed, ...], ...]

    @property
    def schedule(self) -> list[list[Op]]:
        """For each rank its ops in order. Stages without a step of their own step at the end."""
        return [with_steps([op for cell in row for op in cell.ops]) for row in self.rows]

    @property
    def ops(self) -> list[Op]:
        return [op for row in self.rows for cell in row for op in cell.ops]

    @property
    def num_stages(self) -> int:
        return 1 + max(op.stage for op in self.ops)

    @property
    def num_microbatches(self) -> int:
        return max(1, 1 + max(op.microbatch for op in self.ops))

    @property
    def timed(self) -> bool:
        """Whether a blank cell stands before an op: then a column is a unit of time."""
        return any(not cell.text for row in self.rows for cell in row)

    def fault(self, sentence: str, *places: Place) -> FormError:
        return FormError(f"{sentence}\n{shown([[cell.text for cell in row] for row in self.rows], places)}")


def with_steps(ops: list[Op]) -> list[Op]:
    """What a table leaves out: a step at the end for each stage of the rank that has none."""
    stepped = {op.stage for op in ops if op.kind is Kind.STEP}
    graded = {op.stage for op in ops if op.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT)}
    return ops + [STEP(stage) for stage in sorted(graded - stepped)]


def ops_of_cell(text: str) -> tuple[Op, ...]:
    """The op or the pair that a cell names, with nothing for what torch's tables have besides. ValueError says what may
    stand there."""
    if len(text) > LONGEST_CELL or not text.isascii():
        raise ValueError(f"{short(text)} is not an op; {ALLOWED}")
    if COMPLETED.fullmatch(text):
        return ()
    pair = PAIR.fullmatch(text)
    ops = tuple(_op(part) for part in (pair.groups() if pair else (text,)))
    if pair and {op.kind for op in ops} != {Kind.FORWARD, Kind.BACKWARD}:
        raise ValueError(f"{text!r} overlaps {ops[0]} with {ops[1]}; a pair is a forward and a full backward")
    return ops


def _op(text: str) -> Op:
    op = parse(text)
    if op.segment >= 0:
        raise ValueError(f"{text!r} names a segment, and a schedule orders whole stages; {ALLOWED}")
    if op.kind is Kind.RECOMPUTE:
        raise ValueError(f"{op}: a schedule has F, B, I, W and STEP; what is run again is for --recompute to say")
    return op


def pair_text(first: Op, second: Op) -> str:
    return f"({first};{second})OVERLAP_F_B"


# --- how it is shown


def shown(texts: Sequence[Sequence[str]], marked: Collection[Place]) -> str:
    """The table in columns with their numbers, the cells of `marked` as `[2F0]!`."""
    ranks, columns = _window(texts, marked)
    rows = [[_shown(texts, (rank, column), marked) for column in columns] for rank in ranks]
    numbers = [str(column + 1) for column in columns]
    widths = [max(map(len, cells)) for cells in zip(numbers, *rows, strict=True)]
    labels = ["column", *(f"rank {rank:>{len(str(len(texts) - 1))}}" for rank in ranks)]
    return "\n".join(
        f"{label:<{max(map(len, labels))}} | "
        + " ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        for label, cells in zip(labels, [numbers, *rows], strict=True)
    )


def _window(texts: Sequence[Sequence[str]], marked: Collection[Place]) -> tuple[Sequence[int], Sequence[int]]:
    """The ranks and columns that are shown: all of them, or what lies around the marked cells of a huge table."""
    ranks, columns = range(len(texts)), range(max(map(len, texts)))
    if len(ranks) * len(columns) <= MOST_SHOWN:
        return ranks, columns
    near = {c for _, column in marked for c in range(column - AROUND, column + AROUND + 1)}
    return sorted({rank for rank, _ in marked}), [column for column in columns if column in near]


def _shown(texts: Sequence[Sequence[str]], place: Place, marked: Collection[Place]) -> str:
    rank, column = place
    text = texts[rank][column] if column < len(texts[rank]) else ""
    text = text if text.isprintable() and len(text) <= LONGEST_CELL else short(text)
    return f"[{text}]!" if place in marked else text or IDLE
