"""What one rank holds while it runs, and how each op that needs no other rank changes it.

Values enter when an op writes them and leave when an op consumes them; nothing else keeps a tensor alive. So the
bytes counted here are the bytes that a schedule needs. Each value counts in full, also the few that share memory (the
two gradients of a residual are one tensor): so nothing may change an activation or its gradient in place.
"""

from dataclasses import dataclass, field
from typing import assert_never

import torch
from torch import Tensor

from pdlab.execute.pieces import shard_of_value
from pdlab.mesh import Axis
from pdlab.models.spec import Segment
from pdlab.ops import Kind, Op, Value, label, payload
from pdlab.optimizers import Optimizer
from pdlab.program import Program, Role
from pdlab.segments import Frame, run
from pdlab.signature import Operands, operands
from pdlab.state import FLOAT, views
from pdlab.tape import Tape

Held = Tensor | Tape


@dataclass
class Store:
    """The values of one rank. `gradients` and `weights` record, for every step, what it read and what it wrote, if
    asked. `counted` are the steps of the training before this store, `steps` those since then, for each group.
    `running` are statistics that forwards keep up, by segment; they are no values of the program."""

    program: Program
    rank: int
    optimizer: Optimizer
    record: bool = False
    values: dict[Value, Held] = field(default_factory=dict)
    sizes: dict[Value, int] = field(default_factory=dict)
    live: int = 0
    weights_live: int = 0
    peak_weights: int = 0
    gradients: dict[Value, Tensor] = field(default_factory=dict)
    weights: dict[Value, Tensor] = field(default_factory=dict)
    counted: int = 0
    steps: dict[str, int] = field(default_factory=dict)
    running: dict[str, Tensor] = field(default_factory=dict)

    def begin(self, program: Program) -> int:
        """Go on with another program from the values held now, which must be its `live_in`; returns the bytes held."""
        wanted, held = program.ranks[self.rank].live_in, set(self.values)
        for value in held - wanted:
            self.drop(value)
        assert wanted <= held, f"rank {self.rank} lacks {sorted(wanted - held)}"
        self.program, self.peak_weights = program, self.weights_live
        return self.live

    def put(self, value: Value, held: Held) -> None:
        self.values[value] = held
        self.sizes[value] = _num_bytes(held)
        self.live += self.sizes[value]
        self.weights_live += self.sizes[value] * self._is_weight(value)

    def drop(self, value: Value) -> None:
        size = self.sizes.pop(value)
        self.live -= size
        self.weights_live -= size * self._is_weight(value)
        del self.values[value]

    def _is_weight(self, value: Value) -> bool:
        return self.program.ranks[self.rank].types[value].role is Role.WEIGHT

    def tensor(self, value: Value) -> Tensor:
        held = self.values[value]
        assert isinstance(held, Tensor), f"rank {self.rank}: {value} is a tape, not a tensor"
        return held

    def tensors(self, values: tuple[Value, ...]) -> list[Tensor]:
        return [self.tensor(value) for value in payload(values)]

    def finish(self, op: Op, written: list[Held]) -> None:
        """Enter what the op wrote and let go of what it consumed."""
        for value, held in zip(payload(op.writes), written, strict=True):
            self.put(value, held)
        for value in op.writes[len(payload(op.writes)) :]:
            self.put(value, torch.empty(0))
        for value in op.consumes:
            self.drop(value)
        self.peak_weights = max(self.peak_weights, self.weights_live)

    def allowed(self, op: Op) -> bool:
        """Whether the guard of an op lets it run."""
        return op.guard is None or bool(self.tensor(op.guard).item())

    @torch.no_grad()
    def compute(self, op: Op) -> list[Held]:
        """The values that an op writes, for ops that concern this rank alone."""
        if not self.allowed(op):
            return self._handed_on(op)
        match op.kind:
            case Kind.FORWARD | Kind.RECOMPUTE:
                return self._forward(*self._taken_apart(op))
            case Kind.BACKWARD:
                return self._backward(*self._taken_apart(op))
            case Kind.BACKWARD_INPUT:
                return self._backward_input(*self._taken_apart(op))
            case Kind.BACKWARD_WEIGHT:
                return self._backward_weight(*self._taken_apart(op))
            case Kind.STEP:
                return self._step(op)
            case Kind.ADD:
                first, second = self.tensors(op.inputs)
                return [first + second]  # not in place: a tape may still hold a term as its output gradient
            case Kind.FINITE:
                finite = all(bool(torch.isfinite(t).all()) for t in self.tensors(op.inputs))
                return [torch.tensor(finite, dtype=torch.uint8)]
            case Kind.SPLIT:
                return [shard_of_value(self.program, self.rank, op, self.tensor(op.inputs[0]))]
            case Kind.FREE:
                return []
            case Kind.SEND | Kind.RECV | Kind.ALL_REDUCE | Kind.ALL_GATHER | Kind.REDUCE_SCATTER | Kind.ALL_TO_ALL:
                raise AssertionError(f"{label(op)} concerns other ranks")
            case _:
                assert_never(op.kind)

    def _handed_on(self, op: Op) -> list[Held]:
        """What an op that its guard stops writes: the inputs of the same type, as they were."""
        types = self.program.ranks[self.rank].types
        given = {types[value]: value for value in op.inputs}
        sources = [given[types[value]] for value in payload(op.writes)]
        return [self.tensor(v) if v in op.consumes else self.tensor(v).clone() for v in sources]

    # --- forward and backward of a segment

    def _taken_apart(self, op: Op) -> tuple[Op, Segment, Operands]:
        segment = self.program.model.segments[self.program.stages[op.stage][op.segment]]
        return op, segment, operands(op, segment)

    def _named(self, op: Op, segment: Segment, found: Operands) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The inputs of an op and its weights, both by role."""
        specs = segment.inputs_of(op.kind)
        inputs = {f"input {t.name}": self.tensor(v) for t, v in zip(specs, found.inputs, strict=True)}
        weights: dict[str, Tensor] = {}
        for group, value in zip(segment.groups if found.weights else (), found.weights, strict=True):
            names = [param.name for param in group.params]
            weights |= dict(zip(names, views(self.tensor(value), group), strict=True))
        return inputs, weights

    def _forward(self, op: Op, segment: Segment, found: Operands) -> list[Held]:
        inputs, weights = self._named(op, segment, found)
        tape = Tape({**inputs, **weights})
        running = self._running(segment) if segment.running and op.kind is Kind.FORWARD else None
        frame = Frame(segment, tape, self.program.mesh.coordinates[self.rank][Axis.TP], running)
        if not found.left:
            return [t.contiguous() for t in run(frame, list(inputs.values()), weights)]
        with torch.enable_grad(), tape.recording():
            entered = [
                tape.enter(role, t) if spec.grad is not None else t
                for (role, t), spec in zip(inputs.items(), segment.inputs, strict=True)
            ]
            outputs = run(frame, entered, {name: tape.enter(name, t) for name, t in weights.items()})
        tape.watch([t for t, spec in zip(outputs, segment.outputs, strict=True) if spec.grad is not None])
        return [*(t.detach().contiguous() for t in outputs), tape]

    def _running(self, segment: Segment) -> Tensor:
        """Mean 0 and variance 1 before the first forward."""
        if segment.name not in self.running:
            start = torch.tensor([[0.0], [1.0]], dtype=FLOAT[max(4, self.program.model.itemsize)])
            self.running[segment.name] = start.expand(2, segment.running).clone()
        return self.running[segment.name]

    def _backward_input(self, op: Op, segment: Segment, found: Operands, postpone: bool = True) -> list[Held]:
        tape = self._take(op, segment, found)
        tape.backward(self.tensors(found.output_gradients), postpone)
        gradients: list[Held] = []
        for t in segment.graded_inputs:
            gradients.append(tape.gradients.pop(f"input {t.name}").contiguous())
        return [tape, *gradients] if postpone else gradients

    def _backward(self, op: Op, segment: Segment, found: Operands) -> list[Held]:
        input_gradients = self._backward_input(op, segment, found, postpone=False)
        return [*input_gradients, *self._weight_gradients(op, segment, found)]

    def _backward_weight(self, op: Op, segment: Segment, found: Operands) -> list[Held]:
        self._take(op, segment, found).run_deferred()
        return [*self._weight_gradients(op, segment, found)]

    def _take(self, op: Op, segment: Segment, found: Operands) -> Tape:
        """The tape that the op takes over, with the op's own operands in place of the forward's."""
        tape = self.values[found.carried[0]]
        assert isinstance(tape, Tape)
        inputs, weights = self._named(op, segment, found)
        tape.bind({**inputs, **weights})
        return tape

    def _weight_gradients(self, op: Op, segment: Segment, found: Operands) -> list[Held]:
        """One flat gradient for each group of weights, added to what was there before."""
        tape = self.values[found.carried[0]]
        assert isinstance(tape, Tape)
        result: list[Held] = []
        for i, group in enumerate(segment.groups):
            fresh = not found.so_far
            before = None if fresh else self.tensor(found.so_far[i])
            if before is None:
                flat = torch.zeros(group.num_elements, dtype=FLOAT[group.itemsize])
            else:
                flat = before if found.so_far[i] in op.consumes else before.clone()
            for param, view in zip(group.params, views(flat, group), strict=True):
                if param.name in tape.gradients:
                    view.add_(tape.gradients[param.name])
            result.append(flat)
        return result

    # --- optimizer

    def _step(self, op: Op) -> list[Held]:
        """Inputs are the weights, their gradient, and by role the optimizer state and what divides the gradient."""
        types = self.program.ranks[self.rank].types
        weight, gradient = self.tensor(op.inputs[0]), self.tensor(op.inputs[1])
        state = next((self.tensor(v) for v in op.inputs[2:] if types[v].role is Role.OPTIMIZER), None)
        scales = [self.tensor(v) for v in op.inputs[2:] if types[v].role is Role.SCALE]
        if op.inputs[0] not in op.consumes:
            weight, state = weight.clone(), None if state is None else state.clone()
        for scale in scales:
            gradient = gradient.to(torch.promote_types(gradient.dtype, torch.float32)) / scale.item()
        if self.record:
            self.gradients[op.inputs[1]] = gradient.clone()
        of = types[op.inputs[0]].of
        self.steps[of] = self.steps.get(of, self.counted) + 1
        written = self.optimizer.step(weight, gradient, state, self.steps[of])
        if self.record:
            self.weights[op.writes[0]] = self.optimizer.precise(written, state).clone()
        return [written, *([state] if state is not None else [])]


def _num_bytes(held: Held) -> int:
    return held.num_bytes() if isinstance(held, Tape) else held.numel() * held.element_size()
