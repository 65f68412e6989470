"""The automatic schedule against the published bubble rates, against every order there is, and against its own rules.

`spans` and `peaks` are an oracle of their own: they share nothing with the search but the ops.
"""

import csv
import inspect
import math
import random
from itertools import accumulate, product
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pdlab import metrics, models
from pdlab.costs import Link, Uniform
from pdlab.ops import STEP, F, I, Op, W, parse
from pdlab.simulate import simulate
from pdlab.strategies import Plan, automatic, lower_schedule
from pdlab.strategies.automatic import Times, zb_auto

PUBLISHED = Path(__file__).parent.parent / "data" / "published"
EVEN = Times()


def spans(schedule: list[list[Op]], times: Times) -> list[float]:
    """From the first to the last compute op of each stage, if each runs its list in order and messages take `comm`;
    infinite where they would wait for each other."""
    scale = times.scale or (1.0,) * len(schedule)
    seconds = {"F": times.F, "I": times.I, "W": times.W}
    ends: dict[tuple[str, int, int], float] = {}
    first: dict[int, float] = {}
    clock, todo = [0.0] * len(schedule), [[op for op in ops if op.kind.value != "STEP"] for ops in schedule]
    while any(todo):
        before = len(ends)
        for s, ops in enumerate(todo):
            while ops:
                kind, i = ops[0].kind.value, ops[0].microbatch
                needed = {"F": ("F", s - 1, i), "I": ("I", s + 1, i), "W": ("I", s, i)}[kind]
                needed = ("F", s, i) if kind == "I" and s == len(schedule) - 1 else needed
                if needed not in ends and needed[1] >= 0:
                    break
                arrival = ends.get(needed, 0.0) + (times.comm if 0 <= needed[1] != s else 0.0)
                start = max(clock[s], arrival)
                first.setdefault(s, start)
                ends[kind, s, i] = clock[s] = start + seconds[kind] * scale[s]
                del ops[0]
        if len(ends) == before:
            return [math.inf]
    return [clock[s] - first[s] for s in range(len(schedule))]


def peaks(schedule: list[list[Op]], M_W: float) -> list[float]:
    """The most that each stage holds, in units of M_B."""
    adds = {"F": 1.0, "I": M_W - 1.0, "W": -M_W, "STEP": 0.0}
    return [max(accumulate(adds[op.kind.value] for op in ops)) for ops in schedule]


def one_f_one_b_split(p: int, m: int) -> list[list[Op]]:
    """1F1B where rank s puts off s of its W: the order of ZB-H1, which holds as much as 1F1B does."""
    schedule = []
    for s in range(p):
        ahead = p - 1 - s
        ops = [F(s, i) for i in range(min(ahead, m))]
        for i in range(m + s):
            ops += [F(s, i + ahead)] if i + ahead < m else []
            ops += [I(s, i)] if i < m else []
            ops += [W(s, i - s)] if i >= s else []
        schedule.append(ops)
    return schedule


def table(name: str) -> list[dict[str, str]]:
    with (PUBLISHED / name).open() as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


MODELS = {row["model"]: row for row in table("zero_bubble_table3_models.csv")}
MEASURED, RATES = table("zero_bubble_table9_profiled_times.csv"), table("zero_bubble_table5_bubble_rates.csv")


def measured(row: int) -> tuple[int, int, Times]:
    """M_B = 34h + 5as and M_W = 32h for each token (Qi et al. 2024, section 2.2)."""
    h, a, s = (int(MODELS[MEASURED[row]["model"]][key]) for key in ("hidden", "heads", "seq"))
    forward, backward_input, backward_weight, comm = (float(MEASURED[row][key]) for key in ("TF", "TB", "TW", "Tcomm"))
    times = Times(forward, backward_input, backward_weight, comm, M_W=32 * h / (34 * h + 5 * a * s))
    return int(MEASURED[row]["p"]), int(MEASURED[row]["m"]), times


@pytest.mark.parametrize(("column", "per_stage"), [("ZB-1p", 1), ("ZB-2p", 2)])
@pytest.mark.parametrize("row", range(len(MEASURED)))
def test_bubble_rates_of_the_zero_bubble_paper(row: int, column: str, per_stage: int) -> None:
    """Qi et al. 2024, tables 9 and 5: rate = (cost - m (TF + TB + TW)) / cost, to the four printed digits."""
    p, m, times = measured(row)
    schedule = zb_auto(p, m, per_stage * p, times)
    cost = max(spans(schedule, times))
    assert round(1 - m * (times.F + times.I + times.W) / cost, 4) == float(RATES[row][column])
    assert max(peaks(schedule, times.M_W)) <= per_stage * p + 1e-6


