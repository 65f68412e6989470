"""Samples of different lengths: segments that mask against an oracle that runs each sample alone and has no mask.

Two traps of pipelines are covered: a mask that must be cut along with the batch, and microbatches of different
lengths whose gradients are accumulated.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import test_reference
import test_segments
import torch
from cases import LR
from torch import Tensor
from torch.nn import functional

from pdlab import forms, models, reference
from pdlab.batch import IGNORED, Batch
from pdlab.compare import digits_batch
from pdlab.costs import Uniform
from pdlab.execute.local import run_local
from pdlab.execute.settings import Settings
from pdlab.models import Model
from pdlab.models.spec import Feed, Segment
from pdlab.models.spec import Tensor as Spec
from pdlab.optimizers import Sgd
from pdlab.segments import Frame, padding
from pdlab.segments import run as run_segment
from pdlab.simulate import simulate
from pdlab.state import assemble, initial_parameters
from pdlab.strategies import Plan, build, get
from pdlab.tape import Tape

MODELS = {
    "float64": models.transformer(width=8, depth=1, heads=2, itemsize=8, masked=1),
    "float32": models.transformer(width=8, depth=1, heads=2, itemsize=4, masked=1),
    "dropout": models.transformer(width=8, depth=1, heads=2, itemsize=8, masked=1, dropout=0.2, smoothing=0.1),
    "tied": models.transformer(width=8, depth=1, heads=2, itemsize=8, masked=1, tied=1),
    "tokens": models.transformer(width=8, depth=1, heads=2, itemsize=8, masked=1, tokens=96),
}


def small(**choices: Any) -> Model:
    return models.transformer(width=8, depth=2, heads=2, itemsize=8, masked=1, **choices)


def batch_of(lengths: list[int]) -> Batch:
    return replace(digits_batch(len(lengths)), lengths=np.array(lengths))


def expected(model: Model, batch: Batch) -> tuple[float, dict[str, Tensor]]:
    x, target = reference.inputs(model, batch.pixels, batch.labels, torch.float64)
    w = initial_parameters(model, 0, torch.float64)
    return reference.gradients(model, w, x, target, batch.keys, batch.lengths)


def error(name: str, plan: Plan, model: Model, batch: Batch) -> float:
    """The worst error of a program's gradients, where bytes moved and held are as predicted."""
    program = build(get(name), plan, model)
    result = run_local([program], batch, Settings(Sgd(LR), record=True))
    measured, predicted = result.trace, simulate(program, Uniform(), result.trace.facts)
    assert predicted.moved == measured.moved
    for rank in range(program.mesh.size):
        rows = predicted.rows_of(rank)
        ours, real = max(predicted.live[row] for row in rows), max(measured.live[row] for row in rows)
        assert ours == pytest.approx(real, rel=0.05)
    return max(reference.relative_errors(assemble(program, result.gradients), expected(model, batch)[1]).values())


# --- the specification


@pytest.mark.parametrize(("name", "segment"), [(name, s) for name, model in MODELS.items() for s in model.segments])
def test_the_specification_is_what_the_segment_does(monkeypatch: Any, name: str, segment: str) -> None:
    drawn = test_segments.tensor

    def tensor(spec: Spec, rows: int, model: Model) -> Tensor:
        lengths = torch.tensor([1, 64, 17, 33, 2])[:rows]
        return lengths if spec.feed is Feed.LENGTHS else drawn(spec, rows, model)

    monkeypatch.setitem(test_segments.MODELS, name, MODELS[name])
    monkeypatch.setattr(test_segments, "tensor", tensor)
    for rows in (3, 5):
        test_segments.test_the_specification_is_what_the_segment_does(name, segment, rows)
    test_segments.test_putting_off_the_weight_gradient_changes_nothing(name, segment)


def test_a_mask_costs_attention_nothing_and_the_mean_one_byte_a_token() -> None:
    plain = models.transformer(width=8, depth=2, heads=2, itemsize=8)
    for name in ("attn0", "attn1", "ffn0"):
        assert small().segments[name].saved == plain.segments[name].saved
    assert small().segments["head"].saved.per_row == plain.segments["head"].saved.per_row + 64
    assert small().num_parameters == plain.num_parameters


def test_it_travels_as_its_recipe() -> None:
    program = build(get("gpipe"), Plan(pp=2, microbatches=2, batch=4), small(dropout=0.1))
    assert forms.from_json(forms.to_json(program)) == program
    assert "masked" not in dict(models.transformer(masked=0).recipe[1])


# --- the oracle


