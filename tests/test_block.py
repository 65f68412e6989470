"""One transformer block over a tensor group: what is predicted against closed forms, a block cut out of a program, and
the pace that it sets a small one."""

from collections import Counter
from dataclasses import replace
from itertools import chain

import pytest

from pdlab import metrics, models, strategies
from pdlab.costs import Analytic, Stretched, Uniform
from pdlab.ops import Kind, label
from pdlab.passes.excerpt import excerpt
from pdlab.plots.block_bars import published_bytes
from pdlab.program import Program, Role
from pdlab.simulate import simulate, start_plan
from pdlab.strategies import Plan
from pdlab.validate import validate
from pdlab.widgets import BlockScenario
from pdlab.widgets.block import AGAIN, ITEMSIZE, LATENCY_US, MEMORY_TB_S, SIZES, SPLITS, STEP_S, TFLOPS

SCENARIOS = [
    BlockScenario(tp, split, recompute=again, overlap=overlap)
    for tp in SIZES
    for split in SPLITS
    for again in AGAIN
    for overlap in (False, True)
]


def alone(program: Program) -> Program:
    return excerpt(program, program.model.blocks[0])


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("tp", SIZES)
def test_what_a_block_computes_and_communicates(tp: int, split: str) -> None:
    """Three times 24 b s h^2 + 4 b s^2 h FLOP (Narayanan et al. 2021, arXiv:2104.04473, appendix), shared; four
    all-reduces with tensor parallelism (Shoeybi et al. 2019), with sequence parallelism as many pairs of all-gather and
    reduce-scatter, and two gathers for the backward (Korthikanti et al. 2022). All that is read and written goes
    through memory: between the halves of the layer a rank's own tokens 22 times, the rest as its segments say."""
    scenario = BlockScenario(tp, split, width=2048, tokens=1024, samples=2)
    trace, b, s, h = scenario.predict(), 2, 1024, 2048
    flops = 3 * (24 * b * s * h**2 + 4 * b * s**2 * h) / tp
    whole, weights = ITEMSIZE * b * s * h, ITEMSIZE * 12 * h**2 / tp
    scores = ITEMSIZE * b * scenario.heads * s**2 / tp
    own = whole / (tp if split == "sequence" else 1)
    touched = 22 * own + 10 * whole + 24 * whole / tp if tp > 1 else 38 * whole
    touched += 2 * scores + 3 * weights
    computing = flops / (TFLOPS * 1e12) + touched / (MEMORY_TB_S * 1e12)
    ring = (tp - 1) / tp * ITEMSIZE * b * s * h / (scenario.link_gb_s * 1e9)
    latency = LATENCY_US * 1e-6
    moving = 4 * (2 * ring + latency) if split == "tensor" else 10 * (ring + latency)
    assert metrics.busy_per_rank(trace) == pytest.approx([computing] * tp, rel=0.02)
    assert metrics.exposed_communication_per_rank(trace) == pytest.approx([moving if tp > 1 else 0.0] * tp)
    assert trace.makespan == pytest.approx(computing + (moving if tp > 1 else 0.0), rel=0.02)


@pytest.mark.parametrize("split", SPLITS)
def test_overlap_hides_the_collectives_of_input_gradients(split: str) -> None:
    """On a fast link wholly. What remains are those of the forward, and gathers of output gradients; what is gathered
    again for weight gradients comes under the input gradients (Korthikanti et al. 2022, section 4.2.2)."""
    plain, hidden = (BlockScenario(4, split, overlap=overlap, link_gb_s=900.0).predict() for overlap in (False, True))
    assert metrics.busy_per_rank(hidden) == pytest.approx(metrics.busy_per_rank(plain))
    all_of_them = {"tensor": 4, "sequence": 10}[split]
    share = metrics.exposed_communication_per_rank(hidden)[0] / metrics.exposed_communication_per_rank(plain)[0]
    remain = {"tensor": 2, "sequence": 4 + 2}[split]
    assert share == pytest.approx(remain / all_of_them)


def test_a_partitioned_checkpoint_is_a_share_and_costs_one_gather() -> None:
    full, partitioned = (BlockScenario(8, recompute=again).predict() for again in ("full", "partitioned"))
    hidden = ITEMSIZE * 2048 * 4096
    assert metrics.held_for_backward_per_rank(full) == [hidden] * 8
    assert metrics.held_for_backward_per_rank(partitioned) == [hidden / 8] * 8
    gather = 7 / 8 * hidden / 100e9 + LATENCY_US * 1e-6
    assert partitioned.makespan - full.makespan == pytest.approx(gather)


