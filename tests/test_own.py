"""Bring your own model: a list of modules is predicted, run and exact, and what is wrong with it is said with its
line."""

from inspect import getsourcelines
from pathlib import Path

import own_models
import pytest

from pdlab import metrics, models, own
from pdlab.compare import digits_batch, gradient_error
from pdlab.costs import Uniform
from pdlab.execute.local import run_local
from pdlab.execute.settings import Settings
from pdlab.forms import from_json, to_json
from pdlab.launch import Ranks
from pdlab.program import Program
from pdlab.simulate import simulate
from pdlab.strategies import Plan, build, get

RECORD = Settings(record=True)


def program_of(path: str, name: str, ranks: int) -> Program:
    plan = get(name).on(ranks, Plan(microbatches=2, batch=12))
    return build(get(name), plan, own.model(path, itemsize=8))


@pytest.mark.parametrize("name, ranks", [("single", 1), ("ddp", 2), ("zero3", 3), ("1f1b", 2), ("zb_h1", 3)])
@pytest.mark.parametrize("path", ["perceptron", "tokens", "images", "MADE_AT_IMPORT"])
def test_gradients_are_exact(path: str, name: str, ranks: int) -> None:
    if path == "MADE_AT_IMPORT" and ranks == 3:
        ranks = 2
    program = program_of(f"own_models:{path}", name, ranks)
    batch = digits_batch(12)
    assert gradient_error(program, run_local([program], batch, RECORD), batch, 0) < 1e-9


@pytest.mark.parametrize("path", ["perceptron", "tokens", "images"])
@pytest.mark.parametrize("name", ["single", "gpipe", "zb_h1"])
def test_predicted_bytes_are_the_bytes_held(path: str, name: str) -> None:
    program = program_of(f"own_models:{path}", name, 1 if name == "single" else 2)
    measured = run_local([program], digits_batch(12)).trace
    predicted = simulate(program, Uniform())
    assert predicted.moved == measured.moved
    for rank in range(len(program.ranks)):
        ours, real = metrics.peak_bytes_per_rank(predicted)[rank], metrics.peak_bytes_per_rank(measured)[rank]
        assert abs(ours - real) <= 0.01 * real


def test_what_is_seen_of_a_module_is_what_the_lab_says_of_the_same_segment() -> None:
    ours, theirs = own.model("own_models:like_the_mlp"), models.mlp(width=16, depth=3)
    pairs = list(zip(ours.segments.values(), theirs.segments.values(), strict=True))
    assert [s.flops for s, _ in pairs] == [t.flops for _, t in pairs]
    assert [(s.saved, s.pending, s.keeps) for s, _ in pairs] == [(t.saved, t.pending, t.keeps) for _, t in pairs]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("do_not_fit", r"entry 1 \(Linear\) does not take what entry 0 gives, \[n, 16\].*2x16 and 12x10"),
        ("drops", r"entry 1 \(Dropout\) answers differently.*p = 0"),
        ("keeps_statistics", r"buffer 'running_mean'.*track_running_stats=False"),
        ("ends_early", r"end with \[n, 10\] logits"),
        ("lets_no_gradient_through", r"entry 1 \(Cuts\) has no backward here: .*no gradient comes out"),
        ("works_in_place", r"entry 1 \(ReLU\) has no backward here: .*out of place"),
        ("frozen", r"entry 0 \(Linear\): parameter 'weight' is frozen"),
        ("nothing_to_train", "the modules have no parameters"),
        ("lazy", r"parameter 'weight' is no array of real numbers"),
        ("shares", r"entries 1 and 2 share the parameter 'weight'"),
    ],
)
def test_what_is_wrong_with_a_model_is_said_with_its_line(name: str, said: str) -> None:
    line = getsourcelines(getattr(own_models, name))[1]
    with pytest.raises(ValueError, match=rf"own_models\.py, line {line}.*{said}"):
        own.model(f"own_models:{name}")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("own_models:raises", r"own_models\.py, line \d+: ZeroDivisionError"),
        ("own_models:no_modules", r"entry 1 is a str, not a torch\.nn\.Module"),
        ("own_models:Block", r"own_models:Block: TypeError: .*missing 1 required"),
        ("own_models:nothing", r"has no 'nothing'; it defines .*perceptron"),
        ("own_models", r"not an import path; write package\.module:name"),
        ("no_such_module:x", r"no module 'no_such_module' here"),
    ],
)
def test_paths_that_lead_nowhere(path: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        own.model(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = (\n", r"broken_model\.py, line 1: SyntaxError"),
        ("import os\nimport not_there\n", r"broken_model\.py, line 2: ModuleNotFoundError"),
        ("x = 1\ny = x / 0\n", r"broken_model\.py, line 2: ZeroDivisionError"),
    ],
)
def test_an_error_at_import_is_told_with_the_line(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_model.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=said):
        own.model("broken_model:layers")


def test_a_program_from_a_file_may_not_name_code() -> None:
    program = program_of("own_models:perceptron", "single", 1)
    assert from_json(to_json(program), own.MAKERS) == program
    with pytest.raises(ValueError, match="somebody's own modules"):
        from_json(to_json(program))


WIDTH = "from torch import nn\ndef layers():\n    return [nn.Linear(64, {0}), nn.Linear({0}, 10)]\n"


@pytest.mark.processes
def test_a_model_runs_on_processes_and_follows_its_file(
    pool: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for width in (8, 24):
        (tmp_path / "changing_model.py").write_text(WIDTH.format(width))
        program = program_of("changing_model:layers", "1f1b", 2)
        batch = digits_batch(12)
        result = pool.run(program, batch, settings=RECORD)
        assert gradient_error(program, result, batch, 0) < 1e-9
        assert max(t.numel() for t in result.gradients.values()) == 64 * width + width
