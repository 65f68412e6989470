"""The timeline of weight versions: its colours, its red and its strips are what the ledger and the program say."""

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from test_plots import (
    corners,
    drawn,
    fills,
    legend,
    lightness,
    measured,
    names,
    numbers,
    overlapping,
    said,
    written,
)

from pdlab import metrics, plots, theme
from pdlab.costs import Uniform
from pdlab.lab import lab_mlp, lab_nominal
from pdlab.ledger import START, Ledger
from pdlab.models import Model
from pdlab.ops import BACKWARD_KINDS, FORWARD_KINDS, PASS_KINDS, Kind, Op
from pdlab.program import Program, Role
from pdlab.simulate import simulate
from pdlab.steady import seconds_per_minibatch
from pdlab.strategies import Plan, build, get
from pdlab.strategies.stopped import stopped
from pdlab.trace import Trace

UNITS = Uniform(F=1, B=2, comm=0.1)


def nominal(plan: Plan) -> Model:
    return lab_nominal(plan.pp, plan.num_stages)


def mlp(plan: Plan) -> Model:
    """Several layers, and so several weights, on each stage."""
    return lab_mlp(plan, 4, depth=4)


def program(name: str, model: Callable[[Plan], Model] = nominal, **plan: object) -> Program:
    chosen = get(name).chosen(Plan(**plan))  # type: ignore[arg-type]
    return build(get(name), chosen, model(chosen))


PROGRAMS: dict[str, Callable[[], Program]] = {
    "naive": lambda: program("pipedream_naive", pp=4, microbatches=10),
    "stash": lambda: program("pipedream", pp=4, microbatches=10),
    "vertical sync": lambda: program("pipedream_vertical_sync", pp=4, microbatches=10),
    "2bw": lambda: program("pipedream_2bw", pp=4, microbatches=10, accumulate=4),
    "flush": lambda: program("pipedream_flush", pp=4, microbatches=10, accumulate=4),
    "3:1": lambda: program("pipedream", pp=4, microbatches=10, replicas=(3, 1)),
    "1:2:1": lambda: program("pipedream", pp=4, microbatches=10, replicas=(1, 2, 1)),
    "naive 2:2": lambda: program("pipedream_naive", pp=4, microbatches=7, replicas=(2, 2)),
    "naive on two": lambda: program("pipedream_naive", pp=2, microbatches=6),
    "long": lambda: program("pipedream", pp=8, microbatches=30),
    "naive long": lambda: program("pipedream_naive", pp=8, microbatches=30),
    "low": lambda: program("pipedream", pp=10, microbatches=3),
    "layers": lambda: program("pipedream", mlp, pp=3, microbatches=12),
    "data parallel": lambda: program("pipedream", mlp, pp=2, dp=2, microbatches=4),
    "one rank": lambda: program("pipedream", pp=1, microbatches=3),
    "1f1b": lambda: program("1f1b", pp=4, microbatches=8),
    "dualpipe": lambda: program("dualpipe", lambda _: lab_nominal(4, 4), pp=4, microbatches=8),
}
INCONSISTENT = {"naive", "naive 2:2", "naive on two", "naive long"}
LEGIBLE = [*PROGRAMS, *(f"{name} measured" for name in ("naive", "3:1", "long"))]


@cache
def predicted(name: str) -> Trace:
    """By the name of a program; with `measured`, as a run of it might look like."""
    if name.endswith(" measured"):
        return measured(predicted(name.removesuffix(" measured")))
    return simulate(PROGRAMS[name](), Uniform(0.04, 0.08, comm=0.008, step=0.01) if name == "layers" else UNITS)


@cache
def picture(name: str) -> Figure:
    figure = plots.versions(predicted(name))
    drawn(figure)
    return figure


def title(figure: Figure) -> str:
    """On one line."""
    return " ".join(figure.texts[0].get_text().split())


# --- legible


@pytest.mark.parametrize("name", LEGIBLE)
def test_nothing_overlaps_or_is_cut_off(name: str) -> None:
    figure = picture(name)
    found, extents = written(figure)
    assert overlapping(found, extents) == []
    width, height = figure.bbox.width, figure.bbox.height
    assert [t for t, e in zip(found, extents, strict=True) if min(e) < 0 or e[2] > width or e[3] > height] == []
    [words] = figure.legends
    extent = words.get_window_extent()
    assert not any(extent.overlaps(axes.get_window_extent()) for axes in figure.axes)
    assert extent.x0 >= 0 and extent.y0 >= 0 and extent.x1 <= width


