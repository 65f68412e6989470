"""What can be worked out on paper, against the simulator."""

import math

import pytest

from pdlab import metrics, models
from pdlab.costs import Analytic, Uniform, wire_factor
from pdlab.ops import Kind
from pdlab.program import Role
from pdlab.simulate import simulate
from pdlab.strategies import Plan, build, get
from pdlab.trace import Trace

SHAPES = [(1, 1), (1, 5), (2, 1), (4, 2), (4, 3), (4, 4), (4, 5), (4, 8), (8, 1), (8, 20), (5, 13)]
F, B = 2.0, 5.0


def predicted(name: str, costs: Uniform, **plan: int) -> Trace:
    chosen = Plan(**plan)
    return simulate(build(get(name), chosen, models.nominal(chosen.pp if chosen.pp > 1 else 4)), costs)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_makespan_and_bubble_of_flushed_pipelines(name: str, p: int, m: int) -> None:
    trace = predicted(name, Uniform(F=F, B=B), pp=p, microbatches=m)
    assert trace.makespan == (m + p - 1) * (F + B)
    assert math.isclose(metrics.bubble_fraction(trace), (p - 1) / (m + p - 1))


@pytest.mark.parametrize(("p", "m"), [shape for shape in SHAPES if shape[1] >= shape[0]])
def test_makespan_of_zb_h1(p: int, m: int) -> None:
    """Qi et al. 2024, table 2: the bubble is (p - 1)(F + I - W), here with I + W = B and F = I = W."""
    trace = predicted("zb_h1", Uniform(F=3, I=3, W=3), pp=p, microbatches=m)
    assert trace.makespan == m * 9 + (p - 1) * 3


@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_activations_in_flight(p: int, m: int) -> None:
    unit = models.nominal(1).segments["layer0"].saved.per_row * (1 if p > 1 else 4)
    held = {
        name: metrics.peak_activations_per_rank(predicted(name, Uniform(), pp=p, microbatches=m), unit)
        for name in ("gpipe", "1f1b", "zb_h1")
    }
    assert held["gpipe"] == [m] * p
    assert held["1f1b"] == [min(p - s, m) for s in range(p)]
    assert max(held["zb_h1"]) <= min(p, m)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb_h1"])
@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_never_below_the_dependency_bound(name: str, p: int, m: int) -> None:
    """A rank does all of its work, and one microbatch goes through all stages and back (with I = B / 2 where it is
    split)."""
    comm = 0.5
    trace = predicted(name, Uniform(F=F, B=B, comm=comm), pp=p, microbatches=m)
    there_and_back = p * (F + B / 2) + 2 * (p - 1) * comm
    assert trace.makespan >= max(there_and_back, m * (F + B)) - 1e-9


@pytest.mark.parametrize("n", [2, 4, 5, 8])
def test_volumes_of_data_parallelism(n: int) -> None:
    """Rajbhandari et al. 2020, section 7: 2 psi for the baseline, 3 psi for ZeRO-3, here exactly by rings, per rank."""
    psi = models.nominal(4).num_parameters
    wire = {}
    for name in ("ddp", "zero3"):
        trace = predicted(name, Uniform(), dp=n, microbatches=1)
        wire[name] = sum(metrics.wire_bytes_by_collective(trace).values()) / n
    assert math.isclose(wire["ddp"], 2 * (n - 1) / n * psi)
    assert math.isclose(wire["zero3"], 3 * (n - 1) / n * psi)


def test_the_ring_factors() -> None:
    assert [wire_factor(kind, 4) for kind in (Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.SEND)] == [1.5, 0.75, 1.0]


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_zero3_shares_the_weights_and_gathers_a_window_of_them(prefetch: int) -> None:
    """At rest 1/n of the weights; besides, at most `prefetch` + 1 layers are whole at any time."""
    layers, unit, n = 8, 400, 4
    program = build(get("zero3"), Plan(dp=n, microbatches=1, prefetch=prefetch), models.nominal(layers, unit=unit))
    trace = simulate(program, Uniform(comm=0.01))
    _, held = metrics.held_over_time(trace, 0, frozenset({Role.WEIGHT}))
    at_rest = layers * unit // n
    assert min(held) == at_rest
    assert max(held) == at_rest + (prefetch + 1) * unit


def test_more_bandwidth_never_takes_longer() -> None:
    program = build(get("ddp"), Plan(dp=4, microbatches=2), models.nominal(4))
    times = [simulate(program, Analytic(1e6, width, 1e-3)).makespan for width in (1e6, 1e7, 1e8, 1e9)]
    assert times == sorted(times, reverse=True)
