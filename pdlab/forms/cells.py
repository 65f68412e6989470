"""From the ops of a rank back to the schedule that a reader has in mind: one cell for each pass of a stage.

Lowering turns `2F0` into one forward for each segment, with messages and collectives between. A cell undoes that:
passes that follow each other and agree in stage, kind and microbatch are one, and so are the steps of a stage.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pdlab.ops import PASS_KINDS, Kind, Op, label


@dataclass
class Cell:
    """The ops at `positions` of a rank's list, shown as one."""

    op: Op
    positions: list[int]
    segments: set[int]
    marked: bool = False

    @property
    def text(self) -> str:
        name = label(self.op._replace(segment=-1)) if is_pass_or_step(self.op) else label(self.op)
        return f"[{name}]!" if self.marked else name


def cells(ops: Sequence[Op], marked: Collection[int] = ()) -> list[Cell]:
    """The cells of a rank. Ops that are no pass and no step have none, except where they are marked."""
    found: list[Cell] = []
    for position, op in enumerate(ops):
        here = position in marked
        if not is_pass_or_step(op) and not here:
            continue
        if found and _goes_on(found[-1], op):
            found[-1].positions.append(position)
            found[-1].segments.add(op.segment)
            found[-1].marked |= here
        else:
            found.append(Cell(op, [position], {op.segment}, here))
    return found


def is_pass_or_step(op: Op) -> bool:
    return op.kind in PASS_KINDS or op.kind is Kind.STEP


def _goes_on(cell: Cell, op: Op) -> bool:
    """A segment that comes a second time begins a second pass."""
    same = (cell.op.kind, cell.op.stage, cell.op.microbatch) == (op.kind, op.stage, op.microbatch)
    return same and op.segment >= 0 and (op.kind is Kind.STEP or op.segment not in cell.segments)
