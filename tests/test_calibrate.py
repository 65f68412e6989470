"""Costs are fitted to measurements, and to nothing else."""

from dataclasses import replace

import pytest

from pdlab import models
from pdlab.calibrate import Calibrated, Line, calibrate, fit
from pdlab.costs import Analytic
from pdlab.simulate import simulate
from pdlab.strategies import Plan, build, get
from pdlab.trace import Mode, Provenance, Trace

COSTS = Analytic(flops_per_second=1e9, bandwidth=1e8, latency=1e-4)


def measured(name: str = "1f1b", mode: Mode = Mode.MEASURED, oversubscribed: bool = False) -> Trace:
    """A trace as a machine that keeps to the formulas would make it."""
    program = build(get(name), get(name).on(2, Plan(microbatches=4, batch=8)), models.mlp(depth=4))
    return replace(simulate(program, COSTS), provenance=Provenance(mode, oversubscribed=oversubscribed))


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "ddp", "zero3"])
def test_a_machine_that_keeps_to_formulas_is_found_out(name: str) -> None:
    trace = measured(name)
    again = simulate(trace.program, calibrate([trace, trace]))
    assert again.makespan == pytest.approx(trace.makespan, rel=1e-6)


def test_what_was_measured_predicts_another_order_of_the_same_ops() -> None:
    costs = calibrate([measured("gpipe")])
    other = measured("1f1b")
    assert simulate(other.program, costs).makespan == pytest.approx(other.makespan, rel=1e-6)
    with pytest.raises(ValueError, match="was measured; calibrate on a run that has such an op"):
        simulate(measured("zb_h1").program, costs)


def test_alpha_and_beta() -> None:
    points = [(size, 2e-4 + 3e-9 * size) for size in (10**3, 10**4, 10**6)]
    line = fit(points)
    assert (line.alpha, line.beta) == pytest.approx((2e-4, 3e-9))
    assert fit([(8, 1.0), (8, 3.0), (8, 2.0)]) == Line(2.0, 0.0)
    assert fit([(1, 5.0), (2, 1.0)]).beta == 0.0
    assert fit([(10, 0.1), (20, 1.0)]).alpha == 0.0


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        (measured(mode=Mode.PACED), "a paced trace"),
        (measured(mode=Mode.SIMULATED), "a simulated trace"),
        (measured(oversubscribed=True), "measured, oversubscribed.*a core per rank"),
    ],
)
def test_nothing_is_fitted_to_what_is_no_measurement(trace: Trace, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        calibrate([trace])
    with pytest.raises(ValueError, match="no traces"):
        calibrate([])


def test_it_says_what_it_is() -> None:
    assert str(Calibrated({}, {}, 5)) == "costs measured in 5 steps"
