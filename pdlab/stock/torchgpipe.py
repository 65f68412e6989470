"""GPipe by torchgpipe (Kim et al. 2020, arXiv:2004.09910): a row beside `gpipe`, the same modules in the same stages.

    beside(Plan(pp=4, microbatches=8, batch=64)).summary()

torchgpipe is one process with a worker thread for each device, and to it all of a CPU is one device. So here nothing
overlaps, and a step *measured* takes as long as its passes one after the other.

On GPUs a pass is only handed out; each device works off what it was handed, in that order, once what it needs is there.
That is what a *paced* step does: every stage has a clock in the place of a GPU's stream, which moves on by the modelled
time of what torchgpipe hands it, and the step ends when the last clock says so. The order, and with it who waits for
whom, is torchgpipe's own; the overlap is that of the clocks, not of this machine.
"""

import time
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pdlab import reference
from pdlab.compare import TEACHING_COSTS, ModelOf, digits_batch
from pdlab.costs import Costs, Link
from pdlab.execute.local import one_thread
from pdlab.lab import lab_model
from pdlab.models import Model
from pdlab.optimizers import Sgd
from pdlab.passes import Recompute
from pdlab.report import COLUMNS
from pdlab.state import FLOAT, initial_parameters
from pdlab.stock.clocks import Clocks, durations
from pdlab.strategies import Plan, build, get
from pdlab.trace import Mode

BESIDE = "gpipe"
"""The strategy whose stages, microbatches and order these are."""

NAME = f"{BESIDE} · torchgpipe"

CHECKPOINTS = {Recompute.NONE: "never", Recompute.EXCEPT_LAST: "except_last", Recompute.STAGE: "always"}
"""What torchgpipe calls it."""


@dataclass(frozen=True)
class Stock:
    """What torchgpipe took for the step of a plan, and how far its gradients are from those of one process.

    `seconds` and `bubble`, the idle share of all stages' time, are None where none was taken.
    """

    plan: Plan
    mode: Mode
    seconds: float | None
    bubble: float | None
    grad_max_rel_error: float

    def summary(self) -> dict[str, object]:
        """The line of summary.csv: nothing is predicted, and no bytes are counted."""
        known = {
            "strategy": NAME,
            "ranks": self.plan.pp,
            "microbatches": self.plan.microbatches,
            "mode": f"{self.mode.value}, one process" if self.mode is not Mode.LOCAL else self.mode.value,
            "measured_s": self.seconds,
            "bubble_measured": self.bubble,
            "grad_max_rel_error": self.grad_max_rel_error,
        }
        return {**dict.fromkeys(COLUMNS), **known}

    @property
    def note(self) -> str:
        """What a reader has to know before comparing its time."""
        shared = "one process, whose CPU devices share one thread, so"
        why = {
            Mode.PACED: f"{shared} its work does not overlap; instead each stage has a clock, as a GPU has a stream, "
            "that moves on by the modelled time of what torchgpipe hands it, in torchgpipe's order",
            Mode.MEASURED: f"{shared} its passes run one after the other: no speed to compare with that of processes",
        }
        return f"{NAME}: {why.get(self.mode, 'one process, gradients only')}"


def lacks(plan: Plan, model: Model) -> str | None:
    """Why there is no such row, or None if there can be one."""
    if find_spec("torchgpipe") is None:
        return "torchgpipe is not installed: no stock row for gpipe (pip install --no-deps torchgpipe)"
    why = _unsuited_plan(plan) or _unsuited_model(model)
    return f"no stock row for gpipe: {why}" if why else None


def _unsuited_plan(plan: Plan) -> str | None:
    if plan.mesh.size > plan.pp or plan.num_stages > plan.pp:
        return f"torchgpipe has one stage on each of its devices and no other axis than pp, not {plan.mesh}"
    if plan.recompute not in CHECKPOINTS:
        return f"torchgpipe runs whole stages again, not --recompute {plan.recompute.value}"
    ours, batch = list(plan.rows[0]), sum(plan.rows[0])
    theirs = [len(chunk) for chunk in torch.empty(batch).chunk(plan.microbatches)]
    return None if theirs == ours else f"torchgpipe cuts {batch} samples into microbatches of {theirs}, not {ours}"


def _unsuited_model(model: Model) -> str | None:
    if dict(model.recipe[1]).get("dropout"):
        return "dropout here follows the samples, whose keys torchgpipe's layers are not given"
    network = reference.build(model)
    plain = isinstance(network, nn.Sequential) and type(network).forward is nn.Sequential.forward
    return None if plain else f"torchgpipe wants a chain of layers, which {model.name} is not"


