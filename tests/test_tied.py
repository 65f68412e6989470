"""The transformer whose classifier multiplies by the embedding's own matrix: specification, segments, oracle, programs.

The matrix is one group of weights in two segments, so its gradient is the sum of what both find, on whichever ranks
they are.
"""

from typing import Any

import pytest
import test_reference
import test_segments
import torch
from cases import Case, strategy
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from pdlab import forms, models, reference
from pdlab.batch import Batch
from pdlab.compare import digits_batch
from pdlab.execute.local import run_local
from pdlab.forms.recipe import rebuild
from pdlab.models import Model
from pdlab.models.digits import CLASSES, INTENSITIES
from pdlab.models.spec import Segment
from pdlab.ops import Kind
from pdlab.segments import Frame
from pdlab.segments import run as run_segment
from pdlab.state import FLOAT, full_names, initial_parameters
from pdlab.strategies import Plan
from pdlab.tape import Tape

MODELS = {
    "float64": models.transformer(width=8, depth=1, heads=2, itemsize=8, tied=1),
    "float32": models.transformer(width=8, depth=1, heads=2, itemsize=4, tied=1),
    "smoothing": models.transformer(width=8, depth=1, heads=2, itemsize=8, tied=1, smoothing=0.2),
    "dropout": models.transformer(width=8, depth=1, heads=2, itemsize=8, tied=1, dropout=0.2),
}


def small(**choices: Any) -> Model:
    return models.transformer(width=8, depth=2, heads=2, itemsize=8, tied=1, **choices)


def reference_gradients(model: Model, batch: Batch) -> tuple[float, dict[str, Tensor]]:
    x, target = reference.inputs(model, batch.pixels, batch.labels, torch.float64)
    return reference.gradients(model, initial_parameters(model, 0, torch.float64), x, target, batch.keys)


# --- the specification


@pytest.mark.parametrize(("name", "segment"), [(name, s) for name in MODELS for s in ("embed", "head")])
def test_the_specification_is_what_the_segment_does(monkeypatch: Any, name: str, segment: str) -> None:
    monkeypatch.setitem(test_segments.MODELS, name, MODELS[name])
    for rows in (3, 5):
        test_segments.test_the_specification_is_what_the_segment_does(name, segment, rows)
    test_segments.test_putting_off_the_weight_gradient_changes_nothing(name, segment)


def test_one_group_in_two_segments() -> None:
    model = small()
    embed, head = model.segments["embed"], model.segments["head"]
    (shared,) = {group.name for group in embed.groups} & {group.name for group in head.groups}
    group = model.groups[shared]
    assert group in embed.groups and group in head.groups
    assert model.segment_of_group[shared] is embed
    assert full_names(model, group) == [("embed.token",)]


def test_the_matrix_counts_once() -> None:
    h, model, plain = 8, small(), models.transformer(width=8, depth=2, heads=2, itemsize=8)
    assert model.num_parameters == plain.num_parameters - (CLASSES * h + CLASSES) + INTENSITIES
    assert model.num_parameters == sum(t.numel() for t in initial_parameters(model, 0, torch.float64).values())
    assert model.num_parameters == sum(t.numel() for t in reference.build(model).parameters())


def test_parameters_bear_the_names_and_shapes_of_the_oracle() -> None:
    ours = {name: t.shape for name, t in initial_parameters(small(), 0, torch.float64).items()}
    assert ours == {name: t.shape for name, t in reference.build(small()).named_parameters()}
    assert ours["embed.token"] == (17, 8) and ours["head.bias"] == (17,) and "head.weight" not in ours


def test_it_travels_as_its_recipe() -> None:
    assert rebuild("transformer", dict(small().recipe[1])) == small()
    assert rebuild("transformer", {**dict(small().recipe[1]), "tied": 0}) != small()
    assert "tied" not in dict(models.transformer(tied=0).recipe[1])
    program = strategy("gpipe", Plan(pp=2, microbatches=2, batch=4), small()).programs[0]
    assert forms.from_json(forms.to_json(program)) == program


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tied": 1, "tp": 2}, "tied with tp 2: .* take tp 1"),
        ({"tied": 1, "tp": 4, "split": "sequence"}, "tied with tp 4"),
        ({"tied": 2}, "tied is 2; give 0 or 1"),
        ({"tied": True}, "tied is True; give a whole number"),
    ],
)
def test_what_cannot_be_tied_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        models.transformer(**arguments)


# --- the oracle


def test_the_oracle_has_the_gradients_of_finite_differences() -> None:
    test_reference.test_gradients_equal_finite_differences(models.transformer(width=8, depth=1, heads=2, tied=1))


def test_the_oracle_adds_what_two_matrices_of_the_same_numbers_find() -> None:
    model, plain = small(), models.transformer(width=8, depth=2, heads=2, itemsize=8)
    batch = digits_batch(5)
    w = initial_parameters(model, 0, torch.float64)
    loss, tied = reference_gradients(model, batch)

    leaves = {name: t.clone().requires_grad_() for name, t in w.items()}
    apart = {**leaves, "head.weight": w["embed.token"].clone().requires_grad_()}
    x, target = reference.inputs(model, batch.pixels, batch.labels, torch.float64)
    answers = functional_call(reference.build(plain), apart, x)
    assert answers.shape == (5, 17)
    separate = functional.cross_entropy(answers, target)
    found = dict(zip(apart, torch.autograd.grad(separate, list(apart.values())), strict=True))

    assert separate.item() == pytest.approx(loss, rel=1e-12)
    both = found["embed.token"], found.pop("head.weight")
    assert min(t.abs().max() for t in both) > 1e-3
    found["embed.token"] = both[0] + both[1]
    assert max(reference.relative_errors(tied, found).values()) < 1e-9