positive = st.floats(0.01, 100) | st.sampled_from([0.0, 0.1, 0.3, 1.0])


@st.composite
def searches(draw: st.DrawFn) -> tuple[int, int, float, Times]:
    p, m = draw(st.integers(1, 8)), draw(st.integers(1, 16))
    scale = draw(st.just(()) | st.tuples(*[st.floats(0.3, 3)] * p))
    F, I, W, comm = (draw(positive) for _ in range(4))
    limit = draw(st.sampled_from([1.0, float(p), 2.0 * p, math.inf]) | st.floats(1, 2 * p + 1))
    return p, m, limit, Times(F, I, W, comm, draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]) | st.floats(0, 1)), scale)


@given(searches())
@example((4, 3, 1.3, Times(0.0, 0.0, 0.0, 0.0, M_W=0.1)))
@example((4, 10, 4.0, Times(1.0, 1.1, 1.9, 0.45)))  # here the grid alone finds nothing as good as 1F1B
@settings(max_examples=300, deadline=None, derandomize=True)
def test_whatever_the_times_it_is_complete_within_the_limit_and_no_worse_than_1f1b(
    search: tuple[int, int, float, Times],
) -> None:
    p, m, limit, times = search
    schedule = zb_auto(*search)
    for s, ops in enumerate(schedule):
        assert set(ops) == {STEP(s), *(make(s, i) for make in (F, I, W) for i in range(m))}
        assert len(ops) == 3 * m + 1 and ops[-1] == STEP(s)
    assert max(peaks(schedule, times.M_W)) <= limit + 1e-6
    cost = max(spans(schedule, times))
    assert math.isfinite(cost)
    by_hand = one_f_one_b_split(p, m)
    if max(peaks(by_hand, times.M_W)) <= limit:
        assert cost <= max(spans(by_hand, times)) * (1 + 1e-9) + 1e-9


def every_order(s: int, m: int, done: tuple[int, int, int] = (0, 0, 0)) -> list[list[Op]]:
    """All orders of a stage's F, I and W in which microbatches keep theirs."""
    f, i, w = done
    orders = []
    for op, can, then in (
        (F(s, f), f < m, (f + 1, i, w)),
        (I(s, i), i < f, (f, i + 1, w)),
        (W(s, w), w < i, (f, i, w + 1)),
    ):
        orders += [[op, *rest] for rest in every_order(s, m, then)] if can else []
    return orders or [[]]


@pytest.mark.parametrize("seed", range(24))
def test_two_stages_do_as_well_as_the_best_of_all_orders(seed: int) -> None:
    draw = random.Random(seed)
    m = 2 + (seed % 4 == 0)
    scale = (1.0, draw.uniform(0.3, 3)) if seed % 2 else ()
    forward, backward_input, backward_weight, comm = (draw.uniform(0.2, 2) for _ in range(4))
    times = Times(forward, backward_input, backward_weight, comm / 2, draw.uniform(0, 1), scale)
    limit = draw.choice([1, 1.5, 2, 3, 4])
    allowed = [[ops for ops in every_order(s, m) if peaks([ops], times.M_W)[0] <= limit] for s in range(2)]
    best = min(max(spans(list(both), times)) for both in product(*allowed))
    assert max(spans(zb_auto(2, m, limit, times), times)) == pytest.approx(best)


