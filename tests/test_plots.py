"""Pictures build for every shape of program, nothing in them overlaps or is cut off, and they say what they must."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.transforms import Affine2D, Bbox

from pdlab import critical, metrics, models, theme
from pdlab.bubbles import unit_bytes
from pdlab.costs import Analytic, Costs, Uniform
from pdlab.lab import lab_nominal
from pdlab.mesh import Mesh
from pdlab.models import Model
from pdlab.ops import PASS_KINDS, STEP, B, F, I, Kind, Op, W
from pdlab.passes import (
    Recompute,
    all_reduce_gradients,
    assign_streams,
    consume_last_uses,
    insert_messages,
    lower,
    shard_weights,
)
from pdlab.plots import bytes_by_collective, compare, critical_path, live_bytes, schedule, timeline
from pdlab.plots.boxes import LOWER, UPPER, WHOLE, Box, boxes
from pdlab.plots.held import Strips, in_M_B
from pdlab.plots.lanes import Lanes
from pdlab.plots.looks import Boxes
from pdlab.plots.numbers import Names, Numbers
from pdlab.plots.units import SECONDS, three_digits, time_unit
from pdlab.program import Program, Role, split_rows
from pdlab.simulate import simulate
from pdlab.strategies import Plan, build, get
from pdlab.trace import Mode, Provenance, Trace

UNITS = Uniform(F=1, B=2, comm=0.1)
SECONDLY = Uniform(F=0.01, B=0.02, I=0.01, W=0.01, comm=0.001, step=0.002)
CLUSTER = Analytic(flops_per_second=2e9, bandwidth=1e8, latency=2e-5)


def one_f_one_b(s: int, p: int, m: int) -> Iterator[Op]:
    warm_up = min(p - 1 - s, m)
    yield from (F(s, i) for i in range(warm_up))
    for i in range(m):
        if warm_up + i < m:
            yield F(s, warm_up + i)
        yield B(s, i)
    yield STEP(s)


def split_backward(s: int, p: int, m: int) -> Iterator[Op]:
    yield from (F(s, i) for i in range(m))
    yield from (op for i in range(m) for op in (I(s, i), W(s, i)))
    yield STEP(s)


def asynchronous(s: int, p: int, m: int) -> Iterator[Op]:
    for op in one_f_one_b(s, p, m):
        yield from [op, STEP(s, op.microbatch)] if op.kind is Kind.BACKWARD else [op] * (op.kind is Kind.FORWARD)


def pipeline(
    schedule: Callable[[int, int, int], Iterator[Op]], p: int, m: int, *, dp: int = 1, model: Model | None = None
) -> Program:
    ops = [list(schedule(s, p, m)) for s in range(p)]
    mesh, rows = Mesh.of(pp=p, dp=dp), split_rows(m * dp, dp, m)
    program = lower(schedule.__name__, ops, model or models.nominal(p), mesh, rows, num_stages=p)
    return assign_streams(consume_last_uses(insert_messages(all_reduce_gradients(program))))


def looped(p: int, m: int) -> Program:
    """Two stages on each rank."""

    def schedule(rank: int) -> Iterator[Op]:
        yield from (F(s, i) for s in (rank, rank + p) for i in range(m))
        yield from (B(s, i) for s in (rank + p, rank) for i in range(m))

    ops = [list(schedule(rank)) for rank in range(p)]
    program = lower("looped", ops, models.nominal(2 * p), Mesh.of(pp=p), split_rows(m, 1, m), num_stages=2 * p)
    return assign_streams(consume_last_uses(insert_messages(program)))


def one_stage(m: int, *, dp: int = 1, tp: int = 1, shard: bool = False, bucket_bytes: int | None = None) -> Program:
    ops = [[op for i in range(m) for op in (F(0, i), B(0, i))] + [STEP(0)]]
    model = models.transformer(tp=tp) if tp > 1 else models.mlp(depth=6)
    rows = split_rows(m * dp * 2, dp, m)
    program = lower("one stage", ops, model, Mesh.of(dp=dp, tp=tp), rows, num_stages=1, optimizer_bytes=8)
    program = shard_weights(program) if shard else all_reduce_gradients(program, bucket_bytes=bucket_bytes)
    return assign_streams(consume_last_uses(program))


def of_catalog(name: str, p: int, m: int, **how: float) -> Program:
    plan = get(name).chosen(Plan(pp=p, microbatches=m, **how))
    return build(get(name), plan, lab_nominal(plan.pp, plan.num_stages))


PROGRAMS: dict[str, Callable[[], tuple[Program, Costs]]] = {
    "one rank": lambda: (pipeline(one_f_one_b, 1, 1), UNITS),
    "1f1b": lambda: (pipeline(one_f_one_b, 4, 8), UNITS),
    "1f1b free messages": lambda: (pipeline(one_f_one_b, 4, 8), Uniform()),
    "1f1b long": lambda: (pipeline(one_f_one_b, 8, 64), SECONDLY),
    "1f1b short": lambda: (pipeline(one_f_one_b, 8, 1), SECONDLY),
    "1f1b segments": lambda: (pipeline(one_f_one_b, 4, 8, model=models.mlp(depth=8)), SECONDLY),
    "1f1b replicated": lambda: (pipeline(one_f_one_b, 4, 4, dp=2), SECONDLY),
    "split": lambda: (pipeline(split_backward, 4, 8), SECONDLY),
    "asynchronous": lambda: (pipeline(asynchronous, 3, 12), SECONDLY),
    "looped": lambda: (looped(4, 4), UNITS),
    "interleaved": lambda: (of_catalog("interleaved_1f1b", 4, 8, virtual=4), UNITS),
    "zb_v": lambda: (of_catalog("zb_v", 8, 16), SECONDLY),
    "dualpipe": lambda: (of_catalog("dualpipe", 4, 8), Uniform(F=1, B=2, FB=2.4, comm=0.1)),
    "dualpipe_v": lambda: (of_catalog("dualpipe_v", 10, 20), Uniform(F=1, B=2, FB=2.4)),
    "ddp naive": lambda: (one_stage(2, dp=2), CLUSTER),
    "ddp": lambda: (one_stage(2, dp=2, bucket_bytes=20_000), CLUSTER),
    "zero3": lambda: (one_stage(3, dp=4, shard=True), CLUSTER),
    "tensor": lambda: (one_stage(2, tp=2), CLUSTER),
    "tensor and data": lambda: (one_stage(1, tp=2, dp=4), CLUSTER),
}
PICTURES = [
    *(("timeline", name) for name in PROGRAMS),
    *(("schedule", name) for name in PROGRAMS if name not in ("ddp naive", "zero3", "tensor and data")),
    *(("compare", name) for name in ("one rank", "1f1b segments", "split", "zero3", "tensor and data", "dualpipe")),
    *(("critical_path", name) for name in PROGRAMS),
    *(("bytes_by_collective", name) for name in ("one rank", "zero3", "tensor and data")),
    *(("live_bytes", name) for name in ("1f1b replicated", "split", "zero3")),
]


@cache
def predicted(name: str) -> Trace:
    program, costs = PROGRAMS[name]()
    return simulate(program, costs)


def picture(plot: str, name: str) -> Figure:
    trace = predicted(name)
    match plot:
        case "compare":
            return compare(trace, measured(trace))
        case "schedule":
            return schedule(trace)
        case "live_bytes":
            return live_bytes(trace)
        case "critical_path":
            return critical_path(trace)
        case "bytes_by_collective":
            others = [predicted(other) for other in ("ddp", "1f1b replicated")]
            return bytes_by_collective([trace, *others], [trace, *map(measured, others)])
    return timeline(trace)


def measured(trace: Trace, slower: float = 1.05) -> Trace:
    """What a run might look like: everything later, and op ends that jitter a little."""
    jitter = np.random.default_rng(0).uniform(0.99, 1.0, len(trace.ends))
    ends = [s * slower + (e - s) * slower * j for s, e, j in zip(trace.starts, trace.ends, jitter, strict=True)]
    starts = [start * slower for start in trace.starts]
    where = Provenance(Mode.PACED, "costs of a test", "a machine with a long name, 2 cores, 8 gloo processes", "0.1", 7)
    return replace(trace, starts=starts, ends=ends, provenance=where)


def drawn(figure: Figure) -> None:
    """Lay everything out as the Agg canvas does, without spending time on the pixels."""
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()


def texts(figure: Figure) -> list[Text]:
    """Every text that is visible; tick labels outside of the view exist but are not drawn."""
    found = [t for t in figure.findobj(Text) if isinstance(t, Text) and t.get_visible() and t.get_text()]
    undrawn = {
        id(label)
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in axis.get_major_ticks()
        for label in (tick.label1, tick.label2)
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    }
    return [t for t in found if id(t) not in undrawn]


def numbers(axes: Axes) -> list[tuple[str, tuple[float, float], Bbox]]:
    """The numbers in boxes: text, middle (in the coordinates of the axes) and window extent."""
    found = []
    for drawn_numbers in (c for c in axes.collections if isinstance(c, Numbers) and c.text):
        shape = drawn_numbers.get_paths()[0].get_extents(drawn_numbers.get_transform())
        for x, y in drawn_numbers.get_offsets():
            found.append(
                (drawn_numbers.text, (x, y), shape.transformed(Affine2D().translate(*axes.transData.transform((x, y)))))
            )
    return found


def corners(axes: Axes) -> np.ndarray:
    """The corners of every box of a timeline, n x 5 x 2: the last one is the first again."""
    drawn_boxes = (c for c in axes.collections if isinstance(c, Boxes))
    return np.concatenate([path.vertices.reshape(-1, 5, 2) for c in drawn_boxes for path in c.get_paths()])


def fills(axes: Axes) -> list[str]:
    """The colour of each of them, in the same order."""
    drawn_boxes = (c for c in axes.collections if isinstance(c, Boxes))
    return [
        to_hex(colour)
        for c in drawn_boxes
        for path, colour in zip(c.get_paths(), c.get_facecolor(), strict=True)
        for _ in range(len(path.vertices) // 5)
    ]


def names(axes: Axes) -> tuple[list[str], Names]:
    [of_rows] = [c for c in axes.collections if isinstance(c, Names)]
    return of_rows.texts, of_rows


def windows(of: Names) -> list[Bbox]:
    """Where each name of a row is drawn, in pixels."""
    middles = of.get_offset_transform().transform(of.get_offsets())
    shapes = [path.get_extents(of.get_transform()) for path in of.get_paths()]
    return [s.transformed(Affine2D().translate(*at)) for s, at in zip(shapes, middles, strict=True)]


def overlapping(found: list[str], boxes_of: np.ndarray) -> list[tuple[str, str]]:
    """Pairs of texts whose boxes (x0, y0, x1, y1 in pixels) share more than a pixel each way."""
    low, high = boxes_of[:, :2], boxes_of[:, 2:]
    shared = np.minimum(high[:, None], high[None]) - np.maximum(low[:, None], low[None])
    pairs = np.argwhere(np.triu((shared > 1).all(axis=2), k=1))
    return [(found[i], found[j]) for i, j in pairs]


def written(figure: Figure) -> tuple[list[str], np.ndarray]:
    """Every text that is visible, names of rows included, and its corners in pixels."""
    found = [(text.get_text(), text.get_window_extent()) for text in texts(figure)]
    for of in (c for axes in figure.axes for c in axes.collections if isinstance(c, Names)):
        found += zip(of.texts, windows(of), strict=True)
    return [text for text, _ in found], np.array([extent.extents for _, extent in found])


@pytest.mark.parametrize(("plot", "name"), PICTURES)
def test_nothing_overlaps_or_is_cut_off(plot: str, name: str) -> None:
    figure = picture(plot, name)
    drawn(figure)
    found, extents = written(figure)
    assert overlapping(found, extents) == []
    width, height = figure.bbox.width, figure.bbox.height
    outside = [t for t, e in zip(found, extents, strict=True) if min(e) < 0 or e[2] > width or e[3] > height]
    assert outside == []
    [legend] = figure.legends
    extent = legend.get_window_extent()
    assert not any(extent.overlaps(axes.get_window_extent()) for axes in figure.axes)
    assert extent.x0 >= 0 and extent.y0 >= 0 and extent.x1 <= width


def test_a_figure_without_communication_says_so() -> None:
    figure = bytes_by_collective([predicted("one rank")])
    drawn(figure)
    assert said(figure).count("none") == 2 and not figure.legends


def test_overlapping_texts_are_noticed() -> None:
    figure = timeline(predicted("1f1b"))
    figure.text(0.1, 0.99, "a second title", va="top")
    drawn(figure)
    [(one, other)] = overlapping(*written(figure))
    assert "a second title" in (one, other)


def test_an_overlapping_name_of_a_row_is_noticed() -> None:
    figure = timeline(predicted("1f1b"))
    drawn(figure)
    [axes] = figure.axes
    at = windows(names(axes)[1])[0]
    figure.text(at.x0 / figure.bbox.width, at.y0 / figure.bbox.height, "x")
    drawn(figure)
    assert overlapping(*written(figure)) == [("x", "rank 0")]


@pytest.mark.parametrize(
    "name",
    ["1f1b", "split", "asynchronous", "looped", "ddp", "tensor", "interleaved", "zb_v", "dualpipe", "dualpipe_v"],
)
def test_a_number_fits_in_its_box(name: str) -> None:
    figure = timeline(predicted(name))
    drawn(figure)
    [axes] = figure.axes
    low, high = corners(axes).min(axis=1), corners(axes).max(axis=1)
    assert numbers(axes)
    for text, _, window in numbers(axes):
        around = window.transformed(axes.transData.inverted())
        inside = (low <= (around.x0, around.ymin)) & ((around.x1, around.ymax) <= high)
        assert inside.all(axis=1).any(), text


@pytest.mark.parametrize("name", ["ddp", "tensor"])
def test_a_number_is_in_the_middle_of_its_box_and_no_seam_runs_through_it(name: str) -> None:
    figure = timeline(predicted(name))
    drawn(figure)
    [axes] = figure.axes
    paths = [Bbox([box.min(axis=0), box.max(axis=0)]) for box in corners(axes)]
    seams = [line for c in axes.collections if isinstance(c, LineCollection) for line in c.get_segments()]
    assert seams and numbers(axes)
    for text, (x, y), around in numbers(axes):
        assert any((p.x0 + p.x1) / 2 == pytest.approx(x) and p.ymin < y < p.ymax for p in paths)
        for line in axes.transData.transform(np.concatenate(seams)).reshape(-1, 2, 2):
            across = around.x0 < line[0, 0] < around.x1 and min(line[:, 1]) < around.y1 and max(line[:, 1]) > around.y0
            assert not across, text


def test_a_pipeline_of_segments_looks_as_in_the_papers() -> None:
    """Two segments to a stage are drawn as one box, numbered once."""
    p, m = 4, 8
    found = [box for box in boxes(predicted("1f1b segments")) if box.kind in (Kind.FORWARD, Kind.BACKWARD)]
    assert len(found) == 2 * p * m
    assert all(box.end - box.start == pytest.approx(0.01 if box.kind is Kind.FORWARD else 0.02) for box in found)
    [axes] = timeline(predicted("1f1b segments")).axes
    assert sorted(int(text) for text, _, _ in numbers(axes)) == sorted(list(range(m)) * 2 * p)


def test_segments_that_wait_for_each_other_stay_apart() -> None:
    trace = simulate(one_stage(1, tp=2), Analytic(2e9, 1e6))
    assert len([box for box in boxes(trace) if box.rank == 0 and box.kind is Kind.FORWARD]) > 1


def share(box: Box) -> float:
    """The part of its row's height."""
    return box.part[1] - box.part[0]