@pytest.mark.parametrize("name", LEGIBLE)
def test_what_is_written_in_a_box_fits_and_is_not_written_over(name: str) -> None:
    axes = picture(name).axes[0]
    low, high = corners(axes).min(axis=1), corners(axes).max(axis=1)
    found = numbers(axes)
    assert found
    for text, _, window in found:
        around = window.transformed(axes.transData.inverted())
        inside = (low <= (around.x0, around.ymin)) & ((around.x1, around.ymax) <= high)
        assert inside.all(axis=1).any(), text
    extents = np.array([window.extents for *_, window in found])
    assert overlapping([text for text, *_ in found], extents) == []


def test_texts_that_do_not_fit_are_left_out() -> None:
    texts = {text for text, *_ in numbers(picture("long").axes[0])}
    assert texts == {str(i) for i in range(30)}
    assert "weights after the update" not in legend(picture("long")) + legend(picture("low"))
    assert "weights after the update" in legend(picture("stash"))


def test_minibatch_and_version_are_written_where_they_fit() -> None:
    texts = [text for text, *_ in numbers(picture("stash").axes[0])]
    assert {text for text in texts if not text.isdigit()} == {"start", *(f"w{i}" for i in range(9))}
    assert sorted(int(text) for text in texts if text.isdigit()) == sorted([*range(10)] * 8)
    assert {"w3≠w0", "w8≠w7"} <= {text for text, *_ in numbers(picture("naive").axes[0])}


def test_a_version_differs_from_the_next_in_print_and_to_every_reader() -> None:
    following = (*theme.VERSIONS[1:], theme.VERSIONS[0])
    for colour, other in zip(theme.VERSIONS, following, strict=True):
        assert abs(lightness(colour) - lightness(other)) > 18
        assert all(np.linalg.norm(seen(colour, by) - seen(other, by)) > 40 for by in SIMULATED)


SIMULATED = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
"""Linear RGB as it is seen by (Machado, Oliveira and Fernandes 2009, doi:10.1109/TVCG.2009.113, severity 1)."""

TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def seen(colour: str, by: str) -> np.ndarray:
    """A colour in CIE L*a*b*."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    xyz = TO_XYZ @ np.clip(np.array(SIMULATED[by]) @ linear, 0, 1) / TO_XYZ.sum(axis=1)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


# --- what the ledger says


def passes(trace: Trace) -> Iterator[tuple[int, Op, float]]:
    """Rank, op and start of every forward and backward, of several segments the first."""
    seen_before = set()
    for (rank, op), start in zip(trace.rows(), trace.starts, strict=True):
        key = rank, op.kind, op.stage, op.microbatch
        if op.kind in PASS_KINDS and key not in seen_before:
            seen_before.add(key)
            yield rank, op, start


def colours_by_place(figure: Figure) -> dict[tuple[int, float, bool], str]:
    """The colour of every box of the upper panel: by rank, start (in units of the axis) and whether it is raised."""
    axes = figure.axes[0]
    words, of_rows = names(axes)
    middles = np.array([y for word, (_, y) in zip(words, of_rows.get_offsets(), strict=True) if "rank" in word])
    tops, lefts = corners(axes)[:, :, 1].min(axis=1), corners(axes)[:, :, 0].min(axis=1)
    ranks = [int(np.argmin(abs(middles - y))) for y in corners(axes)[:, :4, 1].mean(axis=1)]
    highest = [min(top for top, of in zip(tops, ranks, strict=True) if of == rank) for rank in range(len(middles))]
    places = zip(ranks, lefts.round(6), tops, fills(axes), strict=True)
    return {(rank, left, bool(top < highest[rank] + 0.01)): colour for rank, left, top, colour in places}


PLAIN = [name for name in PROGRAMS if name not in ("dualpipe", "long", "naive long")]


@pytest.mark.parametrize("name", PLAIN)
def test_forward_and_backward_have_the_colours_of_the_versions_that_the_ledger_names(name: str) -> None:
    trace, found = predicted(name), colours_by_place(picture(name))
    entries = {(e.rank, e.stage, e.minibatch): e for e in Ledger.of(trace.program).entries}
    of_version: dict[int, set[str]] = {}
    for rank, op, start in passes(trace):
        entry, raised = entries[rank, op.stage, op.microbatch], op.kind in FORWARD_KINDS
        version = entry.forward if raised else entry.backward
        of_version.setdefault(version, set()).add(found.pop((rank, round(start, 6), raised)))
    assert not found, "a box that is no pass"
    assert all(len(colours) == 1 for colours in of_version.values())
    named = [colour for _, [colour] in sorted(of_version.items())]
    assert all(len(set(named[i : i + 8])) == len(named[i : i + 8]) for i in range(len(named)))
    assert of_version[START] == {theme.VERSIONS[0].lower()}


def red(axes: Axes) -> list[Bbox]:
    """Where a box is outlined and hatched in red."""
    marks = [c for c in axes.collections if isinstance(c, PolyCollection) and c.get_hatch() == theme.WRONG_HATCH]
    assert all(to_hex(c.get_edgecolor()[0]) == theme.WRONG.lower() for c in marks if len(c.get_paths()))
    return [path.get_extents() for c in marks for path in c.get_paths()]


@pytest.mark.parametrize("name", PROGRAMS)
def test_backwards_that_find_no_gradient_are_red_and_no_others(name: str) -> None:
    trace, figure = predicted(name), picture(name)
    wrong = {(e.rank, e.stage, e.minibatch) for e in Ledger.of(trace.program).inconsistent}
    at = sorted(
        round(start, 6)
        for rank, op, start in passes(trace)
        if op.kind in BACKWARD_KINDS and (rank, op.stage, op.microbatch) in wrong
    )
    assert sorted(round(box.x0, 6) for box in red(figure.axes[0])) == at
    assert bool(at) is (name in INCONSISTENT) is ("INCONSISTENT" in said(figure)) is ("no gradient" in legend(figure))
    if at:
        backwards = sum(op.kind is Kind.BACKWARD for _, op, _ in passes(trace))
        assert f"INCONSISTENT: {len(at)} of {backwards} backwards" in said(figure)


@pytest.mark.parametrize("name", ["stash", "3:1", "2bw", "1f1b", "layers"])
def test_each_step_is_a_purple_mark_where_it_ends(name: str) -> None:
    trace, axes = predicted(name), picture(name).axes[0]
    filled = [c for c in axes.collections if isinstance(c, PolyCollection) and len(c.get_facecolor())]
    [marks] = [c for c in filled if to_hex(c.get_facecolor()[0]) == theme.COLOURS[Kind.STEP].lower()]
    ends = [end for (_, op), end in zip(trace.rows(), trace.ends, strict=True) if op.kind is Kind.STEP]
    spans = [path.get_extents() for path in marks.get_paths()]
    assert len(spans) == len(ends)
    assert all(span.x0 < end <= span.x1 + 1e-9 for span, end in zip(spans, ends, strict=True))
    assert min(span.width * axes.bbox.width / np.ptp(axes.get_xlim()) for span in spans) > 1, "pixels"


# --- what is held


def alive(trace: Trace, rank: int) -> list[tuple[float, set[int]]]:
    """From the names of values alone: which counts of steps are there of the weights of which there are most, from when
    on."""
    mine = trace.program.ranks[rank]
    held = {v for v in mine.live_in if mine.types[v].role is Role.WEIGHT}
    found = [(0.0, held)]
    for row in sorted(trace.rows_of(rank), key=lambda row: (trace.ends[row], row)):
        op = mine.ops[row - trace.rows_of(rank).start]
        held = (held - op.consumes) | {v for v in op.writes if mine.types[v].role is Role.WEIGHT}
        found.append((trace.ends[row], held))
    return [(time, _most(values)) for time, values in found]


def _most(values: set[str]) -> set[int]:
    counts: dict[str, set[int]] = {}
    for value in values:
        weights, _, count = value.rpartition("@")
        counts.setdefault(weights, set()).add(int(count))
    return max(counts.values(), key=lambda of: (len(of), max(of)))


def layers_at(figure: Figure, rank: int, num_ranks: int, time: float) -> list[str]:
    """The colours that are drawn over a rank's floor at a time, from the bottom up."""
    axes = figure.axes[1]
    height = axes.get_ylim()[0] / num_ranks
    found = []
    for c in (c for c in axes.collections if type(c) is PathCollection):
        for path, colour in zip(c.get_paths(), c.get_facecolor(), strict=True):
            for box in path.vertices.reshape(-1, 5, 2):
                low, high = box.min(axis=0), box.max(axis=0)
                if low[0] < time < high[0] and rank * height < (low[1] + high[1]) / 2 < (rank + 1) * height:
                    found.append((-high[1], to_hex(colour)))
    return [colour for _, colour in sorted(found)]


@pytest.mark.parametrize("name", ["naive", "stash", "vertical sync", "2bw", "flush", "3:1", "1:2:1", "layers", "1f1b"])
def test_strips_are_the_versions_that_the_program_holds(name: str) -> None:
    trace, figure, most = predicted(name), picture(name), []
    num_ranks = len(trace.program.ranks)
    for rank, program in enumerate(trace.program.ranks):
        steps = sorted({op.microbatch for op in program.ops if op.kind is Kind.STEP})
        made = {0: START} | {i + 1: step if step >= 0 else 7 for i, step in enumerate(steps)}
        points = alive(trace, rank)
        most.append(max(len(held) for _, held in points))
        ends = [*(time for time, _ in points[1:]), trace.makespan]
        for (time, held), end in zip(points, ends, strict=True):
            if end - time > 1e-6 * trace.makespan:
                expected = [colour_of(trace, made[count]) for count in sorted(held)]
                assert layers_at(figure, rank, num_ranks, (time + end) / 2) == expected
    words, _ = names(figure.axes[1])
    assert [word for word in words if "rank" in word] == [f"rank {rank}: {n}" for rank, n in enumerate(most)]
    assert dict(enumerate(most)) == {rank: n for (_, rank), n in Ledger.of(trace.program).most.items()}


