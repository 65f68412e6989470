"""The version ledger: which weights did each minibatch meet, and what does that cost?

Where nothing flushes, this is the question that decides whether a training does what it should, and no loss curve
answers it. The ledger reads the program, so it says of a run what it will do before it is run.

A version is named by the last minibatch whose gradient it includes; `START` is before all of them. (A program counts
steps instead: `fc0.w@2` has seen two.)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from pdlab.ops import BACKWARD_KINDS, Kind, Op, Value
from pdlab.program import Program, Role

if TYPE_CHECKING:
    import pandas as pd

START = -1
"""The version before the first update."""

LEGEND = (
    "w4: weights whose last update was with minibatch 4, and start: those before any; alive: what the rank holds when "
    "the backward begins; update: what the step with this minibatch makes"
)


@dataclass(frozen=True)
class Entry:
    """What one minibatch met on one stage, and what came of it: the versions of its forward and of its backward, those
    that the rank had when its backward began, and the version made by the step that takes its gradient (None: the
    program ends before)."""

    minibatch: int
    stage: int
    rank: int
    forward: int
    backward: int
    alive: tuple[int, ...]
    update: int | None

    @property
    def consistent(self) -> bool:
        """Whether what its backward finds is a gradient: at the weights of its forward."""
        return self.forward == self.backward


@dataclass(frozen=True)
class Ledger:
    """Entries by minibatch and stage. `most[stage, rank]` is how many versions of a stage a rank holds at once."""

    program: Program
    entries: tuple[Entry, ...]
    most: dict[tuple[int, int], int]

    @classmethod
    def of(cls, *programs: Program) -> "Ledger":
        """Of a program, or of several that go on from each other; ValueError where they do not, or begin in the
        middle."""
        _check_chain(programs)
        entries: list[Entry] = []
        most: dict[tuple[int, int], int] = {}
        for rank in range(programs[0].mesh.size):
            reader = _Reader(programs, rank)
            entries += reader.entries.values()
            most |= {(stage, rank): count for stage, count in reader.most.items()}
        entries.sort(key=lambda e: (e.minibatch, e.stage, e.rank))
        return cls(programs[-1], tuple(entries), most)

    @property
    def most_by_stage(self) -> tuple[int, ...]:
        """The most versions that any rank of each stage holds at once."""
        stages = sorted({stage for stage, _ in self.most})
        return tuple(max(count for (of, _), count in self.most.items() if of == stage) for stage in stages)

    @property
    def inconsistent(self) -> tuple[Entry, ...]:
        """Backwards that met other weights than their forward did."""
        return tuple(entry for entry in self.entries if not entry.consistent)

    @property
    def torn(self) -> tuple[int, ...]:
        """Minibatches whose forward met different versions on different stages."""
        met: dict[int, set[int]] = {}
        for entry in self.entries:
            met.setdefault(entry.minibatch, set()).add(entry.forward)
        return tuple(minibatch for minibatch, versions in met.items() if len(versions) > 1)

    @property
    def final(self) -> dict[int, int]:
        """For each stage the version that is left at the end."""
        final: dict[int, int] = {}
        for entry in self.entries:
            final[entry.stage] = max(final.get(entry.stage, START), START if entry.update is None else entry.update)
        return final

    def frame(self) -> "pd.DataFrame":
        """One line per minibatch and stage."""
        import pandas as pd

        columns = ["minibatch", "stage", "rank", "forward", "backward", "consistent", "alive", "update"]
        lines = []
        for e in self.entries:
            met = name(e.forward), name(e.backward), e.consistent
            lines.append((e.minibatch, e.stage, e.rank, *met, names(e.alive), name(e.update)))
        return pd.DataFrame(lines, columns=columns)

    def text(self) -> str:
        """The table and the verdicts."""
        return "\n".join((self.frame().to_string(index=False), "", LEGEND, *self.verdicts()))

    def verdicts(self) -> list[str]:
        """In sentences: is what the backwards find a gradient, did a minibatch meet one model, what is stashed."""
        return [self._on_gradients(), self._on_one_model(), self._on_the_stash()]

    def _on_gradients(self) -> str:
        if not (wrong := self.inconsistent):
            return "consistent: every backward meets the weights of its forward"
        e = max(wrong, key=lambda e: e.backward - e.forward)
        return (
            f"INCONSISTENT: {len(wrong)} of {len(self.entries)} backwards meet other weights than their forward, so "
            f"what they find is no gradient (minibatch {e.minibatch} on stage {e.stage}: forward {name(e.forward)}, "
            f"backward {name(e.backward)})"
        )

    def _on_one_model(self) -> str:
        if not (torn := self.torn):
            return "one model: every minibatch meets one version on all stages"
        met = [f"stage {e.stage} {name(e.forward)}" for e in self.entries if e.minibatch == torn[-1]]
        return (
            f"a model in pieces: {len(torn)} of {len({e.minibatch for e in self.entries})} minibatches meet different "
            f"versions on different stages (minibatch {torn[-1]}: {', '.join(met)})"
        )

    def _on_the_stash(self) -> str:
        return f"versions held at once, by stage: {', '.join(map(str, self.most_by_stage))}"


def name(version: int | None) -> str:
    """`w4` includes minibatches up to 4, `w0` the first alone; `start` none."""
    return "-" if version is None else "start" if version == START else f"w{version}"


def names(versions: Iterable[int]) -> str:
    return " ".join(map(name, versions))


def _check_chain(programs: Sequence[Program]) -> None:
    if not programs:
        raise ValueError("a ledger of no programs; give at least one")
    for before, after in pairwise(programs):
        ranks = zip(before.ranks, after.ranks, strict=False)
        if before.mesh != after.mesh or any(second.live_in - first.live_out for first, second in ranks):
            raise ValueError(f"{after.name} does not go on from {before.name}; give the parts of one stream")


class _Reader:
    """Walks a rank's list once: how versions come and go, and what each pass meets of them."""

    def __init__(self, programs: Sequence[Program], rank: int) -> None:
        self.rank, first = rank, programs[0]
        self.ops = [op for program in programs for op in program.ranks[rank].ops]
        self.types = {value: t for program in programs for value, t in program.ranks[rank].types.items()}
        self.included = self._included(first.num_microbatches - 1)
        self.stage_of = {
            group.name: stage
            for stage, segments in enumerate(first.stages)
            for segment in segments
            for group in first.model.segments[segment].groups
        }
        self.alive: dict[str, set[int]] = {}
        for value in first.ranks[rank].live_in:
            self._enter(value)
        self.entries: dict[tuple[int, int], Entry] = {}
        self.most: dict[int, int] = {}
        self._walk()

    def _included(self, last: int) -> dict[int, dict[int, int]]:
        """For each stage what its versions include, by the number of steps they have seen."""
        included: dict[int, dict[int, int]] = {}
        for op in (op for op in self.ops if op.kind is Kind.STEP):
            versions = included.setdefault(op.stage, {0: START})
            count = _count(op.writes[0])
            if count > max(versions) + 1:
                raise ValueError(f"the program begins with step {count} of stage {op.stage}; give those before it too")
            versions[count] = op.microbatch if op.microbatch >= 0 else last
        return included

    def _walk(self) -> None:
        """Of the segments of a stage that one counts whose backward meets other weights than its forward did."""
        forwards: dict[tuple[int, int, int], int] = {}
        for op in self.ops:
            if op.kind is Kind.FORWARD:
                forwards[op.stage, op.segment, op.microbatch] = self._met(op)
            elif op.kind in BACKWARD_KINDS - {Kind.BACKWARD_WEIGHT}:
                entry = self._entry(op, forwards.get((op.stage, op.segment, op.microbatch), self._met(op)))
                known = self.entries.setdefault((op.stage, op.microbatch), entry)
                if known.consistent and not entry.consistent:
                    self.entries[op.stage, op.microbatch] = entry
            for value in op.consumes:
                self._leave(value)
            for value in op.writes:
                self._enter(value)
            if op.kind is Kind.STEP or op.kind is Kind.FORWARD:
                self._count_alive()

    def _met(self, op: Op) -> int:
        """The version that an op reads, whatever it is said to meet; what has no weights is believed."""
        read = [_count(value) for value in op.inputs if self.types[value].role is Role.WEIGHT]
        return read[0] if read else max(0, op.version)

    def _entry(self, op: Op, forward: int) -> Entry:
        versions, backward = self.included.get(op.stage, {0: START}), self._met(op)
        if missing := {forward, backward} - versions.keys():
            raise ValueError(f"{op} meets weights that have seen {max(missing)} steps, and no step makes them")
        update = min((v for v in versions.values() if v >= op.microbatch), default=None)
        groups = [alive for group, alive in self.alive.items() if self.stage_of[group] == op.stage]
        alive = tuple(versions[count] for count in sorted(set().union(*groups)))
        return Entry(op.microbatch, op.stage, self.rank, versions[forward], versions[backward], alive, update)

    def _count_alive(self) -> None:
        for group, alive in self.alive.items():
            stage = self.stage_of[group]
            self.most[stage] = max(self.most.get(stage, 0), len(alive))

    def _enter(self, value: Value) -> None:
        if self.types[value].role is Role.WEIGHT:
            self.alive.setdefault(self.types[value].of, set()).add(_count(value))

    def _leave(self, value: Value) -> None:
        if self.types[value].role is Role.WEIGHT:
            self.alive[self.types[value].of].discard(_count(value))


def _count(value: Value) -> int:
    """The steps that a weight has seen: 2 of `fc0.w@2`, and of a shard or a gathered copy of it."""
    count = value.rpartition("@")[2].partition("/")[0]
    if not (count.isdecimal() and count.isascii()):
        raise ValueError(f"weights are called NAME@STEPS, as in fc0.w@2, and {value!r} is not; give them such names")
    return int(count)
