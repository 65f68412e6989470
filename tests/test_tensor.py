"""Tensor and sequence parallelism: every gradient exact, every size that does not fit refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import Case, strategy, synchronous
from groups import B, network, program_of, run
from programs import edit, find, finished, rejected, retyped, with_op

from pdlab import models, reference
from pdlab.batch import IGNORED, Batch
from pdlab.compare import digits_batch
from pdlab.costs import Uniform, share
from pdlab.execute.local import run_local
from pdlab.execute.result import Result
from pdlab.execute.settings import Settings
from pdlab.mesh import Axis
from pdlab.models import Model
from pdlab.models.exchanges import along
from pdlab.models.split import Split
from pdlab.ops import Kind, Op
from pdlab.optimizers import Sgd
from pdlab.passes import Recompute
from pdlab.simulate import simulate
from pdlab.state import assemble, initial_parameters
from pdlab.strategies import Plan, build, get

# --- gradients


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("depth", [4, 5])
@pytest.mark.parametrize("split", ["column", "row", "tensor"])
def test_gradients_of_an_mlp(split: str, depth: int, tp: int) -> None:
    model = models.mlp(width=16, depth=depth, itemsize=8, tp=tp, split=split)
    case = strategy(split, Plan(tp=tp, microbatches=3, batch=7, split=Split(split)), model)
    assert case.check(run(case)) < 1e-9


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("split", ["tensor", "sequence"])
def test_gradients_of_a_transformer(split: str, dropout: float, smoothing: float, tp: int) -> None:
    model = network(tp, split, depth=2, dropout=dropout, smoothing=smoothing)
    case = strategy(split, Plan(tp=tp, microbatches=2, batch=5, split=Split(split)), model)
    assert case.check(run(case)) < 1e-9


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("recompute", Recompute)
@pytest.mark.parametrize("split", ["tensor", "sequence"])
@pytest.mark.parametrize(
    ("name", "degrees"), [("1f1b", {"pp": 2}), ("zb_h1", {"pp": 3}), ("zero3", {"dp": 2}), ("ddp", {"dp": 2})]
)
def test_gradients_of_hybrids(
    name: str, degrees: dict[str, int], split: str, recompute: Recompute, overlap: bool
) -> None:
    plan = Plan(tp=2, microbatches=3, batch=7, split=Split(split), recompute=recompute, overlap=overlap, **degrees)
    case = strategy(name, plan, network(2, split, dropout=0.1))
    assert case.check(run(case)) < 1e-9


# --- biases, norms, losses


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("split", ["row", "tensor"])
def test_a_row_parallel_bias_is_added_once(split: str, tp: int) -> None:
    """Its gradient is that of the reference, neither 1/tp of it nor tp times it; and so is the loss."""
    model = models.mlp(width=16, depth=4, itemsize=8, tp=tp, split=split)
    case = strategy(split, Plan(tp=tp, batch=B, split=Split(split)), model)
    ours, (loss, theirs) = run(case), expected(case)
    found = assemble(case.programs[0], ours.gradients)
    assert theirs["fc1.bias"].abs().max() > 1e-3
    torch.testing.assert_close(found["fc1.bias"], theirs["fc1.bias"], rtol=1e-12, atol=1e-14)
    assert losses(ours) == pytest.approx([B * loss] * tp, rel=1e-12)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_norm_weights_under_sequence_parallelism(tp: int) -> None:
    """Each rank sees its own tokens; summed, all ranks step with the same gradient, and it is the reference's."""
    case = strategy("sequence", Plan(tp=tp, batch=B), network(tp, "sequence"))
    ours, (_, theirs) = run(case), expected(case)
    stepped = [t for (_, value), t in sorted(ours.gradients.items()) if value.startswith("attn0.norm.w")]
    assert len(stepped) == tp and all(torch.equal(stepped[0], t) for t in stepped)
    whole = torch.cat([theirs["attn0.norm.weight"], theirs["attn0.norm.bias"]])
    torch.testing.assert_close(stepped[0], whole, rtol=1e-10, atol=1e-13)


def expected(case: Case) -> tuple[float, reference.Parameters]:
    model, batch = case.programs[0].model, case.batch
    x, target = reference.inputs(model, batch.pixels, batch.labels, torch.float64)
    return reference.gradients(model, initial_parameters(model, 0, torch.float64), x, target, batch.keys)


