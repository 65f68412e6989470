"""Recompute: keep only what enters a block of layers, and run its forward again just before its backward.

    F attn0 | F ffn0 | ... | R attn0 | R ffn0 | B ffn0 | B attn0

The forward then leaves no saved tensors behind. What it costs is a second forward, collectives included: a Megatron
layer then moves 12 b s h (t - 1) / t elements on the wire instead of 8 (Rajbhandari et al. 2020, arXiv:1910.02054,
section 8: two all-reduces each in the forward, the second forward and the backward; a ring moves 2 (t - 1) / t).

In a pipeline all of a stage can be one block: what is kept of a microbatch is then what came in from the stage before
(GPipe, Huang et al. 2019, arXiv:1811.06965, section 2.1). The last microbatch may be spared, as torchgpipe does by
default: it goes back in reverse order, so that the last one's backward comes straight after its forward, and throwing
away and making again gains nothing. Where backwards go in the order of the forwards, it saves one forward all the same.

Over a tensor group every rank would keep the same checkpoint. *Partitioned*, each keeps 1/t of it, and they are
gathered before they are needed: one all-gather more for each block (ZeRO-R's P_a, section 6.1 there).
"""

from dataclasses import dataclass, field, replace
from enum import Enum

from pdlab.mesh import Axis, shard
from pdlab.models.split import check_divides
from pdlab.ops import FORWARD_KINDS, PASS_KINDS, Kind, Op, Value
from pdlab.program import Program, RankProgram, Role, Type
from pdlab.signature import operands


class Recompute(Enum):
    """What is run again: blocks of the model or whole stages, and what is kept of what enters them."""

    NONE = "none"
    FULL = "full"
    PARTITIONED = "partitioned"
    STAGE = "stage"
    EXCEPT_LAST = "except_last"


WHOLE_STAGES = (Recompute.STAGE, Recompute.EXCEPT_LAST)


MADE_FORWARD = frozenset({Role.ACTIVATION, Role.FACT})

Key = tuple[int, int, int]
"""A block's part of a stage on one microbatch: stage, microbatch, block."""


def recompute(program: Program, how: Recompute) -> Program:
    """Run the blocks of the model again before their backward."""
    if how is Recompute.NONE:
        return program
    layers = range(len(program.model.layers))
    blocks = {layer: i for i, block in enumerate(program.model.blocks) for layer in block}
    if how in WHOLE_STAGES:
        blocks = dict.fromkeys(layers, 0)
    spared = program.num_microbatches - 1 if how is Recompute.EXCEPT_LAST else -1
    partitioned = how is Recompute.PARTITIONED and program.mesh.degree(Axis.TP) > 1
    return program.with_ranks([_Again(program, rank, blocks, spared, partitioned).run() for rank in program.ranks])


def again(value: Value) -> Value:
    """What a value is called when it is made a second time: `h3/again:0`."""
    name, _, microbatch = value.rpartition(":")
    return f"{name}/again:{microbatch}"


def is_again(value: Value) -> bool:
    return "/again:" in value