def beside(
    plan: Plan,
    *,
    model_of: ModelOf = lab_model,
    costs: Costs | None = TEACHING_COSTS,
    steps: int = 5,
    seed: int = 0,
    timed: bool = True,
) -> Stock:
    """As `compare_strategy("gpipe", plan, pool)`: paced by `costs` or, with None, measured as fast as it goes.

    The time is the median over `steps` steps in float32 after one to warm up, forward, backward and SGD; the gradients
    are in float64. ValueError says why there can be no such row.
    """
    model = model_of(plan, 4)
    if why := lacks(plan, model):
        raise ValueError(why)
    if steps < 1:
        raise ValueError(f"{steps} steps; give at least 1")
    if costs is not None and costs.link is not Link.CHANNEL:
        raise ValueError("a paced step has exclusive channels; pace with Link.CHANNEL")
    with one_thread():  # torchgpipe's worker is a new thread in each step, for which torch would start a team
        error = _gradient_error(model_of(plan, 8), plan, seed)
        if not timed:
            return Stock(plan, Mode.LOCAL, None, None, error)
        clocks = Clocks(plan.pp, durations(build(get(BESIDE), plan, model), costs)) if costs else None
        pipe = Pipe(model, plan, seed, clocks)
        seconds = median([pipe.step() for _ in range(steps + 1)][1:])
    bubble = 1 - clocks.busy / (plan.pp * seconds) if clocks else None
    return Stock(plan, Mode.PACED if clocks else Mode.MEASURED, seconds, bubble, error)


def _gradient_error(model: Model, plan: Plan, seed: int) -> float:
    pipe = Pipe(model, plan, seed)
    pipe.loss().backward()
    parameters = initial_parameters(model, seed, FLOAT[model.itemsize])
    _, expected = reference.gradients(model, parameters, pipe.x, pipe.target)
    return max(reference.relative_errors(pipe.gradients(), expected).values())


# --- the pipeline


class Pipe:
    """The reference's network with the lab's initial weights, cut where `Model.stages` cuts it, and the digits."""

    def __init__(self, model: Model, plan: Plan, seed: int, clocks: Clocks | None = None) -> None:
        from torchgpipe import GPipe

        dtype = FLOAT[model.itemsize]
        network = deepcopy(reference.build(model)).to(dtype)
        network.load_state_dict(initial_parameters(model, seed, dtype), strict=False)
        assert isinstance(network, nn.Sequential)
        self.gpipe = GPipe(
            network,
            balance=balance(network, model, plan.pp),
            devices=["cpu"] * plan.pp,
            chunks=plan.microbatches,
            checkpoint=CHECKPOINTS[plan.recompute],
        )
        digits = digits_batch(sum(plan.rows[0]), seed)
        self.x, self.target = reference.inputs(model, digits.pixels, digits.labels, dtype)
        self.smoothing = float(dict(model.recipe[1]).get("smoothing", 0))
        self.optimizer = torch.optim.SGD(self.gpipe.parameters(), lr=Sgd().lr)
        self.clocks = clocks
        if clocks:
            for stage, partition in enumerate(self.gpipe.partitions):
                partition.register_forward_hook(partial(clocks.forward, stage))

    def loss(self) -> Tensor:
        return cross_entropy(self.gpipe(self.x), self.target, label_smoothing=self.smoothing)

    def step(self) -> float:
        self.optimizer.zero_grad()
        began = time.perf_counter()
        if self.clocks:
            self.clocks.start()
        self.loss().backward()
        self.optimizer.step()
        if self.clocks:
            time.sleep(max(0.0, self.clocks.finish() - time.perf_counter()))
        return time.perf_counter() - began

    def gradients(self) -> reference.Parameters:
        """By the names of the model: torchgpipe puts `partitions.2.` before those of the third stage."""
        found = {name.split(".", 2)[2]: p.grad for name, p in self.gpipe.named_parameters()}
        return {name: gradient for name, gradient in found.items() if gradient is not None}


def balance(network: nn.Sequential, model: Model, num_stages: int) -> list[int]:
    """How many modules each stage has: those that are no layer of the model, as a ReLU, go with the layer they lead
    to."""
    layers = {segment.layer or name: model.layer_of[name] for name, segment in model.segments.items()}
    stage_of = {model.layer_of[item.name]: s for s, items in enumerate(model.stages(num_stages)) for item in items}
    counts, waiting = [0] * num_stages, 0
    for name, _ in network.named_children():
        waiting += 1
        if name in layers:
            counts[stage_of[layers[name]]] += waiting
            waiting = 0
    return counts
