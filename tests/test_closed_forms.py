"""What can be worked out on paper, against the simulator."""

import math

import pytest

from pdlab import metrics, models
from pdlab.costs import Analytic, Uniform, wire_factor
from pdlab.lab import lab_nominal
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


def pipeline(name: str, costs: Uniform, p: int, m: int, virtual: int | None = None, M_W: float = 1.0) -> Trace:
    """A schedule on a model with as many equal layers as it has stages; a p-th of the model keeps one M_B."""
    strategy = get(name)
    plan = strategy.chosen(Plan(pp=p, microbatches=m, virtual=virtual))
    return simulate(build(strategy, plan, lab_nominal(p, plan.num_stages, M_W=M_W)), costs)


def published_bubble(name: str, costs: Uniform, p: int, virtual: int = 1) -> float:
    """What papers say a rank idles, where it idles most; B is the full backward, F&B a forward and a backward that
    overlap."""
    F, B, I, W = costs.F, costs.B or 0.0, costs.I or 0.0, costs.W or 0.0
    F_and_B = F + B if costs.FB is None else costs.FB
    return {
        "interleaved_1f1b": (p - 1) * (F + B) / virtual,  # Narayanan et al. 2021, section 2.2
        "zb_h1": (p - 1) * (F + I - W),  # Qi et al. 2024, table 2
        "zb_h2": (p - 1) * (F + I - 2 * W),  # the same
        "zb_v": 0.0,  # Qi et al. 2024 (arXiv:2405.15362), section 4
        "dualpipe": (p / 2 - 1) * (F_and_B + B - 3 * W),  # DualPipe, README
        "dualpipe_v": (p - 1) * (F_and_B + B - 3 * W) / 2,  # the same on PP / 2 ranks: PP = 2p stages of half the size
    }[name]


def idle(trace: Trace, costs: Uniform, m: int) -> float:
    """What a rank takes beyond its own work, from its first op to its last, where it takes most. For ZB-H2 and ZB-V the
    time from the first op of all ranks to the last is longer: their steps overlap like parallelograms."""
    return metrics.largest_rank_span(trace) - m * (costs.F + (costs.B or 0.0))


@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_without_a_pipeline_every_microbatch_goes_alone(p: int, m: int) -> None:
    assert pipeline("naive", Uniform(F=F, B=B), p, m).makespan == m * p * (F + B)


@pytest.mark.parametrize("virtual", [1, 2, 3, 4])
@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_bubble_of_interleaved_stages(p: int, m: int, virtual: int) -> None:
    """A v-th of that of 1F1B. The paper asks for m divisible by p; with longer rounds any m from p on will do. With
    fewer a rank waits for its own next stage: p - m microbatches too few, in each round but the last."""
    costs = Uniform(F=F, B=B)
    waiting = max(0, p - m) * (F + B) * (virtual - 1) / virtual
    found = idle(pipeline("interleaved_1f1b", costs, p, m, virtual), costs, m)
    assert math.isclose(found, published_bubble("interleaved_1f1b", costs, p, virtual) + waiting, abs_tol=1e-9)


HOLDS = {
    "zb_h1": ([(1, 1, 1), (3, 2, 3), (1, 3, 1), (2, 2, 0)], [(1, 1), (2, 2), (4, 4), (4, 8), (5, 13), (8, 20)]),
    "zb_h2": ([(1, 1, 1), (5, 3, 4), (1, 2, 1), (2, 1, 1.5)], [(1, 1), (2, 3), (4, 7), (4, 8), (5, 13), (8, 20)]),
    "zb_v": ([(1, 1, 1), (2, 2, 2)], [(1, 1), (2, 3), (4, 7), (4, 8), (5, 13), (8, 20)]),
    "dualpipe": ([(1, 1, 1), (2, 2, 1), (3, 3, 2), (1, 1, 0)], [(2, 4), (2, 6), (4, 8), (4, 12), (6, 14), (8, 20)]),
    "dualpipe_v": ([(1, 1, 1), (2, 2, 1), (3, 3, 2), (1, 1, 0)], [(1, 2), (1, 5), (2, 4), (3, 7), (4, 8), (8, 20)]),
}
"""F, I, W and p, m for which a formula is meant. H1: W <= F, m >= p. H2: W <= F and 2W <= F + I, without which it would
be negative, m >= 2p - 1. V: F = I = W, m >= 2p - 1. DualPipe: F = I, W <= F, m >= 2p."""


