"""The partitioner against enumeration, against what is published, against the simulator; its command and picture."""

import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, combinations, pairwise
from math import inf
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from test_plots import overlapping, written

from pdlab import models, plots
from pdlab.cli import main
from pdlab.costs import Link, Uniform, moved_bytes
from pdlab.execute.local import run_local
from pdlab.lab import lab_mlp
from pdlab.models import Model
from pdlab.ops import PASS_KINDS, Kind, Op
from pdlab.partition import (
    By,
    Layer,
    Links,
    Partition,
    Sums,
    What,
    balanced,
    layers_of,
    pipedream,
    profile,
    stage_seconds,
)
from pdlab.partition.result import duration
from pdlab.passes import Recompute
from pdlab.program import Facts, Program
from pdlab.simulate import simulate
from pdlab.strategies import Plan, build, get
from pdlab.strategies.pipedream import Replica

# --- exhaustive search, in exact numbers


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write `total` as a sum of so many whole numbers of at least 1, in order."""
    for cuts in combinations(range(1, total), parts - 1):
        yield tuple(b - a for a, b in pairwise((0, *cuts, total)))


def cut(chain: Sequence[Layer], lengths: Sequence[int]) -> list[Sequence[Layer]]:
    return [chain[end - n : end] for end, n in zip(accumulate(lengths), lengths, strict=True)]


def over(amount: Fraction, bandwidth: float) -> Fraction:
    return Fraction(0) if bandwidth == inf else amount / Fraction(bandwidth)


def sums_by_hand(size: Fraction, m: int, links: Links) -> Fraction:
    """W of arXiv:1806.03377, section 3.2; messages as in the SOSP paper, section 3.1."""
    if m == 1 or not size:
        return Fraction(0)
    moved = 4 * (m - 1) * size / m if links.sums is Sums.RING else 2 * (m - 1) * size
    count = (4 if links.sums is Sums.RING else 2) * (m - 1)
    return count * Fraction(links.latency) + over(moved, links.bandwidth)


def stages_by_hand(
    chain: Sequence[Layer], lengths: Sequence[int], replicas: Sequence[int], links: Links
) -> list[Fraction]:
    return [
        max(
            sum((Fraction(layer.seconds) for layer in stage), Fraction(0)),
            sums_by_hand(sum((Fraction(layer.parameter_bytes) for layer in stage), Fraction(0)), m, links),
        )
        / m
        for stage, m in zip(cut(chain, lengths), replicas, strict=True)
    ]


def messages_by_hand(chain: Sequence[Layer], lengths: Sequence[int], links: Links) -> list[Fraction]:
    sizes = [Fraction(stage[-1].activation_bytes) for stage in cut(chain, lengths)[:-1]]
    return [2 * Fraction(links.latency) + over(2 * size, links.bandwidth) if size else Fraction(0) for size in sizes]


def evenness(numbers: Sequence[Fraction], lengths: Sequence[int]) -> tuple[object, ...]:
    return sum(x * x for x in numbers), sum(n * n for n in lengths), tuple(-n for n in lengths)


Found = tuple[Fraction, tuple[int, ...], tuple[int, ...]]


def exhaustive(chain: Sequence[Layer], ranks: int, links: Links, may_idle: bool = False) -> Found:
    """Bottleneck, layers and replicas of the best of all partitions, by the order of preference that is promised."""
    found = []
    for used in range(1, ranks + 1) if may_idle else [ranks]:
        for num_stages in range(1, min(used, len(chain)) + 1):
            for lengths in compositions(len(chain), num_stages):
                messages = messages_by_hand(chain, lengths, links)
                for replicas in compositions(used, num_stages):
                    stages = stages_by_hand(chain, lengths, replicas, links)
                    key = (max(*stages, *messages, Fraction(0)), used, num_stages, replicas)
                    found.append(((*key, *evenness(stages, lengths)), lengths, replicas))
    (bottleneck, *_), lengths, replicas = min(found)
    assert isinstance(bottleneck, Fraction)
    return bottleneck, lengths, replicas


SMALL = st.integers(0, 6)
LAYERS = st.builds(Layer, name=st.just("fc"), seconds=SMALL, activation_bytes=SMALL, parameter_bytes=SMALL)
CHAINS = st.lists(LAYERS, min_size=1, max_size=10)
"""Small whole numbers: ties and zeros everywhere."""

FREE = Links()
LINKS = st.builds(
    Links,
    bandwidth=st.sampled_from([inf, 1, 2, 3, 8, 0.5]),
    latency=st.sampled_from([0, 0, 1, 2]),
    sums=st.sampled_from(Sums),
)
RANKS = st.integers(1, 4)


@settings(deadline=None)
@given(CHAINS, RANKS, LINKS, st.booleans())
@example([Layer("fc", 0)] * 4, 3, FREE, True)
@example([Layer("fc", 1, 4, 4)] * 6, 4, Links(2), False)
@example([Layer("fc", 3, 1, 6), Layer("fc", 1, 1, 0), Layer("fc", 1, 1, 0)], 4, Links(8, sums=Sums.MESSAGES), False)
def test_the_search_agrees_with_enumeration(chain: list[Layer], ranks: int, links: Links, may_idle: bool) -> None:
    """The bottleneck, and among equally fast partitions the very same one."""
    found = pipedream(chain, ranks, links, may_idle=may_idle)
    bottleneck, lengths, replicas = exhaustive(chain, ranks, links, may_idle)
    assert found.seconds == pytest.approx(float(bottleneck))
    assert (found.layers, found.replicas) == (lengths, replicas)


MEASURED = st.builds(
    Layer,
    name=st.just("fc"),
    seconds=st.floats(0, 0.1),
    activation_bytes=st.integers(0, 10**7),
    parameter_bytes=st.integers(0, 10**8),
)


@settings(deadline=None)
@given(st.lists(MEASURED, min_size=1, max_size=10), RANKS, st.floats(1e6, 1e11), st.sampled_from(Sums))
def test_no_partition_is_faster_where_numbers_are_as_measured(
    chain: list[Layer], ranks: int, bandwidth: float, sums: Sums
) -> None:
    links = Links(bandwidth, sums=sums)
    assert pipedream(chain, ranks, links).seconds == pytest.approx(float(exhaustive(chain, ranks, links)[0]))


@settings(deadline=None)
@given(CHAINS, st.sampled_from(By), st.data())
def test_equal_shares_agree_with_enumeration(chain: list[Layer], by: By, data: st.DataObject) -> None:
    num_stages = data.draw(st.integers(1, len(chain)))
    weights_by: dict[By, list[float]] = {
        By.COUNT: [1 for _ in chain],
        By.TIME: [layer.seconds for layer in chain],
        By.PARAMETERS: [layer.parameter_bytes for layer in chain],
    }
    weights = weights_by[by]

    def key(lengths: tuple[int, ...]) -> tuple[object, ...]:
        shares = [Fraction(sum(weights[end - n : end])) for end, n in zip(accumulate(lengths), lengths, strict=True)]
        return max(shares), *evenness(shares, lengths)

    found = balanced(chain, num_stages, by)
    assert found.layers == min(compositions(len(chain), num_stages), key=key)
    assert found.replicas == (1,) * num_stages


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=20, max_size=60), st.integers(2, 12))
def test_a_long_chain_cannot_be_cut_with_a_smaller_bottleneck(times: list[int], num_stages: int) -> None:
    """Filling one stage after the other up to a limit needs the fewest stages, so it tells whether a limit can be."""

    def fits(limit: int) -> bool:
        used, room = 1, limit
        for time in times:
            used, room = (used, room - time) if time <= room else (used + 1, limit - time)
        return used <= num_stages and max(times) <= limit

    found = balanced([Layer("fc", time) for time in times], num_stages)
    assert fits(int(found.seconds)) and not fits(int(found.seconds) - 1)


@settings(deadline=None)
@given(CHAINS, st.data())
def test_by_count_is_how_a_model_is_cut(chain: list[Layer], data: st.DataObject) -> None:
    num_stages = data.draw(st.integers(1, len(chain)))
    of_model = models.nominal(len(chain)).stages(num_stages)
    assert balanced(chain, num_stages, By.COUNT).layers == tuple(map(len, of_model))


def test_what_is_equally_fast_is_cut_evenly_and_the_longer_ones_come_first() -> None:
    slow_first = [Layer("slow", 9), *(Layer(f"fc{i}", 1) for i in range(6))]
    assert balanced(slow_first, 3).layers == (1, 3, 3)
    assert balanced([Layer(f"fc{i}", 0.1) for i in range(10)], 4).layers == (3, 3, 2, 2)
    assert balanced([Layer(f"relu{i}", 0) for i in range(7)], 3).layers == (3, 2, 2)


# --- what things cost


def test_the_costs_of_the_paper_by_hand() -> None:
    """w = 300 bytes over 100 bytes/s on 3 ranks: 4 x 2 x 300 / 3 = 800 bytes in a ring, 2 x 2 x 300 by messages."""
    ring, messages = Links(100), Links(100, sums=Sums.MESSAGES)
    assert (ring.sum_seconds(300, 3), messages.sum_seconds(300, 3)) == (8, 12)
    assert ring.sum_seconds(300, 2) == messages.sum_seconds(300, 2) == 6
    assert stage_seconds(6, 300, 3, ring) == pytest.approx(8 / 3)
    assert stage_seconds(30, 300, 3, ring) == 10
    assert stage_seconds(6, 300, 1, ring) == 6
    assert ring.message_seconds(50) == 1
    late = Links(100, latency=0.5)
    assert late.message_seconds(50) == 2 and late.message_seconds(0) == 0
    assert late.sum_seconds(300, 3) == 8 + 8 * 0.5 and late.sum_seconds(0, 3) == 0
    assert replace(late, sums=Sums.MESSAGES).sum_seconds(300, 3) == 12 + 4 * 0.5


@pytest.mark.parametrize("p", [1, 2, 4, 8])
def test_with_free_links_equal_layers_are_as_fast_in_stages_as_in_replicas(p: int) -> None:
    chain = [Layer(f"fc{i}", 0.1, 100, 100) for i in range(8)]
    stages, replicas = Partition(tuple(chain), (8 // p,) * p, (1,) * p), Partition(tuple(chain), (8,), (p,))
    assert stages.seconds == pytest.approx(replicas.seconds) == pytest.approx(0.8 / p)
    assert pipedream(chain, p).replicas == (p,)


@settings(deadline=None)
@given(CHAINS, RANKS, LINKS, st.integers(1, 5))
def test_faster_links_are_never_worse(chain: list[Layer], ranks: int, links: Links, times: int) -> None:
    faster = replace(links, bandwidth=links.bandwidth * times)
    assert pipedream(chain, ranks, faster).seconds <= pipedream(chain, ranks, links).seconds * (1 + 1e-9)


@settings(deadline=None)
@given(CHAINS, RANKS, LINKS)
def test_ranks_that_may_idle_are_never_worse_and_free_links_make_all_of_them_useful(
    chain: list[Layer], ranks: int, links: Links
) -> None:
    idle, used = pipedream(chain, ranks, links, may_idle=True), pipedream(chain, ranks, links)
    assert idle.seconds <= used.seconds * (1 + 1e-9) and idle.num_ranks <= used.num_ranks == ranks
    total = sum(layer.seconds for layer in chain)
    assert used.seconds >= total / ranks * (1 - 1e-9)
    assert pipedream(chain, ranks).seconds == pytest.approx(total / ranks)


def test_more_ranks_than_sums_allow_are_left_idle_only_where_they_may() -> None:
    chain = [Layer("fc", 1.0, 0, 100)]
    assert pipedream(chain, 4, Links(100)).seconds == pytest.approx(3 / 4)
    assert pipedream(chain, 4, Links(10)).seconds == pytest.approx(30 / 4)
    assert pipedream(chain, 4, Links(10), may_idle=True).replicas == (1,)


CONVOLUTIONS = (
    *((3, 64, 224), (64, 64, 224), (64, 128, 112), (128, 128, 112), (128, 256, 56), (256, 256, 56), (256, 256, 56)),
    *((256, 512, 28), (512, 512, 28), (512, 512, 28), (512, 512, 14), (512, 512, 14), (512, 512, 14)),
)
POOLED = (1, 3, 6, 9, 12)
CONNECTED = ((25088, 4096), (4096, 4096), (4096, 1000))


def vgg16(batch: int = 64, flops_per_second: float = 4e12) -> list[Layer]:
    """Channels and side of each convolution, then the fully connected layers; times by FLOP, single precision."""
    chain = []
    for i, (a, b, side) in enumerate(CONVOLUTIONS):
        flops, out = 2 * 9 * a * b * side**2, side // 2 if i in POOLED else side
        activation, weights = 4 * b * out**2 * batch, 4 * (9 * a * b + b)
        chain.append(Layer(f"conv{i}", 3 * flops * batch / flops_per_second, activation, weights))
    for i, (a, b) in enumerate(CONNECTED):
        chain.append(Layer(f"fc{i}", 3 * 2 * a * b * batch / flops_per_second, 4 * b * batch, 4 * (a * b + b)))
    return chain


@pytest.mark.parametrize("sums", list(Sums))
def test_vgg_16_on_16_ranks_is_15_to_1(sums: Sums) -> None:
    """What PipeDream chose for VGG-16 on 16 GPUs with 10 Gbit/s between them (Narayanan et al., SOSP 2019, table 1):
    the convolutions on 15 ranks, and nine tenths of the weights on one, where nobody sums them."""
    chain = vgg16()
    assert sum(layer.parameter_bytes for layer in chain) == 4 * 138_357_544
    found = pipedream(chain, 16, Links(10e9 / 8, sums=sums))
    assert found.replicas == (15, 1)
    assert {"fc0", "fc1", "fc2"} <= {layer.name for layer in found.stages[1]}
    assert found.throughput > Partition(tuple(chain), (16,), (16,), found.links).throughput


# --- what a partition says

EXAMPLE = (Layer("a", 0.006, 1000, 4000), Layer("b", 0.002, 500, 2000), Layer("c", 0.001, 0, 100))


def test_a_partition_says_what_is_slowest_in_it() -> None:
    found = Partition(EXAMPLE, (1, 2), (2, 1))
    assert (found.seconds, found.throughput, found.num_ranks) == (0.003, 1 / 0.003, 3)
    assert found.limit == (What.COMPUTE, 0, 0.003)
    assert found.bottleneck == "stage 0 (a) on 2 ranks: compute 6.00 ms / 2"
    assert Partition(EXAMPLE, (2, 1), (1, 1)).bottleneck == "stage 0 (a..b): compute 8.00 ms"
    slow = Partition(EXAMPLE, (1, 2), (2, 1), Links(1e6, sums=Sums.MESSAGES))
    assert slow.bottleneck == "the gradient sums of stage 0's 2 replicas (a): 8.00 ms / 2" and slow.seconds == 0.004
    slow = Partition(EXAMPLE, (1, 2), (1, 1), Links(1e5))
    assert slow.bottleneck == "the message between stage 0 and 1, after a: 1,000 bytes there and back in 20.0 ms"
    assert slow.load(What.MESSAGE, 0) == 0.02 and slow.load(What.MESSAGE, 1) == 0
    assert Partition(EXAMPLE, (1, 1, 1), (1, 1, 1), Links(1e6)).limit.stage == 0


@pytest.mark.parametrize("replicas", [(1, 1, 1, 1), (3, 1), (1, 3), (2, 1, 2), (4,), (5, 2, 3)])
def test_the_warm_up_is_what_the_schedule_has(replicas: tuple[int, ...]) -> None:
    """Without replicas p - 1 - s; with them what `strategies.pipedream` does."""
    chain = tuple(Layer(f"fc{i}", 1) for i in range(len(replicas)))
    found = Partition(chain, (1,) * len(replicas), replicas)
    assert found.warm_up == tuple(Replica(s, 0, replicas).warm_up for s in range(len(replicas)))
    if max(replicas) == 1:
        assert found.warm_up == (3, 2, 1, 0)


def test_a_partition_as_a_table() -> None:
    found = Partition(EXAMPLE, (1, 2), (2, 1), Links(1e6))
    lines = str(found).splitlines()
    assert (
        lines[0] == "2 stages on 3 ranks, given; links of 1e+06 bytes/s, gradients summed by ring; times per minibatch"
    )
    assert lines[2].split() == ["0", "1:", "a", "2", "3.00", "ms", "4.00", "ms", "2.00", "ms", "1"]
    assert lines[3].split() == ["1", "2:", "b..c", "1", "3.00", "ms", "-", "-", "0"]
    assert lines[4] == "predicted: 250 minibatches per second, one every 4.00 ms"
    frame = found.frame()
    assert list(frame.columns) == [
        *("stage", "first_layer", "last_layer", "num_layers", "replicas"),
        *("compute_s", "gradient_sums_s", "message_s", "warm_up"),
    ]
    assert frame.to_dict("list") == {
        "stage": [0, 1],
        "first_layer": ["a", "b"],
        "last_layer": ["a", "c"],
        "num_layers": [1, 2],
        "replicas": [2, 1],
        "compute_s": [0.003, 0.003],
        "gradient_sums_s": [0.004, 0],
        "message_s": [0.002, 0],
        "warm_up": [1, 0],
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.00 µs"),
        (3.14159e-6, "3.14 µs"),
        (0.9996e-3, "1.00 ms"),
        (0.0123, "12.3 ms"),
        (0.12345, "123 ms"),
        (9.9999, "10.0 s"),
    ],
)
def test_durations_have_three_digits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_layers_and_replicas_are_what_a_plan_takes() -> None:
    model = models.nominal(4)
    found = pipedream(layers_of(model, [6, 1, 1, 1]), 3, Links(1e6))
    plan = Plan(pp=found.num_ranks, layers=found.layers, replicas=found.replicas, microbatches=4)
    program = build(get("pipedream"), plan, model)
    assert tuple(map(len, program.stages)) == found.layers == (1, 3) and found.replicas == (2, 1)


# --- errors


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (lambda: balanced(EXAMPLE, 4), r"4 stages are more than the 3 layers \(a..c\); use at most 3 stages"),
        (lambda: balanced(EXAMPLE, 0), "0 stages; give a whole number of at least 1"),
        (lambda: balanced([], 1), "no layers to partition; give at least 1"),
        (lambda: pipedream([], 1), "no layers to partition; give at least 1"),
        (lambda: pipedream(EXAMPLE, 0), "0 ranks; give a whole number of at least 1"),
        (lambda: pipedream(EXAMPLE, 1.5), "1.5 ranks; give a whole number"),  # type: ignore[arg-type]
        (lambda: pipedream(EXAMPLE * 200, 100), "600 layers on 100 ranks are too many to partition"),
        (lambda: balanced(EXAMPLE * 400, 1), "1200 layers on 1 ranks are too many to partition: at most 1000 layers"),
        (lambda: Layer("a", -1), "layer a: seconds is -1; give a number from 0"),
        (lambda: Layer("a", float("nan")), "layer a: seconds is nan; give a number from 0"),
        (lambda: Layer("a", inf), "layer a: seconds is inf; give a number from 0"),
        (lambda: Layer("a", "1"), "layer a: seconds is '1'; give a number"),  # type: ignore[arg-type]
        (lambda: Layer("a", 1, -2), "layer a: activation_bytes is -2"),
        (lambda: Layer("a", 1, 2, float("nan")), "layer a: parameter_bytes is nan"),
        (lambda: Links(0), r"bandwidth \(bytes per second; inf: links take no time\) is 0; give a number from"),
        (lambda: Links(float("nan")), "is nan; give a number from"),
        (lambda: Links(1, latency=-1), r"latency \(seconds per message\) is -1; give a number from 0"),
        (lambda: Links(1, sums="ring"), "sums is 'ring'; give Sums.RING"),  # type: ignore[arg-type]
        (lambda: Partition(EXAMPLE, (1, 1), (1, 1)), "stages of 1:1 layers on 1:1 ranks, for a chain of 3 layers"),
        (lambda: Partition(EXAMPLE, (1, 2), (1,)), "stages of 1:2 layers on 1 ranks"),
        (lambda: Partition(EXAMPLE, (3, 0), (1, 1)), r"layers is \(3, 0\); give a whole number of at least 1"),
        (lambda: layers_of(models.nominal(3), [1, 2]), "2 times for the 3 layers of model nominal"),
        (lambda: layers_of(models.nominal(1), [1], rows=0), "0 rows; give the samples of a minibatch"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(attempt: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        attempt()
    assert "\n" not in str(error.value)


# --- where the numbers come from


@dataclass(frozen=True)
class Timed:
    """A third of a layer's time is its forward, shared by its segments; messages take `bandwidth` bytes a second."""

    seconds_of: tuple[float, ...]
    bandwidth: float = inf
    link: Link = Link.CHANNEL

    def seconds(self, op: Op, rank: int, program: Program, facts: Facts) -> float:
        if op.kind in PASS_KINDS:
            layer = program.model.layer_of[program.stages[op.stage][op.segment]]
            among = sum(of == layer for of in program.model.layer_of.values())
            third = self.seconds_of[layer] / among / 3
            return third * (2 if op.kind is Kind.BACKWARD else 1)
        return moved_bytes(op, rank, program, facts) / self.bandwidth if op.kind is Kind.SEND else 0.0


