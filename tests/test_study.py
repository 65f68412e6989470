"""ZeRO-3 against tensor parallelism: closed forms, where the answer changes, memory, the picture, and one real run."""

import subprocess
import sys
from dataclasses import fields, replace
from functools import cache
from itertools import pairwise
from math import ceil, inf

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from test_plots import overlapping, texts

from pdlab.launch import Ranks
from pdlab.metrics import held_over_time
from pdlab.plots import tradeoff
from pdlab.program import Role
from pdlab.study import (
    GPT3_BLOCKS,
    LAB,
    LAB_BANDWIDTH,
    SEQUENCE,
    TENSOR,
    ZERO3,
    Measured,
    Point,
    Setup,
    Study,
    crossover_batch,
    hidden_crossover_batch,
    largest_batch,
    predicted,
    program,
    rankings,
    simulated,
    simulated_crossover,
    study,
    table,
    tensor_wire_bytes,
    zero3_wire_bytes,
)
from pdlab.study_run import measure

SMALL = Setup(64, 3, 8, 16, 4, ranks=4, flops_per_second=1e9)
LINK, FAST = 1e7, 1e12
LINKS = (2e9, 12.5e9, 50e9, 450e9)
STRATEGIES = (ZERO3, TENSOR, SEQUENCE)
RANKS = pytest.mark.parametrize("n", [2, 4, 8])


def wire(setup: Setup, strategy: str, batch: int = 16) -> float:
    return predicted(setup, strategy, batch, LINK).wire_bytes


def of_one_block(setup: Setup, strategy: str) -> float:
    return wire(setup, strategy) - wire(replace(setup, depth=setup.depth - 1), strategy)


# --- bytes on the wire


@RANKS
def test_a_block_moves_its_weights_three_times_with_zero3_and_nothing_else(n: int) -> None:
    setup = replace(SMALL, ranks=n)
    expected = 3 * (n - 1) / n * 4 * (12 * 64**2 + 13 * 64)
    assert of_one_block(setup, ZERO3) == pytest.approx(expected, rel=1e-12)
    assert zero3_wire_bytes(setup) == pytest.approx(3 * expected, rel=1e-12)


@RANKS
def test_a_block_moves_its_activations_eight_times_with_tensor_parallelism(n: int) -> None:
    setup = replace(SMALL, ranks=n)
    expected = 8 * (n - 1) / n * 16 * 16 * 64 * 4
    assert of_one_block(setup, TENSOR) == pytest.approx(expected, rel=1e-12)
    assert tensor_wire_bytes(setup, 16) == pytest.approx(3 * expected, rel=1e-12)


@RANKS
def test_and_ten_times_with_sequence_parallelism_plus_the_gradients_of_what_every_rank_has(n: int) -> None:
    setup = replace(SMALL, ranks=n)
    activations, gradients = 10 * (n - 1) / n * 16 * 16 * 64 * 4, 2 * (n - 1) / n * 6 * 64 * 4
    assert of_one_block(setup, SEQUENCE) == pytest.approx(activations + gradients, rel=1e-12)
    assert tensor_wire_bytes(setup, 16, SEQUENCE) == pytest.approx(3 * activations, rel=1e-12)


@RANKS
def test_the_ends_of_the_model_add_what_the_docstrings_say(n: int) -> None:
    setup, b, s, h, e, ring = replace(SMALL, ranks=n), 16, 16, 64, 4, (n - 1) / n
    ends = (17 + s) * h + n * ceil((12 * h + 10) / n)
    assert wire(setup, ZERO3) - zero3_wire_bytes(setup) == pytest.approx(3 * ring * ends * e, rel=1e-9)
    embedding, pooled, sums = 2 * ring * b * s * h * e, 2 * ring * b * h * e, 3 * (n - 1) * b * e
    assert wire(setup, TENSOR) - tensor_wire_bytes(setup, b) == pytest.approx(embedding + pooled + sums, rel=1e-9)
    whole = 2 * ring * (6 * setup.depth + 2) * h * e
    more = wire(setup, SEQUENCE) - tensor_wire_bytes(setup, b, SEQUENCE)
    assert more == pytest.approx(embedding + 2 * pooled + sums + whole, rel=1e-9)


def test_what_tensor_parallelism_moves_grows_with_the_batch_and_what_zero3_moves_does_not() -> None:
    assert wire(SMALL, ZERO3, 8) == wire(SMALL, ZERO3, 64)
    assert wire(SMALL, TENSOR, 64) == pytest.approx(8 * wire(SMALL, TENSOR, 8))


