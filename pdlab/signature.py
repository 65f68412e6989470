"""Which operand of an op plays which role: the one place where the order of `inputs` and `writes` is decided.

Lowering writes operands in this order and the executor reads them back, so neither has to know a strategy:

    F   reads   inputs, weights                              writes  outputs, [saved]
    R   reads   inputs, weights                              writes  outputs, saved
    B   reads   saved, output gradients, kept inputs,        writes  input gradients, weight gradients
                weights, [weight gradients so far]
    I   reads   saved, output gradients, kept inputs         writes  input gradients, pending
                (but for the late ones), weights
    W   reads   pending, kept inputs,                        writes  weight gradients
                [weight gradients so far]

Gradients that arrive "so far" are added to, which is how accumulation over microbatches is said. A forward that will be
recomputed writes nothing saved, and then keeps nothing for a backward. Tokens may follow anywhere; they carry nothing.
"""

from typing import NamedTuple

from pdlab.models.spec import Segment
from pdlab.ops import FORWARD_KINDS, Kind, Op, Value, payload


class Operands(NamedTuple):
    """The operands of an F, R, B, I or W op, taken apart; what an op does not have is empty.

    `inputs` are all of a segment's inputs for F and R and kept ones for the others; `carried` is the saved or
    pending value that the op takes over, `left` the one that it leaves behind.
    """

    inputs: tuple[Value, ...] = ()
    weights: tuple[Value, ...] = ()
    carried: tuple[Value, ...] = ()
    output_gradients: tuple[Value, ...] = ()
    so_far: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    left: tuple[Value, ...] = ()
    input_gradients: tuple[Value, ...] = ()
    weight_gradients: tuple[Value, ...] = ()

    @property
    def reads(self) -> tuple[Value, ...]:
        return (*self.carried, *self.output_gradients, *self.inputs, *self.weights, *self.so_far)

    @property
    def writes(self) -> tuple[Value, ...]:
        return (*self.outputs, *self.left, *self.input_gradients, *self.weight_gradients)


def operands(op: Op, segment: Segment) -> Operands:
    """Take the operands of a lowered F, R, B, I or W op apart."""
    kind = op.kind
    groups = len(segment.groups)
    forward, weights_too = kind in FORWARD_KINDS, kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT)
    num_carried = 0 if forward else 1
    num_output_gradients = len(segment.graded_outputs) if kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT) else 0
    num_inputs = len(segment.inputs_of(kind))
    carried, output_gradients, inputs, weights, so_far = _cut(
        payload(op.inputs), num_carried, num_output_gradients, num_inputs, 0 if kind is Kind.BACKWARD_WEIGHT else groups
    )
    num_outputs = len(segment.outputs) if forward else 0
    writes = payload(op.writes)
    num_left = min(1, len(writes) - num_outputs) if forward else int(kind is Kind.BACKWARD_INPUT)
    num_input_gradients = len(segment.graded_inputs) if num_output_gradients else 0
    outputs, left, input_gradients, weight_gradients, rest = _cut(
        writes, num_outputs, num_left, num_input_gradients, groups if weights_too else 0
    )
    assert not rest, f"{op} writes {len(rest)} values too many: {rest}"
    return Operands(
        inputs, weights, carried, output_gradients, so_far, outputs, left, input_gradients, weight_gradients
    )


def _cut(values: tuple[Value, ...], *lengths: int) -> tuple[tuple[Value, ...], ...]:
    """Cut into pieces of the given lengths, and the rest."""
    pieces = []
    for length in lengths:
        pieces.append(values[:length])
        values = values[length:]
    return (*pieces, values)