@pytest.mark.parametrize("name", ["single", "zb_h1"])
def test_a_profile_has_the_times_of_the_layers(name: str) -> None:
    """With a full backward, and with a split one."""
    model, times = models.transformer(depth=2), (0.3, 0.6, 1.5, 0.9, 1.2, 0.0)
    plan = get(name).chosen(Plan(microbatches=3, batch=6))
    found = profile(simulate(build(get(name), plan, model), Timed(times)))
    assert [layer.seconds for layer in found] == pytest.approx(list(times))
    assert [layer.name for layer in found] == ["embed", "attn0", "ffn0", "attn1", "ffn1", "head"]
    assert [replace(layer, seconds=0) for layer in found] == list(layers_of(model, [0] * 6, rows=2))


def test_a_profile_takes_the_median_microbatch_and_counts_second_forwards() -> None:
    model = models.nominal(2)
    trace = simulate(build(get("single"), Plan(microbatches=3), model), Timed((3.0, 6.0)))
    ends = [
        end + 100 if op.kind is Kind.FORWARD and op.microbatch == 1 else end
        for op, end in zip(trace.program.ranks[0].ops, trace.ends, strict=True)
    ]
    assert [layer.seconds for layer in profile(replace(trace, ends=ends))] == pytest.approx([3, 6])
    again = build(get("single"), Plan(recompute=Recompute.FULL), model)
    assert [layer.seconds for layer in profile(simulate(again, Timed((3.0, 6.0))))] == pytest.approx([4, 8])