# --- the segments, one after the other


def chained(model: Model, batch: Batch) -> tuple[float, dict[str, Tensor]]:
    """The loss of a batch and its gradients by name from the segments alone: each forward, then each backward."""
    w, dtype = initial_parameters(model, 0, torch.float64), FLOAT[model.itemsize]
    assert batch.keys is not None
    given = {"x": batch.pixels, "target": batch.labels, "keys": batch.keys}
    values = {name: torch.tensor(t, dtype=torch.int64) for name, t in given.items()}
    tapes: list[tuple[Segment, Tape]] = []
    for segment in model.segments.values():
        inputs = {f"input {t.name}": values[t.name] for t in segment.inputs}
        weights = weights_of(model, segment, w)
        tape = Tape({**inputs, **weights})
        with tape.recording():
            entered = [tape.enter(role, t) for role, t in inputs.items()]
            outputs = run_segment(
                Frame(segment, tape), entered, {name: tape.enter(name, t) for name, t in weights.items()}
            )
        tape.watch(outputs)
        tapes.append((segment, tape))
        values |= {spec.name: t.detach() for spec, t in zip(segment.outputs, outputs, strict=True)}
    gradients = {"loss": torch.tensor(1 / len(batch), dtype=dtype)}
    found: dict[str, Tensor] = {}
    for segment, tape in reversed(tapes):
        tape.bind({**{f"input {t.name}": values[t.name] for t in segment.inputs}, **weights_of(model, segment, w)})
        tape.backward([gradients[t.name] for t in segment.outputs], postpone=False)
        gradients |= {t.name: tape.gradients[f"input {t.name}"] for t in segment.graded_inputs}
        for group in segment.groups:
            for name, param in zip(full_names(model, group)[0], group.params, strict=True):
                found[name] = found.get(name, 0) + tape.gradients[param.name]
    return values["loss"].item() / len(batch), found


def weights_of(model: Model, segment: Segment, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        param.name: parameters[name]
        for group in segment.groups
        for name, param in zip(full_names(model, group)[0], group.params, strict=True)
    }


@pytest.mark.parametrize("choices", [{}, {"smoothing": 0.1}, {"dropout": 0.2}], ids=str)
def test_the_segments_equal_the_oracle(choices: dict[str, float]) -> None:
    model, batch = small(**choices), digits_batch(5)
    (loss, found), (wanted_loss, wanted) = chained(model, batch), reference_gradients(model, batch)
    assert loss == pytest.approx(wanted_loss, rel=1e-12)
    assert max(reference.relative_errors(found, wanted).values()) < 1e-9


# --- programs


PLANS = [
    ("single", Plan(microbatches=1, batch=3)),
    ("single", Plan(microbatches=3, batch=8)),
    ("ddp", Plan(dp=2, microbatches=2, batch=5)),
    ("zero3", Plan(dp=2, microbatches=2, batch=5)),
    ("gpipe", Plan(pp=1, microbatches=2, batch=5)),
    ("gpipe", Plan(pp=2, microbatches=3, batch=7)),
    ("gpipe", Plan(pp=4, microbatches=3, batch=7)),
    ("gpipe", Plan(pp=6, microbatches=2, batch=5)),
    ("1f1b", Plan(pp=2, microbatches=1, batch=3)),
    ("1f1b", Plan(pp=2, microbatches=3, batch=7)),
    ("1f1b", Plan(pp=2, dp=2, microbatches=3, batch=13)),
    ("1f1b", Plan(pp=3, dp=2, microbatches=2, batch=9, optimizer_bytes=0, buckets=1)),
    ("zb_h1", Plan(pp=3, microbatches=5, batch=11)),
    ("zb_h1", Plan(pp=3, dp=2, microbatches=3, batch=13)),
]


@pytest.mark.parametrize(("name", "plan"), PLANS, ids=[f"{n} pp {p.pp} dp {p.dp} m {p.microbatches}" for n, p in PLANS])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_programs_equal_the_oracle(name: str, plan: Plan, dropout: float) -> None:
    case: Case = strategy(name, plan, small(dropout=dropout))
    assert case.check(run_local(case.programs, case.batch, case.settings)) < 1e-9


def test_copies_stay_equal() -> None:
    """After a step both ranks that hold the matrix have the same one: `assemble` refuses replicas that differ."""
    case = strategy("1f1b", Plan(pp=3, microbatches=3, batch=7), small())
    result = run_local(case.programs, case.batch, case.settings)
    copies = [t for (_, value), t in result.weights.items() if value.startswith("embed.token@")]
    assert len(copies) == 2 and torch.equal(*copies)
    steps = [op for rank in case.programs[0].ranks for op in rank.ops if op.kind is Kind.STEP]
    assert sum(op.inputs[0].startswith("embed.token@") for op in steps) == 2