def test_boxes_cover_what_took_time_and_nothing_else() -> None:
    for trace in map(predicted, PROGRAMS):
        took = sum(e - s for s, e in zip(trace.starts, trace.ends, strict=True))
        assert sum((box.end - box.start) * share(box) for box in boxes(trace)) == pytest.approx(took, rel=5e-3)
        assert all(box.end > box.start for box in boxes(trace))


def test_streams_without_anything_to_show_have_no_row() -> None:
    [axes] = timeline(predicted("1f1b free messages")).axes
    assert names(axes)[0] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    [axes] = timeline(predicted("1f1b")).axes
    assert names(axes)[0][:5] == ["rank 0", "to, from 1", "rank 1", "to, from 0", "to, from 2"]


def test_rank_0_is_on_top_and_time_goes_to_the_right() -> None:
    [axes] = timeline(predicted("1f1b")).axes
    (bottom, top), (left, right) = axes.get_ylim(), axes.get_xlim()
    heights = names(axes)[1].get_offsets()[:, 1].tolist()
    assert bottom > top and heights == sorted(heights)
    assert left == 0 and right == pytest.approx(predicted("1f1b").makespan, rel=0.01)


def said(figure: Figure) -> str:
    return " | ".join(text.get_text() for text in texts(figure))


def test_a_timeline_says_makespan_bubble_unit_and_source() -> None:
    words = said(timeline(predicted("1f1b free messages")))
    assert "simulated 33 units, bubble 27.3 %" in words  # 3 (m + p - 1) and (p - 1) / (m + p - 1)
    assert "time (units)" in words and "costs F=1 B=2" in words and "nominal(" in words
    assert "time (ms)" in said(timeline(predicted("1f1b segments")))
    assert "mine: simulated 33,000 ms" in said(timeline(predicted("1f1b free messages"), title="mine", unit=SECONDS[1]))