def test_what_is_no_profile() -> None:
    with pytest.raises(ValueError, match="has 2 ranks; profile a run of the whole model on one"):
        profile(simulate(build(get("1f1b"), Plan(pp=2), models.nominal(2)), Uniform()))
    from pdlab.compare import digits_batch

    program = build(get("single"), Plan(batch=2), lab_mlp(Plan(), 4))
    with pytest.raises(ValueError, match="local mode measures no time"):
        profile(run_local([program], digits_batch(2)).trace)


@pytest.mark.parametrize(
    "model",
    [models.mlp(depth=6, skip=4), models.transformer(depth=1), models.cnn()],
    ids=lambda m: m.recipe[0],
)
def test_bytes_are_those_that_a_pipeline_really_moves_and_holds(model: Model) -> None:
    """A stage for each layer: what the sender of each boundary sends for a microbatch, and what comes back."""
    p, m = len(model.layers), 2
    trace = simulate(build(get("gpipe"), Plan(pp=p, microbatches=m, batch=6), model), Uniform())
    moved: dict[tuple[int, int], int] = {}
    for (rank, op), size in zip(trace.rows(), trace.moved, strict=True):
        if op.kind is Kind.SEND:
            moved[rank, op.peer] = moved.get((rank, op.peer), 0) + size
    layers = layers_of(model, [0] * p, rows=3)
    for s, layer in enumerate(layers[:-1]):
        assert moved[s, s + 1] == moved[s + 1, s] == m * layer.activation_bytes > 0
    assert layers[-1].activation_bytes == 0
    assert sum(layer.parameter_bytes for layer in layers) == model.itemsize * model.num_parameters


