"""One step of one strategy, simulated: how long it takes, what a rank holds, what it moves; and a table of many."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tqdm.auto import tqdm

from pdlab import metrics, models
from pdlab.program import Program
from pdlab.simulate import simulate
from pdlab.strategies import Plan, build, get
from pdlab.study.setup import Setup
from pdlab.trace import Trace

ZERO3, TENSOR, SEQUENCE = "zero3", "tensor", "sequence"
STRATEGIES = (ZERO3, TENSOR, SEQUENCE)


@dataclass(frozen=True)
class Point:
    """What a step of `batch` samples over all ranks amounts to, with links of `bandwidth` bytes per second.

    `exposed_s` is the part of `step_s` in which even the busiest rank does not compute. `peak_bytes` is the most that
    any rank holds, `wire_bytes` what each of them puts on the wire on average, with ring algorithms.
    """

    strategy: str
    batch: int
    bandwidth: float
    step_s: float
    exposed_s: float
    peak_bytes: int
    wire_bytes: float

    def fits(self, limit_bytes: float) -> bool:
        return self.peak_bytes <= limit_bytes


@dataclass(frozen=True)
class Measured:
    """The same step predicted and run, in seconds. `error_pct` is how much longer the run took;
    `grad_max_rel_error` the worst parameter's deviation from one process in float64; `made` is the run's provenance."""

    strategy: str
    batch: int
    bandwidth: float
    predicted_s: float
    measured_s: float
    error_pct: float
    grad_max_rel_error: float
    made: str


@dataclass(frozen=True)
class Ranking:
    """The step time of ZeRO-3 over that of tensor parallelism: above 1 tensor parallelism is faster."""

    batch: int
    predicted_ratio: float
    measured_ratio: float

    @property
    def agrees(self) -> bool:
        """Whether the one that was predicted to be faster was."""
        return (self.predicted_ratio > 1) == (self.measured_ratio > 1)


def rankings(runs: Sequence[Measured]) -> list[Ranking]:
    """For every batch that both ran on, in the order of the batches."""
    by = {(run.strategy, run.batch): run for run in runs}
    both = [
        (by[ZERO3, b], by[TENSOR, b])
        for b in sorted({run.batch for run in runs})
        if {(ZERO3, b), (TENSOR, b)} <= set(by)
    ]
    return [Ranking(z.batch, z.predicted_s / t.predicted_s, z.measured_s / t.measured_s) for z, t in both]


def least_batch(setup: Setup, strategy: str) -> int:
    """Data parallelism gives each rank a sample at least; a tensor group works together on even one."""
    return setup.ranks if strategy == ZERO3 else 1


def can_run(setup: Setup, strategy: str, batch: int) -> bool:
    return batch >= least_batch(setup, strategy)


@lru_cache(maxsize=256)
def program(setup: Setup, strategy: str, batch: int) -> Program:
    """The step of `batch` samples over all ranks. ValueError for other strategies, for fewer samples than the strategy
    can run on, and where the ranks do not divide the heads (for `sequence` also the tokens)."""
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy {strategy!r}; this study compares {', '.join(STRATEGIES)}")
    chosen = get(strategy)
    plan = Plan(batch=batch, prefetch=setup.prefetch, optimizer_bytes=setup.optimizer_bytes)
    plan = chosen.on(setup.ranks, plan)
    model = models.transformer(
        width=setup.width,
        depth=setup.depth,
        heads=setup.heads,
        itemsize=setup.itemsize,
        tp=plan.tp,
        split=plan.split.value,
        tokens=setup.tokens,
    )
    return build(chosen, plan, model)


def simulated(setup: Setup, strategy: str, batch: int, bandwidth: float) -> Trace:
    return simulate(program(setup, strategy, batch), setup.costs(bandwidth))


def predicted(setup: Setup, strategy: str, batch: int, bandwidth: float) -> Point:
    """Step time, memory and traffic of one strategy, simulated."""
    trace = simulated(setup, strategy, batch, bandwidth)
    exposed = trace.makespan - max(metrics.busy_per_rank(trace))
    peak = max(metrics.peak_bytes_per_rank(trace))
    wire = sum(metrics.wire_bytes_by_collective(trace).values()) / setup.ranks
    return Point(strategy, batch, bandwidth, trace.makespan, exposed, peak, wire)


def table(
    setup: Setup,
    batches: Sequence[int],
    bandwidths: Sequence[float],
    strategies: Sequence[str] = (ZERO3, TENSOR),
    *,
    progress: bool = True,
) -> list[Point]:
    """`predicted` over a grid, without the points that cannot run; `pandas.DataFrame(table(...))` is a frame of it."""
    grid = [(s, b, w) for s in strategies for b in batches if can_run(setup, s, b) for w in bandwidths]
    bar = tqdm(grid, desc="simulating", unit="step", leave=False, delay=1.0, disable=not progress)
    return [predicted(setup, strategy, batch, bandwidth) for strategy, batch, bandwidth in bar]
