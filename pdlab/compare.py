"""Predict, run, compare: the gesture that the lab is for, for several strategies on the same model, data and costs.

Every rank has the same work in every strategy: `F` seconds of forward for each of its microbatches. What differs is
what the strategies add to it: bubbles, communication, memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from pdlab import data, metrics, noise, reference
from pdlab.batch import Batch
from pdlab.calibrate import calibrate
from pdlab.costs import Costs, Uniform
from pdlab.execute.local import run_local
from pdlab.execute.result import Result
from pdlab.execute.settings import Settings
from pdlab.lab import suited
from pdlab.launch import Ranks, Watch
from pdlab.mesh import Axis
from pdlab.models import Model
from pdlab.program import Program
from pdlab.simulate import simulate
from pdlab.state import FLOAT, assemble, initial_parameters
from pdlab.strategies import Plan, build, get
from pdlab.trace import Mode, Trace
from pdlab.trajectory import trajectory_error

TEACHING_COSTS = Uniform(F=0.040, B=0.080, I=0.040, W=0.040, comm=0.008)
"""Seconds: long against the scheduling noise of an operating system, short enough to wait for."""

ModelOf = Callable[[Plan, int], Model]
"""From a plan and the bytes of a number to a model."""


@dataclass(frozen=True)
class Comparison:
    """One program predicted and run. `grad_max_rel_error` is the worst deviation of a gradient from plain PyTorch, or,
    where a program steps along the way, of any version of a weight and of any loss from its rule."""

    predicted: Trace
    measured: Trace
    measured_s: float | None
    grad_max_rel_error: float

    @property
    def predicted_s(self) -> float | None:
        """The predicted step time; None where nothing can be predicted, as there are more ranks than cores."""
        return None if self.measured.provenance.oversubscribed else self.predicted.makespan

    @property
    def error_pct(self) -> float | None:
        """How much longer the run took than predicted; None where no time was measured (local mode) or predicted."""
        if self.measured_s is None or self.predicted_s is None:
            return None
        return 100 * (self.measured_s / self.predicted_s - 1)

    def summary(self) -> dict[str, object]:
        """The line of summary.csv."""
        mode = self.measured.provenance.mode
        return {
            "strategy": self.predicted.program.name,
            "ranks": self.predicted.program.mesh.size,
            "microbatches": self.predicted.program.num_microbatches,
            "mode": mode.value,
            "simulated_s": self.predicted_s,
            "measured_s": self.measured_s,
            "error_pct": self.error_pct,
            "bubble_simulated": None if self.predicted_s is None else metrics.bubble_fraction(self.predicted),
            "bubble_measured": metrics.bubble_fraction(self.measured) if mode is not Mode.LOCAL else None,
            "bytes_simulated": sum(self.predicted.moved),
            "bytes_measured": sum(self.measured.moved),
            "peak_bytes_simulated": max(metrics.peak_bytes_per_rank(self.predicted)),
            "peak_bytes_measured": max(metrics.peak_bytes_per_rank(self.measured)),
            "grad_max_rel_error": self.grad_max_rel_error,
        }


def digits_batch(size: int, seed: int = 0, step: int = 0) -> Batch:
    """The digits of one step."""
    digits, rows = data.digits(), data.sample_indices(seed, step, size)
    return Batch(digits.pixels[rows], digits.labels[rows], noise.keys(seed, step, size))


ProgramOf = Callable[[int], Program]
"""From the bytes of a number to a program: the same one for a timed run and for an exact one."""


def compare(
    program_of: ProgramOf,
    pool: Ranks | None,
    *,
    costs: Costs | None = TEACHING_COSTS,
    steps: int = 5,
    settings: Settings | None = None,
    watch: Watch | None = None,
) -> Comparison:
    """Predict a program, run it on a pool (or in this process if there is none), check its gradients.

    With `costs` the run is paced by them. With None it is measured as fast as it goes, and predicted from costs that
    are calibrated on as many steps of their own. The time is the median over `steps` steps after one to warm up, the
    trace that of the median step. Gradients come from the same program in float64. `watch` is told the share done.
    """
    settings = settings or Settings()
    program, exact = program_of(4), program_of(8)
    batch = digits_batch(program.batch, settings.seed)
    checked = replace(settings, record=True)
    if pool is None:
        measured = run_local([program], batch, settings).trace
        error = worst_error(exact, run_local([exact], batch, checked), batch, checked)
        return Comparison(simulate(program, costs or TEACHING_COSTS), measured, None, error)
    repetitions = 1 + (steps if costs else 2 * steps)
    run = pool.run(program, batch, pace=costs, steps=repetitions, settings=settings, watch=watch)
    traces = [repetition[-1] for repetition in run.traces[1:]]
    predicted = _predict(program, costs, traces[:-steps])
    error = worst_error(exact, pool.run(exact, batch, settings=checked), batch, checked)
    seconds = median(trace.makespan for trace in traces[-steps:])
    return Comparison(predicted, median_trace(traces[-steps:]), seconds, error)


def _predict(program: Program, costs: Costs | None, tried: Sequence[Trace]) -> Trace:
    """From given costs, or from what was measured; an oversubscribed measurement has nothing to say about costs."""
    if costs is None and not tried[0].provenance.oversubscribed:
        costs = calibrate(tried)
    return simulate(program, costs or TEACHING_COSTS)


def compare_strategy(
    name: str,
    plan: Plan,
    pool: Ranks | None,
    *,
    model_of: ModelOf | None = None,
    costs: Costs | None = TEACHING_COSTS,
    steps: int = 5,
) -> Comparison:
    """`compare` for a strategy by its name, on a model split as the plan says (None: the lab's for it)."""
    strategy = get(name)
    plan = strategy.chosen(plan)
    make = model_of or (lambda plan, itemsize: suited(strategy)(plan, itemsize, None, 0.0))
    return compare(lambda itemsize: build(strategy, plan, make(plan, itemsize)), pool, costs=costs, steps=steps)


def median_trace(traces: Sequence[Trace]) -> Trace:
    """The trace whose makespan is in the middle."""
    return sorted(traces, key=lambda trace: trace.makespan)[len(traces) // 2]


def worst_error(program: Program, result: Result, batch: Batch, settings: Settings) -> float:
    """Of gradients where they are those of the batch; of all versions of the weights where steps come along the way."""
    if program.steps_each_microbatch:
        return trajectory_error([program], result, batch, settings)
    return gradient_error(program, result, batch, settings.seed)


def gradient_error(program: Program, result: Result, batch: Batch, seed: int) -> float:
    """The worst parameter's deviation from the one-process reference, relative as `reference.relative_errors` says."""
    dtype = FLOAT[program.model.itemsize]
    parameters = initial_parameters(program.model, seed, dtype, program.mesh.degree(Axis.EP))
    x, target = reference.inputs(program.model, batch.pixels, batch.labels, dtype)
    _, expected = reference.gradients(program.model, parameters, x, target, batch.keys, batch.lengths)
    return max(reference.relative_errors(assemble(program, result.gradients), expected).values())