@pytest.mark.parametrize(
    ("field", "value", "search"),
    [
        ("slope", 1, (4, 5, 8, Times(1.8, 0.5, 0.6))),
        ("slope", math.inf, (4, 8, 8, EVEN)),
        ("delay_first", True, (2, 7, 4, Times(1.0, 1.6, 1.0, 0.1))),
        ("delay_first", False, (*measured(0)[:2], 16, measured(0)[2])),
        ("tolerance", 0.0, (3, 6, 4.5, Times(1.1, 1.0, 1.0, 0.4))),
        ("tolerance", 0.25, (5, 14, 7.5, Times(1.0, 1.7, 1.1, 0.7))),
        ("tolerance", -math.inf, (3, 9, 4, Times(1.9, 1.0, 2.2))),
    ],
)
def test_the_grid_has_nothing_to_spare(
    field: str, value: float, search: tuple[int, int, float, Times], monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = max(spans(zb_auto(*search), search[3]))
    others = tuple(choice for choice in automatic.GRID if getattr(choice, field) != value)
    monkeypatch.setattr(automatic, "GRID", others)
    assert max(spans(zb_auto(*search), search[3])) > cost * 1.001


def test_a_full_stage_does_not_wait_for_a_forward() -> None:
    """It is 27.3 where the gap until a forward that memory has no room for counts as short."""
    times = Times(F=0.5, I=1.0, W=1.0, comm=0.3, M_W=0.8)
    assert max(spans(zb_auto(4, 9, 5, times), times)) <= 26.8 + 1e-9


@pytest.mark.parametrize("p", [1, 2, 3, 4, 6, 8])
def test_what_each_unit_of_memory_buys_where_all_ops_take_the_same(p: int) -> None:
    """From p M_B on (ZB-H1) each further one is worth one op; with 2p - 1 there is no bubble left."""
    m = 2 * p + 1
    bubbles = [max(spans(zb_auto(p, m, limit), EVEN)) - 3 * m for limit in range(p, 2 * p + 1)]
    assert bubbles == [max(0, 2 * p - 1 - limit) for limit in range(p, 2 * p + 1)]


@pytest.mark.parametrize("p", [1, 2, 4, 8])
def test_no_bubble_from_2p_minus_1_microbatches_on(p: int) -> None:
    """Fewer have to go there and back: 2m ops of the last stage, 2 (p - 1) of the others on the way, and one W."""
    for m in range(1, 3 * p):
        assert max(spans(zb_auto(p, m, 2 * p), EVEN)) == max(3 * m, 2 * m + 2 * (p - 1) + 1)


@pytest.mark.parametrize(("p", "m", "limit"), [(4, 8, 4), (4, 8, 8), (4, 3, 2), (6, 12, 7.5)])
def test_the_simulator_agrees(p: int, m: int, limit: float) -> None:
    times = Times(F=3, I=2.5, W=2, comm=0.25, M_W=0.5)
    schedule = zb_auto(p, m, limit, times)
    model = models.nominal(p, M_B=1.0, M_W=times.M_W)
    program = lower_schedule("zb_auto", schedule, Plan(pp=p, microbatches=m), model)
    costs = Uniform(F=times.F, I=times.I, W=times.W, comm=times.comm, link=Link.INDEPENDENT)
    trace = simulate(program, costs)
    assert metrics.largest_rank_span(trace) == pytest.approx(max(spans(schedule, times)))
    assert metrics.peak_activations_per_rank(trace, 1_000_000) == pytest.approx(peaks(schedule, times.M_W))


def test_units_of_time_and_rounding_make_no_difference() -> None:
    """In floats 0.1 + 0.2 is more than 0.3, and 0.14 + 1 more than 1.14; no gap and no W must hang on it."""
    expected = zb_auto(4, 8, 8, Times(1, 2, 3, 1))
    assert zb_auto(4, 8, 8, Times(0.1, 0.2, 0.3, 0.1)) == expected
    assert zb_auto(4, 8, 8, Times(1e9, 2e9, 3e9, 1e9)) == expected
    assert max(spans(zb_auto(2, 2, 1.14, Times(M_W=0.14)), EVEN)) == 9  # it is 10 where F1 has to wait for W0


@pytest.mark.parametrize("scale", [1e-300, 5e-324, 1e300])
def test_times_may_be_as_small_or_as_large_as_numbers_get(scale: float) -> None:
    assert math.isfinite(max(spans(zb_auto(3, 4, 3, Times(scale, scale, scale)), EVEN)))


@pytest.mark.parametrize("limit", [2, 4])
def test_the_pictures_of_the_docstring(limit: int) -> None:
    text = inspect.getdoc(automatic) or ""
    drawn = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("    rank")]
    rows = drawn[:2] if limit == 2 else drawn[2:]
    ops = [[parse(f"{s}{cell}") for cell in row if cell.strip()] for s, row in enumerate(rows)]
    assert ops == [stage[:-1] for stage in zb_auto(2, 4, limit)]
    assert [len(row) for row in rows] == spans(ops, EVEN)


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(ValueError, match=r"a memory limit of 0.5 M_B; .* at least 1"):
        zb_auto(4, 8, 0.5)
    with pytest.raises(ValueError, match="a memory limit of nan"):
        zb_auto(4, 8, math.nan)
    with pytest.raises(ValueError, match="2 scales for 4 stages"):
        zb_auto(4, 8, 4, Times(scale=(1.0, 2.0)))
    with pytest.raises(ValueError, match="finite number of at least 0"):
        Times(F=-1.0)
    with pytest.raises(ValueError, match=r"M_W is 1\.5"):
        Times(M_W=1.5)
