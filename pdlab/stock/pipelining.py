"""A schedule as a table, run by `torch.distributed.pipelining`: the same rows in another runtime, on the same modules.

    trained = run(ranks, table, models.mlp(depth=4, itemsize=8), batch=8)

Torch loads the table as a file (`_PipelineScheduleRuntime._load_csv`) and completes it with sends and receives of its
own. What it is given is the order alone, as `forms.schedule_csv` writes it. The loss of a microbatch is the sum over
its samples divided by the whole batch, so gradients need no scaling (`scale_grads=False`).
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from tempfile import NamedTemporaryFile
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.nn.functional import cross_entropy

from pdlab import forms, models, reference
from pdlab.compare import digits_batch
from pdlab.forms import Table
from pdlab.launch import Ranks
from pdlab.models import Model
from pdlab.models.spec import Segment
from pdlab.ops import Kind, Op
from pdlab.reference import Parameters
from pdlab.state import FLOAT, initial_parameters
from pdlab.stock.tensor import arguments_of

PATIENCE_S = 120.0
"""For a call: importing torch's pipelining takes seconds on a cold machine."""

CHAINED = {"mlp": ("width", "depth"), "transformer": ("width", "depth", "heads")}
"""The makers of models whose layers are a chain of modules, each fed by the one before, and what they may be given:
with more (skip, tied, dropout) they are none."""


@dataclass(frozen=True)
class Trained:
    """Gradients by name in float64, and the median seconds of a step in float32."""

    gradients: Parameters
    seconds: float


def run(ranks: Ranks, table: str, model: Model, batch: int, *, steps: int = 3, seed: int = 0) -> Trained:
    """One step of the table on the first of `ranks`, on `batch` digits. ValueError says what torch cannot run."""
    read = forms.read_table(table)
    _check(read, batch, steps)
    _check_model(model, read)
    if len(read.rows) > ranks.size:
        raise ValueError(f"a table of {len(read.rows)} ranks on {ranks.size}; start Ranks({len(read.rows)})")
    given = {"table": _order(read), "batch": batch, "steps": steps, "seed": seed, **arguments_of(model)}
    answers = ranks.call("pdlab.stock.pipelining:step", PATIENCE_S, **given)[: len(read.rows)]
    found = {name: values for answer in answers for name, values in answer["gradients"].items()}
    gradients = {name: torch.tensor(values, dtype=torch.float64) for name, values in found.items()}
    each = zip(*(answer["seconds"] for answer in answers), strict=True)
    return Trained(gradients, median(max(of_step) for of_step in each))


def _order(table: Table) -> str:
    """The table without steps, which torch has none of."""
    return forms.rows_csv([[op for op in row if op.kind is not Kind.STEP] for row in table.schedule])


# --- what torch cannot run


def _check(table: Table, batch: int, steps: int) -> None:
    if steps < 1:
        raise ValueError(f"{steps} steps; give at least 1")
    count = table.num_microbatches
    if batch < count or batch % count:
        raise ValueError(
            f"a batch of {batch} for {count} microbatches: torch's runtime receives into buffers of one size; "
            f"give a multiple of {count}"
        )
    for check in (_check_owners, _check_steps, _check_losses):
        check(table)


def _check_owners(table: Table) -> None:
    owner: dict[int, int] = {}
    for rank, row in enumerate(table.schedule):
        for op in row:
            if owner.setdefault(op.stage, rank) != rank:
                raise ValueError(
                    f"stage {op.stage} stands on ranks {owner[op.stage]} and {rank}, and in torch's runtime it has "
                    "one; take a schedule that keeps every weight once, as dualpipe_v in place of dualpipe"
                )


def _check_steps(table: Table) -> None:
    for rank, row in enumerate(table.schedule):
        first = next(i for i, op in enumerate(row) if op.kind is Kind.STEP)
        later = [op for op in row[first:] if op.kind is not Kind.STEP]
        if later:
            raise ValueError(
                f"rank {rank} has {row[first]} before {later[0]}, and torch's runtime leaves the step to the user, "
                "after all of the table; let every stage step at the end"
            )


def _check_losses(table: Table) -> None:
    """Torch appends the losses to a list and looks for that of microbatch i in place i; it would not notice."""
    last = table.num_stages - 1
    order = [op for row in table.schedule for op in row if op.kind is Kind.FORWARD and op.stage == last]
    for i, op in enumerate(order):
        if op.microbatch != i:
            raise ValueError(
                f"the last stage runs {op} where {last}F{i} is due, and torch's runtime would take its loss for that "
                f"of microbatch {i}, with wrong gradients; let the last stage take the microbatches in order"
            )


