"""The bubbles of all schedules: the numbers, and the picture of them."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from pdlab import bubbles, metrics, models, plots, theme
from pdlab.bubbles import PIPELINES, Bubbles, Point, check, idle_between, predicted, sweep, unit_bytes, within_span
from pdlab.costs import Uniform
from pdlab.lab import lab_nominal, lab_transformer
from pdlab.ops import Kind
from pdlab.plots.bubbles import LOOKS
from pdlab.plots.line_ends import End, spread, tags
from pdlab.simulate import simulate
from pdlab.strategies import Plan, build, get

SMALL = {"p": 4, "microbatches": (4, 8), "ranks": (2, 4), "m": 8}


# --- the numbers


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 12)])
def test_bubbles_and_peaks_by_hand(p: int, m: int) -> None:
    """At F = I = W = 1 and free messages; what is idle within the span of a rank as in arXiv:2401.10241, table 2."""
    points = {name: predicted(name, p, m) for name in PIPELINES}
    assert points["naive"].bubble == pytest.approx((p - 1) / p)
    assert points["gpipe"].bubble == points["1f1b"].bubble == pytest.approx((p - 1) / (m + p - 1))
    assert points["interleaved_1f1b"].bubble == pytest.approx((p - 1) / (2 * m + p - 1))
    h1 = points["zb_h1"]
    assert [h1.bubble, h1.within] == pytest.approx([(p - 1) / (3 * m + p - 1)] * 2)
    assert [points[name].within for name in ("zb_h2", "zb_v")] == pytest.approx([0, 0])
    assert points["zb_h2"].bubble == pytest.approx((p - 1) / (3 * m + p - 1))
    peaks = {name: points[name].peak for name in ("naive", "gpipe", "1f1b", "zb_h1", "zb_h2", "zb_v", "zb_auto")}
    assert peaks == {"naive": 1, "gpipe": m, "1f1b": p, "zb_h1": p, "zb_h2": 2 * p - 1, "zb_v": p, "zb_auto": p}
    assert points["dualpipe"].peak == p + 1


def test_a_search_for_an_order_knows_the_costs() -> None:
    """With a short backward the best order is another one than with equal times."""
    costs = Uniform(F=1, I=0.5, W=0.5)
    plan = get("zb_auto").chosen(Plan(pp=4, microbatches=8))
    ignorant = simulate(build(get("zb_auto"), plan, lab_nominal(4, 4)), costs)
    assert predicted("zb_auto", 4, 8, costs).within < within_span(ignorant)


def test_a_search_for_an_order_knows_how_much_a_weight_gradient_still_holds() -> None:
    """With half of it, as the search supposes by itself, it would put off more than fits."""
    assert predicted("zb_auto", 4, 8, Uniform(F=1, I=1, W=2)).peak == 4


def test_idle_is_counted_between_the_first_op_of_a_rank_and_its_last() -> None:
    """Rank 0 is idle for 3 of 6, and rank 1, whose backward is made to take 38 longer, for none of 41."""
    trace = simulate(build(get("1f1b"), Plan(pp=2, microbatches=1), models.nominal(2)), Uniform(F=1, B=2))
    ends = [42.0 if (start, end) == (2, 4) else end for start, end in zip(trace.starts, trace.ends, strict=True)]
    longer = replace(trace, ends=ends)
    assert within_span(trace) == pytest.approx(3 / 6) and within_span(longer) == 0
    assert idle_between(trace) == idle_between(longer) == 3


def test_M_B_is_what_a_p_th_of_the_model_saves() -> None:
    for name in ("1f1b", "zb_v", "dualpipe"):  # 4, 8 and 4 stages on 4 ranks
        plan = get(name).chosen(Plan(pp=4, microbatches=8))
        assert unit_bytes(build(get(name), plan, lab_nominal(4, plan.num_stages))) == 1e6
    plan = get("zb_v").chosen(Plan(pp=2, microbatches=4, batch=8))
    program = build(get("zb_v"), plan, lab_transformer(plan, 4))
    saved = [sum(program.model.segments[name].saved.per_row for name in stage) for stage in program.stages]
    assert unit_bytes(program) == 2 * 2 * max(saved)  # two rows of two stages
    assert unit_bytes(build(get("1f1b"), Plan(pp=2), models.nominal(2, M_B=0, M_W=0))) == 1


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 12), (8, 16)])
def test_closed_forms_hold_at_equal_times_and_free_messages(p: int, m: int) -> None:
    found = check(p, m)
    assert {one.strategy for one in found} == set(PIPELINES) - {"zb_auto"}
    assert [one for one in found if not one.agrees] == []


@pytest.mark.parametrize(
    ("m", "costs", "differ"),
    [
        (3, Uniform(), {"interleaved_1f1b", "zb_h1", "zb_h2", "zb_v", "dualpipe_v"}),
        (10, Uniform(), set()),
        (8, Uniform(comm=0.25), set(PIPELINES) - {"zb_auto"}),
        (8, Uniform(F=1, I=1.5, W=0.5), {"zb_v", "dualpipe", "dualpipe_v"}),
        (8, Uniform(F=1, I=1, W=2), {"zb_h1", "zb_h2", "zb_v", "dualpipe", "dualpipe_v"}),
    ],
)
def test_closed_forms_differ_where_what_they_suppose_does_not_hold(m: int, costs: Uniform, differ: set[str]) -> None:
    assert {one.strategy for one in check(4, m, costs) if not one.agrees} == differ


@pytest.mark.parametrize("FB", [3.0, 2.4, 2.0])
def test_a_pair_that_takes_less_leaves_less_idle_than_its_closed_form(FB: float) -> None:
    """It is exact where a pair takes F + B; below, the way there and back gets shorter than the form supposes."""
    for one in check(8, 16, Uniform(F=1, B=2, FB=FB)):
        if "dualpipe" in one.strategy:
            assert one.agrees == (FB == 3.0)
            assert one.simulated <= one.closed_form + 1e-9


def test_a_sweep_has_every_schedule_at_every_shape_that_it_takes() -> None:
    found = sweep(**SMALL)
    shapes = [(p.strategy, p.p, p.m) for p in found.over_microbatches]
    assert shapes == [(n, 4, m) for n in PIPELINES for m in (4, 8) if (n, m) != ("dualpipe", 4)]
    assert [(p.strategy, p.p, p.m) for p in found.over_ranks] == [(n, p, 8) for n in PIPELINES for p in (2, 4)]
    assert found.over_ranks[-1] == predicted("dualpipe_v", 4, 8)
    assert {p.strategy for p in sweep(**SMALL, names=("gpipe",)).over_ranks} == {"gpipe"}


def test_an_error_of_another_kind_is_not_taken_for_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr(bubbles, "simulate", broken)
    with pytest.raises(ValueError, match="a defect"):
        sweep(**SMALL, names=("gpipe",))


# --- the picture


@pytest.fixture(scope="module")
def found() -> Bubbles:
    return sweep(**SMALL)


def drawn(found: Bubbles) -> Figure:
    figure = plots.bubbles(found)
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    return figure


def texts(figure: Figure) -> list[Text]:
    words = [t for t in figure.findobj(Text) if isinstance(t, Text) and t.get_visible() and t.get_text()]
    ticks = {id(label) for axes in figure.axes for label in (*axes.get_xticklabels(), *axes.get_yticklabels())}
    return [t for t in words if id(t) not in ticks]


def many(names: Sequence[str]) -> Bubbles:
    """Every schedule, all ending as near to each other as they can without being one."""
    points = [Point(n, 8, m, (0.2 + i / 200) / m, 0.1, 1.0, 8 + i / 9) for i, n in enumerate(names) for m in (8, 16)]
    return Bubbles(8, 16, tuple(points), tuple(Point(p.strategy, p.m, 16, *_rest(p)) for p in points), Uniform())


def _rest(point: Point) -> tuple[float, float, float, float]:
    return point.bubble, point.within, point.idle, point.peak


@pytest.mark.parametrize("crowded", [False, True])
def test_no_name_covers_another_or_is_cut_off(found: Bubbles, crowded: bool) -> None:
    figure = drawn(many(PIPELINES) if crowded else found)
    extents = np.array([t.get_window_extent().extents for t in texts(figure)])
    low, high = extents[:, :2], extents[:, 2:]
    shared = np.minimum(high[:, None], high[None]) - np.maximum(low[:, None], low[None])
    assert not np.triu((shared > 1).all(axis=2), k=1).any()
    assert (low >= 0).all() and (high <= (figure.bbox.width, figure.bbox.height)).all()
    names = [t for t in texts(figure) if set(t.get_text().replace("*", "").replace("\n", " ").split(", ")) & set(LOOKS)]
    panels = [axes.get_window_extent() for axes in figure.axes]
    assert names and not any(t.get_window_extent().overlaps(panel) for t in names for panel in panels)


def test_every_schedule_is_named_once_in_each_panel_and_drawn_as_simulated(found: Bubbles) -> None:
    figure = drawn(found)
    for axes, points, value in zip(
        figure.axes, (found.over_microbatches, found.over_ranks) * 2, ("bubble", "bubble", "peak", "peak"), strict=True
    ):
        named = ", ".join(t.get_text().replace("\n", " ") for t in axes.texts).replace("*", "").split(", ")
        assert sorted(named) == sorted(PIPELINES)
        lines = {tuple(np.round(line.get_ydata(), 9)) for line in axes.get_lines() if line.get_marker() != "None"}
        wanted = {n: [getattr(p, value) for p in points if p.strategy == n] for n in PIPELINES}
        assert lines == {tuple(np.round([y for y in ys if y >= 1e-3], 9)) for ys in wanted.values()}


def test_those_that_are_only_shifted_have_a_star(found: Bubbles) -> None:
    figure = drawn(found)
    named = " ".join(t.get_text() for t in figure.axes[0].texts)
    assert "zb_h2*" in named and "zb_v*" in named and "zb_h1*" not in named and "1f1b*" not in named
    assert not any("*" in t.get_text() for t in figure.axes[2].texts)


def test_all_lines_differ_in_dashes_or_colour_and_a_family_shares_its_colour() -> None:
    assert set(LOOKS) == set(PIPELINES) and len(set(LOOKS.values())) == len(LOOKS)
    assert {LOOKS[name][0] for name in PIPELINES if name.startswith("zb_")} == {theme.COLOURS[Kind.BACKWARD_WEIGHT]}


ENDS = st.lists(st.floats(0, 3), min_size=1, max_size=10)


@given(ENDS)
def test_names_stay_in_order_apart_and_in_the_panel(ys: list[float]) -> None:
    wanted = tags([End(f"name{i}", "#000000", 3.0, y) for i, y in enumerate(ys)], 12)
    middles = spread(wanted, 3.0)
    for (one, a), (other, b) in pairwise(zip(wanted, middles, strict=True)):
        assert b - a >= (one.height + other.height) / 2 - 1e-9
    assert middles[0] - wanted[0].height / 2 >= -1e-9
    if sum(tag.height for tag in wanted) <= 3.0:
        assert middles[-1] + wanted[-1].height / 2 <= 3.0 + 1e-9


@given(ENDS)
def test_names_with_room_stand_at_their_lines(ys: list[float]) -> None:
    wanted = tags([End(f"name{i}", "#000000", 3.0, y) for i, y in enumerate(ys)], 12)
    apart = all(b.y - a.y > (a.height + b.height) / 2 for a, b in pairwise(wanted))
    if apart and all(tag.height / 2 < tag.y < 3.0 - tag.height / 2 for tag in wanted):
        assert spread(wanted, 3.0) == pytest.approx([tag.y for tag in wanted])


def test_names_that_are_too_near_move_apart_by_as_much() -> None:
    wanted = tags([End("a", "#000000", 3.0, 1.0), End("b", "#000000", 3.0, 1.1)], 12)
    low, high = spread(wanted, 3.0)
    assert high - low == pytest.approx(wanted[0].height) and (low + high) / 2 == pytest.approx(1.05)


def test_ends_at_one_place_share_a_name_in_the_order_of_the_lines() -> None:
    ends = [End("b", "#000001", 1, 1), End("a", "#000001", 1, 1.0), End("c", "#000002", 1, 2), End("d", "#3", 2, 2)]
    assert [tag.lines for tag in tags(ends, 20)] == [("b, a",), ("c",), ("d",)]
    assert tags(ends, 20)[0].colour == "#000001"


def test_activations_are_those_of_the_metrics() -> None:
    trace = simulate(build(get("gpipe"), Plan(pp=2, microbatches=3), models.nominal(2)), Uniform())
    assert predicted("gpipe", 2, 3).peak == max(metrics.peak_activations_per_rank(trace, 1e6))