def test_a_comparison_has_one_time_axis_and_says_the_error() -> None:
    trace = predicted("split")
    run = measured(trace, slower=1.1)
    figure = compare(trace, run)
    words = said(figure)
    assert f"error {100 * (run.makespan / trace.makespan - 1):+.1f} %" in words
    assert "measured (paced)" in words and "seed 7" in words and str(trace.provenance) in words
    assert len(figure.axes) == 3 and len({axes.get_xlim() for axes in figure.axes}) == 1
    ends = [np.max(np.asarray(line.get_xdata(), float)) for line in figure.axes[2].get_lines()]
    assert ends == pytest.approx([1000 * trace.makespan, 1000 * run.makespan])


def test_the_critical_path_is_outlined_and_all_else_dimmed() -> None:
    """At 1F1B with free messages, F and B of 1 and 2: 11 microbatch times of 3, all of them compute."""
    trace = predicted("1f1b free messages")
    figure = critical_path(trace)
    assert "critical path 100 % forward and backward" in said(figure)
    on_path = [box for box in boxes(trace, critical.critical_path(trace)) if box.marked]
    assert sum(box.end - box.start for box in on_path) == trace.makespan
    [axes] = figure.axes
    [outlines] = [c for c in axes.collections if isinstance(c, PolyCollection) and not len(c.get_facecolor())]
    assert len(outlines.get_paths()) == len(on_path)
    strong = {theme.shade(box.kind, theme.PALEST_MICROBATCH * box.microbatch / 7) for box in on_path}
    found = fills(axes)
    assert sum(colour in strong for colour in found) == len(on_path)
    assert {c for c in found if c not in strong} == {theme.shade(k, theme.DIM) for k in (Kind.FORWARD, Kind.BACKWARD)}


