"""What a model says of its segments without torch, held against the segments themselves: shapes, FLOP, bytes kept."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pdlab import models
from pdlab.models import Model
from pdlab.models.spec import Group, Segment
from pdlab.models.spec import Tensor as Spec
from pdlab.segments import Frame, run
from pdlab.state import FLOAT
from pdlab.tape import Tape, View

MODELS = {
    "mlp": models.mlp(width=12, depth=4, itemsize=8),
    "mlp float32": models.mlp(width=12, depth=3, itemsize=4),
    "transformer": models.transformer(width=8, depth=1, heads=2, itemsize=8),
    "transformer dropout": models.transformer(width=8, depth=1, heads=2, itemsize=8, dropout=0.2),
    "transformer smoothing": models.transformer(width=8, depth=1, heads=2, itemsize=8, smoothing=0.2),
    "transformer tp 2": models.transformer(width=8, depth=1, heads=4, itemsize=8, tp=2),
    "transformer tp 4 dropout": models.transformer(width=8, depth=1, heads=4, itemsize=4, tp=4, dropout=0.2),
    "transformer sequence": models.transformer(width=8, depth=1, heads=4, itemsize=8, tp=4, split="sequence"),
    "transformer sequence dropout": models.transformer(
        width=8, depth=1, heads=4, itemsize=8, tp=2, split="sequence", dropout=0.2, smoothing=0.1
    ),
    "mlp column": models.mlp(width=12, depth=3, itemsize=8, tp=4, split="column"),
    "mlp row": models.mlp(width=12, depth=3, itemsize=8, tp=4, split="row"),
    "mlp tensor": models.mlp(width=12, depth=4, itemsize=8, tp=2),
    "cnn": models.cnn(width=3, depth=3, itemsize=8),
    "experts": models.experts(width=6, ep=3, itemsize=8),
}
CASES = [(name, segment) for name, model in MODELS.items() for segment in model.segments]


class Watching(Tape):
    """A tape that remembers which operands autograd has saved."""

    def pack(self, saved: torch.Tensor) -> Any:
        kept = super().pack(saved)
        if isinstance(kept, View):
            self.__dict__.setdefault("roles", set()).add(kept.role)
        return kept


def tensor(spec: Spec, rows: int, model: Model) -> torch.Tensor:
    shape = (rows, *spec.shape) if spec.per_row else spec.shape
    if spec.name == "place":
        return torch.randperm(rows)
    if spec.name == "keys":
        return torch.randint(2**62, shape)
    if spec.name == "target" or (spec.name == "x" and "transformer" in model.name):
        return torch.randint(0, 10, shape)
    return torch.randn(shape, dtype=FLOAT[spec.itemsize])


def weights(group: Group) -> dict[str, torch.Tensor]:
    return {p.name: torch.randn(group.local_shape(p), dtype=FLOAT[group.itemsize]) for p in group.params}


Forward = tuple[Watching, tuple[torch.Tensor, ...], dict[str, Any], int]


def forward(model: Model, segment: Segment, rows: int) -> Forward:
    torch.manual_seed(rows)
    inputs = {f"input {spec.name}": tensor(spec, rows, model) for spec in segment.inputs}
    parameters = {name: w for group in segment.groups for name, w in weights(group).items()}
    tape = Watching({**inputs, **parameters})
    with tape.recording(), FlopCounterMode(display=False) as counter:
        entered = [
            tape.enter(role, t) if spec.grad is not None else t
            for (role, t), spec in zip(inputs.items(), segment.inputs, strict=True)
        ]
        outputs = run(Frame(segment, tape), entered, {name: tape.enter(name, w) for name, w in parameters.items()})
    tape.watch([t for t, spec in zip(outputs, segment.outputs, strict=True) if spec.grad is not None])
    return tape, outputs, {**inputs, **parameters}, counter.get_total_flops()


@pytest.mark.parametrize("rows", [3, 5])
@pytest.mark.parametrize(("name", "segment_name"), CASES)
def test_the_specification_is_what_the_segment_does(name: str, segment_name: str, rows: int) -> None:
    model = MODELS[name]
    segment = model.segments[segment_name]
    tape, outputs, operands, flops = forward(model, segment, rows)

    for t, spec in zip(outputs, segment.outputs, strict=True):
        assert tuple(t.shape) == ((rows, *spec.shape) if spec.per_row else spec.shape), spec.name
        assert t.element_size() == spec.itemsize, spec.name
    kept = {role.removeprefix("input ") for role in tape.__dict__.get("roles", ()) if role.startswith("input ")}
    assert kept == set(segment.keeps)
    assert tape.num_bytes() == segment.saved.per_row * rows + segment.saved.fixed
    assert flops == segment.flops.forward * rows

    tape.bind(operands)
    seeds = [torch.randn_like(t) for t, spec in zip(outputs, segment.outputs, strict=True) if spec.grad is not None]
    with FlopCounterMode(display=False) as counter:
        tape.backward(seeds, postpone=True)
    assert counter.get_total_flops() == segment.flops.backward_input * rows
    for spec in segment.graded_inputs:
        tape.gradients.pop(f"input {spec.name}")
    assert tape.num_bytes() == segment.pending.per_row * rows + segment.pending.fixed

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        tape.run_deferred()
    assert counter.get_total_flops() == segment.flops.backward_weight * rows
    assert not tape.deferred


@pytest.mark.parametrize(("name", "segment_name"), CASES)
def test_putting_off_the_weight_gradient_changes_nothing(name: str, segment_name: str) -> None:
    model = MODELS[name]
    segment = model.segments[segment_name]
    found = []
    for postpone in (False, True):
        tape, outputs, operands, _ = forward(model, segment, 4)
        tape.bind(operands)
        torch.manual_seed(0)
        graded = [t for t, spec in zip(outputs, segment.outputs, strict=True) if spec.grad is not None]
        tape.backward([torch.randn_like(t) for t in graded], postpone)
        with torch.no_grad():
            tape.run_deferred()
        found.append(dict(tape.gradients))
    assert found[0].keys() == found[1].keys()
    for role, gradient in found[0].items():
        torch.testing.assert_close(gradient, found[1][role], rtol=0, atol=0)