def test_the_oracle_longhand() -> None:
    """Attention and mean over the first tokens of a sample, written out."""
    model = models.transformer(width=8, depth=1, heads=1, itemsize=8, masked=1)
    w, batch = initial_parameters(model, 0, torch.float64), batch_of([5, 64])
    x, _ = reference.inputs(model, batch.pixels, batch.labels, torch.float64)

    def norm(h: Tensor, name: str) -> Tensor:
        spread, centre = torch.var_mean(h, -1, correction=0, keepdim=True)
        return (h - centre) / (spread + 1e-5).sqrt() * w[f"{name}.norm.weight"] + w[f"{name}.norm.bias"]

    def linear(h: Tensor, name: str) -> Tensor:
        return h @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    wanted = []
    for pixels, length in zip(x.tolist(), (5, 64), strict=True):
        h = torch.stack([w["embed.token"][pixels[i]] + w["embed.position"][i] for i in range(length)])
        q, k, v = (linear(norm(h, "attn0"), f"attn0.{name}") for name in "qkv")
        h = h + linear((q @ k.T / 8**0.5).softmax(1) @ v, "attn0.out")
        h = h + linear(functional.gelu(linear(norm(h, "ffn0"), "ffn0.up")), "ffn0.down")
        wanted.append(linear(norm(h, "head").sum(0) / length, "head"))
    torch.testing.assert_close(reference.logits(model, w, x, batch.lengths), torch.stack(wanted))


def test_the_oracle_has_the_gradients_of_finite_differences() -> None:
    model, batch = models.transformer(width=8, depth=1, heads=2, masked=1), batch_of([3, 64, 20])
    w = test_reference.initial(model)
    x, target = reference.inputs(model, batch.pixels, batch.labels, torch.float64)
    _, found = reference.gradients(model, w, x, target, lengths=batch.lengths)
    for name, gradient in found.items():
        entry, slope = int(gradient.abs().argmax()), []
        for nudge in (1e-6, -1e-6):
            moved = {**w, name: w[name].clone()}
            moved[name].view(-1)[entry] += nudge
            slope.append(reference.gradients(model, moved, x, target, lengths=batch.lengths)[0])
        wanted = (slope[0] - slope[1]) / 2e-6
        assert gradient.view(-1)[entry].item() == pytest.approx(wanted, rel=1e-5, abs=1e-8), name


def test_the_oracle_adds_up_the_losses_of_single_samples() -> None:
    """The samples of a batch are strangers, and what lies behind a sample's tokens does not exist."""
    model, batch = small(dropout=0.2), batch_of([3, 64, 20, 1])
    w = initial_parameters(model, 0, torch.float64)
    x, target = reference.inputs(model, batch.pixels, batch.labels, torch.float64)
    assert batch.keys is not None and batch.lengths is not None
    loss, gradients = reference.gradients(model, w, x, target, batch.keys, batch.lengths)
    rubbish = x.clone()
    for i, length in enumerate(batch.lengths):
        rubbish[i, length:] = 16
    ones = [slice(i, i + 1) for i in range(4)]
    parts = [reference.gradients(model, w, rubbish[i], target[i], batch.keys[i], batch.lengths[i]) for i in ones]
    assert sum(part for part, _ in parts) / 4 == pytest.approx(loss, rel=1e-12)
    summed = {name: torch.stack([part[name] for _, part in parts]).sum(0) / 4 for name in gradients}
    assert max(reference.relative_errors(summed, gradients).values()) < 1e-12


def test_whole_samples_are_those_of_the_model_without_lengths() -> None:
    plain, batch = models.transformer(width=8, depth=2, heads=2, itemsize=8, dropout=0.2), digits_batch(4)
    whole = replace(batch, lengths=np.full(4, 64))
    ours, theirs = expected(small(dropout=0.2), whole), expected(plain, batch)
    assert ours[0] == pytest.approx(theirs[0], rel=1e-12)
    assert max(reference.relative_errors(ours[1], theirs[1]).values()) < 1e-9


def test_the_oracle_wants_lengths_where_the_model_does() -> None:
    plain, batch = models.transformer(width=8, depth=2, heads=2, itemsize=8), batch_of([3, 4])
    w = initial_parameters(plain, 0, torch.float64)
    x, target = reference.inputs(plain, batch.pixels, batch.labels, torch.float64)
    with pytest.raises(ValueError, match="samples of different lengths; give"):
        reference.gradients(small(), w, x, target)
    with pytest.raises(ValueError, match="samples of different lengths; give"):
        reference.logits(small(), w, x)
    with pytest.raises(ValueError, match="samples of different lengths; give"):
        reference.half_precision_step(small(), w, [(x, target)], LR, 1.0)
    with pytest.raises(ValueError, match="all of each sample; leave"):
        reference.gradients(plain, w, x, target, lengths=batch.lengths)
    with pytest.raises(ValueError, match="1 lengths for 2 samples"):
        reference.gradients(small(), w, x, target, lengths=np.array([3]))


# --- segments


def test_nobody_attends_to_padding_and_no_mean_counts_it() -> None:
    scores, lengths = torch.randn(3, 2, 6, 6), torch.tensor([1, 4, 6])
    hidden = padding.unattended(scores, lengths).softmax(-1)
    for i, length in enumerate(lengths.tolist()):
        assert not hidden[i, :, :, length:].any()
        torch.testing.assert_close(hidden[i, :, :, :length], scores[i, :, :, :length].softmax(-1))
    x = torch.randn(3, 6, 5)
    wanted = torch.stack([x[i, :length].mean(0) for i, length in enumerate(lengths.tolist())])
    torch.testing.assert_close(padding.own_mean(x, lengths), wanted)