# --- the prediction against the simulator


def between(found: Partition, model: Model, costs: Timed) -> float:
    """Seconds from one minibatch to the next of PipeDream's program, in the middle of a long span."""

    def makespan(minibatches: int) -> float:
        plan = Plan(pp=found.num_ranks, layers=found.layers, replicas=found.replicas, microbatches=minibatches)
        return simulate(build(get("pipedream"), plan, model), costs).makespan

    return (makespan(96) - makespan(48)) / 48


@pytest.mark.parametrize(
    "shape", [((2, 3), (3, 1)), ((5,), (4,)), ((1, 1, 3), (1, 2, 1)), ((2, 1, 1, 1), (1, 1, 1, 1))]
)
def test_with_free_links_the_lab_s_programs_are_as_fast_as_predicted(
    shape: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    times = (0.6, 1.3, 0.2, 0.9, 0.5)
    model = models.nominal(5)
    found = Partition(layers_of(model, times), *shape)
    assert between(found, model, Timed(times)) == pytest.approx(found.seconds)


def test_what_the_search_chooses_is_faster_than_equal_shares_in_the_simulator_too() -> None:
    times = (6.0, 1.0, 1.0, 1.0)
    model, links = models.nominal(4), Links(1e6, sums=Sums.MESSAGES)
    layers = layers_of(model, times)
    chosen, equal = pipedream(layers, 3, links), balanced(layers, 3, By.COUNT, links)
    assert (chosen.layers, chosen.replicas, chosen.seconds, equal.seconds) == ((1, 3), (2, 1), 3, 7)
    spans = [between(found, model, Timed(times, links.bandwidth)) for found in (chosen, equal)]
    assert 3 <= spans[0] < 1.6 * 3 < spans[1]


# --- the picture


def many(num_layers: int) -> tuple[Layer, ...]:
    draw = random.Random(num_layers)
    return tuple(
        Layer(f"fc{i}", draw.uniform(1e-3, 1e-2), draw.randint(10**4, 10**6), draw.randint(10**3, 10**7))
        for i in range(num_layers)
    )


PICTURES = {
    "one": lambda: Partition((Layer("a", 0),), (1,), (1,)),
    "four": lambda: pipedream(vgg16()[-4:], 4, Links(1e9)),
    "ten": lambda: pipedream(many(10), 8, Links(1e9)),
    "hundred": lambda: pipedream(many(100), 16, Links(1e9)),
    "message": lambda: balanced(many(10), 4, By.TIME, Links(5e7)),
    "sums": lambda: Partition(many(5), (2, 3), (12, 1), Links(1e7, sums=Sums.MESSAGES)),
    "vgg": lambda: pipedream(vgg16(), 16, Links(10e9 / 8)),
}


def drawn(found: Partition) -> Figure:
    figure = plots.partition(found)
    FigureCanvasAgg(figure).draw()
    return figure


@pytest.mark.parametrize("name", PICTURES)
def test_the_picture_says_its_numbers_and_nothing_overlaps_or_is_cut_off(name: str) -> None:
    found = PICTURES[name]()
    figure = drawn(found)
    words, extents = written(figure)
    assert overlapping(words, extents) == []
    width, height = figure.bbox.width, figure.bbox.height
    assert not [t for t, e in zip(words, extents, strict=True) if min(e) < 0 or e[2] > width or e[3] > height]
    chain, stages = figure.axes
    assert [tick.get_text() for tick in stages.get_yticklabels()] == [f"stage {s}" for s in range(found.num_stages)]
    assert figure.texts[0].get_text().startswith(found.shape)
    assert any(found.bottleneck in word.replace("\n", " ") for word in words)
    assert sum("bottleneck" in text.get_text() for text in stages.texts) == (name != "one")
    boxes = sum(len(collection.get_paths()) for collection in chain.collections)
    assert boxes == sum(layer.seconds > 0 for layer in found.chain)


def test_a_layer_is_as_wide_as_it_takes_and_a_bar_as_long_as_its_load() -> None:
    chain, stages = drawn(Partition(EXAMPLE, (1, 2), (2, 1), Links(1e6))).axes
    widths = [path.get_extents().width for collection in chain.collections for path in collection.get_paths()]
    assert widths == pytest.approx([6, 2, 1])
    bars = [path.get_extents().width for collection in stages.collections for path in collection.get_paths()]
    assert bars == pytest.approx([3, 4, 2, 3])
    marked = [text.get_text() for text in stages.texts if "bottleneck" in text.get_text()]
    assert marked == ["4 = 8 / 2 ranks  ← bottleneck"]
    assert [text.get_text() for text in chain.texts] == ["a", "b", "c", "stage 0 on 2 ranks", "stage 1 on 1 rank"]


# --- the command


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["partition", *words]) == 0
    return capsys.readouterr().out