def losses(result: Result) -> list[float]:
    return [t.item() for _, t in sorted(result.losses.items())]


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("split", ["tensor", "sequence"])
def test_ignored_labels_count_for_nothing(split: str, tp: int) -> None:
    model = network(tp, split, smoothing=0.1)
    program = build(get(split), Plan(tp=tp, microbatches=2, batch=5), model)
    digits = digits_batch(5)
    labels = np.where(np.arange(5) % 2, digits.labels, IGNORED)
    case = synchronous(program, batch=Batch(digits.pixels, labels))
    assert case.check(run(case)) < 1e-9
    with pytest.raises(ValueError, match="all 5 labels of a step are -100"):
        run_local([program], Batch(digits.pixels, np.full(5, IGNORED)), Settings(Sgd()))


# --- dropout


@pytest.mark.parametrize("split", ["tensor", "sequence"])
def test_dropout_is_the_same_however_the_layer_is_split(split: str) -> None:
    found = {}
    for tp in (1, 2, 4, 8):
        case = strategy(split, Plan(tp=tp, microbatches=2, batch=5), network(tp, split, dropout=0.1))
        result = run(case)
        found[tp] = sum(losses(result)) / tp, assemble(case.programs[0], result.gradients)
    loss, gradients = found[1]
    for tp in (2, 4, 8):
        assert found[tp][0] == pytest.approx(loss, rel=1e-12)
        assert max(reference.relative_errors(found[tp][1], gradients).values()) < 1e-9
    undropped = strategy("single", Plan(microbatches=2, batch=5), network(1))
    assert abs(sum(losses(run(undropped))) - loss) > 1e-3


@pytest.mark.parametrize(("name", "degrees"), [("ddp", {"dp": 4}), ("1f1b", {"pp": 4})])
def test_dropout_does_not_depend_on_data_shards_microbatches_or_stages(name: str, degrees: dict[str, int]) -> None:
    case = strategy(name, Plan(microbatches=3, batch=13, **degrees), network(1, dropout=0.3))
    assert case.check(run(case)) < 1e-9


def test_dropout_without_keys_is_refused() -> None:
    case = strategy("single", Plan(batch=2), network(1, dropout=0.1))
    with pytest.raises(ValueError, match="dropout and the batch no keys"):
        run_local(case.programs, Batch(case.batch.pixels, case.batch.labels), case.settings)