def test_the_path_may_leave_a_box_half_way() -> None:
    """The last bucket of DDP leaves after the first of six segments of the backward; they stay two boxes."""
    trace = predicted("ddp")
    marked = boxes(trace, critical.critical_path(trace))
    assert len(marked) > len(boxes(trace))
    assert sum(box.end - box.start for box in marked) == pytest.approx(sum(b.end - b.start for b in boxes(trace)))


def test_bytes_are_those_of_the_metrics_and_a_run_that_differs_is_told() -> None:
    trace = predicted("zero3")
    figure = bytes_by_collective([trace], [trace])
    assert "measured the same" in said(figure)
    widths = [sorted(p.get_width() for p in a.patches if isinstance(p, Rectangle)) for a in figure.axes]
    amounts = [*metrics.bytes_by_collective(trace).values(), *metrics.wire_bytes_by_collective(trace).values()]
    assert len(amounts) == 4 and widths == [pytest.approx(sorted(amount / 1e6 for amount in amounts))]
    total = sum(metrics.bytes_by_collective(trace).values())
    assert f"{total / 1e6:.2f} MB" in said(figure)
    more = replace(trace, moved=[moved + 1 if moved else 0 for moved in trace.moved])
    gathered, expected = (metrics.bytes_by_collective(t)["ALL_GATHER"] for t in (more, trace))
    assert f"measured {gathered:,} bytes of all-gather, not {expected:,}" in said(bytes_by_collective([trace], [more]))
    with pytest.raises(ValueError, match="1 predicted and 2 measured"):
        bytes_by_collective([trace], [trace, more])


