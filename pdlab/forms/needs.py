"""What each op of a table needs, by the names that a student has typed: before a program is made of it.

A forward needs that of the stage before; a backward the forward of its own stage, on its own rank, and the backward of
the stage behind; a weight gradient the backward for the input. Every stage takes each microbatch once forward and once
back. `pdlab.validate` holds the finished program to the same and to more, and speaks of values and messages.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from pdlab.forms.typed import Place, Table
from pdlab.ops import Kind, Op


class At(NamedTuple):
    """An op of a table and where it stands."""

    op: Op
    rank: int
    column: int

    @property
    def place(self) -> Place:
        return self.rank, self.column

    @property
    def where(self) -> str:
        return f"rank {self.rank}, column {self.column + 1}"


class Deed(NamedTuple):
    """One of the three things that are done to a microbatch in a stage: `F`, `I` (input gradient), `W` (weight
    gradient). A full backward does the last two."""

    kind: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        name = f"{self.stage}{self.kind}{self.microbatch}"
        return name if self.kind == "F" else f"{self.stage}B{self.microbatch} (or {name})"


DOES = {
    Kind.FORWARD: "F",
    Kind.BACKWARD: "IW",
    Kind.BACKWARD_INPUT: "I",
    Kind.BACKWARD_WEIGHT: "W",
    Kind.STEP: "",
}


class Index:
    """Where everything in a table stands. FormError for what stands there twice."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.last = table.num_stages - 1
        self.done: dict[Deed, At] = {}
        for at in self.everything:
            for deed in deeds(at.op):
                other = self.done.setdefault(deed, at)
                if other is not at:
                    raise table.fault(
                        f"{at.op} on {at.where} repeats {other.op} on {other.where}; every stage takes each microbatch "
                        "once forward and once back, so take one of them out",
                        at.place,
                        other.place,
                    )

    @cached_property
    def everything(self) -> list[At]:
        """All ops, column by column."""
        found = [
            At(op, rank, column)
            for rank, row in enumerate(self.table.rows)
            for column, cell in enumerate(row)
            for op in cell.ops
        ]
        return sorted(found, key=lambda at: (at.column, at.rank))

    @cached_property
    def of_stage(self) -> dict[tuple[int, int], list[At]]:
        """The ops of each rank and stage."""
        found: dict[tuple[int, int], list[At]] = {}
        for at in self.everything:
            found.setdefault((at.rank, at.op.stage), []).append(at)
        return found

    @cached_property
    def steps(self) -> dict[tuple[int, int], set[int]]:
        """For each rank and stage the microbatches after which it steps; -1 is a step on all of them."""
        return {
            key: {at.op.microbatch for at in found if at.op.kind is Kind.STEP} for key, found in self.of_stage.items()
        }

    def needed(self, op: Op) -> Iterator[Deed]:
        """What must have been done before an op."""
        stage, i = op.stage, op.microbatch
        if op.kind is Kind.FORWARD and stage > 0:
            yield Deed("F", stage - 1, i)
        elif op.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
            yield Deed("F", stage, i)
            if stage < self.last:
                yield Deed("I", stage + 1, i)
        elif op.kind is Kind.BACKWARD_WEIGHT:
            yield Deed("I", stage, i)

    def is_replicated(self, stage: int) -> bool:
        return sum(other == stage for _, other in self.of_stage) > 1

    def add(self, stage: int) -> str:
        """Where a missing op of a stage belongs."""
        ranks = [rank for rank, other in self.of_stage if other == stage]
        return f"add it to the row of rank {ranks[0]}" if len(ranks) == 1 else "add it"


def deeds(op: Op) -> list[Deed]:
    return [Deed(kind, op.stage, op.microbatch) for kind in DOES[op.kind]]


def check_needs(table: Table) -> None:
    """FormError names the first op that lacks something, has it on another rank, or stands before it in its row."""
    index = Index(table)
    for check in (_check_there, _check_taken_back, _check_same_rank, _check_row, _check_step, _check_stepped):
        for at in index.everything:
            check(index, at)


def _check_there(index: Index, at: At) -> None:
    for deed in index.needed(at.op):
        if deed not in index.done:
            name = f"{deed.stage}I{deed.microbatch}" if at.op.kind is Kind.BACKWARD_WEIGHT else deed
            raise index.table.fault(
                f"{at.op} on {at.where} needs {name}, which stands nowhere; {index.add(deed.stage)}", at.place
            )