def _check_model(model: Model, table: Table) -> None:
    maker, said = model.recipe
    more = [name for name, _ in said if name not in (*CHAINED.get(maker, ()), "itemsize", "tp")]
    if maker not in CHAINED or more or model.tp > 1:
        raise ValueError(
            f"{model.name}: torch's runtime is given a chain of modules, each fed by the one before; give an mlp or a "
            "transformer that is not split, with width, depth and heads alone"
        )
    model.stages(table.num_stages)


# --- one rank


def step(
    table: str, maker: str, arguments: dict[str, Any], batch: int, steps: int = 3, seed: int = 0
) -> dict[str, Any]:
    """One rank's side of `run`: the gradients of its stages as lists, and the seconds of each step after the first."""
    makers: dict[str, Callable[..., Model]] = {"mlp": models.mlp, "transformer": models.transformer}
    rows = forms.parse_csv(table)
    with _first_ranks(len(rows)) as group:
        if group is None:
            return {}
        single = _Pipeline(table, rows, makers[maker](**arguments, itemsize=4), batch, seed, group)
        seconds = [single.step() for _ in range(steps + 1)]
        exact = _Pipeline(table, rows, makers[maker](**arguments, itemsize=8), batch, seed, group)
        for _ in range(2):  # what the first step leaves would show in the second
            exact.step()
    gradients = {name: gradient.tolist() for name, gradient in exact.gradients().items()}
    return {"gradients": gradients, "seconds": seconds[1:]}


@contextmanager
def _first_ranks(count: int) -> Iterator[dist.ProcessGroup | None]:
    """A group of the first ranks, for all of them to enter; None on the others."""
    everyone = dist.group.WORLD
    if count == dist.get_world_size():
        yield everyone
        return
    group = dist.new_group(list(range(count)))
    try:
        yield group if dist.get_rank() < count else None
    finally:
        if dist.get_rank() < count:
            dist.destroy_process_group(group)


class _Pipeline:
    """This rank's stages under torch's runtime, with the lab's initial weights and digits."""

    def __init__(
        self, table: str, rows: list[list[Op]], model: Model, batch: int, seed: int, group: dist.ProcessGroup
    ) -> None:
        dtype = FLOAT[model.itemsize]
        digits = digits_batch(batch, seed)
        self.x, self.target = reference.inputs(model, digits.pixels, digits.labels, dtype)
        num_stages = 1 + max(op.stage for row in rows for op in row)
        mine = sorted({op.stage for op in rows[dist.get_rank()]})
        cut = stage_modules(model, num_stages, initial_parameters(model, seed, dtype))
        stages = [PipelineStage(cut[s], s, num_stages, torch.device("cpu"), group=group) for s in mine]
        self.group, self.modules = group, [cut[s] for s in mine]
        self.first, self.last = 0 in mine, num_stages - 1 in mine

        def loss(logits: Tensor, target: Tensor) -> Tensor:
            return cross_entropy(logits, target, reduction="sum") / batch

        count = 1 + max(op.microbatch for row in rows for op in row)
        self.runtime = _PipelineScheduleRuntime(stages, count, loss_fn=loss, scale_grads=False)
        with NamedTemporaryFile("w", suffix=".csv") as file:
            file.write(table)
            file.flush()
            self.runtime._load_csv(file.name)

    def step(self) -> float:
        """One step from fresh gradients; the seconds that it takes."""
        for module in self.modules:
            module.zero_grad()
        dist.barrier(self.group)
        began = time.perf_counter()
        self.runtime.step(*((self.x,) if self.first else ()), target=self.target if self.last else None)
        return time.perf_counter() - began

    def gradients(self) -> Parameters:
        return {name: p.grad for module in self.modules for name, p in module.named_parameters() if p.grad is not None}


def stage_modules(model: Model, num_stages: int, parameters: Parameters) -> list[nn.Sequential]:
    """The reference's modules, cut where `Model.stages` cuts the layers; what has no weights of its own goes before the
    layer that it leads to."""
    network = reference.build(model).to(next(iter(parameters.values())).dtype)
    network.load_state_dict(parameters)
    layers: list[list[tuple[str, nn.Module]]] = [[]]
    for child in network.named_children():
        layers[-1].append(child)
        if any(True for _ in child[1].parameters()):
            layers.append([])
    found = []
    for stage in model.stages(num_stages):
        mine = sorted({model.layer_of[item.name] for item in stage if isinstance(item, Segment)})
        found.append(nn.Sequential(OrderedDict(child for layer in mine for child in layers[layer])))
    return found