def test_live_bytes_say_each_peak() -> None:
    trace = predicted("1f1b")
    peak = max(trace.live[row] for row in trace.rows_of(2))
    assert f"rank 2: peak {peak / 1e6:.0f} MB" in said(live_bytes(trace))


def test_predictions_in_seconds_are_not_called_units() -> None:
    assert time_unit(predicted("1f1b long")).name == "s"
    assert time_unit(predicted("1f1b")).name == "units"
    assert time_unit(predicted("1f1b"), measured(predicted("1f1b"))).name == "s"
    assert time_unit(predicted("ddp")).name == "ms"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (33.0, "33"), (1234.5, "1,234"), (99.96, "100.0"), (12.34, "12.3"), (0.0456, "0.0456"), (2.001, "2")],
)
def test_numbers_have_three_digits(number: float, text: str) -> None:
    assert three_digits(number) == text


def test_every_kind_and_every_heavy_role_has_a_look() -> None:
    assert set(theme.COLOURS) == set(theme.WORDS) == set(Kind)
    weightless = {Role.TOKEN, Role.FLAG, Role.FACT, Role.SCALE, Role.LOSS}
    assert {role for share in theme.MEMORY for role in share.roles} == set(Role) - weightless


def test_numbers_stand_out_from_their_boxes() -> None:
    for kind in (Kind.FORWARD, Kind.BACKWARD):
        inks = {theme.ink_on(theme.shade(kind, theme.PALEST_MICROBATCH * i / 8)) for i in range(9)}
        assert len(inks) == 1
    assert theme.ink_on(theme.COLOURS[Kind.FORWARD]) == theme.PAPER
    assert theme.ink_on(theme.COLOURS[Kind.BACKWARD]) == theme.INK


