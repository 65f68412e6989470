"""What the values of one rank are called while its schedule is lowered, and their types.

A name says what it is and of which microbatch: `h3:0`, `d.h3:0` its gradient, `attn0.saved:0`, `attn0.w@2` the second
version of weights, `attn0.w.g0#1` the gradient of step 0 with two microbatches in it. A tensor that several segments
take gets a gradient from each, `d.h3/attn1.add:0`, which are added up.
"""

from dataclasses import dataclass, field

from pdlab.mesh import DATA_AXES, LOCAL, PARTIAL, Layout, Mesh, shard
from pdlab.models.model import Model
from pdlab.models.spec import Group, Kept, Segment, Tensor
from pdlab.ops import Op, Value
from pdlab.program import Role, Size, Sized, Type, gradient_layout, tensor_role


@dataclass(slots=True)
class Found:
    """What a segment has found of a group's gradient since the last step: how many microbatches are in it, and what
    their sum is called."""

    stem: str
    type: Type
    step: int
    count: int = 0
    newest: Value = ""


@dataclass
class Names:
    """`live_in` collects what must be there before; `accumulated` says what each segment has found of a group's
    gradient."""

    model: Model
    mesh: Mesh
    rows: tuple[int, ...]
    optimizer_bytes: int
    types: dict[Value, Type] = field(default_factory=dict)
    live_in: set[Value] = field(default_factory=set)
    losses: set[Value] = field(default_factory=set)
    accumulated: dict[tuple[str, str], Found] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    gradient_types: dict[str, Type] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.takers = self.model.takers

    def live_out(self) -> frozenset[Value]:
        """What is left after the program: the newest weights, their optimizer state, the losses."""
        weights = {f"{group}@{version}" for group, version in self.held.items()}
        state = {_state(value) for value in weights} if self.optimizer_bytes else set()
        return frozenset(weights | state | self.losses)

    def tensor(self, t: Tensor, mb: int) -> Value:
        t = self.model.tensors[self.model.same_value(backward=False)[t.name]]
        value = f"{t.name}:{mb}"
        if value not in self.types:
            role = tensor_role(self.model, t)
            if role is Role.FEED:
                self.live_in.add(value)
            elif role is Role.LOSS:
                self.losses.add(value)
            self.types[value] = Type(role, self._size(t, mb), self._row_layout(t, t.layout), t.name)
        return value

    def gradient(self, t: Tensor, mb: int) -> Value:
        t = self.model.tensors[self.model.same_value(backward=True)[t.name]]
        value = f"d.{t.name}:{mb}"
        if value not in self.types:
            layout = _graded(t) if t.name == self.model.loss else self._row_layout(t, _graded(t))
            self.types[value] = Type(Role.ACTIVATION_GRADIENT, self._size(t, mb), layout, t.name)
            if t.name == self.model.loss:
                self.live_in.add(value)
        return value

    def found_by(self, taker: str, t: Tensor, mb: int) -> Value:
        """What one segment finds for the gradient of a tensor that it takes: all of it, or its term of the sum."""
        if len(self.takers[t.name]) == 1:
            return self.gradient(t, mb)
        return self._term(f"d.{t.name}/{taker}:{mb}", t, mb)

    def terms(self, t: Tensor, taker: str, mb: int) -> tuple[Value, Value, Value] | None:
        """What to add when a segment has found its term, and what to call the sum; None if there is nothing to add yet.
        The last taker finds its term first."""
        takers = self.takers[t.name]
        turn = takers.index(taker)
        if turn == len(takers) - 1:
            return None
        so_far = self.found_by(takers[-1], t, mb) if turn == len(takers) - 2 else f"d.{t.name}/{turn + 1}:{mb}"
        total = self.gradient(t, mb) if turn == 0 else self._term(f"d.{t.name}/{turn}:{mb}", t, mb)
        return so_far, self.found_by(taker, t, mb), total

    def _term(self, value: Value, t: Tensor, mb: int) -> Value:
        if value not in self.types:
            self.types[value] = Type(
                Role.ACTIVATION_GRADIENT, self._size(t, mb), self._row_layout(t, _graded(t)), t.name
            )
        return value

    def left(self, what: str, role: Role, segment: Segment, kept: Kept, mb: int) -> Value:
        value = f"{segment.name}.{what}:{mb}"
        if value not in self.types:
            self.types[value] = Type(role, kept_size(segment, kept, mb, self.rows[mb]), of=segment.name)
        return value

    def weights(self, op: Op, segment: Segment) -> tuple[Value, ...]:
        return tuple(self.weight(group, op.version) for group in segment.groups)

    def weight(self, group: Group, version: int, given: bool = True) -> Value:
        value = f"{group.name}@{version}"
        if value not in self.types:
            self.types[value] = Type(Role.WEIGHT, group.bytes, group.layout, group.name)
            if given and version == 0:
                self.live_in.add(value)
        self.held[group.name] = max(version, self.held.get(group.name, 0))
        return value

    def optimizer(self, group: Group, weight: Value, given: bool = True) -> Value:
        value = _state(weight)
        if value not in self.types:
            size = group.num_elements * self.optimizer_bytes
            self.types[value] = Type(Role.OPTIMIZER, size, group.layout, group.name)
            if given:
                self.live_in.add(value)
        return value

    def divisor(self, count: int) -> Value:
        """How many microbatches' gradients a step takes the mean of: a number that is there from the start."""
        value = f"mean of {count}"
        self.types[value] = Type(Role.SCALE, 8, of=str(count))
        self.live_in.add(value)
        return value

    def _size(self, t: Tensor, mb: int) -> Size:
        return _size(t.rows, mb, self.rows[mb], t.row_bytes, 0) if t.per_row else t.row_bytes

    def _row_layout(self, t: Tensor, layout: Layout) -> Layout:
        for axis in DATA_AXES:
            if self.mesh.degree(axis) > 1:
                spread = shard(0) if t.per_row and not t.rows else PARTIAL if t.name == self.model.loss else LOCAL
                layout = layout.put(axis, spread)
        return layout

    def accumulate(self, op: Op, segment: Segment) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        """The gradients so far (none for the first microbatch since the last step) and those with this one added. Each
        of the segments that share a group adds up what it finds itself."""
        so_far, written = [], []
        for group in segment.groups:
            found = self.accumulated.get((group.name, segment.name)) or self._nothing_found(group, segment.name, 0)
            if found.count:
                so_far.append(found.newest)
            found.newest = value = f"{found.stem}#{found.count}"
            found.count += 1
            written.append(value)
            self.types[value] = found.type
        return tuple(so_far), tuple(written)

    def _nothing_found(self, group: Group, user: str, step: int) -> Found:
        several = len(self.model.users[group.name]) > 1
        stem = f"{group.name}.g{step}/{user}" if several else f"{group.name}.g{step}"
        found = self.accumulated[group.name, user] = Found(stem, self._gradient_type(group), step)
        return found

    def _gradient_type(self, group: Group) -> Type:
        if group.name not in self.gradient_types:
            layout = gradient_layout(group, self.mesh)
            self.gradient_types[group.name] = Type(Role.GRADIENT, group.bytes, layout, group.name)
        return self.gradient_types[group.name]

    def none_found(self, group: Group, mb: int) -> Value:
        """What a step reads that has no gradient of this rank in it: `sum_copies` puts that of the others there."""
        value = f"{group.name}.g/none up to {mb}"
        self.types[value] = self._gradient_type(group)
        return value

    def complete(self, group: Group) -> list[Value]:
        """What the users of a group on this rank have found since the last step, which is over now."""
        found = []
        for user in self.model.users[group.name]:
            known = self.accumulated.get((group.name, user))
            if known and known.count:
                found.append(known.newest)
                self._nothing_found(group, user, known.step + 1)
        return found


def _graded(t: Tensor) -> Layout:
    assert t.grad is not None, f"{t.name} has no gradient"
    return t.grad


def kept_size(segment: Segment, kept: Kept, mb: int, num_rows: int) -> Size:
    """The bytes of what a segment holds of one microbatch."""
    return _size(segment.rows, mb, num_rows, kept.per_row, kept.fixed)


def _size(rows: str | None, mb: int, num_rows: int, each: int, fixed: int) -> Size:
    return Sized(f"{rows}:{mb}", each, fixed) if rows else num_rows * each + fixed


def _state(weight: Value) -> Value:
    group, version = weight.rsplit("@", 1)
    return f"{group}.state@{version}"