# --- bad input


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: models.transformer(width=16, heads=4, tp=8), "width 16, 4 heads, tp 8"),
        (lambda: models.transformer(width=16, heads=1, tp=2), "width 16, 1 heads, tp 2"),
        (lambda: models.transformer(width=18, heads=4), "width 18, 4 heads, tp 1"),
        (lambda: models.transformer(width=48, heads=6, tp=3, split="sequence"), "tokens 64 with tp 3: tp must divide"),
        (lambda: models.transformer(width=16, heads=8, tp=16), "tp 16; a tensor group has 1 to 8 ranks"),
        (lambda: models.transformer(width=16, heads=8, tp=2, split="rows"), "split 'rows'; choose one of tensor"),
        (lambda: models.transformer(width=16, heads=8, tp=2, split="row"), "a transformer has no split 'row'"),
        (lambda: models.transformer(dropout=1.0), "dropout 1.0, smoothing 0.0; each is at least 0 and below 1"),
        (lambda: models.mlp(width=10, tp=4), "width 10 with tp 4: tp must divide it"),
        (lambda: models.mlp(width=24, tp=3, split="row"), "pixels 64 with tp 3: tp must divide it"),
        (lambda: models.mlp(tp=0), "tp 0; a tensor group has 1 to 8 ranks"),
        (lambda: models.mlp(split="rows"), "split 'rows'; choose one of tensor"),
        (lambda: models.nominal(4, tp=16), "tp 16; a tensor group has 1 to 8 ranks"),
        (lambda: models.transformer(width=32.0), "width is 32.0; give a whole number"),
        (lambda: models.transformer(itemsize=3), "itemsize 3; numbers have 2, 4 or 8 bytes"),
        (lambda: Plan(tp=2.0), "tp is 2.0; give a whole number"),
        (lambda: Plan(dp=5000), "has 5000 ranks; at most 4096"),
        (lambda: Plan(tp=2, split="rows"), "split 'rows'; choose one of tensor"),  # type: ignore[arg-type]
        (lambda: Plan(recompute="some"), "recompute 'some'; choose one of none, full"),  # type: ignore[arg-type]
        (lambda: models.mlp(width=16, tp=2, split="sequence"), "an mlp has no split 'sequence'"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_the_numbers(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("model", "strategy_name"),
    [
        (models.mlp(), "tensor"),
        (models.mlp(tp=2), "column"),
        (models.transformer(tp=2, split="sequence"), "tensor"),
        (models.transformer(tp=4), "tensor"),
        (models.nominal(4), "1f1b"),
    ],
)
def test_a_plan_and_a_model_that_disagree_are_refused(model: Model, strategy_name: str) -> None:
    with pytest.raises(ValueError, match=r"and the plan splits by \w+ over 2; make the model with tp=2"):
        build(get(strategy_name), Plan(tp=2, batch=2), model)


def test_a_plan_takes_names() -> None:
    named = Plan(tp=2, split="sequence", recompute="full")  # type: ignore[arg-type]
    assert named == Plan(tp=2, split=Split.SEQUENCE, recompute=Recompute.FULL)
    assert Plan(recompute="none").recompute is Recompute.NONE  # type: ignore[arg-type]


@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("split", ["tensor", "sequence"])
def test_a_layer_takes_its_share_of_a_stage_however_it_is_split(split: str, tp: int) -> None:
    model = network(tp, split, depth=2)
    names = tuple(model.segments)
    per_layer: dict[int, float] = {}
    for name in names:
        per_layer[model.layer_of[name]] = per_layer.get(model.layer_of[name], 0.0) + share(model, name, names)
    assert list(per_layer.values()) == pytest.approx([1 / 6] * 6)
    if tp > 1:
        norm, heads = (share(model, f"attn0.{what}", names) for what in ("norm", "heads"))
        assert norm == pytest.approx(0.05 * heads)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": np.array([1, 10, 2])}, "a label is 10; labels are 0 to 9, or -100"),
        ({"labels": np.array([1, -1, 2])}, "a label is -1"),
        ({"labels": np.array([1.0, 2.0, 3.0])}, "labels are float64; give whole numbers"),
        ({"labels": np.zeros((3, 1), int)}, r"labels of \(3, 1\)"),
        ({"pixels": np.full((3, 64), 17)}, "from 17 to 17; tokens are 0 to 16"),
        ({"pixels": np.full((3, 64), 0.5)}, "pixels are float64"),
        ({"pixels": np.zeros((2, 64), int)}, r"pixels of \(2, 64\)"),
        ({"keys": np.zeros(2, int)}, r"keys are int64 of \(2,\)"),
    ],
)
def test_samples_that_no_digit_could_be(changes: dict[str, np.ndarray], words: str, tp: int) -> None:
    program, batch = program_of(network(tp), tp, "tensor"), digits_batch(B)
    with pytest.raises(ValueError, match=words):
        run_local([program], replace(batch, **changes), Settings())


def test_other_tokens_than_a_digit_has_can_be_predicted_but_not_run() -> None:
    program = program_of(network(2, "sequence", tokens=32), 2, "sequence")
    assert simulate(program, Uniform()).makespan > 0
    with pytest.raises(ValueError, match="reads 32 tokens and a digit has 64"):
        run_local([program], digits_batch(B), Settings())


def test_gathered_logits_are_no_input_of_the_vocabulary_parallel_loss() -> None:
    """Gathered, they have another layout than the loss is made for; both are named."""
    program = program_of(network(2), 2, "tensor")
    for rank in (0, 1):
        at = find(program, rank, "0.10F0")
        gather = Op(Kind.ALL_GATHER, 0, microbatch=0, inputs=("head.logits:0",), writes=("whole:0",), axis=Axis.TP)
        scores = program.ranks[rank].ops[at]
        given = scores._replace(inputs=tuple(v.replace("head.logits", "whole") for v in scores.inputs))
        program = with_op(program, rank, at, gather, given)
        sharded = program.ranks[rank].types["head.logits:0"]
        assert sharded.layout == along(1)
        program.ranks[rank].types["whole:0"] = sharded._replace(
            size=2 * sharded.size, layout=sharded.layout.put(Axis.TP, None)
        )
    rejected(finished(program), "is given 'whole:0', which is replicated, and takes it tp:S1")


def test_a_shard_is_not_the_whole() -> None:
    program = program_of(network(2, "sequence"), 2, "sequence")
    whole = retyped(program, "attn0.u:0", layout=along(1).put(Axis.TP, None))
    rejected(
        whole,
        "makes activation of attn0.u, tp:S1 and writes it as 'attn0.u:0', typed activation of attn0.u, replicated",
    )
    summed = edit(program, 0, "REDUCE_SCATTER attn0.part:0", kind=Kind.ALL_REDUCE)
    rejected(summed, "ALL_REDUCE attn0.part:0", "REDUCE_SCATTER attn0.part:0")