# --- several stages on a rank, and pairs


def lightness(colour: str) -> float:
    """How light a colour is in greyscale print, from 0 to 100 (CIE L*)."""
    channels = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return float(116 * np.dot((0.2126, 0.7152, 0.0722), channels) ** (1 / 3) - 16)


def test_stages_of_a_rank_are_told_apart_in_print_and_from_backwards() -> None:
    """Four greys at equal distances: forward, later forward, backward, later backward."""
    trace = simulate(of_catalog("interleaved_1f1b", 4, 8), UNITS)
    [axes] = timeline(trace).axes
    greys = sorted(map(lightness, set(fills(axes)) - {theme.shade(Kind.SEND)}))
    assert len(greys) == 4 and min(np.diff(greys)) > 10
    looks = Lanes(trace, trace.makespan).looks(time_unit(trace)).values()
    assert {(look.box.stage >= 4, look.paleness > 0) for look in looks if look.box.kind in PASS_KINDS} == {
        (False, False),
        (True, True),
    }
    assert "lighter: a later stage of the rank" in legend(timeline(trace))
    assert "lighter" not in legend(timeline(predicted("1f1b")))


def legend(figure: Figure) -> str:
    return " | ".join(text.get_text() for text in figure.legends[0].get_texts())


def test_ops_are_written_out_where_a_rank_has_several_stages_and_there_is_room() -> None:
    figure = timeline(predicted("dualpipe"))
    assert {"0F0", "3I4", "1B1"} <= {text for text, _, _ in numbers(figure.axes[0])}
    assert "stage, op, microbatch" in legend(figure)
    figure = timeline(predicted("zb_v"))
    assert all(text.isdigit() for text, _, _ in numbers(figure.axes[0]))


