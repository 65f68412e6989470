"""Run the weight gradient under the collective that the input gradient needs.

A column-parallel linear sums its input gradient over the tensor group, and the layer before has to wait for the sum;
its own weight gradient has not. Split into I and W, the backward lets the two overlap (Megatron-LM's
asynchronous all-reduce of the input gradient):

    compute   |I heads|W heads|       |B norm        instead of    |B heads        |         |B norm
    tp group          |all-reduce d.u |                                            |all-reduce d.u |

`I` does not look at what entered the linear, so what sequence parallelism gathers again for `W` comes under `I`.
"""

from dataclasses import dataclass, replace

from pdlab.ops import COLLECTIVE_KINDS, Kind, Op, Value
from pdlab.passes.naming import kept_size
from pdlab.program import Program, RankProgram, Role, Type
from pdlab.signature import operands


def overlap_weight_gradients(program: Program) -> Program:
    """Split every backward whose input gradient goes into a collective."""
    return program.with_ranks([_Splitting(program, r, rank).run() for r, rank in enumerate(program.ranks)])


@dataclass
class _Splitting:
    program: Program
    number: int
    rank: RankProgram

    def run(self) -> RankProgram:
        exchanged = {value for op in self.rank.ops if op.kind in COLLECTIVE_KINDS for value in op.inputs}
        types = dict(self.rank.types)
        ops: list[Op] = []
        for op in self.rank.ops:
            ops += self._halves(op, exchanged, types) if op.kind is Kind.BACKWARD else [op]
        return replace(self.rank, ops=tuple(ops), types=types)

    def _halves(self, op: Op, exchanged: set[Value], types: dict[Value, Type]) -> list[Op]:
        segment = self.program.model.segments[self.program.stages[op.stage][op.segment]]
        found = operands(op, segment)
        if not (segment.flops.backward_weight and exchanged & set(found.input_gradients)):
            return [op]
        pending = f"{segment.name}.pending:{op.microbatch}"
        num_rows = self.program.rows[self.program.mesh.data_shard(self.number)][op.microbatch]
        types[pending] = Type(
            Role.PENDING, kept_size(segment, segment.pending, op.microbatch, num_rows), of=segment.name
        )
        early = {t.name for t in segment.inputs_of(Kind.BACKWARD_INPUT)}
        inputs = tuple(v for t, v in zip(segment.kept_inputs, found.inputs, strict=True) if t.name in early)
        to_input = found._replace(inputs=inputs, so_far=(), left=(pending,), weight_gradients=())
        to_weights = found._replace(carried=(pending,), output_gradients=(), weights=(), input_gradients=())
        return [
            op._replace(kind=Kind.BACKWARD_INPUT, inputs=to_input.reads, writes=to_input.writes),
            op._replace(kind=Kind.BACKWARD_WEIGHT, inputs=to_weights.reads, writes=to_weights.writes),
        ]