@pytest.mark.parametrize("name", HOLDS)
def test_published_bubbles_where_they_are_meant(name: str) -> None:
    for F, I, W in HOLDS[name][0]:
        for p, m in HOLDS[name][1]:
            costs = Uniform(F=F, I=I, W=W)
            found = idle(pipeline(name, costs, p, m), costs, m)
            assert math.isclose(found, published_bubble(name, costs, p), abs_tol=1e-9), (F, I, W, p, m)


def test_two_published_formulas_of_zb_h1_are_one() -> None:
    """The zero-bubble paper's B is the input gradient, DualPipe's table (ZB1P) has B for the full backward."""
    p, m, F, I, W = 4, 8, 1, 1, 1
    B = I + W
    assert (p - 1) * (F + I - W) == (p - 1) * (F + B - 2 * W) == 3
    assert pipeline("zb_h1", Uniform(F=F, I=I, W=W), p, m).makespan == m * (F + I + W) + 3 == 27


ELSEWHERE = [
    ("interleaved_1f1b", (1, 1, 1), 4, 2, 3.0),  # m < p
    ("zb_h1", (1, 1, 1), 4, 2, 2.0),  # m < p
    ("zb_h1", (2, 1, 3), 4, 8, 3.0),  # W > F
    ("zb_h2", (1, 1, 1), 4, 6, 1.0),  # m < 2p - 1
    ("zb_h2", (2, 1, 2), 4, 8, 3.0),  # 2W > F + I
    ("zb_h2", (2, 4, 3), 4, 8, 6.0),  # W > F
    ("zb_v", (1, 1, 1), 4, 6, 1.0),  # m < 2p - 1
    ("zb_v", (1, 2, 1), 4, 8, 3.0),  # F < I
    ("zb_v", (2, 2, 1), 4, 8, 3.0),  # W < F
    ("dualpipe", (1, 2, 1), 4, 8, -1.0),  # F < I: less than the formula
    ("dualpipe", (2, 1, 1), 4, 8, 1.0),  # F > I
    ("dualpipe", (1, 1, 1.5), 4, 8, 0.5),  # W > F
    ("dualpipe_v", (1, 2, 1), 4, 8, -0.5),  # F < I
    ("dualpipe_v", (2, 1, 1), 4, 8, 1.5),  # F > I
    ("dualpipe_v", (1, 1, 1), 4, 5, 3.0),  # m < 2p
]
"""Times and shapes that a formula is not meant for, and how much longer than it says the simulation finds."""


@pytest.mark.parametrize(("name", "times", "p", "m", "longer"), ELSEWHERE)
def test_elsewhere_the_formula_is_not_what_happens(
    name: str, times: tuple[float, float, float], p: int, m: int, longer: float
) -> None:
    costs = Uniform(F=times[0], I=times[1], W=times[2])
    expected = published_bubble(name, costs, p, get(name).virtual) + longer
    assert longer and math.isclose(idle(pipeline(name, costs, p, m), costs, m), expected, abs_tol=1e-9)


def test_w_longer_than_i_delays_the_end_of_zb_h1_but_no_rank() -> None:
    """Where I < W <= F the formula holds for the longest span of a rank, not for the time from first op to last."""
    p, m, costs = 4, 8, Uniform(F=2, I=1, W=2)
    trace = pipeline("zb_h1", costs, p, m)
    assert idle(trace, costs, m) == published_bubble("zb_h1", costs, p) == 3
    assert trace.makespan == metrics.largest_rank_span(trace) + 3


