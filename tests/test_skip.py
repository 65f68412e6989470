"""The MLP whose first layer's output enters a later layer again: its specification, its oracle, and pipelines."""

from typing import Any

import pytest
import test_reference
import test_segments
import torch
from cases import strategy, worst_error_as_predicted

from pdlab import forms, models, reference
from pdlab.models import Model
from pdlab.models.spec import Block
from pdlab.ops import Kind
from pdlab.strategies import Plan

MODELS = {
    f"depth {depth} to {skip}": models.mlp(width=6, depth=depth, itemsize=8, skip=skip)
    for depth, skip in ((3, 2), (4, 2), (4, 3), (8, 5))
} | {"float32": models.mlp(width=6, depth=4, skip=2)}


@pytest.mark.parametrize(("name", "segment"), [(name, s) for name, model in MODELS.items() for s in model.segments])
def test_the_specification_is_what_the_segment_does(monkeypatch: Any, name: str, segment: str) -> None:
    monkeypatch.setitem(test_segments.MODELS, name, MODELS[name])
    for rows in (3, 5):
        test_segments.test_the_specification_is_what_the_segment_does(name, segment, rows)
    test_segments.test_putting_off_the_weight_gradient_changes_nothing(name, segment)


@pytest.mark.parametrize("skip", [2, 3, 4])
def test_the_oracle_longhand(skip: int) -> None:
    model = models.mlp(width=6, depth=5, skip=skip)
    w, (x, _) = test_reference.initial(model), test_reference.batch_of(model, 7)
    h = first = x @ w["fc0.weight"].T + w["fc0.bias"]
    for i, layer in enumerate(("fc1", "fc2", "fc3", "head"), 1):
        h = (h + first * (i == skip)).clamp(min=0) @ w[f"{layer}.weight"].T + w[f"{layer}.bias"]
    torch.testing.assert_close(reference.logits(model, w, x), h)


@pytest.mark.parametrize("skip", [2, 3])
def test_the_oracle_has_the_gradients_of_finite_differences(skip: int) -> None:
    test_reference.test_gradients_equal_finite_differences(models.mlp(width=6, depth=4, skip=skip))


def test_both_layers_that_take_the_first_output_are_told() -> None:
    model = models.mlp(width=6, depth=5, skip=3)
    assert model.takers["h1"] == ["fc1", "fc3"] and model.takers["h3"] == ["fc3"]
    assert [s.block for s in model.segments.values()].count(Block.SKIP_LINEAR) == 1
    assert models.mlp(width=6, depth=5, skip=4).segments["head"].block is Block.SKIP_CLASSIFIER
    assert model.num_parameters == models.mlp(width=6, depth=5).num_parameters


@pytest.mark.parametrize("pp", [1, 2, 3, 4])
@pytest.mark.parametrize("skip", [2, 4, 6, 7])
def test_gpipe(skip: int, pp: int) -> None:
    """The stages between the two ends of the connection are none, one or two; both ends may be on one rank."""
    model = models.mlp(width=16, depth=8, itemsize=8, skip=skip)
    case = strategy("gpipe", Plan(pp=pp, microbatches=3, batch=7), model)
    assert worst_error_as_predicted(case) < 1e-9
    sums = [op for rank in case.programs[0].ranks for op in rank.ops if op.kind is Kind.ADD]
    assert sorted(op.writes for op in sums) == [(f"d.h1:{mb}",) for mb in range(3)]


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("single", Plan(microbatches=3, batch=5)),
        ("ddp", Plan(dp=2, microbatches=2, batch=5)),
        ("zero3", Plan(dp=2, microbatches=2, batch=5)),
        ("gpipe", Plan(pp=8, microbatches=2, batch=5)),
        ("1f1b", Plan(pp=4, microbatches=6, batch=13)),
        ("1f1b", Plan(pp=2, dp=2, microbatches=2, batch=9)),
        ("1f1b", Plan(pp=4, microbatches=4, batch=8, recompute="full")),
        ("zb_h1", Plan(pp=3, microbatches=5, batch=11)),
    ],
    ids=lambda value: value if isinstance(value, str) else f"pp {value.pp} dp {value.dp}",
)
def test_other_strategies(name: str, plan: Plan) -> None:
    assert worst_error_as_predicted(strategy(name, plan, models.mlp(width=16, depth=8, itemsize=8, skip=5))) < 1e-9


def test_the_connection_counts() -> None:
    """Without it the gradients are others: agreement above is no accident."""
    plain, skipping = models.mlp(width=6, depth=8, itemsize=8), models.mlp(width=6, depth=8, itemsize=8, skip=5)
    w, (x, target) = test_reference.initial(plain), test_reference.batch_of(plain, 7)
    found = [reference.gradients(model, w, x, target)[1] for model in (plain, skipping)]
    assert max(reference.relative_errors(*found).values()) > 0.1


def test_it_travels_as_its_recipe() -> None:
    model = models.mlp(width=6, depth=8, itemsize=8, skip=5)
    program = strategy("gpipe", Plan(pp=2, microbatches=2, batch=4), model).programs[0]
    assert forms.from_json(forms.to_json(program)) == program
    assert models.mlp(depth=4, skip=0) == models.mlp(depth=4)
    assert "skip" not in dict(models.mlp(depth=4, skip=0).recipe[1])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"depth": 5, "skip": 1}, "skip 1 in an MLP of depth 5; give a layer from 2 to 4, or 0"),
        ({"depth": 5, "skip": 5}, "skip 5 in an MLP of depth 5; give a layer from 2 to 4"),
        ({"depth": 5, "skip": -1}, "skip -1 in an MLP of depth 5"),
        ({"depth": 5, "skip": 2.5}, "skip 2.5 in an MLP of depth 5"),
        ({"depth": 5, "skip": True}, "skip True in an MLP"),
        ({"depth": 2, "skip": 2}, "skip 2 in an MLP of depth 2; give 0, or a depth of at least 3"),
        ({"width": 8, "depth": 4, "skip": 2, "tp": 2}, "skip 2 with tp 2: .* take tp 1"),
    ],
)
def test_an_impossible_connection_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        models.mlp(**arguments)


def test_pipedreams_oracle_refuses_it() -> None:
    """Its backpropagation by hand knows a chain only."""
    model: Model = models.mlp(width=6, depth=4, skip=2)
    with pytest.raises(ValueError, match="only a whole MLP"):
        reference.pipedream_naive(model, test_reference.initial(model), [], 0.5, (2, 2))
