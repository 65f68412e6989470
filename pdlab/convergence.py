"""How well stale gradients train: the variants of PipeDream on the same digits, from the same start, in the same order.

What a pipeline without a flush gains in time it may lose in progress per minibatch, since a gradient is taken at
weights that are some updates old. So there are two curves for each variant: loss against minibatches, and against time.
"""

from collections.abc import Callable, Sequence

import numpy as np

from pdlab import data, noise
from pdlab.batch import Batch
from pdlab.compare import TEACHING_COSTS
from pdlab.costs import Costs
from pdlab.curve import Curve
from pdlab.execute.local import run_local
from pdlab.execute.settings import Settings
from pdlab.lab import lab_mlp
from pdlab.launch import Ranks
from pdlab.ops import Kind
from pdlab.optimizers import Sgd
from pdlab.program import Program
from pdlab.simulate import simulate
from pdlab.strategies import Plan, build, get
from pdlab.trace import Trace
from pdlab.trajectory import losses

VARIANTS = ("pipedream_flush", "pipedream_2bw", "pipedream", "pipedream_vertical_sync", "pipedream_naive")

LARGEST_LR = 1e6
"""Everything diverges long before."""


def converge(
    variants: Sequence[str] = VARIANTS,
    *,
    p: int = 4,
    minibatches: int = 200,
    size: int = 16,
    lr: float = 0.1,
    seed: int = 0,
    pool: Ranks | None = None,
    costs: Costs = TEACHING_COSTS,
    told: Callable[[str], None] = lambda _: None,
) -> list[Curve]:
    """Train every variant on `p` stages of the lab's MLP, `size` digits to a minibatch. Those that step on several
    microbatches take p of them. `pool` None trains in this process; ranks are paced by `costs`. `told` is called with
    each name before it starts. ValueError for a name that is no variant."""
    for what, number in (("p", p), ("minibatches", minibatches), ("size", size)):
        if type(number) is not int or number < 1:
            raise ValueError(f"{what} is {number!r}; give a whole number of at least 1")
    if type(seed) is not int or seed < 0:
        raise ValueError(f"seed is {seed!r}; give a whole number of at least 0")
    if not (isinstance(lr, int | float) and 0 < lr <= LARGEST_LR):
        raise ValueError(f"lr is {lr!r}; give a number above 0 and at most {LARGEST_LR:g}")
    if isinstance(variants, str):
        raise ValueError(f"variants is {variants!r}; give a list of names")
    batch = stream_of_digits(minibatches, size, seed)
    curves = []
    for name in variants:
        if name not in VARIANTS:
            raise ValueError(f"{name!r} is no variant of PipeDream; choose among {', '.join(VARIANTS)}")
        told(name)
        program = _program(name, p, minibatches, size)
        settings = Settings(Sgd(lr), seed=seed)
        result = (
            pool.run(program, batch, pace=costs, settings=settings) if pool else run_local([program], batch, settings)
        )
        measured = known_at(result.trace) if pool else None
        curves.append(Curve(name, losses(program, result, batch), known_at(simulate(program, costs)), measured))
    return curves


def stream_of_digits(minibatches: int, size: int, seed: int = 0) -> Batch:
    """Epoch after epoch of the training digits, as many as it takes, each in its own order."""
    count, each = minibatches * size, data.num_train()
    order = np.concatenate([data.epoch_order(seed, epoch) for epoch in range(-(-count // each))])[:count]
    digits = data.digits()
    keys = np.concatenate([noise.keys(seed, i, size) for i in range(minibatches)])
    return Batch(digits.pixels[order], digits.labels[order], keys)


def known_at(trace: Trace) -> list[float]:
    """For each minibatch when its loss was known: the end of its forward on the last stage."""
    last = len(trace.program.stages) - 1
    ends = [0.0] * trace.program.num_microbatches
    for (_, op), end in zip(trace.rows(), trace.ends, strict=True):
        if op.kind is Kind.FORWARD and op.stage == last:
            ends[op.microbatch] = max(ends[op.microbatch], end)
    return ends


def _program(name: str, p: int, minibatches: int, size: int) -> Program:
    strategy = get(name)
    plan = Plan(
        pp=p, microbatches=minibatches, batch=minibatches * size, accumulate=p if strategy.accumulates else None
    )
    return build(strategy, strategy.chosen(plan), lab_mlp(plan, 4))