@pytest.mark.parametrize(("p", "m"), [(2, 4), (2, 10), (4, 8), (4, 14), (8, 20)])
@pytest.mark.parametrize("F_and_B", [2.0, 2.5, 3.0])
@pytest.mark.parametrize("W", [0.5, 1.0])
def test_what_overlap_saves_dualpipe(p: int, m: int, F_and_B: float, W: float) -> None:
    """Next to the turn m - p - 1 microbatches run as pairs, each in F&B, and p + 1 while it fills and drains, in F + B;
    what that rank idles is the published bubble. So each microbatch more costs F&B."""
    F, B = 1.0, 1.0 + W
    costs = Uniform(F=F, I=1.0, W=W, FB=F_and_B)
    work = (m - p - 1) * F_and_B + (p + 1) * (F + B)
    trace = pipeline("dualpipe", costs, p, m)
    assert math.isclose(metrics.busy_per_rank(trace)[p // 2 - 1], work)
    assert math.isclose(trace.makespan, work + published_bubble("dualpipe", costs, p))
    saved = pipeline("dualpipe", Uniform(F=F, I=1.0, W=W), p, m).makespan - trace.makespan
    assert math.isclose(saved, (m - p / 2 - 2) * (F + B - F_and_B), abs_tol=1e-9)
    halves = pipeline("dualpipe_v", costs, p // 2, m // 2)
    assert math.isclose(2 * halves.makespan, trace.makespan)


@pytest.mark.parametrize("name", ["1f1b", "zb_h1", "zb_v"])
def test_what_overlaps_costs_nothing_less_where_nothing_does(name: str) -> None:
    with_overlap, without = (pipeline(name, Uniform(FB=FB), 4, 8).makespan for FB in (2.0, None))
    assert with_overlap == without


M_B = 10**6
"""Bytes that a p-th of the model keeps of one microbatch."""


def held(name: str, p: int, m: int, virtual: int | None = None, M_W: float = 1.0) -> list[float]:
    """The most that each rank holds at once in M_B: F adds 1, B frees it; of a split backward I frees 1 - M_W, W the
    rest. So with M_W = 0 a microbatch counts until its I, with M_W = 1 until its W."""
    found = metrics.peak_activations_per_rank(pipeline(name, Uniform(), p, m, virtual, M_W), M_B)
    return [round(number, 4) for number in found]  # a third of a megabyte is no whole number of bytes


@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_microbatches_held_until_their_full_backward(p: int, m: int) -> None:
    assert held("naive", p, m) == [1] * p
    assert held("gpipe", p, m) == [m] * p
    assert held("1f1b", p, m) == [min(p - s, m) for s in range(p)]


def test_the_first_rank_of_1f1b_holds_four_of_eight_on_four_ranks() -> None:
    """Not five: the backward of microbatch 0 is done before the forward of 4 begins."""
    assert held("1f1b", 4, 8)[0] == 4


@pytest.mark.parametrize("virtual", [2, 3, 4])
@pytest.mark.parametrize(("p", "m"), [(1, 5), (2, 4), (4, 4), (4, 8), (5, 10), (8, 16)])
def test_parts_of_microbatches_held_until_their_full_backward(p: int, m: int, virtual: int) -> None:
    """Interleaved: the warm-up and one more, each a v-th of M_B, for m divisible by p."""
    ahead = [(virtual - 1) * p + 2 * (p - 1 - s) + 1 for s in range(p)]
    assert held("interleaved_1f1b", p, m, virtual) == [round(min(m, n / virtual), 4) for n in ahead]


@pytest.mark.parametrize("M_W", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("p", [1, 2, 4, 7])
def test_microbatches_held_until_both_halves_of_their_backward(p: int, M_W: float) -> None:
    """H1: p - s until I, p until W; H2: 2(p - s) - 1 and 2p - 1; ZB-V p and DualPipe p + 1, whatever W leaves."""
    for m in (2 * p - 1, 2 * p, 3 * p + 1):
        assert held("zb_h1", p, m, M_W=M_W) == [p - s + s * M_W for s in range(p)]
        assert held("zb_h2", p, m, M_W=M_W) == [2 * (p - s) - 1 + 2 * s * M_W for s in range(p)]
        assert held("zb_v", p, m, M_W=M_W) == [p] * p
    for m in (2 * p, 2 * p + 2, 4 * p):
        assert held("dualpipe_v", p, m, M_W=M_W) == [p + 0.5] * p
        if p % 2 == 0:
            assert held("dualpipe", p, m, M_W=M_W) == [p + 1] * p


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
