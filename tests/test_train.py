"""Training equals torch's optimizers step by step, whatever the strategy, and goes on from where it was."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from test_pool import workers
from torch import Tensor

from pdlab import checkpoint, data, models, optimizers, reference
from pdlab.costs import Uniform
from pdlab.errors import PoolError
from pdlab.execute.settings import Settings
from pdlab.history import History
from pdlab.launch import Ranks
from pdlab.models import Model
from pdlab.optimizers import Adam, Momentum, Optimizer, Sgd
from pdlab.program import Program
from pdlab.state import initial_parameters
from pdlab.strategies import Plan, build, get
from pdlab.train import train

MODEL = models.mlp(width=16, depth=3, itemsize=8)
BATCH = 300  # five steps an epoch

TORCHS: dict[Optimizer, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    Sgd(0.1): lambda weights: torch.optim.SGD(weights, 0.1),
    Momentum(0.05): lambda weights: torch.optim.SGD(weights, 0.05, momentum=0.9),
    Adam(0.01): lambda weights: torch.optim.Adam(weights, 0.01),
}


def program_of(name: str, ranks: int, rule: Optimizer, model: Model = MODEL) -> Program:
    bytes_per_weight = rule.bytes_per_weight(model.itemsize)
    plan = Plan(microbatches=2, batch=BATCH, optimizer_bytes=bytes_per_weight)
    return build(get(name), get(name).on(ranks, plan), model)


def by_torch(rule: Optimizer, epochs: int, seed: int = 0) -> tuple[list[float], reference.Parameters]:
    """The same training in plain PyTorch: losses and final weights."""
    weights = {name: w.clone().requires_grad_() for name, w in initial_parameters(MODEL, seed, torch.float64).items()}
    optimizer, losses = TORCHS[rule](list(weights.values())), []
    for epoch in range(epochs):
        order = data.epoch_order(seed, epoch)
        for at in range(0, BATCH * (len(order) // BATCH), BATCH):
            rows = order[at : at + BATCH]
            x, target = reference.inputs(MODEL, data.digits().pixels[rows], data.digits().labels[rows], torch.float64)
            now = {name: w.detach() for name, w in weights.items()}
            loss, gradients = reference.gradients(MODEL, now, x, target)
            losses.append(loss)
            for name, w in weights.items():
                w.grad = gradients[name]
            optimizer.step()
    return losses, {name: w.detach() for name, w in weights.items()}


@pytest.mark.parametrize("rule", TORCHS, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize(("name", "ranks"), [("single", 1), ("ddp", 3), ("zero3", 3), ("1f1b", 3), ("zb_h1", 2)])
def test_every_step_is_that_of_torch(name: str, ranks: int, rule: Optimizer) -> None:
    losses, weights = by_torch(rule, epochs=2)
    history = train(program_of(name, ranks, rule), epochs=2, settings=Settings(rule), stretch=3, progress=False)
    assert history.losses == pytest.approx(losses, rel=1e-9)
    assert max(reference.relative_errors(history.parameters, weights).values()) < 1e-9
    assert len(history.accuracies) == 2 and 0 <= history.accuracies[-1] <= 1
    assert list(history.frame().columns) == ["step", "epoch", "loss", "seconds", "accuracy"]


@pytest.mark.processes
@pytest.mark.parametrize(("name", "ranks"), [("zero3", 3), ("1f1b", 2)])
def test_processes_train_alike(pool: Ranks, name: str, ranks: int) -> None:
    rule = Adam(0.01)
    losses, weights = by_torch(rule, epochs=1)
    history = train(program_of(name, ranks, rule), pool=pool, settings=Settings(rule), stretch=3, progress=False)
    assert history.losses == pytest.approx(losses, rel=1e-9)
    assert max(reference.relative_errors(history.parameters, weights).values()) < 1e-9
    assert all(seconds > 0 for seconds in history.seconds)


def test_a_training_goes_on_from_its_checkpoint_with_another_strategy(tmp_path: Path) -> None:
    rule, file = Adam(0.01), tmp_path / "run.npz"
    settings = Settings(rule)
    train(program_of("zero3", 3, rule), epochs=1, settings=settings, checkpoint=file, progress=False)
    resumed = train(
        program_of("1f1b", 2, rule), epochs=2, settings=settings, checkpoint=file, resume=True, progress=False
    )
    losses, weights = by_torch(rule, epochs=2)
    assert resumed.losses == pytest.approx(losses, rel=1e-9)
    assert max(reference.relative_errors(resumed.parameters, weights).values()) < 1e-9
    assert len(resumed.accuracies) == 2


@pytest.mark.processes
def test_a_rank_killed_during_training_costs_one_stretch_at_most(tmp_path: Path) -> None:
    rule, file = Sgd(0.1), tmp_path / "run.npz"
    program = program_of("1f1b", 2, rule)
    settings = Settings(rule)
    with Ranks(2, timeout=5) as ranks:

        def kill_a_rank() -> None:
            while not file.exists():
                time.sleep(0.01)
            workers(ranks)[1].kill()

        thread = threading.Thread(target=kill_a_rank)
        thread.start()
        with pytest.raises(PoolError, match="rank 1 died"):
            train(program, epochs=40, pool=ranks, settings=settings, checkpoint=file, stretch=1, progress=False)
        thread.join()
        before = checkpoint.load(file, History(program, 5), settings)
        again = train(program, epochs=40, pool=ranks, settings=settings, checkpoint=file, resume=True, progress=False)
    assert 0 < len(before.losses) < 200
    assert again.losses == pytest.approx(by_torch(rule, epochs=40)[0], rel=1e-9)


def test_another_tensor_degree_resumes(tmp_path: Path) -> None:
    file, losses = tmp_path / "run.npz", []
    for epochs, tp in ((1, 1), (2, 2)):
        model = models.transformer(width=8, depth=1, heads=2, itemsize=8, tp=tp)
        program = build(get("single"), Plan(tp=tp, microbatches=1, batch=BATCH), model)
        losses = train(program, epochs=epochs, checkpoint=file, resume=tp > 1, progress=False).losses
    model = models.transformer(width=8, depth=1, heads=2, itemsize=8)
    whole = train(build(get("single"), Plan(batch=BATCH), model), epochs=2, progress=False).losses
    assert losses == pytest.approx(whole, rel=1e-9)


def test_seeds_differ_and_repeat() -> None:
    program = program_of("single", 1, Sgd(0.1))
    runs = [train(program, settings=Settings(seed=seed), progress=False).losses for seed in (0, 1, 1)]
    assert runs[0] != runs[1] and runs[1] == runs[2]


def test_facts_of_each_step_are_kept() -> None:
    model = models.experts(width=8, ep=2, itemsize=8)
    from pdlab.mesh import Mesh
    from pdlab.passes import all_reduce_gradients, assign_streams, consume_last_uses, insert_messages, lower
    from pdlab.program import split_rows
    from pdlab.strategies.data_parallel import single

    lowered = lower("experts", [list(single(1))], model, Mesh.of(ep=2), split_rows(BATCH, 2, 1), num_stages=1)
    program = assign_streams(consume_last_uses(all_reduce_gradients(insert_messages(lowered))))
    history = train(program, progress=False)
    assert all(sum(sum(step[rank, "counts:0"]) for rank in (0, 1)) == BATCH for step in history.facts)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"epochs": 0}, "give at least 1"),
        ({"resume": True}, "name a checkpoint"),
        ({"pace": Uniform()}, "only processes can be paced"),
        ({"settings": Settings(Adam())}, r"Plan\(optimizer_bytes=16\)"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        train(program_of("single", 1, Sgd()), progress=False, **given)


def test_checkpoints_that_are_none(tmp_path: Path) -> None:
    program, file = program_of("single", 1, Sgd()), tmp_path / "run.npz"
    with pytest.raises(ValueError, match="no checkpoint"):
        train(program, checkpoint=file, resume=True, progress=False)
    file.write_bytes(b"what is this")
    with pytest.raises(ValueError, match="not a checkpoint"):
        train(program, checkpoint=file, resume=True, progress=False)
    file.unlink()
    train(program, checkpoint=file, progress=False)
    with pytest.raises(ValueError, match=r"holds a training; resume it"):
        train(program, checkpoint=file, progress=False)
    with pytest.raises(ValueError, match=r"has settings .*this training"):
        train(program, checkpoint=file, resume=True, settings=Settings(seed=5), progress=False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda about, arrays: about.pop("steps"), "KeyError: 'steps'"),
        (lambda about, arrays: arrays.pop("parameter fc0.bias"), "not those of its weights"),
        (lambda about, arrays: about.update(losses="many"), "could not convert"),
    ],
)
def test_a_damaged_checkpoint_is_one_sentence(change: Callable, said: str, tmp_path: Path) -> None:
    program, file = program_of("single", 1, Sgd()), tmp_path / "run.npz"
    train(program, checkpoint=file, progress=False)
    with np.load(file) as found:
        arrays = dict(found)
    about = json.loads(str(arrays.pop("about")))
    change(about, arrays)
    np.savez(file, about=np.array(json.dumps(about)), **arrays)
    with pytest.raises(ValueError, match=rf"run\.npz is damaged .*{said}"):
        train(program, checkpoint=file, resume=True, progress=False)


def test_a_loss_that_is_no_number_ends_the_training() -> None:
    with pytest.raises(ValueError, match=r"not a number from step \d on; .*smaller learning rate"):
        train(program_of("single", 1, Sgd()), settings=Settings(Sgd(1e200)), progress=False)


@pytest.mark.parametrize("lr", [float("nan"), 0.0, -1.0, float("inf")])
def test_learning_rates_that_make_no_sense(lr: float) -> None:
    with pytest.raises(ValueError, match="give a number above 0"):
        optimizers.named("sgd", lr)


def test_an_optimizer_is_named() -> None:
    assert optimizers.named("adam", 0.5) == Adam(0.5)
    with pytest.raises(ValueError, match="choose one of sgd, momentum, adam"):
        optimizers.named("lion")
