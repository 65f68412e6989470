"""ZeRO-3: every rank keeps 1/n of the weights, gradients and optimizer state, and borrows the rest for one segment at
a time.

Before an op that needs weights they are gathered, after it they are freed, and its gradients are reduce-scattered at
once (Rajbhandari et al. 2020, arXiv:1910.02054, section 5.3):

    dp group  |gather 0|gather 1|       |gather 2|
    compute            |F 0     |F 1             |F 2

With data edges alone the gathers would run ahead and hold the whole model, so each op hands a token to the gather
that may come `prefetch` ops after the next one: at most `prefetch` + 1 segments are whole at any time.
"""

from dataclasses import dataclass, field, replace

from pdlab.mesh import FLAT, Axis, Mesh
from pdlab.models.model import Model
from pdlab.ops import PASS_KINDS, TOKEN, Kind, Op, Value
from pdlab.program import Program, RankProgram, Role, Type
from pdlab.signature import operands


def shard_weights(program: Program, *, axis: Axis = Axis.DP, prefetch: int = 1) -> Program:
    """Shard weights, gradients and optimizer state over `axis`; gather `prefetch` segments ahead of their use."""
    if prefetch < 0:
        raise ValueError(f"prefetch is {prefetch}; it counts the gathers that run ahead, so at least 0")
    if program.mesh.degree(axis) == 1:
        return program
    return program.with_ranks([_Sharding(program, rank, axis, prefetch).run() for rank in program.ranks])


@dataclass
class _Sharding:
    program: Program
    rank: RankProgram
    axis: Axis
    prefetch: int
    types: dict[Value, Type] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)

    def run(self) -> RankProgram:
        self.types = {value: self._sharded(t) for value, t in self.rank.types.items()}
        uses = [op for op in self.rank.ops if op.kind in PASS_KINDS and self._groups(op)]
        gathers = [self._gather(op, k) for k, op in enumerate(uses)]
        for gather in gathers[: self.prefetch + 1]:
            self.ops += gather
        use = 0
        for op in self.rank.ops:
            if op.kind not in PASS_KINDS:
                self.ops.append(op)
                continue
            ahead = use + self.prefetch + 1
            gathered = bool(self._groups(op))
            self._use(op, use, token=gathered and ahead < len(gathers))
            self.ops += gathers[ahead] if gathered and ahead < len(gathers) else []
            self._scatter_gradients(op)
            use += gathered
        return replace(self.rank, ops=tuple(self.ops), types=self.types)

    def _groups(self, op: Op) -> tuple[Value, ...]:
        model: Model = self.program.model
        return operands(op, model.segments[self.program.stages[op.stage][op.segment]]).weights

    def _sharded(self, t: Type) -> Type:
        if t.role not in (Role.WEIGHT, Role.GRADIENT, Role.OPTIMIZER):
            return t
        assert isinstance(t.size, int)
        mesh: Mesh = self.program.mesh
        itemsize = t.size // self.program.model.groups[t.of].num_elements
        each = -(-(t.size // itemsize) // mesh.degree(self.axis)) * itemsize
        return t._replace(size=each, layout=t.layout.put(self.axis, FLAT))

    def _gather(self, op: Op, k: int) -> list[Op]:
        """The gathers for the k-th op that needs weights; the first takes the token of the op `prefetch` + 1 before
        it."""
        gathers: list[Op] = []
        for weight in self._groups(op):
            whole = f"{weight}/{k}"
            self.types[whole] = self.rank.types[weight]
            ready = k - self.prefetch - 1
            token = (f"{TOKEN}room{ready}",) if ready >= 0 and not gathers else ()
            gathers.append(Op(Kind.ALL_GATHER, op.stage, inputs=(weight, *token), writes=(whole,), axis=self.axis))
        return gathers

    def _use(self, op: Op, k: int, token: bool) -> None:
        weights = set(self._groups(op))
        inputs = tuple(f"{v}/{k}" if v in weights else v for v in op.inputs)
        writes = op.writes
        if op.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT):
            found = operands(op, self.program.model.segments[self.program.stages[op.stage][op.segment]])
            inputs = tuple(v for v in inputs if v not in found.so_far)
            writes = tuple(f"{v}/whole" if v in found.weight_gradients else v for v in writes)
            self.types |= {f"{v}/whole": self.rank.types[v] for v in found.weight_gradients}
        if token:
            self.types[f"{TOKEN}room{k}"] = Type(Role.TOKEN, 0)
            writes = (*writes, f"{TOKEN}room{k}")
        self.ops.append(op._replace(inputs=inputs, writes=writes))

    def _scatter_gradients(self, op: Op) -> None:
        found = operands(op, self.program.model.segments[self.program.stages[op.stage][op.segment]])
        for i, gradient in enumerate(found.weight_gradients):
            before = found.so_far[i] if found.so_far else None
            piece = f"{gradient}/new" if before else gradient
            self.types[piece] = self.types[gradient]
            self.ops.append(
                Op(Kind.REDUCE_SCATTER, op.stage, inputs=(f"{gradient}/whole",), writes=(piece,), axis=self.axis)
            )
            if before:
                self.ops.append(Op(Kind.ADD, op.stage, inputs=(before, piece), writes=(gradient,)))
