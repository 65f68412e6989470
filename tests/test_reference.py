"""Who watches the oracle: gradients against finite differences, update rules against longhand, data against facts."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pdlab import data, models
from pdlab import reference as ref
from pdlab.models.model import Model
from pdlab.reference import networks

MODELS = {
    "mlp": models.mlp(width=6, depth=4),
    "transformer": models.transformer(width=8, depth=1, heads=2),
    "cnn": models.cnn(width=3, depth=3),
    "experts": models.experts(width=5, ep=3),
}
LR = 0.5


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads on tiny tensors and busy cores spend their time waiting for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def initial(model: Model, dtype: torch.dtype = torch.float64) -> ref.Parameters:
    torch.manual_seed(3)
    return {name: weight.detach().to(dtype) for name, weight in ref.build(model).named_parameters()}


def batch_of(model: Model, size: int, step: int = 0, dtype: torch.dtype = torch.float64) -> ref.Batch:
    chosen = data.sample_indices(7, step, size)
    return ref.inputs(model, data.digits().pixels[chosen], data.digits().labels[chosen], dtype)


def batches_of(model: Model, num: int) -> list[ref.Batch]:
    return [batch_of(model, 9, step) for step in range(num)]


def worst(ours: list[ref.Parameters], theirs: list[ref.Parameters]) -> float:
    pairs = zip(ours, theirs, strict=True)
    return max(error for a, b in pairs for error in ref.relative_errors(a, b).values())


def test_digits_are_the_published_ones() -> None:
    digits = data.digits()
    assert (digits.pixels.shape, str(digits.pixels.dtype)) == ((1797, 64), "uint8")
    assert (digits.labels.shape, str(digits.labels.dtype)) == ((1797,), "int64")
    assert digits.pixels.max() == 16
    assert digits.pixels[0, :8].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert np.bincount(digits.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert data.digits() is digits


def test_a_missing_file_says_which(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match=r"1797 digits .*none\.csv\.gz, which is missing"):
        data._read(tmp_path / "none.csv.gz")


def test_samples_follow_from_seed_and_step() -> None:
    first = data.sample_indices(1, 2, 100)
    assert first.tolist() == data.sample_indices(1, 2, 100).tolist()
    assert len(set(first.tolist())) == 100
    assert first.tolist() != data.sample_indices(1, 3, 100).tolist()
    assert first.tolist() != data.sample_indices(2, 2, 100).tolist()
    assert sorted(data.sample_indices(0, 0, 1797).tolist()) == list(range(1797))


@pytest.mark.parametrize("batch", [0, -1, 1798])
def test_an_impossible_batch_is_refused(batch: int) -> None:
    with pytest.raises(ValueError, match=rf"batch of {batch} .* 1797"):
        data.sample_indices(0, 0, batch)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_parameters_bear_the_names_and_shapes_of_the_spec(model: Model) -> None:
    wanted: dict[str, tuple[int, ...]] = {}
    for segment in model.segments.values():
        names = [f"expert.{i}" for i in range(3)] if segment.name == "expert" else [segment.layer or segment.name]
        wanted |= {f"{name}.{p.name}": p.shape for name in names for g in segment.groups for p in g.params}
    assert {name: tuple(weight.shape) for name, weight in ref.build(model).named_parameters()} == wanted


def test_a_split_transformer_has_a_whole_reference() -> None:
    whole, split = models.transformer(width=8, depth=2, heads=4), models.transformer(width=8, depth=2, heads=4, tp=2)
    x, target = batch_of(whole, 3)
    ours, theirs = (ref.gradients(model, initial(model), x, target)[1] for model in (split, whole))
    assert worst([ours], [theirs]) == 0.0


def test_a_nominal_model_has_no_reference() -> None:
    with pytest.raises(ValueError, match="only numbers"):
        ref.build(models.nominal(4))


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_gradients_equal_finite_differences(model: Model) -> None:
    parameters, (x, target) = initial(model), batch_of(model, 6)
    loss, grads = ref.gradients(model, parameters, x, target)
    module = ref.build(model).double()

    def loss_at(name: str, entry: int, nudge: float) -> float:
        moved = {**parameters, name: parameters[name].clone()}
        moved[name].view(-1)[entry] += nudge
        module.load_state_dict(moved)
        with torch.no_grad():
            return functional.cross_entropy(module(x), target).item()

    assert loss == pytest.approx(loss_at("head.bias", 0, 0.0), rel=1e-12)
    generator = torch.Generator().manual_seed(0)
    for name, grad in grads.items():
        steepest = int(grad.abs().argmax())
        for entry in (steepest, *torch.randint(grad.numel(), (3,), generator=generator).tolist()):
            slope = (loss_at(name, entry, 1e-6) - loss_at(name, entry, -1e-6)) / 2e-6
            assert grad.view(-1)[entry].item() == pytest.approx(slope, rel=1e-5, abs=1e-8), (name, entry)


def test_an_mlp_by_hand() -> None:
    """One pixel at full intensity, one hidden unit at 2, equal logits: dlogits = 1/10 - onehot, loss = ln 10."""
    model = models.mlp(width=1, depth=2)
    pixels = np.zeros((1, 64), np.uint8)
    pixels[0, 5] = 16
    parameters = {name: torch.zeros_like(weight) for name, weight in initial(model).items()}
    parameters["fc0.weight"][0, 5] = 2
    parameters["head.weight"][4, 0] = 3
    parameters["head.bias"][4] = -6
    loss, grads = ref.gradients(model, parameters, *ref.inputs(model, pixels, np.array([4]), torch.float64))
    dlogits = [0.1, 0.1, 0.1, 0.1, -0.9, 0.1, 0.1, 0.1, 0.1, 0.1]
    assert loss == pytest.approx(math.log(10))
    assert grads["head.bias"].tolist() == pytest.approx(dlogits)
    assert grads["head.weight"].flatten().tolist() == pytest.approx([2 * d for d in dlogits])
    assert grads["fc0.bias"].tolist() == pytest.approx([3 * -0.9])
    assert grads["fc0.weight"].flatten().tolist() == pytest.approx([3 * -0.9 * (i == 5) for i in range(64)])


def test_attention_equals_torchs_own() -> None:
    block = networks.Attention("attn0", 8, 2, lambda _, x: x).double()
    x = torch.randn(3, 64, 8, dtype=torch.float64)
    q, k, v = (f(block.norm(x)).view(3, 64, 2, 4).transpose(1, 2) for f in (block.q, block.k, block.v))
    mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(3, 64, 8)
    torch.testing.assert_close(block(x), x + block.out(mixed))


def test_the_other_blocks_longhand() -> None:
    torch.manual_seed(5)
    x, image = torch.randn(3, 64, 8, dtype=torch.float64), torch.randn(4, 2, 8, 8, dtype=torch.float64)
    feed, head = networks.FeedForward("ffn0", 8, lambda _, x: x).double(), networks.TokenClassifier(8).double()
    conv = networks.Convolution(2, 3).double()
    u = feed.up(feed.norm(x))
    torch.testing.assert_close(feed(x), x + feed.down(u * (1 + torch.erf(u / 2**0.5)) / 2))
    pooled = head.norm(x).sum(dim=1) / 64
    torch.testing.assert_close(head(x), pooled @ head.weight.T + head.bias)
    framed = functional.pad(image, (1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1)
    y = torch.einsum("nchwij,ocij->nohw", framed, conv.weight)
    spread, centre = torch.var_mean(y, dim=(0, 2, 3), correction=0, keepdim=True)
    torch.testing.assert_close(conv(image), (y - centre) / (spread + 1e-5).sqrt())


def test_each_sample_meets_only_its_expert() -> None:
    model, network = MODELS["experts"], ref.build(MODELS["experts"]).double()
    assert isinstance(network, networks.Experts)
    x, _ = batch_of(model, 40)
    h = network.fc0(x)
    trust = network.router(h).softmax(dim=1)
    chosen = trust.argmax(dim=1).tolist()
    assert len(set(chosen)) > 1
    rows = [trust[n, i] * network.expert[i](h[n]) for n, i in enumerate(chosen)]
    torch.testing.assert_close(network(x), network.head(torch.stack(rows).relu()))


def test_an_idle_expert_has_zero_gradients() -> None:
    model = MODELS["experts"]
    parameters, (x, target) = initial(model), batch_of(model, 1)
    _, grads = ref.gradients(model, parameters, x, target)
    idle = [i for i in range(3) if not grads[f"expert.{i}.down.bias"].any()]
    assert len(idle) == 2
    assert not any(grads[f"expert.{i}.{name}"].any() for i in idle for name in ("up.weight", "down.weight"))


def test_sgd_by_hand() -> None:
    model = MODELS["mlp"]
    batches, weights = batches_of(model, 3), initial(model)
    for (x, target), reached in zip(batches, ref.sgd(model, weights, batches, LR), strict=True):
        grads = ref.gradients(model, weights, x, target)[1]
        weights = {name: weights[name] - LR * grads[name] for name in weights}
        assert worst([reached], [weights]) == 0.0


def test_nothing_is_changed_in_place() -> None:
    model = MODELS["mlp"]
    weights, batches = initial(model), batches_of(model, 3)
    before = {name: weight.clone() for name, weight in weights.items()}
    ref.sgd(model, weights, batches, LR)
    ref.half_precision_step(model, weights, batches, LR, 8.0)
    assert worst([weights], [before]) == 0.0
    assert not any(weight.requires_grad for weight in weights.values())


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_half_precision_step_is_nearly_sgd(model: Model) -> None:
    x, target = batch_of(model, 12, dtype=torch.float32)
    master = initial(model, torch.float32)
    cut = 12 if model is MODELS["cnn"] else 7  # BatchNorm on two shards is another function
    shards = [(x[rows], target[rows]) for rows in (slice(0, cut), slice(cut, 12)) if len(target[rows])]
    stepped, finite = ref.half_precision_step(model, master, shards, 1.0, 256.0)
    exact = ref.sgd(model, master, [(x, target)], 1.0)[0]
    moved, wanted = ({name: end[name] - master[name] for name in master} for end in (stepped, exact))
    errors = ref.relative_errors(moved, wanted)
    errors.pop("attn0.k.bias", None)
    assert finite
    assert 0 < max(errors.values()) < 0.05
    assert all(weight.dtype is torch.float32 for weight in stepped.values())


def test_half_precision_sums_in_fp16_and_in_order() -> None:
    model = MODELS["mlp"]
    shards = [batch_of(model, 4, step, torch.float32) for step in range(3)]
    master = initial(model, torch.float32)
    module = ref.build(model).half()
    module.load_state_dict(master)
    total: dict[str, Tensor] = {}
    for x, target in shards:
        summed = functional.cross_entropy(module(x.half()), target, reduction="sum")
        grads = torch.autograd.grad(summed, list(module.parameters()), torch.tensor(1024 / 12).half())
        found = dict(zip(master, grads, strict=True))
        total = {name: total[name] + grad for name, grad in found.items()} if total else found
    wanted = {name: master[name] - 0.1 * total[name].float() / 1024 for name in master}
    stepped, finite = ref.half_precision_step(model, master, shards, 0.1, 1024.0)
    assert finite
    assert worst([stepped], [wanted]) < 1e-6


def test_an_overflow_skips_the_step() -> None:
    model = MODELS["mlp"]
    master, shards = initial(model, torch.float32), [batch_of(model, 4, step, torch.float32) for step in range(2)]
    stepped, finite = ref.half_precision_step(model, master, shards, LR, 2.0**24)
    assert not finite
    assert worst([stepped], [master]) == 0.0
    shards[1][0][0, 0] = torch.inf
    assert not ref.half_precision_step(model, master, shards, LR, 8.0)[1]


def test_a_loss_scale_saves_small_gradients() -> None:
    model = MODELS["mlp"]
    master, batch = initial(model), batch_of(model, 4)
    master["head.weight"] *= 1e-5
    still, _ = ref.half_precision_step(model, master, [batch], LR, 2.0**-3)
    moved, finite = ref.half_precision_step(model, master, [batch], LR, 2.0**12)
    assert finite
    assert torch.equal(still["fc0.weight"], master["fc0.weight"])
    assert not torch.equal(moved["fc0.weight"], master["fc0.weight"])


def test_relative_errors_scale_by_the_reference() -> None:
    theirs = {"a": torch.tensor([4.0, -8.0]), "zero": torch.tensor([0.0])}
    ours = {"a": torch.tensor([4.0, -6.0]), "zero": torch.tensor([8e-6])}
    assert ref.relative_errors(ours, theirs) == pytest.approx({"a": 0.25, "zero": 1.0})
    assert ref.relative_errors(theirs, theirs) == {"a": 0.0, "zero": 0.0}


def test_relative_errors_never_hide_a_nan() -> None:
    zero, nan = {"a": torch.zeros(2)}, {"a": torch.tensor([0.0, torch.nan])}
    assert ref.relative_errors(zero, zero) == {"a": 0.0}
    assert ref.relative_errors({"a": torch.ones(2)}, zero) == {"a": math.inf}
    assert ref.relative_errors(nan, zero) == ref.relative_errors(nan, nan) == {"a": math.inf}


def test_relative_errors_name_what_does_not_fit() -> None:
    one = torch.zeros(1)
    with pytest.raises(ValueError, match=r"1 parameters are missing \['b'\], 2 are extra \['c', 'd'\]"):
        ref.relative_errors({"a": one, "c": one, "d": one}, {"a": one, "b": one})
    with pytest.raises(ValueError, match=r"a has shape \(1,\), the reference has \(2, 1\)"):
        ref.relative_errors({"a": one}, {"a": torch.zeros(2, 1)})