def test_a_few_numbers_are_left_out() -> None:
    """Of 64 microbatches only those of one digit would fit, and only where boxes are as wide as a pair."""
    [axes] = timeline(simulate(of_catalog("dualpipe", 16, 64), UNITS)).axes
    assert numbers(axes) == []


def test_a_forward_and_a_backward_that_overlap_are_one_above_the_other() -> None:
    trace = predicted("dualpipe")
    pairs = [op for rank in trace.program.ranks for op in rank.ops if op.pair >= 0]
    halves = [box for box in boxes(trace) if box.part is not WHOLE]
    assert len(halves) == len(pairs) and all(box.end - box.start == pytest.approx(2.4) for box in halves)
    upper, lower = ({(b.rank, b.start): b for b in halves if b.part is part} for part in (UPPER, LOWER))
    assert upper.keys() == lower.keys()
    assert {b.kind for b in upper.values()} == {Kind.FORWARD} and {b.kind for b in lower.values()} == {Kind.BACKWARD}
    assert "a forward and a backward that overlap" in legend(timeline(trace))
    assert "overlap" not in legend(timeline(predicted("1f1b")))


def test_a_pair_with_something_between_is_not_drawn_as_one() -> None:
    plan = get("dualpipe_v").chosen(Plan(pp=2, microbatches=4, recompute=Recompute.STAGE))
    program = build(get("dualpipe_v"), plan, lab_nominal(2, 4))
    assert any(op.pair >= 0 for rank in program.ranks for op in rank.ops)
    assert all(box.part is WHOLE for box in boxes(simulate(program, UNITS)))


# --- what each rank holds


@pytest.mark.parametrize(("name", "unit"), [("zb_v", 1e6), ("dualpipe", 1e6), ("split", 1e6), ("1f1b segments", None)])
def test_strips_hold_what_the_metrics_say(name: str, unit: float | None) -> None:
    trace = predicted(name)
    strips = Strips(trace)
    peaks = metrics.peak_activations_per_rank(trace, unit or unit_bytes(trace.program))
    assert strips.peaks == pytest.approx(peaks)
    figure = schedule(trace)
    words, _ = names(figure.axes[1])
    assert words == [f"rank {rank}: {in_M_B(peak)}" for rank, peak in enumerate(peaks)]
    assert f"peak {in_M_B(max(peaks))} M_B" in said(figure)
    assert len({axes.get_xlim() for axes in figure.axes}) == 1


def test_a_strip_is_as_high_as_what_is_held_at_any_time() -> None:
    """Of all that is drawn above a rank's floor at a moment, the top is what the metrics count then."""
    trace = predicted("split")
    strips, figure = Strips(trace), schedule(trace)
    areas = [path for c in figure.axes[1].collections if isinstance(c, PolyCollection) for path in c.get_paths()]
    for rank in range(4):
        times, held = metrics.held_over_time(trace, rank, metrics.ACTIVATION_ROLES)
        floor = (rank + 1) * strips.height / 4
        mine = [path for path in areas if path.get_extents().y1 == pytest.approx(floor, abs=strips.strip)]
        mine = [path for path in mine if floor - strips.strip - 1e-9 <= path.get_extents().y0]
        for start, end, amount in zip(times, [*times[1:], trace.makespan], held, strict=True):
            if end > start + 1e-6:
                at = 1000 * (start + end) / 2
                top = min(y for path in mine for (x0, y), (x1, _) in pairwise(path.vertices) if x0 <= at <= x1)
                assert (floor - top) / strips.strip * max(strips.peaks) == pytest.approx(amount / 1e6, abs=1e-6)