def _check_taken_back(index: Index, at: At) -> None:
    stage, i = at.op.stage, at.op.microbatch
    if at.op.kind is Kind.FORWARD and Deed("I", stage, i) not in index.done:
        raise index.table.fault(
            f"{at.op} on {at.where} is never taken back: the gradient of stage {stage} would lack microbatch {i}, for "
            f"there is no {stage}B{i} (nor {stage}I{i} and {stage}W{i}); add it to the row of rank {at.rank}",
            at.place,
        )
    if at.op.kind is Kind.BACKWARD_INPUT and Deed("W", stage, i) not in index.done:
        raise index.table.fault(
            f"{at.op} on {at.where} puts its weight gradient off until {stage}W{i}, which stands nowhere; "
            f"add it to the row of rank {at.rank}, or write {stage}B{i} for both",
            at.place,
        )


def _check_same_rank(index: Index, at: At) -> None:
    """What a forward saves for the backward, and that for the weight gradient, stays on its rank."""
    for deed in index.needed(at.op):
        other = index.done[deed]
        if deed.stage == at.op.stage and at.op.kind is not Kind.FORWARD and other.rank != at.rank:
            raise index.table.fault(
                f"{at.op} stands on rank {at.rank}, and what {other.op} keeps for it stays on rank {other.rank}; "
                f"move it to the row of rank {other.rank}",
                at.place,
            )


def _check_row(index: Index, at: At) -> None:
    for deed in index.needed(at.op):
        other = index.done[deed]
        if other.rank == at.rank and other.column == at.column:
            raise index.table.fault(f"{at.op} needs {other.op}, which runs beside it; give each a cell", at.place)
        if other.rank == at.rank and other.column > at.column:
            raise index.table.fault(
                f"{at.op} in column {at.column + 1} of rank {at.rank} needs {other.op}, which follows in column "
                f"{other.column + 1}; exchange them",
                at.place,
            )


def _check_step(index: Index, at: At) -> None:
    """A step takes the gradients of all microbatches, or of those up to the one that it names which no step before it
    has taken. Replicas may have all of them."""
    if at.op.kind is not Kind.STEP:
        return
    stage, i = at.op.stage, at.op.microbatch
    mine = index.of_stage[at.rank, stage]
    graded = [other for other in mine if "W" in DOES[other.op.kind]]
    before = max((other for other in index.steps[at.rank, stage] if other < i), default=-1)
    taken = [other for other in graded if i < 0 or before < other.op.microbatch <= i]
    if not taken and not (graded and index.is_replicated(stage)):
        raise index.table.fault(
            f"{at.op} on {at.where} has no gradient to step with: rank {at.rank} has no {stage}B{max(i, 0)}; take it "
            "out, or move it to the rank of its stage",
            at.place,
        )
    if late := [other for other in taken if other.column > at.column]:
        raise index.table.fault(
            f"{at.op} in column {at.column + 1} of rank {at.rank} stands before {late[0].op} in column "
            f"{late[0].column + 1}, whose gradient it would lack; move it behind",
            at.place,
        )
    if again := [o for o in mine if o.op.kind is Kind.STEP and o is not at and (o.op.microbatch in (-1, i) or i < 0)]:
        raise index.table.fault(
            f"{at.op} on {at.where} and {again[0].op} in column {again[0].column + 1} step on the same gradient; "
            "take one of them out",
            at.place,
            again[0].place,
        )
    if early := [other for other in graded if i >= 0 and other.column < at.column and other.op.microbatch > i]:
        raise index.table.fault(
            f"{at.op} in column {at.column + 1} of rank {at.rank} is for microbatches up to {i}, and {early[0].op} in "
            f"column {early[0].column + 1} would be part of it; move that behind",
            at.place,
            early[0].place,
        )


def _check_stepped(index: Index, at: At) -> None:
    """Where a stage steps along the way, no microbatch is left over."""
    stage, i = at.op.stage, at.op.microbatch
    if "W" not in DOES[at.op.kind]:
        return
    steps = index.steps[at.rank, stage]
    if steps and -1 not in steps and max(steps) < i:
        raise index.table.fault(
            f"{at.op} on {at.where} is in no step, for the last step of stage {stage} is {stage}STEP{max(steps)}; add "
            f"{stage}STEP{i} behind it",
            at.place,
        )
