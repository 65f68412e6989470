"""Cut some layers out of a program, to be looked at alone: a transformer block without embedding and classifier.

What remains is a program like any other, so prediction, metrics and pictures of one block are those of a whole step:

    whole      embed | norm  f  heads  g  add | norm  f  neurons  g  add | head | ... and back, sums, steps
    excerpt          | norm  f  heads  g  add | norm  f  neurons  g  add |      | ... and back

Passes over segments, the collectives of their layers and sums of activation gradients stay. Messages between stages,
sums of weight gradients and optimizer steps go: they come once a step or between stages, not once a block.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from pdlab.models.model import Model
from pdlab.models.spec import Exchange
from pdlab.ops import COLLECTIVE_KINDS, PASS_KINDS, Kind, Op, Value
from pdlab.passes.consume import consume_last_uses
from pdlab.program import Program, RankProgram, Role

PASSED_ON = frozenset({Role.ACTIVATION, Role.ACTIVATION_GRADIENT})
"""What collectives within a layer are about; all others are about weights."""


def excerpt(program: Program, layers: Collection[int]) -> Program:
    """The ops of some layers of the model. What they take from outside lives before the first of them, and what is
    read outside later lives after the last. ValueError for a layer that the model does not have."""
    known = len(program.model.layers)
    unknown = [layer for layer in layers if not 0 <= layer < known]
    if unknown:
        raise ValueError(f"no layer {unknown[0]}: model {program.model.name} has layers 0 to {known - 1}")
    chosen = frozenset(layers)
    return consume_last_uses(program.with_ranks([_Excerpt(program, rank, chosen).run() for rank in program.ranks]))


def exchanges(model: Model) -> dict[tuple[str, str], int]:
    """The layer of a collective by the tensors that it takes and makes, both ways."""
    found: dict[tuple[str, str], int] = {}
    for i, layer in enumerate(model.layers):
        for item in layer:
            if isinstance(item, Exchange):
                ends = item.payload.name, item.result.name
                found |= {ends: i, ends[::-1]: i}
    return found


@dataclass
class _Excerpt:
    program: Program
    rank: RankProgram
    layers: frozenset[int]
    inside: list[bool] = field(default_factory=list)

    def run(self) -> RankProgram:
        self._choose()
        written: set[Value] = set()
        needed: set[Value] = set()
        chosen = [op for op, inside in zip(self.rank.ops, self.inside, strict=True) if inside]
        for op in chosen:
            needed.update(value for value in op.operands if value not in written)
            written.update(op.writes)
        return replace(
            self.rank, ops=tuple(chosen), live_in=frozenset(needed), live_out=frozenset(self._wanted(written | needed))
        )

    def _choose(self) -> None:
        """Passes and exchanges by the model; the rest by who made what they take, checkpoints by who reads them."""
        layer_of, exchange_of = self.program.model.layer_of, exchanges(self.program.model)
        made: set[Value] = set()
        for op in self.rank.ops:
            if op.kind in PASS_KINDS:
                layer: int | None = layer_of[self.program.stages[op.stage][op.segment]]
            else:
                layer = exchange_of.get(self._ends(op)) if op.kind in COLLECTIVE_KINDS | {Kind.SPLIT} else None
            inside = layer in self.layers
            if layer is None and op.kind in (Kind.ADD, Kind.FREE):
                inside = self._passes_on(op) and op.inputs[0] in made
            self.inside.append(inside)
            made.update(op.writes if inside else ())
        self._take_checkpoints(exchange_of)

    def _take_checkpoints(self, exchange_of: dict[tuple[str, str], int]) -> None:
        """The cutting up and gathering of what enters a block that is run again: an exchange of no layer."""
        chosen = (op for op, inside in zip(self.rank.ops, self.inside, strict=True) if inside)
        wanted = {value for op in chosen for value in op.operands}
        for i in reversed(range(len(self.rank.ops))):
            op = self.rank.ops[i]
            if op.kind not in (Kind.SPLIT, Kind.ALL_GATHER) or self._ends(op) in exchange_of or not self._passes_on(op):
                continue
            if wanted.intersection(op.writes):
                self.inside[i] = True
                wanted.update(op.operands)

    def _ends(self, op: Op) -> tuple[str, str]:
        return self.rank.types[op.inputs[0]].of, self.rank.types[op.writes[0]].of

    def _passes_on(self, op: Op) -> bool:
        return self.rank.types[op.inputs[0]].role in PASSED_ON

    def _wanted(self, values: set[Value]) -> set[Value]:
        """Those that an op outside reads later, or that outlive the whole program."""
        wanted = values & self.rank.live_out
        seen: set[Value] = set()
        for op, inside in zip(self.rank.ops, self.inside, strict=True):
            if inside:
                seen.update((*op.operands, *op.writes))
            else:
                wanted.update(seen.intersection(op.operands))
        return wanted
