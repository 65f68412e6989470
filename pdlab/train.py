"""Training: many steps of one program over epochs of the digits, with what one watches while it runs.

A step is a program, training a fold of it over the weights (`pdlab.execute.fold`). The driver deals out samples, asks
for a stretch of steps at a time, on a pool or in this process, and keeps loss, accuracy, facts and a checkpoint.
Since initial weights, samples and their order follow from the seed alone, two strategies train the same model.
"""

from collections.abc import Callable, Iterator, Sequence
from math import isnan
from pathlib import Path

from tqdm.auto import tqdm

from pdlab import data, noise, reference
from pdlab.batch import Batch
from pdlab.checkpoint import load, save
from pdlab.costs import Costs
from pdlab.execute.fold import Stretch
from pdlab.execute.local import fold_local
from pdlab.execute.settings import Settings
from pdlab.history import History
from pdlab.launch import Ranks
from pdlab.program import Program
from pdlab.state import FLOAT, Parameters, Start

STRETCH = 10
"""Steps between two looks at a training: what is lost when it is interrupted, and how often the bar moves."""


def train(
    program: Program,
    *,
    epochs: int = 1,
    pool: Ranks | None = None,
    settings: Settings | None = None,
    pace: Costs | None = None,
    checkpoint: Path | str | None = None,
    resume: bool = False,
    stretch: int = STRETCH,
    progress: bool = True,
) -> History:
    """Train for `epochs` passes over the training digits; the last samples of one that fill no batch are left out.

    `pool` None runs in this process. `checkpoint` is a file that is written after every stretch of steps; `resume`
    goes on from it, on whatever mesh. An interrupt loses at most one stretch. ValueError for a checkpoint that is there
    already, unless it is resumed.
    """
    settings, file = settings or Settings(), Path(checkpoint) if checkpoint is not None else None
    if settings.seed < 0:
        raise ValueError(f"seed {settings.seed}; give a whole number of at least 0")
    if epochs < 1 or stretch < 1:
        raise ValueError(f"{epochs} epochs, stretches of {stretch} steps; give at least 1 of each")
    if pace is not None and pool is None:
        raise ValueError("only processes can be paced; give a pool, or no costs")
    per_epoch = _steps_per_epoch(program.batch)
    history = _begin(History(program, per_epoch), settings, file, resume)
    go = _fold(program, pool, settings, pace)
    with tqdm(total=epochs * per_epoch, initial=len(history.losses), unit="step", disable=not progress) as bar:
        for steps in _stretches(len(history.losses), epochs * per_epoch, per_epoch, stretch):
            history.add(go([_batch(settings.seed, step, per_epoch, program.batch) for step in steps], history.end))
            _check_finite(history)
            if steps[-1] % per_epoch == per_epoch - 1:
                history.accuracies.append(accuracy(program, history.parameters))
            if file is not None:
                save(file, history, settings)
            bar.update(len(steps))
            bar.set_postfix_str(_look(history))
    return history


def _steps_per_epoch(batch: int) -> int:
    if batch > data.num_train():
        raise ValueError(f"a batch of {batch} is more than the {data.num_train()} training digits; take less")
    return data.num_train() // batch


def _begin(fresh: History, settings: Settings, checkpoint: Path | None, resume: bool) -> History:
    """A new history, or the one in the checkpoint; never one in the place of another."""
    if resume and checkpoint is None:
        raise ValueError("there is nothing to resume from; name a checkpoint")
    if checkpoint is not None and resume:
        return load(checkpoint, fresh, settings)
    if checkpoint is not None and checkpoint.exists():
        raise ValueError(f"{checkpoint} holds a training; resume it, name another file, or remove it first")
    return fresh


def _check_finite(history: History) -> None:
    step = next((i for i, loss in enumerate(history.losses) if isnan(loss)), None)
    if step is not None:
        raise ValueError(f"the loss is not a number from step {step} on; start anew with a smaller learning rate")


Fold = Callable[[Sequence[Batch], Start | None], Stretch]


def _fold(program: Program, pool: Ranks | None, settings: Settings, pace: Costs | None) -> Fold:
    if pool is None:
        return lambda batches, start: fold_local(program, batches, settings, start)
    return lambda batches, start: pool.fold(program, batches, settings, start, pace=pace)


def _stretches(first: int, end: int, per_epoch: int, most: int) -> Iterator[range]:
    """Ranges of steps from `first` to `end`; none goes over the end of an epoch."""
    while first < end:
        to = min(first + most, (first // per_epoch + 1) * per_epoch, end)
        yield range(first, to)
        first = to


def _batch(seed: int, step: int, per_epoch: int, size: int) -> Batch:
    epoch, turn = divmod(step, per_epoch)
    rows = data.epoch_order(seed, epoch)[turn * size : (turn + 1) * size]
    digits = data.digits()
    return Batch(digits.pixels[rows], digits.labels[rows], noise.keys(seed, step, size))


def _look(history: History) -> str:
    accuracy = f", accuracy {history.accuracies[-1]:.1%}" if history.accuracies else ""
    return f"loss {history.losses[-1]:.3f}, {1e3 * history.seconds[-1]:.0f} ms a step{accuracy}"


def accuracy(program: Program, parameters: Parameters) -> float:
    """The share of the held-out digits that the model names rightly, by plain PyTorch in this process."""
    model, digits, held_out = program.model, data.digits(), data.held_out()
    dtype = FLOAT[max(4, model.itemsize)]
    x, target = reference.inputs(model, digits.pixels[held_out], digits.labels[held_out], dtype)
    named = {name: t.to(dtype) for name, t in parameters.items()}
    return float((reference.logits(model, named, x).argmax(1) == target).float().mean())