def test_a_strategy_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="choose one of tensor, sequence"):
        tensor_wire_bytes(SMALL, 8, "gpipe")
    with pytest.raises(ValueError, match="compares zero3, tensor, sequence"):
        program(SMALL, "gpipe", 8)


# --- where the answer changes


@pytest.mark.parametrize("change", [{}, {"depth": 1}, {"ranks": 2}, {"itemsize": 2}])
def test_equal_bytes_depend_on_width_and_tokens_only(change: dict[str, int]) -> None:
    setup = replace(SMALL, **change)  # type: ignore[arg-type]
    assert crossover_batch(setup) == pytest.approx((36 * 64 + 39) / (8 * 16), rel=1e-12)
    assert tensor_wire_bytes(setup, crossover_batch(setup)) == pytest.approx(zero3_wire_bytes(setup), rel=1e-12)


def step(setup: Setup, strategy: str, batch: int, bandwidth: float) -> float:
    return predicted(setup, strategy, batch, bandwidth).step_s


@pytest.mark.parametrize("bandwidth", LINKS)
def test_at_the_simulated_crossover_both_take_as_long_and_beside_it_the_right_one_is_faster(bandwidth: float) -> None:
    crossing = simulated_crossover(GPT3_BLOCKS, bandwidth)
    n = GPT3_BLOCKS.ranks
    below = int(crossing // n) * n
    times = {s: [step(GPT3_BLOCKS, s, batch, bandwidth) for batch in (below, below + n)] for s in (ZERO3, TENSOR)}
    at = {s: float(np.interp(crossing, (below, below + n), found)) for s, found in times.items()}
    assert at[ZERO3] == pytest.approx(at[TENSOR], rel=1e-9)
    assert times[TENSOR][0] < times[ZERO3][0] and times[TENSOR][1] > times[ZERO3][1]
    assert step(GPT3_BLOCKS, TENSOR, n, bandwidth) < step(GPT3_BLOCKS, ZERO3, n, bandwidth)
    assert step(GPT3_BLOCKS, TENSOR, 256, bandwidth) > step(GPT3_BLOCKS, ZERO3, 256, bandwidth)


def test_the_crossover_falls_as_links_get_faster_and_stays_below_that_of_equal_bytes() -> None:
    crossings = [simulated_crossover(GPT3_BLOCKS, link) for link in LINKS]
    assert crossings == sorted(crossings, reverse=True)
    assert crossings[0] < crossover_batch(GPT3_BLOCKS)


@pytest.mark.parametrize(("bandwidth", "tolerance"), [(1e8, 0.02), (12.5e9, 0.03), (50e9, 0.10)])
def test_the_closed_form_with_all_hidden_is_near_the_simulated_one(bandwidth: float, tolerance: float) -> None:
    """With 16 blocks the ends of the model hardly count, and without latency only what nothing hides is left."""
    setup = replace(GPT3_BLOCKS, depth=16, latency=0.0)
    expected = hidden_crossover_batch(setup, bandwidth)
    assert simulated_crossover(setup, bandwidth) == pytest.approx(expected, rel=tolerance)


def test_the_closed_form_with_all_hidden_is_that_of_equal_bytes_where_links_are_slow() -> None:
    assert hidden_crossover_batch(SMALL, 1.0) == pytest.approx(crossover_batch(SMALL), rel=1e-4)
    assert hidden_crossover_batch(SMALL, 1e12) < 0.1


def test_there_may_be_no_crossover() -> None:
    assert simulated_crossover(LAB, 1e12) == 0.0
    wide = Setup(2**15, 1, 8, 1, 4, ranks=2, flops_per_second=1e15)
    assert simulated_crossover(wide, 1e6) == inf


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_steps_get_longer_with_the_batch_shorter_with_the_link_and_memory_grows(strategy: str) -> None:
    batches, links = (8, 16, 40, 64), (1e6, 1e7, 1e8)
    found = {(p.batch, p.bandwidth): p for p in table(SMALL, batches, links, [strategy])}
    for link in links:
        for before, after in pairwise(batches):
            assert found[before, link].step_s <= found[after, link].step_s
            assert found[before, link].peak_bytes < found[after, link].peak_bytes
    for batch in batches:
        assert found[batch, 1e6].step_s > found[batch, 1e7].step_s > found[batch, 1e8].step_s
        assert 0 < found[batch, 1e8].exposed_s < found[batch, 1e6].exposed_s < found[batch, 1e6].step_s


# --- memory


@RANKS
def test_a_tensor_rank_holds_its_share_of_the_layers_and_what_lies_between_whole(n: int) -> None:
    setup = replace(SMALL, ranks=n)
    start = held_over_time(simulated(setup, TENSOR, 8, LINK), 0, frozenset({Role.WEIGHT}))[1][0]
    split, between = 3 * (12 * 64**2 + 7 * 64), 3 * 6 * 64
    ends = ceil(17 / n) * 64 + 16 * 64 + 2 * 64 + ceil(10 / n) * 65
    assert start == 4 * (split // n + between + ends)


def borrowed(setup: Setup, bandwidth: float) -> int:
    """The most bytes of weights that a rank of ZeRO-3 holds above its own shards."""
    _, held = held_over_time(simulated(setup, ZERO3, 8, bandwidth), 0, frozenset({Role.WEIGHT}))
    return max(held) - held[0]


@RANKS
@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_zero3_holds_one_more_segment_whole_than_it_fetches_ahead_and_fewer_on_slow_links(
    prefetch: int, n: int
) -> None:
    setup = replace(SMALL, ranks=n, prefetch=prefetch)
    attention, feed_forward = 4 * (4 * 64**2 + 6 * 64), 4 * (8 * 64**2 + 7 * 64)
    most = {0: feed_forward, 1: attention + feed_forward, 2: attention + 2 * feed_forward}[prefetch]
    assert borrowed(setup, FAST) == most
    assert feed_forward <= borrowed(setup, 1e5) <= most


def test_more_ranks_shrink_the_layer_of_tensor_parallelism_but_not_that_of_zero3() -> None:
    few, many = replace(SMALL, ranks=2), replace(SMALL, ranks=8)
    assert borrowed(few, FAST) == borrowed(many, FAST)
    assert predicted(many, TENSOR, 8, FAST).peak_bytes < predicted(few, TENSOR, 8, FAST).peak_bytes / 2


def test_small_batches_need_less_with_tensor_parallelism_and_large_ones_with_zero3() -> None:
    peaks = {(s, b): predicted(GPT3_BLOCKS, s, b, 50e9).peak_bytes for s in STRATEGIES for b in (8, 128)}
    assert peaks[TENSOR, 8] < peaks[ZERO3, 8] and peaks[TENSOR, 128] > peaks[ZERO3, 128]
    assert peaks[SEQUENCE, 128] < peaks[TENSOR, 128]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_largest_batch_fits_and_one_more_does_not(strategy: str) -> None:
    limit = 1_500_000
    largest = largest_batch(SMALL, strategy, limit, LINK)
    assert predicted(SMALL, strategy, largest, LINK).fits(limit)
    assert not predicted(SMALL, strategy, largest + 1, LINK).fits(limit)
    assert largest_batch(SMALL, strategy, 1000, LINK) == 0
    with pytest.raises(ValueError, match="limit that something exceeds"):
        largest_batch(SMALL, strategy, inf, LINK)


# --- the table and the picture


def test_a_table_is_a_frame_without_what_cannot_run() -> None:
    frame = pd.DataFrame(table(SMALL, [2, 8], [1e6, 1e7]))
    assert list(frame.columns) == [field.name for field in fields(Point)]
    assert [len(frame[frame.strategy == s]) for s in (ZERO3, TENSOR)] == [2, 4]
    with pytest.raises(ValueError, match="a batch of 2 cannot feed 4 data shards"):
        program(SMALL, ZERO3, 2)


def test_heads_count_for_memory_and_have_to_be_divided() -> None:
    few, many = (predicted(replace(SMALL, heads=heads), ZERO3, 8, LINK).peak_bytes for heads in (4, 16))
    assert few < many
    with pytest.raises(ValueError, match="2 heads, tp 4"):
        program(replace(SMALL, heads=2), TENSOR, 8)


@pytest.mark.parametrize(("field", "value"), [("ranks", 1), ("width", 0), ("flops_per_second", inf), ("latency", -1)])
def test_a_setup_with_an_impossible_number_is_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} is {value}; give a number of at least"):
        replace(SMALL, **{field: value})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bandwidth of 0"):
        SMALL.costs(0)


def test_a_study_without_two_batches_for_both_is_refused() -> None:
    with pytest.raises(ValueError, match="two batches of at least 4, a sample for each rank"):
        study(SMALL, [1, 2, 8], [1e6], 1e6)


@cache
def lab_study(limit: float) -> Study:
    links = tuple(float(link) for link in np.geomspace(1e6, 1e9, 7))
    return study(LAB, [1, 4, 8, 16, 32, 1024], [LAB_BANDWIDTH, 1e8], limit, between=links)


def run(strategy: str, batch: int, predicted_s: float, measured_s: float) -> Measured:
    return Measured(strategy, batch, LAB_BANDWIDTH, predicted_s, measured_s, 0.0, 0.0, "paced, on two cores")


@pytest.mark.parametrize("limit", [1e6, 3.5e6, 8e6, 1e9])
def test_the_picture_says_its_numbers_and_nothing_overlaps_or_is_cut_off(limit: float) -> None:
    """Whatever fits: nothing, one of the two only, both up to some batch, everything."""
    figure = tradeoff(lab_study(limit), [run(ZERO3, 16, 0.9, 1.0)])
    found = laid_out(figure)
    said = "\n".join(t.get_text() for t in found)
    crossing = dict(lab_study(limit).crossovers)[LAB_BANDWIDTH]
    assert (
        f"below batch {crossing:.0f} at 5 MB/s" in said
        and "paced, on two cores" in said
        and "simulated, 4 ranks" in said
    )
    assert f"tensor: {dict(lab_study(limit).largest)[TENSOR] or 'none'}" in said


def laid_out(figure: Figure) -> list[Text]:
    """The texts of a figure in which none overlaps another or is cut off."""
    FigureCanvasAgg(figure).draw()
    found = texts(figure)
    extents = np.array([t.get_window_extent().extents for t in found])
    assert overlapping(found, extents) == []
    width, height = figure.bbox.width, figure.bbox.height
    assert [
        t.get_text() for t, e in zip(found, extents, strict=True) if min(e) < 0 or e[2] > width or e[3] > height
    ] == []
    return found


@pytest.mark.parametrize("batches", [(4, 8, 16, 32), (4, 6, 8, 12), (12, 16, 32)])
def test_links_are_named_where_there_is_no_room_beside_their_curves(batches: tuple[int, ...]) -> None:
    figure = tradeoff(study(LAB, batches, [LAB_BANDWIDTH, 1e8], 8e6))
    laid_out(figure)
    words = [t.get_text() for t in figure.axes[0].texts]
    assert all(any(text.endswith(link) for text in words) for link in ("5 MB/s", "100 MB/s")), words


def test_the_map_is_hatched_where_one_of_the_two_cannot_run() -> None:
    largest = dict(lab_study(8e6).largest)
    patches = [patch for patch in tradeoff(lab_study(8e6)).axes[2].patches if patch.get_hatch()]
    ends = [
        (extent.x0, extent.x1)
        for extent in (patch.get_path().get_extents(patch.get_patch_transform()) for patch in patches)
    ]
    assert ends == [(1, LAB.ranks), (largest[TENSOR], largest[ZERO3])]
    assert LAB.ranks < largest[TENSOR] < largest[ZERO3]
    orange, blue = (patch.get_facecolor() for patch in patches)
    assert orange[0] > orange[2] and blue[2] > blue[0]


def test_measured_steps_stand_over_their_batch_and_only_on_links_that_are_drawn() -> None:
    figure = tradeoff(lab_study(8e6), [run(TENSOR, 16, 1.0, 1.5)])
    points = [tuple(np.ravel(line.get_data())) for line in figure.axes[0].lines if line.get_marker() == "D"]
    assert points == [(16, 1.5)]
    with pytest.raises(ValueError, match="a run with links of 5e\\+06 bytes/s; the study has"):
        tradeoff(study(LAB, [4, 8], [1e8], 8e6), [run(TENSOR, 8, 1.0, 1.0)])


def test_predicting_and_drawing_do_not_load_torch() -> None:
    code = "import sys, pdlab.study, pdlab.plots; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"


# --- for real


def test_a_ranking_agrees_if_the_same_one_is_faster() -> None:
    runs = [run(ZERO3, 8, 2.0, 2.2), run(TENSOR, 8, 1.0, 1.1), run(TENSOR, 4, 1.0, 1.0)]
    [ranking] = rankings(runs)
    assert (ranking.batch, ranking.predicted_ratio, ranking.agrees) == (8, 2.0, True)
    assert not rankings([run(ZERO3, 8, 2.0, 1.0), run(TENSOR, 8, 1.0, 1.1)])[0].agrees


@pytest.mark.processes
@pytest.mark.slow
def test_the_one_predicted_to_be_faster_is_with_right_gradients(pool: Ranks) -> None:
    runs = measure(pool, [4], steps=1)
    [ranking] = rankings(runs)
    assert ranking.predicted_ratio > 1.5, "too near for a test that other work may disturb"
    assert ranking.agrees
    assert max(r.grad_max_rel_error for r in runs) < 1e-9
    assert all(r.made.startswith("paced") for r in runs)


def test_what_cannot_be_run_is_refused_before_it_is_tried() -> None:
    with pytest.raises(ValueError, match="16 tokens, 4 bytes per number"):
        measure(Ranks(4), setup=SMALL)
    with pytest.raises(ValueError, match="4 ranks are more than the 2 of the pool"):
        measure(Ranks(2))
