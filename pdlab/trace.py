"""The table of timed events of one run: what a simulation and a real run both return.

Both are aligned with the rows of the same program, so laying one over the other is subtraction. A trace always says
where its numbers come from.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from pdlab.ops import Op, label
from pdlab.program import Facts, Program

if TYPE_CHECKING:
    import pandas as pd


class Mode(Enum):
    """How the numbers came about; never to be mixed up."""

    SIMULATED = "simulated"
    PACED = "paced"
    MEASURED = "measured"
    LOCAL = "local"


@dataclass(frozen=True)
class Provenance:
    """Where a trace comes from: printed under every picture. `oversubscribed`: more ranks than cores were timed."""

    mode: Mode
    costs: str = ""
    machine: str = ""
    versions: str = ""
    seed: int | None = None
    oversubscribed: bool = False

    def __str__(self) -> str:
        seed = f"seed {self.seed}" if self.seed is not None else ""
        return ", ".join(part for part in (self.how, self.costs, self.machine, self.versions, seed) if part)

    @property
    def how(self) -> str:
        """The mode in words; a measurement with more ranks than cores says little, and says so."""
        return f"{self.mode.value}, oversubscribed" if self.oversubscribed else self.mode.value


@dataclass(frozen=True)
class Trace:
    """Times of every row (op of a rank, numbered rank by rank in list order), in seconds from the start of the step.

    `moved[row]` is the size in bytes of a communication as nccl-tests define it, at a sender for messages, and 0 for
    other ops. `live[row]` is what the rank holds in bytes right after the op has ended, `live_before[rank]` at the
    start. `peak_weights[rank]` is the most bytes of weights it holds at once, versions that are stashed included.
    """

    program: Program
    starts: list[float]
    ends: list[float]
    moved: list[int]
    live: list[int]
    live_before: list[int]
    peak_weights: list[int]
    provenance: Provenance
    facts: Facts = field(default_factory=dict)

    @property
    def makespan(self) -> float:
        return max(self.ends, default=0.0)

    @property
    def clock(self) -> str:
        """What the times count: seconds, or in local mode, which measures no time, the events of its order."""
        return "events" if self.provenance.mode is Mode.LOCAL else "seconds"

    def rows(self) -> list[tuple[int, Op]]:
        """(rank, op) of every row."""
        return [(rank, op) for rank, program in enumerate(self.program.ranks) for op in program.ops]

    def rows_of(self, rank: int) -> range:
        first = sum(len(program.ops) for program in self.program.ranks[:rank])
        return range(first, first + len(self.program.ranks[rank].ops))

    def frame(self) -> "pd.DataFrame":
        """One line per row: rank, stream, op, kind, stage, segment, microbatch, start, end (seconds), bytes moved and
        live."""
        import pandas as pd

        columns = ["rank", "stream", "op", "kind", "stage", "segment", "microbatch", "start", "end", "moved", "live"]
        lines = [
            (rank, str(op.stream), label(op), op.kind.value, op.stage, op.segment, op.microbatch, *numbers)
            for (rank, op), *numbers in zip(self.rows(), self.starts, self.ends, self.moved, self.live, strict=True)
        ]
        return pd.DataFrame(lines, columns=columns)