@dataclass
class _Again:
    program: Program
    rank: RankProgram
    block_of: dict[int, int]
    spared: int
    partitioned: bool
    types: dict[Value, Type] = field(default_factory=dict)
    forwards: dict[Key, list[Op]] = field(default_factory=dict)
    renamed: dict[Value, Value] = field(default_factory=dict)
    replayed: set[Key] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.types = dict(self.rank.types)

    def run(self) -> RankProgram:
        ops: list[Op] = []
        keys = [self._key(op) for op in self.rank.ops]
        for op, key in zip(self.rank.ops, keys, strict=True):
            if key is not None:
                self.forwards.setdefault(key, []).append(op)
        lasts = {key: i for i, key in enumerate(keys) if key is not None}
        for i, (op, key) in enumerate(zip(self.rank.ops, keys, strict=True)):
            if key is not None:
                ops.append(self._unsaved(op))
                ops += self._split(key) if lasts[key] == i else []
                continue
            ops += self._replay_before(op)
            ops.append(self._reading_again(op) if op.kind in PASS_KINDS else op)
        return replace(self.rank, ops=_free_unread(ops, self.rank), types=self.types)

    def _key(self, op: Op) -> Key | None:
        """The block that an op runs forward, alone or for a collective of it."""
        made = self.types[op.writes[0]] if op.writes and op.microbatch not in (-1, self.spared) else None
        if made is None or not (op.kind is Kind.FORWARD or made.role in MADE_FORWARD):
            return None
        block = self.block_of.get(self.program.model.made_in[made.of])
        return None if block is None else (op.stage, op.microbatch, block)

    def _segment(self, op: Op) -> str:
        return self.program.stages[op.stage][op.segment]

    def _unsaved(self, op: Op) -> Op:
        if op.kind is not Kind.FORWARD:
            return op
        found = operands(op, self.program.model.segments[self._segment(op)])
        return op._replace(writes=found.outputs)

    def _entering(self, key: Key) -> list[Value]:
        """What a block is given: the checkpoint."""
        made = {value for op in self.forwards[key] for value in op.writes}
        given = dict.fromkeys(value for op in self.forwards[key] for value in op.inputs)
        return [v for v in given if v not in made and self.types[v].role is Role.ACTIVATION]

    # --- partitioned checkpoints

    def _split(self, key: Key) -> list[Op]:
        """Cut the checkpoint up after the forward, and free the rest of it."""
        cuts = []
        for value in self._entering(key) if self.partitioned else []:
            t, members = self.types[value], self.program.mesh.degree(Axis.TP)
            if t.layout.at(Axis.TP) is None:
                check_divides(
                    f"a partitioned checkpoint of {t.of} with", self.program.model.tensors[t.of].shape[0], members
                )
                assert isinstance(t.size, int)
                piece = value.replace(":", "/piece:")
                self.types[piece] = t._replace(size=t.size // members, layout=t.layout.put(Axis.TP, shard(1)))
                cuts.append(Op(Kind.SPLIT, key[0], microbatch=key[1], inputs=(value,), writes=(piece,), axis=Axis.TP))
        return cuts

    def _gather(self, value: Value, key: Key) -> list[Op]:
        piece = value.replace(":", "/piece:")
        if piece not in self.types:
            return []
        whole = value.replace(":", "/whole:")
        self._rename(value, whole)
        return [Op(Kind.ALL_GATHER, key[0], microbatch=key[1], inputs=(piece,), writes=(whole,), axis=Axis.TP)]

    # --- the second forward

    def _replay_before(self, op: Op) -> list[Op]:
        """All of a block once more, if this is the first op of its backward."""
        if op.kind not in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
            return []
        block = self.block_of.get(self.program.model.layer_of[self._segment(op)])
        key = (op.stage, op.microbatch, -1 if block is None else block)
        if key not in self.forwards or key in self.replayed:
            return []
        self.replayed.add(key)
        ops = [gather for value in self._entering(key) for gather in self._gather(value, key)]
        for forward in self.forwards[key]:
            for value in forward.writes:
                if self.types[value].role is not Role.SAVED:
                    self._rename(value, again(value))
            ops.append(self._repeated(forward))
        return ops

    def _rename(self, value: Value, name: Value) -> None:
        self.renamed[value] = name
        self.types[name] = self.types[value]

    def _repeated(self, op: Op) -> Op:
        kind = Kind.RECOMPUTE if op.kind is Kind.FORWARD else op.kind
        return self._reading_again(op)._replace(
            kind=kind, writes=tuple(self.renamed.get(value, value) for value in op.writes), pair=-1
        )

    def _reading_again(self, op: Op) -> Op:
        if op.kind in FORWARD_KINDS and self._key(op) not in self.replayed:
            return op
        return op._replace(inputs=tuple(self.renamed.get(value, value) for value in op.inputs))


def _free_unread(ops: list[Op], rank: RankProgram) -> tuple[Op, ...]:
    """The output of a block's second forward is wanted by nobody. (What the first one made may be for other ranks.)"""
    read = {value for op in ops for value in op.operands} | rank.live_out
    found: list[Op] = []
    for op in ops:
        found.append(op)
        unread = tuple(value for value in op.writes if is_again(value) and value not in read)
        if unread:
            found.append(Op(Kind.FREE, op.stage, microbatch=op.microbatch, inputs=unread))
    return tuple(found)
