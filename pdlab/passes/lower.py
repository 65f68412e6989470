"""From a schedule to a program: `2F0` becomes the forwards of stage 2's segments, with operands and exchanges.

A schedule lists, for each pipeline rank, ops that name a stage and a microbatch and nothing else. This pass knows the
model: it names every value, gives it a type, and says which weight version each op meets. It inserts no messages
between ranks (`insert_messages` does) and frees nothing (`consume_last_uses` does).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pdlab.depend import ProgramError
from pdlab.mesh import Axis, Mesh
from pdlab.models.model import Model
from pdlab.models.spec import Exchange, Group, Item, Segment
from pdlab.ops import PASS_KINDS, SCHEDULED_KINDS, Kind, Op, Value
from pdlab.passes.naming import Names
from pdlab.passes.stamp import Stamp, cut, press
from pdlab.program import Program, RankProgram, Role
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
    layers: tuple[int, ...] | None = None,
) -> Program:
    """Lower a schedule onto a mesh. `optimizer_bytes` is the optimizer state per weight element (0 for plain SGD), and
    stages have as many `layers` each as that says (None: all as many)."""
    stages = model.stages(num_stages, layers)
    if len(schedule) != mesh.degree(Axis.PP):
        raise ProgramError(
            f"a schedule of {len(schedule)} ranks on {mesh.degree(Axis.PP)} pipeline ranks; give each rank its own list"
        )
    for op in (op for ops in schedule for op in ops):
        if op.kind not in SCHEDULED_KINDS:
            raise ProgramError(f"{op}: a schedule has F, B, I, W and STEP; what is run again is for --recompute to say")
        if not (0 <= op.stage < num_stages and (0 if op.kind in PASS_KINDS else -1) <= op.microbatch < len(rows[0])):
            raise ProgramError(
                f"{op} in a schedule of {num_stages} stages and {len(rows[0])} microbatches; number both from 0"
            )
    replicated = _replicated(schedule)
    ranks = []
    for rank in range(mesh.size):
        ops = schedule[mesh.coordinates[rank][Axis.PP]]
        names = Names(model, mesh, rows[mesh.data_shard(rank)], optimizer_bytes)
        lowering = _Rank(stages, names, _last_steps(ops, stages), replicated)
        for op in ops:
            lowering.add(op)
        ranks.append(lowering.finish())
    segments = tuple(tuple(item.name for item in stage if isinstance(item, Segment)) for stage in stages)
    return Program(name, mesh, model, tuple(ranks), rows, segments)


def _replicated(schedule: Schedule) -> frozenset[int]:
    """The stages that several ranks step."""
    holders = Counter(stage for ops in schedule for stage in {op.stage for op in ops if op.kind is Kind.STEP})
    return frozenset(stage for stage, count in holders.items() if count > 1)


def _last_steps(ops: Sequence[Op], stages: tuple[tuple[Item, ...], ...]) -> dict[str, int]:
    """For each group of weights that several stages of a rank share (tied embeddings), the stage that steps last: by
    then all of its gradient is there."""
    last: dict[str, int] = {}
    shared: set[str] = set()
    for op in (op for op in ops if op.kind is Kind.STEP):
        for group in {g.name for item in stages[op.stage] if isinstance(item, Segment) for g in item.groups}:
            if last.get(group, op.stage) != op.stage:
                shared.add(group)
                if op.microbatch >= 0:
                    raise ProgramError(
                        f"{op}: {group} belongs to several stages of this rank, which step after each microbatch; tied "
                        "weights need one step at the end, so take a schedule that flushes or a model that is not tied"
                    )
            last[group] = op.stage
    return {group: stage for group, stage in last.items() if group in shared}


@dataclass
class _Rank:
    """The lowering of one rank: what it has emitted, and how values are called at this point of its list."""

    stages: tuple[tuple[Item, ...], ...]
    names: Names
    last_step: dict[str, int]
    replicated: frozenset[int] = frozenset()
    ops: list[Op] = field(default_factory=list)
    version: dict[int, int] = field(default_factory=dict)
    included: dict[int, int] = field(default_factory=dict)
    forward_version: dict[tuple[int, int], int] = field(default_factory=dict)

    stamps: dict[tuple[object, ...], Stamp | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        held = [[item for item in stage if isinstance(item, Segment)] for stage in self.stages]
        self.segments = {(s, i): segment for s, stage in enumerate(held) for i, segment in enumerate(stage)}
        self.index = {segment.name: i for (_, i), segment in self.segments.items()}

    def add(self, op: Op) -> None:
        if op.kind is Kind.STEP:
            self._step(op, self.stages[op.stage])
            return
        key = op.stage, op.microbatch
        if op.kind is Kind.FORWARD:
            version = op.version if op.version >= 0 else self.version.get(op.stage, 0)
            self.forward_version[key] = version
        else:
            version = op.version if op.version >= 0 else self.forward_version.get(key, 0)
        self._pass(op, version)

    def _pass(self, op: Op, version: int) -> None:
        """Walk through the items of the stage for the first microbatch, stamp the others."""
        key = (op.kind, op.stage, version, self.names.rows[op.microbatch])
        stamp = self.stamps.get(key)
        if stamp is not None:
            self.ops += press(stamp, op, self.names)
            return
        first, items = len(self.ops), self.stages[op.stage]
        self._walk(op, items if op.kind is Kind.FORWARD else items[::-1], version)
        if key not in self.stamps:
            self.stamps[key] = cut(self.ops[first:], self.segments, self.names, op.microbatch)

    def finish(self) -> RankProgram:
        names = self.names
        return RankProgram(tuple(self.ops), names.types, frozenset(names.live_in), names.live_out())

    def _walk(self, op: Op, items: Sequence[Item], version: int) -> None:
        for item in items:
            if isinstance(item, Segment):
                self._segment(op._replace(version=version), item)
            elif op.kind is Kind.FORWARD:
                self._exchange(op, item)
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
        if found.input_gradients:
            self._add_up(op, segment)

    def _add_up(self, op: Op, segment: Segment) -> None:
        """Add what this segment has found for tensors that others take too to what those have found."""
        for t in segment.graded_inputs:
            terms = self.names.terms(t, segment.name, op.microbatch)
            if terms is not None:
                self.ops.append(Op(Kind.ADD, op.stage, microbatch=op.microbatch, inputs=terms[:2], writes=terms[2:]))

    def _forward(self, op: Op, segment: Segment) -> Operands:
        mb = op.microbatch
        inputs = tuple(self.names.tensor(t, mb) for t in segment.inputs)
        outputs = tuple(self.names.tensor(t, mb) for t in segment.outputs)
        saved = self.names.left("saved", Role.SAVED, segment, segment.saved, mb)
        return Operands(inputs, self.names.weights(op, segment), outputs=outputs, left=(saved,))

    def _backward_input(self, op: Op, segment: Segment) -> Operands:
        mb = op.microbatch
        return Operands(
            inputs=tuple(self.names.tensor(t, mb) for t in segment.inputs_of(op.kind)),
            weights=self.names.weights(op, segment),
            carried=(self.names.left("saved", Role.SAVED, segment, segment.saved, mb),),
            output_gradients=tuple(self.names.gradient(t, mb) for t in segment.graded_outputs),
            left=(self.names.left("pending", Role.PENDING, segment, segment.pending, mb),),
            input_gradients=tuple(self.names.found_by(segment.name, t, mb) for t in segment.graded_inputs),
        )

    def _backward(self, op: Op, segment: Segment) -> Operands:
        so_far, written = self.names.accumulate(op, segment)
        return self._backward_input(op, segment)._replace(left=(), so_far=so_far, weight_gradients=written)

    def _backward_weight(self, op: Op, segment: Segment) -> Operands:
        so_far, written = self.names.accumulate(op, segment)
        return Operands(
            inputs=tuple(self.names.tensor(t, op.microbatch) for t in segment.inputs_of(op.kind)),
            carried=(self.names.left("pending", Role.PENDING, segment, segment.pending, op.microbatch),),
            so_far=so_far,
            weight_gradients=written,
        )

    def _step(self, op: Op, items: Sequence[Item]) -> None:
        """A step of a microbatch takes the mean over those since the last one."""
        version, before = self.version.get(op.stage, 0), self.included.get(op.stage, -1)
        count = op.microbatch - before if op.microbatch >= 0 else 1
        stepped: set[str] = set()
        for index, segment in enumerate(item for item in items if isinstance(item, Segment)):
            for group in segment.groups:
                if group.name in stepped or self.last_step.get(group.name, op.stage) != op.stage:
                    continue
                stepped.add(group.name)
                self._step_group(op._replace(segment=index), group, version, count)
        self.version[op.stage], self.included[op.stage] = version + 1, op.microbatch

    def _step_group(self, op: Op, group: Group, version: int, count: int) -> None:
        old, new = self.names.weight(group, version), self.names.weight(group, version + 1, given=False)
        inputs, writes = [old, self._total(op, group)], [new]
        if self.names.optimizer_bytes:
            inputs.append(self.names.optimizer(group, old))
            writes.append(self.names.optimizer(group, new, given=False))
        if count > 1:
            inputs.append(self.names.divisor(count))
        self.ops.append(op._replace(inputs=tuple(inputs), writes=tuple(writes)))

    def _total(self, op: Op, group: Group) -> Value:
        """The gradient of a group, added up over its users. Where other ranks step the stage too, they may have all of
        it."""
        found = self.names.complete(group)
        if not found and op.stage in self.replicated and op.microbatch >= 0:
            return self.names.none_found(group, op.microbatch)
        if not found:
            raise ProgramError(f"{op}: stage {op.stage} steps with no backward since its last step; add one")
        total = found[0]
        for value in found[1:]:
            following = f"{value}.sum"
            self.names.types[following] = self.names.types[value]
            self.ops.append(Op(Kind.ADD, op.stage, inputs=(total, value), writes=(following,)))
            total = following
        return total

    # --- exchanges

    def _exchange(self, op: Op, item: Exchange) -> None:
        """Nothing where nothing moves: there the two tensors are one value."""
        names, mb = self.names, op.microbatch
        if item.forward is not None:
            splits = tuple(f"{name}:{mb}" for name in item.splits or ())
            inputs = (names.tensor(item.payload, mb), *splits)
            self._emit_exchange(op, item.axis, item.forward, inputs, names.tensor(item.result, mb))

    def _exchange_back(self, op: Op, item: Exchange) -> None:
        names, mb = self.names, op.microbatch
        if item.backward is not None and item.result.grad is not None:
            splits = tuple(f"{name}:{mb}" for name in reversed(item.splits or ()))
            inputs = (names.gradient(item.result, mb), *splits)
            self._emit_exchange(op, item.axis, item.backward, inputs, names.gradient(item.payload, mb))

    def _emit_exchange(self, op: Op, axis: Axis, kind: Kind, inputs: tuple[Value, ...], result: Value) -> None:
        self.ops.append(Op(kind, op.stage, microbatch=op.microbatch, inputs=inputs, writes=(result,), axis=axis))