def test_the_command_prints_the_stages_and_what_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "partition.svg"
    words = ("--model", "nominal", "--times", "6,1,1,1", "--ranks", "3", "--bandwidth", "1e6", "--plot", str(file))
    printed = said(capsys, *words)
    assert "bottleneck: stage 0 (layer0) on 2 ranks: compute 6.00 s / 2" in printed
    following = "pdlab simulate pipedream --pp 3 --layers 1:3 --replicas 2:1 --scale 1.33,0.667"
    assert f"next: {following}\n" in printed and "wrote" in printed and "layer times given" in file.read_text()
    assert main(following.split()[1:]) == 0


@pytest.mark.parametrize(
    ("words", "following"),
    [
        (("--by", "count", "--stages", "2"), "pdlab run 1f1b --pp 2 --layers 4:4 --model mlp --depth 3"),
        (("--by", "time", "--ranks", "2"), "pdlab run 1f1b --pp 2 --layers 1:7 --model mlp --depth 3"),
        (("--by", "parameters", "--ranks", "1"), "pdlab run 1f1b --pp 1 --layers 8 --model mlp --depth 3"),
        (("--ranks", "3"), "pdlab run pipedream --pp 3 --layers 8 --replicas 3 --model mlp --depth 3"),
        (
            ("--ranks", "3", "--bandwidth", "1e4", "--minibatch", "2"),
            "pdlab run pipedream --pp 3 --layers 1:7 --replicas 2:1 --model mlp --depth 3 --microbatches 8 --batch 16",
        ),
    ],
)
def test_what_to_run_next_runs(words: tuple[str, ...], following: str, capsys: pytest.CaptureFixture[str]) -> None:
    printed = said(capsys, "--model", "mlp", "--times", "14,1,1,1,1,1,1,1", *words)
    assert f"next: {following}\n" in printed
    assert ("links are free" in printed) == (words == ("--ranks", "3"))
    assert main([*following.split()[1:], "--mode", "local"]) == 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--model", "nominal"), "--model nominal has no times and cannot be run"),
        (("--model", "nominal", "--times", "1", "--depth", "2"), "--depth 2 with --model nominal"),
        (("--times", "1,a"), "--times '1,a'; give seconds for each layer"),
        (("--times", ""), "--times ''; give seconds for each layer"),
        (("--times", "1,2"), "2 times for the 8 layers of model transformer"),
        (("--model", "nominal", "--times", "1,nan"), "layer layer1: seconds is nan"),
        (("--ranks", "0"), "--ranks 0; give at least 1"),
        (("--by", "time", "--stages", "0"), "--stages 0; give at least 1"),
        (("--stages", "2"), "--stages 2 without --by"),
        (("--by", "time", "--stages", "5", "--ranks", "4"), "--stages 5 on 4 ranks"),
        (
            ("--model", "nominal", "--times", "1,2", "--by", "time", "--ranks", "3"),
            "3 stages are more than the 2 layers",
        ),
        (("--bandwidth", "0"), "is 0.0; give a number from"),
        (("--model", "nominal", "--times", "1", "--minibatch", "-1"), "--minibatch -1; give at least 1"),
        (("--minibatch", "0"), "--minibatch 0; give at least 1"),
        (("--plot", "x.txt"), "cannot draw x.txt"),
    ],
)
def test_what_the_command_cannot_do_is_one_line(
    words: tuple[str, ...], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["partition", *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert error in line


def test_the_command_has_help_with_an_example_that_works(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["partition", "--help"])
    [command] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("example: ")]
    assert main(command.split()[2:]) == 0


@pytest.mark.processes
def test_without_times_the_layers_are_measured_on_one_rank(capsys: pytest.CaptureFixture[str]) -> None:
    printed = said(capsys, "--model", "mlp", "--ranks", "2", "--minibatch", "4", "--by", "time")
    assert "layer times measured" in printed and "the median of 8 minibatches of 4 samples" in printed
    [again] = [line for line in printed.splitlines() if line.startswith("layers: --times ")]
    times = [float(time) for time in again.split()[-1].split(",")]
    assert len(times) == 8 and all(1e-6 < time < 1 for time in times)


def test_partitioning_and_drawing_do_not_load_torch() -> None:
    code = "import sys, pdlab.partitioning, pdlab.partition, pdlab.plots; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
