"""From a schedule to a program: `2F0` becomes the forwards of stage 2's segments, with operands and exchanges.

A schedule lists, for each pipeline rank, ops that name a stage and a microbatch and nothing else. This pass knows the
model: it names every value, gives it a type, and says which weight version each op meets. It inserts no messages
between ranks (`insert_messages` does) and frees nothing (`consume_last_uses` does).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pdlab.depend import ProgramError
from pdlab.mesh import DATA_AXES, LOCAL, PARTIAL, Axis, Layout, Mesh, shard
from pdlab.models.spec import Exchange, Group, Item, Kept, Model, Segment, Tensor
from pdlab.ops import Kind, Op, Value
from pdlab.program import Program, RankProgram, Role, Size, Sized, Type, gradient_layout, tensor_roles
from pdlab.signature import Operands

Schedule = Sequence[Sequence[Op]]
"""For each rank of the pp axis, its ops in order."""


def lower(
    name: str,
    schedule: Schedule,
    model: Model,
    mesh: Mesh,
    rows: tuple[tuple[int, ...], ...],
    *,
    num_stages: int,
    optimizer_bytes: int = 0,
) -> Program:
    """Lower a schedule onto a mesh. `optimizer_bytes` is the optimizer state per weight element (0 for plain SGD)."""
    stages = model.stages(num_stages)
    for op in (op for ops in schedule for op in ops):
        if not (0 <= op.stage < num_stages and op.microbatch < len(rows[0])):
            raise ProgramError(
                f"{op} in a schedule of {num_stages} stages and {len(rows[0])} microbatches; "
                "number both from 0, and give each stage a rank of its own"
            )
    ranks = []
    for rank in range(mesh.size):
        lowering = _Rank(model, mesh, rows[mesh.data_shard(rank)], stages, optimizer_bytes)
        for op in schedule[mesh.coordinates[rank][Axis.PP]]:
            lowering.add(op)
        ranks.append(lowering.finish())
    names = tuple(tuple(item.name for item in stage if isinstance(item, Segment)) for stage in stages)
    return Program(name, mesh, model, tuple(ranks), rows, names)


@dataclass
class _Rank:
    """The lowering of one rank: what it has emitted, and how values are called at this point of its list."""

    model: Model
    mesh: Mesh
    rows: tuple[int, ...]
    stages: tuple[tuple[Item, ...], ...]
    optimizer_bytes: int
    ops: list[Op] = field(default_factory=list)
    types: dict[Value, Type] = field(default_factory=dict)
    live_in: set[Value] = field(default_factory=set)
    losses: set[Value] = field(default_factory=set)
    version: dict[int, int] = field(default_factory=dict)
    forward_version: dict[tuple[int, int], int] = field(default_factory=dict)
    accumulated: dict[str, tuple[int, int]] = field(default_factory=dict)
    alias: dict[Value, Value] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.roles = tensor_roles(self.model)
        self.index = {
            item.name: i
            for stage in self.stages
            for i, item in enumerate(item for item in stage if isinstance(item, Segment))
        }

    def add(self, op: Op) -> None:
        items = self.stages[op.stage]
        if op.kind is Kind.FORWARD:
            version = op.version if op.version >= 0 else self.version.get(op.stage, 0)
            self.forward_version[op.stage, op.microbatch] = version
            self._walk(op, items, version)
        elif op.kind is Kind.STEP:
            self._step(op, items)
        else:
            version = op.version if op.version >= 0 else self.forward_version.get((op.stage, op.microbatch), 0)
            self._walk(op, items[::-1], version)

    def finish(self) -> RankProgram:
        weights = {f"{group}@{version}" for group, version in self.held.items()}
        state = {_state(value) for value in weights} if self.optimizer_bytes else set()
        return RankProgram(
            tuple(self.ops), self.types, frozenset(self.live_in), frozenset(weights | state | self.losses)
        )

    def _walk(self, op: Op, items: Sequence[Item], version: int) -> None:
        for item in items:
            if isinstance(item, Segment):
                self._segment(op._replace(version=version), item)
            elif op.kind is Kind.FORWARD:
                self._exchange(op, item, item.payload, item.result, item.forward, item.splits)
            elif op.kind is not Kind.BACKWARD_WEIGHT:
                self._exchange_back(op, item)

    # --- one segment

    def _segment(self, op: Op, segment: Segment) -> None:
        make = {
            Kind.FORWARD: self._forward,
            Kind.BACKWARD: self._backward,
            Kind.BACKWARD_INPUT: self._backward_input,
            Kind.BACKWARD_WEIGHT: self._backward_weight,
        }[op.kind]
        found = make(op, segment)
        index = self.index[segment.name]
        self.ops.append(op._replace(segment=index, inputs=found.reads, writes=found.writes))

    def _forward(self, op: Op, segment: Segment) -> Operands:
        mb = op.microbatch
        inputs = tuple(self._tensor(t, mb) for t in segment.inputs)
        outputs = tuple(self._tensor(t, mb) for t in segment.outputs)
        saved = self._left("saved", Role.SAVED, segment, segment.saved, mb)
        return Operands(inputs, self._weights(op, segment), outputs=outputs, left=(saved,))

    def _backward_input(self, op: Op, segment: Segment) -> Operands:
        mb = op.microbatch
        return Operands(
            inputs=tuple(self._tensor(t, mb) for t in segment.kept_inputs),
            weights=self._weights(op, segment),
            carried=(self._left("saved", Role.SAVED, segment, segment.saved, mb),),
            output_gradients=tuple(self._gradient(t, mb) for t in segment.graded_outputs),
            left=(self._left("pending", Role.PENDING, segment, segment.pending, mb),),
            input_gradients=tuple(self._gradient(t, mb) for t in segment.graded_inputs),
        )

    def _backward(self, op: Op, segment: Segment) -> Operands:
        so_far, written = self._accumulate(op, segment)
        return self._backward_input(op, segment)._replace(left=(), so_far=so_far, weight_gradients=written)

    def _backward_weight(self, op: Op, segment: Segment) -> Operands:
        so_far, written = self._accumulate(op, segment)
        return Operands(
            inputs=tuple(self._tensor(t, op.microbatch) for t in segment.kept_inputs),
            carried=(self._left("pending", Role.PENDING, segment, segment.pending, op.microbatch),),
            so_far=so_far,
            weight_gradients=written,
        )

    def _accumulate(self, op: Op, segment: Segment) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        """The gradients so far (none for the first microbatch since the last step) and those with this one added."""
        so_far, written = [], []
        for group in segment.groups:
            step, count = self.accumulated.get(group.name, (0, 0))
            if count:
                so_far.append(f"{group.name}.g{step}#{count - 1}")
            written.append(f"{group.name}.g{step}#{count}")
            self.types[written[-1]] = Type(Role.GRADIENT, group.bytes, gradient_layout(group, self.mesh), group.name)
            self.accumulated[group.name] = (step, count + 1)
        return tuple(so_far), tuple(written)

    def _step(self, op: Op, items: Sequence[Item]) -> None:
        version = self.version.get(op.stage, 0)
        for index, segment in enumerate(item for item in items if isinstance(item, Segment)):
            for group in segment.groups:
                step, count = self.accumulated.get(group.name, (0, 0))
                if not count:
                    raise ProgramError(f"{op}: stage {op.stage} steps with no backward since its last step; add one")
                old, new = self._weight(group, version), self._weight(group, version + 1, given=False)
                inputs, writes = [old, f"{group.name}.g{step}#{count - 1}"], [new]
                if self.optimizer_bytes:
                    inputs.append(self._optimizer(group, old))
                    writes.append(self._optimizer(group, new, given=False))
                self.ops.append(op._replace(segment=index, inputs=tuple(inputs), writes=tuple(writes)))
                self.accumulated[group.name] = (step + 1, 0)
        self.version[op.stage] = version + 1

    # --- exchanges

    def _exchange(
        self, op: Op, item: Exchange, payload: Tensor, result: Tensor, kind: Kind | None, splits: tuple[str, str] | None
    ) -> None:
        mb = op.microbatch
        source = self._tensor(payload, mb)
        if kind is None:
            self.alias[f"{result.name}:{mb}"] = source
            return
        inputs = (source, *(f"{name}:{mb}" for name in splits or ()))
        self._emit_exchange(op, item, kind, inputs, self._tensor(result, mb))

    def _exchange_back(self, op: Op, item: Exchange) -> None:
        if item.result.grad is None:
            return
        mb = op.microbatch
        source = self._gradient(item.result, mb)
        if item.backward is None:
            self.alias[f"d.{item.payload.name}:{mb}"] = source
            return
        inputs = (source, *(f"{name}:{mb}" for name in reversed(item.splits or ())))
        self._emit_exchange(op, item, item.backward, inputs, self._gradient(item.payload, mb))

    def _emit_exchange(self, op: Op, item: Exchange, kind: Kind, inputs: tuple[Value, ...], result: Value) -> None:
        self.ops.append(Op(kind, op.stage, microbatch=op.microbatch, inputs=inputs, writes=(result,), axis=item.axis))

    # --- names and types

    def _tensor(self, t: Tensor, mb: int) -> Value:
        value = self.alias.get(f"{t.name}:{mb}", f"{t.name}:{mb}")
        if value not in self.types:
            role = self.roles[t.name]
            if role is Role.FEED:
                self.live_in.add(value)
            elif role is Role.LOSS:
                self.losses.add(value)
            self.types[value] = Type(role, self._size(t, mb), self._row_layout(t, t.layout), t.name)
        return value

    def _gradient(self, t: Tensor, mb: int) -> Value:
        value = self.alias.get(f"d.{t.name}:{mb}", f"d.{t.name}:{mb}")
        if value not in self.types:
            assert t.grad is not None
            layout = t.grad if t.name == self.model.loss else self._row_layout(t, t.grad)
            self.types[value] = Type(Role.ACTIVATION_GRADIENT, self._size(t, mb), layout, t.name)
            if t.name == self.model.loss:
                self.live_in.add(value)
        return value

    def _left(self, what: str, role: Role, segment: Segment, kept: Kept, mb: int) -> Value:
        value = f"{segment.name}.{what}:{mb}"
        if value not in self.types:
            size = self._rows_size(segment.rows, mb, kept.per_row, kept.fixed)
            self.types[value] = Type(role, size, of=segment.name)
        return value

    def _weights(self, op: Op, segment: Segment) -> tuple[Value, ...]:
        return tuple(self._weight(group, op.version) for group in segment.groups)

    def _weight(self, group: Group, version: int, given: bool = True) -> Value:
        value = f"{group.name}@{version}"
        if value not in self.types:
            self.types[value] = Type(Role.WEIGHT, group.bytes, group.layout, group.name)
            if given and version == 0:
                self.live_in.add(value)
        self.held[group.name] = max(version, self.held.get(group.name, 0))
        return value

    def _optimizer(self, group: Group, weight: Value, given: bool = True) -> Value:
        value = _state(weight)
        if value not in self.types:
            size = group.num_elements * self.optimizer_bytes
            self.types[value] = Type(Role.OPTIMIZER, size, group.layout, group.name)
            if given:
                self.live_in.add(value)
        return value

    def _size(self, t: Tensor, mb: int) -> Size:
        return self._rows_size(t.rows, mb, t.row_bytes, 0) if t.per_row else t.row_bytes

    def _rows_size(self, rows: str | None, mb: int, each: int, fixed: int) -> Size:
        return Sized(f"{rows}:{mb}", each, fixed) if rows else self.rows[mb] * each + fixed

    def _row_layout(self, t: Tensor, layout: Layout) -> Layout:
        for axis in DATA_AXES:
            if self.mesh.degree(axis) > 1:
                spread = shard(0) if t.per_row and not t.rows else PARTIAL if t.name == self.model.loss else LOCAL
                layout = layout.put(axis, spread)
        return layout


def _state(weight: Value) -> Value:
    group, version = weight.rsplit("@", 1)
    return f"{group}.state@{version}"