@pytest.mark.parametrize("scenario", [BlockScenario(), BlockScenario(width=512, tokens=8192), BlockScenario(samples=3)])
@pytest.mark.parametrize("again", AGAIN)
def test_the_bytes_that_are_held_are_the_published_ones(scenario: BlockScenario, again: str) -> None:
    for trace in chain.from_iterable(replace(scenario, recompute=again).compared().values()):
        assert metrics.held_for_backward_per_rank(trace) == pytest.approx(
            [published_bytes(trace.program)] * trace.program.mesh.size, rel=0.02
        )


def test_the_closed_forms_are_those_of_the_paper_but_for_dropout() -> None:
    """s b h (10 + 24 / t + 5 a s / (h t)) and s b h / t (34 + 5 a s / h), less masks of one byte and what they leave of
    the probabilities: 2 between the blocks, 3 a s / h."""
    s, h, a, t = 2048, 4096, 32, 4
    tensor, sequence = (published_bytes(BlockScenario(t, split, h, s).program()) for split in SPLITS)
    assert tensor == pytest.approx(s * h * (10 - 2 + 24 / t + (5 - 3) * a * s / (h * t)))
    assert sequence == pytest.approx(s * h / t * (34 - 2 + (5 - 3) * a * s / h))


# --- a program of a block alone


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_an_excerpt_is_a_program(scenario: BlockScenario) -> None:
    program = alone(scenario.program())
    validate(program)
    segments = {program.stages[op.stage][op.segment] for op in program.ranks[0].ops if op.segment >= 0}
    assert segments and all(name.startswith(("attn0", "ffn0")) for name in segments)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_excerpts_share_out_all_but_steps_and_sums_of_weight_gradients(scenario: BlockScenario) -> None:
    program = scenario.program()
    parts = [excerpt(program, layers) for layers in ([0], *program.model.blocks, [3])]
    for r, rank in enumerate(program.ranks):
        apart = [
            op for op in rank.ops if op.kind is not Kind.STEP and rank.types[op.inputs[0]].role is not Role.GRADIENT
        ]
        assert Counter(map(label, apart)) == Counter(label(op) for part in parts for op in part.ranks[r].ops)


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("split", SPLITS)
def test_all_blocks_of_a_model_are_alike_and_add_up(split: str, depth: int) -> None:
    plan = Plan(tp=2, batch=2)
    strategy = strategies.get(split)
    program = strategies.build(
        strategy, strategy.chosen(plan), models.transformer(width=64, depth=depth, tp=2, split=split)
    )
    costs = Analytic(1e9, 1e9)
    blocks = [simulate(excerpt(program, block), costs) for block in program.model.blocks]
    together = simulate(excerpt(program, range(1, 2 * depth + 1)), costs)
    assert len({len(trace.starts) for trace in blocks}) == 1
    assert together.makespan == pytest.approx(sum(trace.makespan for trace in blocks))
    held = [metrics.held_for_backward_per_rank(trace)[0] for trace in blocks]
    assert metrics.held_for_backward_per_rank(together)[0] == sum(held)


def test_an_excerpt_of_no_layer_of_the_model_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no layer 4: model transformer\(.*\) has layers 0 to 3"):
        excerpt(BlockScenario().program(), (1, 4))


def test_what_takes_turns_has_no_moment_between_the_passes() -> None:
    trace = simulate(strategies.build(strategies.get("1f1b"), Plan(pp=2, microbatches=3), models.nominal(2)), Uniform())
    with pytest.raises(ValueError, match="rank 0 of 1f1b has no moment between its forwards and its backwards"):
        metrics.held_for_backward_per_rank(trace)


# --- the pace of a real run


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_the_small_program_has_the_ops_of_the_explored_one(scenario: BlockScenario) -> None:
    explored, small, pace = scenario.program(), scenario.lab_program(8), scenario.pace()
    assert [rank.ops for rank in small.ranks] == [rank.ops for rank in explored.ranks]
    slow, fast = start_plan(small, pace).durations, start_plan(explored, scenario.costs()).durations
    assert slow == pytest.approx([pace.factor * seconds for seconds in fast])
    assert simulate(small, pace).makespan == pytest.approx(STEP_S)


def test_a_pace_is_set_by_the_same_ops_only() -> None:
    whole, split = (BlockScenario(tp).program() for tp in (1, 2))
    pace = Stretched(whole, BlockScenario().costs(), 100.0)
    with pytest.raises(ValueError, match="has no pace, because the program that sets it has no"):
        simulate(split, pace)
    with pytest.raises(ValueError, match="times stretched by 0; the factor is a finite number above 0"):
        Stretched(whole, BlockScenario().costs(), 0.0)