def colour_of(trace: Trace, version: int) -> str:
    """In the order of all versions that any rank makes."""
    steps = {op.microbatch for rank in trace.program.ranks for op in rank.ops if op.kind is Kind.STEP}
    order = [START, *sorted(step if step >= 0 else trace.program.num_microbatches - 1 for step in steps)]
    return theme.VERSIONS[order.index(version) % len(theme.VERSIONS)].lower()


@pytest.mark.parametrize(("name", "most"), [("stash", (4, 3, 2, 1)), ("vertical sync", (4, 4, 4, 4)), ("3:1", (2, 1))])
def test_the_title_and_the_strips_say_what_is_held(name: str, most: tuple[int, ...]) -> None:
    trace, figure = predicted(name), picture(name)
    held = "versions held " + " ".join(map(str, most))
    assert held in title(figure) and held.replace(" ", "\N{NO-BREAK SPACE}") in figure.texts[0].get_text()
    words, _ = names(figure.axes[1])
    peaks = [max(metrics.held_over_time(trace, rank, frozenset({Role.WEIGHT}))[1]) for rank in range(4)]
    assert [word for word in words if "rank" not in word] == [f"{peak / 1e6:.0f} MB" for peak in peaks]


def test_ranks_are_named_with_their_stages_where_the_two_differ() -> None:
    words, _ = names(picture("3:1").axes[0])
    assert words == ["rank 0", "stage 0", "rank 1", "stage 0", "rank 2", "stage 0", "rank 3", "stage 1"]
    assert names(picture("stash").axes[0])[0] == [f"rank {i}" for i in range(4)]
    assert "stages 0, 3" in names(picture("dualpipe").axes[0])[0]
    assert "pipedream on pp 4 (3:1), 10 minibatches" in said(picture("3:1"))


def test_a_program_that_goes_on_from_another_is_refused() -> None:
    plan = Plan(pp=3, microbatches=9)
    first, rest = stopped(get("pipedream"), plan, nominal(plan), after=4)
    drawn(plots.versions(simulate(first, UNITS)))
    with pytest.raises(ValueError, match="the program begins with step 6 of stage"):
        plots.versions(simulate(rest, UNITS))


# --- how long a minibatch takes


@pytest.mark.parametrize(
    ("plan", "costs", "seconds"),
    [
        (Plan(pp=4, microbatches=10), Uniform(F=1, B=2), 3.0),
        (Plan(pp=4, microbatches=8), UNITS, (4 * 3 + 6 * 0.1) / 4),  # four wait for the six messages of one
        (Plan(pp=4, microbatches=30), Uniform(F=1, B=2, scale=(1, 3, 1, 1)), 9.0),
        (Plan(pp=4, microbatches=18, replicas=(3, 1)), Uniform(F=1, B=2, scale=(1.5, 0.5)), 3.0),
        (Plan(pp=4, microbatches=4), UNITS, None),
    ],
)
def test_a_minibatch_of_a_full_pipeline_takes_what_its_slowest_rank_takes(
    plan: Plan, costs: Uniform, seconds: float | None
) -> None:
    trace = simulate(build(get("pipedream"), plan, nominal(plan)), costs)
    found = seconds_per_minibatch(trace)
    assert (found is None) if seconds is None else (found == pytest.approx(seconds))


def test_it_has_its_part_of_a_step_of_several_microbatches() -> None:
    trace = simulate(program("pipedream_2bw", pp=2, microbatches=12, accumulate=3), Uniform(F=1, B=2, step=0.6))
    assert seconds_per_minibatch(trace) == pytest.approx(3 + 0.6 / 3)


@pytest.mark.parametrize("M", [4, 6])
def test_with_flushes_it_takes_its_part_of_an_update(M: int) -> None:
    trace = simulate(program("pipedream_flush", pp=4, microbatches=2 * M, accumulate=M), Uniform(F=1, B=2))
    assert seconds_per_minibatch(trace) == pytest.approx((M + 3) * 3 / M)
    assert seconds_per_minibatch(predicted("1f1b")) is None


def test_the_title_says_how_long_a_minibatch_takes_or_all_of_them() -> None:
    assert "10 minibatches: simulated 3.15 units per minibatch, versions" in title(picture("stash"))
    assert "10 microbatches: simulated 3.15 units per microbatch, versions" in title(picture("2bw"))
    assert "8 microbatches: simulated 34.6 units, versions" in title(picture("1f1b"))
    assert "paced 3.31 s per minibatch, " in title(picture("naive measured"))
    assert "seed 7" in said(picture("naive measured"))
