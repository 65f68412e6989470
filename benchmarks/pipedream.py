"""The PipeDream family on real processes: steady state against its prediction, stashes, whole trajectories."""

from statistics import mean, median

from pdlab.compare import digits_batch
from pdlab.costs import Uniform
from pdlab.execute.settings import Settings
from pdlab.lab import lab_mlp
from pdlab.launch import Ranks
from pdlab.ledger import Ledger
from pdlab.optimizers import Sgd
from pdlab.program import Program
from pdlab.simulate import simulate
from pdlab.steady import steady_rounds
from pdlab.strategies import STRATEGIES, Plan, Strategy, build
from pdlab.trace import Trace
from pdlab.trajectory import trajectory_error

COSTS = Uniform(F=0.020, B=0.040, comm=0.004)
MINIBATCHES, SIZE = 200, 4


def pipedream() -> None:
    """All variants at p = 2 and 4: 200 minibatches once paced (times, stash), once as fast as they go (weights)."""
    print(f"pipedream: gloo ranks, {MINIBATCHES} minibatches of {SIZE}, paced for the times, float64 for the weights")
    print(f"  p {'variant':<23} {'simulated':>9} {'paced':>9} {'error':>7} {'round by round':>23} {'stash':>6}"
          f" {'versions':>8} {'weights':>8}")  # fmt: skip
    errors = []
    for p in (2, 4):
        with Ranks(p) as pool:
            for strategy in (s for s in STRATEGIES if s.stale or s.accumulates):
                errors.append(abs(_one(strategy, p, pool)))
    print(f"  median |error| of the steady state {median(errors):.2f} % (aim 3), largest {max(errors):.2f} % (aim 8)")


def _one(strategy: Strategy, p: int, pool: Ranks) -> float:
    program, exact = _program(strategy, p, 4), _program(strategy, p, 8)
    batch, settings = digits_batch(program.batch), Settings(Sgd(0.1), record=True)
    predicted = simulate(program, COSTS)
    paced = pool.run(program, batch, pace=COSTS).trace
    wrong = trajectory_error([exact], pool.run(exact, batch, settings=settings), batch, settings)
    error, each = _steady_error(predicted, paced)
    same = "equal" if predicted.peak_weights == paced.peak_weights else "DIFFER"
    versions = " ".join(map(str, Ledger.of(program).most_by_stage))
    print(
        f"  {p} {strategy.name:<23} {1e3 * mean(steady_rounds(predicted)):>6.1f} ms "
        f"{1e3 * mean(steady_rounds(paced)):>6.1f} ms {error:>+6.2f}% "
        f"{median(each):>7.2f}% to {max(each):>6.2f}% {same:>6} {versions:>8} {wrong:>8.1e}",
        flush=True,
    )
    return error


def _steady_error(predicted: Trace, paced: Trace) -> tuple[float, list[float]]:
    """Per cent: of the mean time for a minibatch, and of each round (as many minibatches as are under way at once;
    which of them waits for a message is chance)."""
    ours, real = steady_rounds(predicted), steady_rounds(paced)
    return 100 * (mean(real) / mean(ours) - 1), [100 * abs(r / o - 1) for o, r in zip(ours, real, strict=True)]


def _program(strategy: Strategy, p: int, itemsize: int) -> Program:
    size = p if strategy.accumulates else None
    plan = strategy.chosen(Plan(pp=p, microbatches=MINIBATCHES, batch=SIZE * MINIBATCHES, accumulate=size))
    return build(strategy, plan, lab_mlp(plan, itemsize))