def test_what_padding_holds_changes_nothing() -> None:
    segment: Segment = small().segments["attn0"]
    x, lengths = torch.randn(3, 64, 8, dtype=torch.float64), torch.tensor([1, 30, 64])
    w = {p.name: torch.randn(p.shape, dtype=torch.float64) for p in segment.groups[0].params}
    other = x.clone()
    for i, length in enumerate(lengths.tolist()):
        other[i, length:] = 1e3
    one, two = (run_segment(Frame(segment, Tape({})), [given, lengths], w)[0] for given in (x, other))
    for i, length in enumerate(lengths.tolist()):
        assert torch.equal(one[i, :length], two[i, :length])


# --- programs


LENGTHS = [64, 1, 17, 40, 2, 63, 9, 33, 64, 5, 28, 50, 12]
PLANS = [
    ("single", Plan(microbatches=1, batch=5)),
    ("single", Plan(microbatches=5, batch=5)),
    ("ddp", Plan(dp=2, microbatches=2, batch=7)),
    ("zero3", Plan(dp=2, microbatches=2, batch=7)),
    ("gpipe", Plan(pp=2, microbatches=3, batch=7)),
    ("gpipe", Plan(pp=3, microbatches=7, batch=7)),
    ("1f1b", Plan(pp=4, microbatches=5, batch=5)),
    ("1f1b", Plan(pp=2, dp=2, microbatches=3, batch=13)),
    ("1f1b", Plan(pp=2, microbatches=3, batch=7, recompute="full")),
    ("1f1b", Plan(pp=2, microbatches=3, batch=7, recompute="partitioned")),
    ("zb_h1", Plan(pp=3, microbatches=5, batch=11)),
]


@pytest.mark.parametrize(
    ("name", "plan"),
    PLANS,
    ids=[f"{n} pp {p.pp} dp {p.dp} m {p.microbatches} {p.recompute.value}" for n, p in PLANS],
)
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_mask_is_cut_with_the_batch(name: str, plan: Plan, dropout: float) -> None:
    """Also into microbatches of one sample each."""
    assert plan.batch is not None
    assert error(name, plan, small(dropout=dropout), batch_of(LENGTHS[: plan.batch])) < 1e-9


@pytest.mark.parametrize(("name", "pp"), [("single", 1), ("gpipe", 2), ("1f1b", 3), ("zb_h1", 2)])
@pytest.mark.parametrize("second", [64, 32, 1])
def test_microbatches_of_different_lengths(second: int, name: str, pp: int) -> None:
    assert error(name, Plan(pp=pp, microbatches=2, batch=6), small(), batch_of([64] * 3 + [second] * 3)) < 1e-9


def test_ignored_labels_and_smoothing() -> None:
    batch = batch_of([64, 3, 17, 1])
    batch = replace(batch, labels=np.where(np.arange(4) % 2, batch.labels, IGNORED))
    assert error("gpipe", Plan(pp=2, microbatches=2, batch=4), small(smoothing=0.2), batch) < 1e-9


def test_lengths_count() -> None:
    """Agreement above is no accident: other lengths have other gradients, also if only their order differs."""
    (_, found), *others = [expected(small(), batch_of(n)) for n in ([64, 3, 17], [3, 64, 17], [64, 4, 17])]
    for _, other in others:
        assert max(reference.relative_errors(other, found).values()) > 1e-2


# --- bad input


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        (None, "samples of different lengths and the batch has none; give it lengths"),
        ([64, 0], "a length is 0; each sample has 1 to 64 tokens"),
        ([64, 65], "a length is 65; each sample has 1 to 64 tokens"),
        ([64], r"lengths are int64 of \(1,\); give a whole number for each of the 2"),
        ([[64, 3]], r"lengths are int64 of \(1, 2\)"),
        ([3.0, 4.0], r"lengths are float64 of \(2,\)"),
    ],
)
def test_lengths_that_no_samples_have_are_refused(lengths: Any, words: str) -> None:
    program = build(get("single"), Plan(batch=2), small())
    batch = replace(digits_batch(2), lengths=None if lengths is None else np.array(lengths))
    with pytest.raises(ValueError, match=words):
        run_local([program], batch)


def test_lengths_for_a_model_of_whole_samples_are_refused() -> None:
    program = build(get("single"), Plan(batch=2), models.transformer(width=8, depth=1, heads=2))
    with pytest.raises(ValueError, match="lengths and the model reads all of each sample"):
        run_local([program], batch_of([3, 4]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"masked": 1, "tp": 2}, "masked with tp 2: .* take tp 1"),
        ({"masked": 1, "tp": 2, "split": "sequence"}, "masked with tp 2"),
        ({"masked": -1}, "masked is -1; give 0 or 1"),
        ({"masked": 1.0}, "masked is 1.0; give a whole number"),
    ],
)
def test_what_cannot_be_masked_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        models.transformer(**arguments)
