"""Metrics against closed forms worked out here, on schedules written here."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from pdlab import models
from pdlab.costs import Uniform
from pdlab.mesh import Mesh
from pdlab.metrics import (
    bubble_fraction,
    busy_per_rank,
    bytes_by_collective,
    held_over_time,
    largest_rank_span,
    live_over_time,
    peak_activations_per_rank,
    peak_bytes_per_rank,
    wire_bytes_by_collective,
)
from pdlab.ops import STEP, B, F, I, Op, W
from pdlab.passes import all_reduce_gradients, assign_streams, consume_last_uses, insert_messages, lower, shard_weights
from pdlab.program import Program, Role, split_rows
from pdlab.simulate import simulate
from pdlab.trace import Trace

UNIT = 1000
SHAPES = [(1, 1), (2, 1), (2, 3), (4, 2), (4, 3), (4, 4), (4, 5), (4, 8), (8, 1), (8, 16)]

Schedule = Callable[[int, int, int], Iterator[Op]]


def gpipe(s: int, p: int, m: int) -> Iterator[Op]:
    yield from (F(s, i) for i in range(m))
    yield from (B(s, i) for i in range(m))
    yield STEP(s)


def one_f_one_b(s: int, p: int, m: int) -> Iterator[Op]:
    warm_up = min(p - 1 - s, m)
    yield from (F(s, i) for i in range(warm_up))
    for i in range(m):
        if warm_up + i < m:
            yield F(s, warm_up + i)
        yield B(s, i)
    yield STEP(s)


def all_weights_last(s: int, p: int, m: int) -> Iterator[Op]:
    yield from (F(s, i) for i in range(m))
    yield from (I(s, i) for i in range(m))
    yield from (W(s, i) for i in range(m))
    yield STEP(s)


def pipeline(schedule: Schedule, p: int, m: int, M_W: float = 1.0) -> Program:
    ops = [list(schedule(s, p, m)) for s in range(p)]
    model = models.nominal(p, M_W=M_W, unit=UNIT)
    program = lower(schedule.__name__, ops, model, Mesh.of(pp=p), split_rows(m, 1, m), num_stages=p)
    return assign_streams(consume_last_uses(insert_messages(program)))


def data_parallel(shard: bool, n: int = 4, m: int = 3) -> Program:
    ops = [op for i in range(m) for op in (F(0, i), B(0, i))]
    program = lower("dp", [[*ops, STEP(0)]], models.mlp(), Mesh.of(dp=n), split_rows(m * n, n, m), num_stages=1)
    return assign_streams(consume_last_uses(shard_weights(program) if shard else all_reduce_gradients(program)))


@pytest.fixture
def empty() -> Trace:
    program = Program("nothing", Mesh.of(), models.nominal(1), (), ((1,),), ())
    return simulate(program, Uniform())


@pytest.mark.parametrize(("p", "m"), SHAPES)
@pytest.mark.parametrize("schedule", [gpipe, one_f_one_b])
def test_times_of_textbook_pipelines(schedule: Schedule, p: int, m: int) -> None:
    trace = simulate(pipeline(schedule, p, m), Uniform(F=1, B=2))
    assert trace.makespan == 3 * (m + p - 1)
    assert busy_per_rank(trace) == [3 * m] * p
    assert bubble_fraction(trace) == pytest.approx((p - 1) / (m + p - 1))
    assert largest_rank_span(trace) == 3 * (m + p - 1)  # that of rank 0, which starts first and ends last


def test_a_step_counts_as_busy_and_its_end_as_the_end_of_the_span() -> None:
    trace = simulate(pipeline(one_f_one_b, 4, 8), Uniform(F=1, B=2, step=5))
    assert busy_per_rank(trace) == [3 * 8 + 5] * 4
    assert largest_rank_span(trace) == 3 * (8 + 3) + 5


def test_the_span_is_of_one_rank_not_of_all() -> None:
    """Each message takes 10: rank 1 does F at 11 and B at 12, rank 0 waits for its gradient until 24."""
    trace = simulate(pipeline(gpipe, 2, 1), Uniform(F=1, B=2, comm=10))
    assert trace.makespan == largest_rank_span(trace) == 1 + 10 + 1 + 2 + 10 + 2
    rank_1_only = replace(trace, program=replace(trace.program, ranks=trace.program.ranks[1:]))
    shifted = replace(rank_1_only, **{k: getattr(trace, k)[trace.rows_of(1).start :] for k in ("starts", "ends")})
    assert largest_rank_span(shifted) == 1 + 2


@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_peak_activations_of_textbook_pipelines(p: int, m: int) -> None:
    costs = Uniform(F=1, B=2)
    assert peak_activations_per_rank(simulate(pipeline(gpipe, p, m), costs), UNIT) == [m] * p
    expected = [min(p - s, m) for s in range(p)]
    assert peak_activations_per_rank(simulate(pipeline(one_f_one_b, p, m), costs), UNIT) == expected


@pytest.mark.parametrize("M_W", [0.25, 0.5, 1.0])
def test_a_split_backward_keeps_what_its_weight_half_needs(M_W: float) -> None:
    m = 6
    trace = simulate(pipeline(all_weights_last, 1, m, M_W), Uniform(F=1, I=1, W=1))
    _, held = held_over_time(trace, 0, frozenset({Role.SAVED, Role.PENDING}))
    forward = [i for i in range(1, m + 1)]
    for_the_input = [m - i * (1 - M_W) for i in range(1, m + 1)]
    for_the_weights = [m * M_W - i * M_W for i in range(1, m + 1)]
    assert [b / UNIT for b in held] == pytest.approx([0, *forward, *for_the_input, *for_the_weights, 0])
    assert peak_activations_per_rank(trace, UNIT) == [m]
    assert peak_activations_per_rank(trace, 2 * UNIT) == [m / 2]


def test_pending_weight_gradients_count_towards_the_peak() -> None:
    def weights_late(s: int, p: int, m: int) -> Iterator[Op]:
        yield from (op for i in range(m) for op in (F(s, i), I(s, i)))
        yield from (W(s, i) for i in range(m))

    trace = simulate(pipeline(weights_late, 1, 5, M_W=0.5), Uniform())
    assert peak_activations_per_rank(trace, UNIT) == [4 * 0.5 + 1]


def test_activations_need_a_unit() -> None:
    with pytest.raises(ValueError, match="unit_bytes is 0"):
        peak_activations_per_rank(simulate(pipeline(gpipe, 1, 1), Uniform()), 0)


def test_bytes_of_messages_count_once() -> None:
    p, m = 4, 8
    trace = simulate(pipeline(one_f_one_b, p, m), Uniform(comm=0.1))
    assert bytes_by_collective(trace) == {"SEND": 2 * (p - 1) * m * UNIT}
    assert wire_bytes_by_collective(trace) == {"SEND": 2 * (p - 1) * m * UNIT}


def test_bytes_of_collectives_count_on_every_rank() -> None:
    n, weights = 4, models.mlp().num_parameters * 4
    trace = simulate(data_parallel(shard=False, n=n), Uniform(comm=1))
    assert bytes_by_collective(trace) == {"ALL_REDUCE": n * weights}
    assert wire_bytes_by_collective(trace) == {"ALL_REDUCE": pytest.approx(n * weights * 2 * (n - 1) / n)}


def test_bytes_of_sharded_weights() -> None:
    """Two ranks, among which every layer divides without padding."""
    n, m, weights = 2, 3, models.mlp().num_parameters * 4
    trace = simulate(data_parallel(shard=True, n=n, m=m), Uniform(comm=1))
    assert bytes_by_collective(trace) == {"ALL_GATHER": 2 * m * n * weights, "REDUCE_SCATTER": m * n * weights}
    wire = wire_bytes_by_collective(trace)
    assert wire["ALL_GATHER"] == pytest.approx(2 * m * (n - 1) * weights)
    assert wire["REDUCE_SCATTER"] == pytest.approx(m * (n - 1) * weights)


def test_live_bytes_start_at_what_is_there_and_reach_the_peak() -> None:
    trace = simulate(pipeline(gpipe, 2, 3), Uniform())
    for rank in range(2):
        times, held = live_over_time(trace, rank)
        assert (times[0], held[0]) == (0.0, trace.live_before[rank])
        assert times == sorted(times)
        assert max(held) == peak_bytes_per_rank(trace)[rank]
    heaviest_at_the_start = replace(trace, live_before=[10**9, 0])
    assert peak_bytes_per_rank(heaviest_at_the_start) == [10**9, max(live_over_time(trace, 1)[1])]


@pytest.mark.parametrize("shard", [False, True])
def test_what_values_are_held_for_adds_up_to_what_is_held(shard: bool) -> None:
    trace = simulate(data_parallel(shard), Uniform(comm=1))
    everything = held_over_time(trace, 0, frozenset(Role) - {Role.TOKEN})
    assert everything == live_over_time(trace, 0)


def test_nothing_at_all(empty: Trace) -> None:
    assert (bubble_fraction(empty), largest_rank_span(empty), busy_per_rank(empty)) == (0.0, 0.0, [])
    assert bytes_by_collective(empty) == {}
