"""What each operand of a pass must be, said by the model: its role, what it is called there, and its layout.

The order of the operands is that of `pdlab.signature`; nothing here knows it by heart.
"""

from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, field
from functools import cached_property
from typing import NamedTuple

from pdlab.mesh import DATA_AXES, REPLICATED, Axis, Layout, Mesh, Spread
from pdlab.models.model import Model
from pdlab.models.spec import Group, Kept, Segment, Tensor
from pdlab.ops import FORWARD_KINDS, Kind, Op, Value, payload
from pdlab.program import Program, Role, Size, Sized, Type, gradient_layout, tensor_role
from pdlab.signature import Operands


class Need(NamedTuple):
    """The type that an operand must have.

    Weights and their gradients need their layout on every axis. Of activations every rank has its own rows, so along
    the data axes only a partial or flat one is wrong. `own_rows`: the rows are samples of this rank's own data shard.
    `kept` gives the size, by the rows that `rows` counts; what stays on its rank (None) may have any.
    """

    role: Role
    of: str
    layout: Layout = REPLICATED
    exact: bool = False
    own_rows: bool = True
    kept: Kept | None = None
    rows: str | None = None

    def met_by(self, t: Type) -> bool:
        return t.role is self.role and t.of == self.of and (t.layout == self.layout or self.allows(t.layout))

    def size(self, num_rows: int, microbatch: int) -> Size | None:
        if self.kept is None:
            return None
        if self.rows is not None:
            return Sized(f"{self.rows}:{microbatch}", *astuple(self.kept))
        return self.kept.per_row * num_rows + self.kept.fixed

    def allows(self, layout: Layout) -> bool:
        if self.exact:
            return layout == self.layout
        beside = tuple((axis, place) for axis, place in layout.places if axis not in DATA_AXES)
        rows = {place.spread for axis, place in layout.places if axis in DATA_AXES}
        allowed = {Spread.SHARD, Spread.LOCAL} | ({Spread.PARTIAL} if self.role is Role.LOSS else set())
        return Layout(beside) == self.layout and rows <= allowed


Pattern = tuple[tuple[Need, ...], tuple[Need, ...]]
"""What a pass reads and what it writes, in order, without tokens."""


@dataclass
class Needs:
    """Looked up once for each kind of pass on each segment."""

    program: Program
    known: dict[tuple[Kind, int, int, int, int], Pattern | None] = field(default_factory=dict)

    @cached_property
    def rows(self) -> list[tuple[int, ...]]:
        """For each rank the rows of its microbatches."""
        return [self.program.rows[self.program.mesh.data_shard(rank)] for rank in range(self.program.mesh.size)]

    def segment(self, op: Op) -> Segment | None:
        """The segment that a pass runs, None if the program has none of that number."""
        stages = self.program.stages
        if not 0 <= op.stage < len(stages) or not 0 <= op.segment < len(stages[op.stage]):
            return None
        return self.program.model.segments[stages[op.stage][op.segment]]

    def of(self, op: Op) -> Pattern | None:
        """The pattern of a pass with as many operands, with or without gradients so far or something saved; or None."""
        counts = len(payload(op.inputs)), len(payload(op.writes))
        key = (op.kind, op.stage, op.segment, *counts)
        if key not in self.known:
            segment = self.segment(op)
            assert segment is not None
            patterns = self.patterns(op.kind, segment)
            self.known[key] = next((p for p in patterns if tuple(map(len, p)) == counts), None)
        return self.known[key]

    def patterns(self, kind: Kind, segment: Segment) -> list[Pattern]:
        """The usual one first: without gradients so far; of a forward, with what it saves."""
        both = (False, True) if kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT) and segment.groups else (False,)
        saves = (True, False) if kind is Kind.FORWARD else (True,)
        return [_pattern(self.program, kind, segment, so_far, saved) for so_far in both for saved in saves]


def _pattern(program: Program, kind: Kind, segment: Segment, so_far: bool, saves: bool) -> Pattern:
    table: dict[Value, Need] = {}

    def these(what: str, needs: Iterable[Need]) -> tuple[Value, ...]:
        named = {f"{what} {i}": need for i, need in enumerate(needs)}
        table.update(named)
        return tuple(named)

    model = program.model
    forward, split_input = kind in FORWARD_KINDS, kind is Kind.BACKWARD_INPUT
    to_input, to_weights = kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT), kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT)
    saved = Need(Role.SAVED, segment.name, own_rows=segment.rows is None)
    pending = saved._replace(role=Role.PENDING)
    gradients = [weight_gradient(group, program.mesh) for group in segment.groups]
    found = Operands(
        inputs=these("input", _each(_tensor, model, segment.inputs_of(kind))),
        weights=these("weight", (_weight(g) for g in (segment.groups if forward or to_input else ()))),
        carried=these("carried", () if forward else (saved,) if to_input else (pending,)),
        output_gradients=these("dy", _each(_gradient, model, segment.graded_outputs if to_input else ())),
        so_far=these("so far", gradients if so_far else ()),
        outputs=these("output", _each(_tensor, model, segment.outputs if forward else ())),
        left=these("left", (saved,) * saves if forward else (pending,) if split_input else ()),
        input_gradients=these("dx", _each(_gradient, model, segment.graded_inputs if to_input else ())),
        weight_gradients=these("dw", gradients if to_weights else ()),
    )
    return tuple(table[v] for v in found.reads), tuple(table[v] for v in found.writes)


def _each(make: Callable[[Model, Tensor], Need], model: Model, tensors: Iterable[Tensor]) -> Iterable[Need]:
    return (make(model, t) for t in tensors)


def weight_gradient(group: Group, mesh: Mesh) -> Need:
    return _weight(group)._replace(role=Role.GRADIENT, layout=gradient_layout(group, mesh))


def _weight(group: Group) -> Need:
    return Need(Role.WEIGHT, group.name, group.layout, exact=True, kept=Kept(fixed=group.bytes))


def _tensor(model: Model, t: Tensor) -> Need:
    name = model.same_value(backward=False)[t.name]
    need = Need(tensor_role(model, t), name, t.layout, own_rows=_has_own_rows(model, t), rows=t.rows)
    return need._replace(kept=Kept(per_row=t.row_bytes) if t.per_row else Kept(fixed=t.row_bytes))


def _gradient(model: Model, t: Tensor) -> Need:
    of = model.same_value(backward=True)[t.name]
    return _tensor(model, t)._replace(role=Role.ACTIVATION_GRADIENT, of=of, layout=t.grad or REPLICATED)


def _has_own_rows(model: Model, t: Tensor) -> bool:
    return t.rows is None and (t.per_row or t.name == model.loss)


class Exchanged(NamedTuple):
    """What one direction of a model's exchange does: a collective that takes one tensor and makes another."""

    given: Need
    made: Need
    splits: tuple[str, ...]


Exchanges = dict[tuple[Kind, Axis, str, str], Exchanged]
"""By collective, axis and the names of the two tensors, those of gradients with a `d.` before them."""


def exchanges_of(model: Model) -> Exchanges:
    found: Exchanges = {}
    for item in model.exchanges:
        splits = item.splits or ()
        if item.forward is not None:
            given, made = _tensor(model, item.payload), _tensor(model, item.result)
            found[item.forward, item.axis, given.of, made.of] = Exchanged(given, made, splits)
        if item.backward is not None and item.result.grad is not None:
            given, made = _gradient(model, item.result), _gradient(model, item.payload)
            key = (item.backward, item.axis, f"d.{given.of}", f"d.{made.of}")
            found[key] = Exchanged(given, made, splits[::-1])
    return found
