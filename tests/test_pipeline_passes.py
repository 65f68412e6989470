"""What pipelines of several stages on a rank need besides a schedule: copies of weights, relays, pairs, receives."""

from collections import Counter
from typing import Any

import pytest
import torch
from cases import strategy
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from pdlab import lab, metrics, models
from pdlab.batch import Batch
from pdlab.compare import digits_batch
from pdlab.costs import Uniform
from pdlab.execute.local import run_local
from pdlab.ops import P2P_KINDS, STEP, B, F, Kind
from pdlab.own_schedule import program_of_table
from pdlab.passes import Recompute, assign_streams, consume_last_uses, guard_steps, receive_early
from pdlab.program import Program, Role
from pdlab.simulate import simulate
from pdlab.state import assemble
from pdlab.strategies import Plan, build, get, lower_schedule
from pdlab.validate import ProgramError, validate


def made(name: str, model: models.Model | None = None, **choices: Any) -> Program:
    plan = get(name).chosen(Plan(**choices))
    return build(get(name), plan, model or lab.lab_nominal(plan.pp, plan.num_stages))


# --- several ranks hold the same weights


@pytest.mark.parametrize("dp", [1, 3])
def test_copies_of_weights_are_the_same_bits_after_the_step(dp: int) -> None:
    """Also with data parallelism, whose sums come first. `assemble` refuses copies that differ at all."""
    case = strategy(
        "dualpipe", Plan(pp=4, dp=dp, microbatches=8, batch=8 * dp + 5), models.mlp(width=8, depth=4, itemsize=8)
    )
    result = run_local(case.programs, case.batch, case.settings)
    copies = Counter(value for _, value in result.weights)
    assert set(copies.values()) == {2 * dp}
    assemble(case.programs[0], result.weights)
    assert case.check(result) < 1e-9


def test_tied_embeddings_on_two_ranks_are_the_same_bits_after_the_step() -> None:
    model = models.transformer(width=8, depth=2, heads=4, itemsize=8, tied=1)
    case = strategy("1f1b", Plan(pp=3, dp=3, microbatches=3, batch=23), model)
    result = run_local(case.programs, case.batch, case.settings)
    tied = [t for (_, value), t in result.weights.items() if value.startswith("embed.token@")]
    assert len(tied) == 2 * 3 and all(torch.equal(t, tied[0]) for t in tied)


def test_data_parallel_sums_come_before_the_sum_of_copies() -> None:
    ops = made("dualpipe", pp=2, dp=2, microbatches=4).ranks[0].ops
    reduces = [i for i, op in enumerate(ops) if op.kind is Kind.ALL_REDUCE]
    sums = [i for i, op in enumerate(ops) if op.kind is Kind.ADD]
    assert reduces and sums and max(reduces) < min(sums)


def test_copies_that_step_more_than_once_are_refused() -> None:
    from pdlab.passes import lower, sum_copies
    from pdlab.strategies.pipedream import pipedream, replicas_of

    schedule = [list(pipedream(replica, 4)) for replica in replicas_of((1, 1))]
    model = models.transformer(width=8, depth=1, heads=4, itemsize=8, tied=1)
    plan = Plan(pp=2, microbatches=4)
    program = lower("pipedream", schedule, model, plan.mesh, plan.rows, num_stages=2)
    with pytest.raises(
        ValueError,
        match=r"embed\.token is on stage 0 of rank 0 and on stage 1 of rank 1.*a schedule that flushes",
    ):
        sum_copies(program)


def test_three_copies_are_added_up_in_one_order() -> None:
    """With two a sum is the same either way round; with three it is not."""
    program = program_of_table("0F0,0B0\n0F1,0B1\n0F2,0B2\n", models.mlp(width=16, depth=4, itemsize=4), Plan(batch=9))
    case = strategy("single", Plan(microbatches=3, batch=9))
    result = run_local([program], case.batch, case.settings)
    for value in {value for _, value in result.weights}:
        copies = [t for (_, name), t in result.weights.items() if name == value]
        assert len(copies) == 3 and all(torch.equal(copy, copies[0]) for copy in copies)


@pytest.mark.parametrize("split", ["tensor", "sequence"])
@pytest.mark.parametrize("dp", [1, 2])
def test_copies_on_a_tensor_group(split: str, dp: int) -> None:
    model = models.transformer(width=8, depth=1, heads=4, itemsize=8, tp=2, split=split)
    case = strategy("dualpipe", Plan(pp=2, tp=2, dp=dp, microbatches=4, batch=9, split=split), model)
    assert case.check(run_local(case.programs, case.batch, case.settings)) < 1e-9


@pytest.mark.parametrize("name", ["dualpipe", "1f1b", "single"])
def test_a_guard_looks_at_the_sums_of_copies(name: str) -> None:
    """Mixed precision: the check stands behind what is exchanged between the steps."""
    model = models.transformer(width=8, depth=1, heads=4, itemsize=2, tied=1)
    plan = Plan(pp=1 if name == "single" else 2, microbatches=4, batch=8, optimizer_bytes=4)
    validate(assign_streams(consume_last_uses(guard_steps(build(get(name), plan, model)))))


def test_a_schedule_has_a_list_for_each_pipeline_rank() -> None:
    with pytest.raises(ProgramError, match="a schedule of 1 ranks on 2 pipeline ranks"):
        lower_schedule("x", [[F(0, 0), B(0, 0), STEP(0)]], Plan(pp=2), models.nominal(2))


# --- what skips stages


def test_a_skip_from_stage_0_to_stage_3_is_handed_on_by_the_ranks_between() -> None:
    model = models.mlp(width=8, depth=4, itemsize=8, skip=3)
    program = made("1f1b", model, pp=4, microbatches=2)
    validate(program)
    hops = [
        (r, op.peer)
        for r, rank in enumerate(program.ranks)
        for op in rank.ops
        if op.kind is Kind.SEND and "h1:0" in op.inputs
    ]
    assert hops == [(0, 1), (1, 2), (2, 3)]
    back = [
        (r, op.peer) for r, rank in enumerate(program.ranks) for op in rank.ops if op.inputs[:1] == ("d.h1/head:0",)
    ]
    assert back == [(1, -1), (2, 1), (3, 2)]
    plain = made("1f1b", models.mlp(width=8, depth=4, itemsize=8), pp=4, microbatches=2)
    more = sum(simulate(program, Uniform()).moved) - sum(simulate(plain, Uniform()).moved)
    row = 8 * 8
    assert more == 2 * row * (2 + 2)  # h1 two hops further than stage 1, its gradient's term from stage 3 to stage 1


def test_a_relay_holds_the_tensor_until_it_has_sent_it() -> None:
    model = models.mlp(width=8, depth=4, itemsize=8, skip=3)
    rank = made("gpipe", model, pp=4, microbatches=1).ranks[2]
    at = {str(op): i for i, op in enumerate(rank.ops)}
    send = rank.ops[at["SEND h1:0 to 3"]]
    assert at["RECV h1:0 from 1"] < at["SEND h1:0 to 3"] and send.consumes == {"h1:0"}


@pytest.mark.parametrize(
    ("name", "pp", "skip"),
    [("zb_v", 3, 8), ("zb_v", 4, 9), ("dualpipe_v", 5, 8), ("dualpipe", 4, 5), ("interleaved_1f1b", 3, 7)],
)
def test_a_way_that_turns_back_is_cut_short(name: str, pp: int, skip: int) -> None:
    case = strategy(
        name,
        get(name).chosen(Plan(pp=pp, microbatches=10, batch=10)),
        models.mlp(width=4, depth=12, itemsize=8, skip=skip),
    )
    validate(case.programs[0])
    assert case.check(run_local(case.programs, case.batch, case.settings)) < 1e-9


# --- a forward beside a backward


def test_the_members_of_a_pair_begin_and_end_together() -> None:
    """Neither starts before both have what they wait for, and what they make is sent when both are done."""
    check_pairs(made("dualpipe", pp=4, microbatches=8), Uniform(F=1, B=2, comm=0.25))


def check_pairs(program: Program, costs: Uniform) -> None:
    trace = simulate(program, costs)
    for r, rank in enumerate(program.ranks):
        first = trace.rows_of(r)[0]
        pairs: dict[int, list[int]] = {}
        for i, op in enumerate(rank.ops):
            if op.pair >= 0:
                pairs.setdefault(op.pair, []).append(i)
        for members in pairs.values():
            start, end = trace.starts[first + members[0]], trace.ends[first + members[-1]]
            inside = [op for op in rank.ops[members[0] : members[-1] + 1] if op.kind not in P2P_KINDS]
            made_here = {value for op in inside for value in op.writes}
            earlier = {value for op in rank.ops[: members[0]] if op.kind not in P2P_KINDS for value in op.inputs}
            given = {value for op in inside for value in op.inputs} - earlier
            arrivals = [
                trace.ends[first + i] for i, op in enumerate(rank.ops) if op.kind is Kind.RECV and op.writes[0] in given
            ]
            sends = [
                trace.starts[first + i]
                for i, op in enumerate(rank.ops)
                if op.kind is Kind.SEND and op.inputs[0] in made_here
            ]
            assert all(time <= start + 1e-9 for time in arrivals) and all(time >= end - 1e-9 for time in sends)


def test_a_pair_has_a_cost_of_its_own() -> None:
    program = made("dualpipe", pp=4, microbatches=8)
    alone, beside = (simulate(program, Uniform(F=1, B=2, FB=FB)) for FB in (3.0, 2.0))
    num_pairs = [len({op.pair for op in rank.ops if op.pair >= 0}) for rank in program.ranks]
    saved = [a - b for a, b in zip(metrics.busy_per_rank(alone), metrics.busy_per_rank(beside), strict=True)]
    assert saved == pytest.approx([float(n) for n in num_pairs])
    assert beside.makespan < alone.makespan


B_FIRST = "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,(1B0;1F1)OVERLAP_F_B,(1B1;1F2)OVERLAP_F_B,1B2\n"


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(
            program_of_table(B_FIRST, models.transformer(width=8, depth=1, heads=4, itemsize=8)), id="B first"
        ),
        pytest.param(
            made("dualpipe_v", models.mlp(width=8, depth=6, itemsize=8, skip=3), pp=3, microbatches=6), id="skip"
        ),
        pytest.param(
            made(
                "dualpipe", models.transformer(width=8, depth=1, heads=4, itemsize=8, tp=2), pp=2, tp=2, microbatches=4
            ),
            id="tensor group",
        ),
    ],
)
def test_whatever_stands_in_a_pair_belongs_to_it(program: Program) -> None:
    validate(program)
    check_pairs(program, Uniform(F=1, B=2, FB=2.5, comm=0.25, scale=(4, *[1] * (len(program.stages) - 1))))


@pytest.mark.parametrize("m", range(1, 8))
def test_a_pair_has_two_members_also_where_microbatches_are_missing(m: int) -> None:
    for rank in made("dualpipe_v", pp=4, microbatches=m).ranks:
        members = Counter(op.pair for op in rank.ops if op.pair >= 0)
        assert sorted(members) == list(range(len(members))) and set(members.values()) <= {2}


def test_a_step_costs_the_same_however_many_stages_a_rank_has() -> None:
    costs = Uniform(step=2.0)
    for name in ("1f1b", "interleaved_1f1b", "dualpipe_v"):
        trace = simulate(made(name, pp=4, microbatches=8), costs)
        times = [
            sum(
                trace.ends[i] - trace.starts[i]
                for i, op in zip(trace.rows_of(r), rank.ops, strict=True)
                if op.kind is Kind.STEP
            )
            for r, rank in enumerate(trace.program.ranks)
        ]
        assert times == pytest.approx([2.0] * 4), name


# --- whole stages are run again


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_v", "dualpipe", "dualpipe_v"])
@pytest.mark.parametrize("how", [Recompute.STAGE, Recompute.EXCEPT_LAST])
def test_recomputing_stages_is_exact_and_keeps_their_inputs_only(name: str, how: Recompute) -> None:
    model = models.transformer(width=8, depth=3, heads=4, itemsize=8, dropout=0.2)
    plan = get(name).chosen(Plan(pp=2, microbatches=4, batch=9))
    kept, again = (
        strategy(name, get(name).chosen(Plan(pp=2, microbatches=4, batch=9, recompute=r)), model)
        for r in (Recompute.NONE, how)
    )
    assert plan.num_stages >= 2
    validate(again.programs[0])
    result = run_local(again.programs, again.batch, again.settings)
    assert again.check(result) < 1e-9
    peaks = [max(metrics.peak_bytes_per_rank(simulate(case.programs[0], Uniform()))) for case in (kept, again)]
    assert peaks[1] < peaks[0]
    repeated = {op.microbatch for rank in again.programs[0].ranks for op in rank.ops if op.kind is Kind.RECOMPUTE}
    assert repeated == set(range(4 if how is Recompute.STAGE else 3))


def test_gpipe_with_recomputation_keeps_one_input_for_each_microbatch() -> None:
    """Huang et al. 2019, section 2.1: activations at the partition boundary, and those of one microbatch."""
    program = made("gpipe", models.nominal(8), pp=2, microbatches=6, recompute="stage")
    trace = simulate(program, Uniform())
    _, saved = metrics.held_over_time(trace, 1, frozenset({Role.SAVED}))
    assert max(saved) == 4 * 10**6  # four layers of one microbatch


def test_recomputing_waits_for_no_message() -> None:
    """What the first forward sends was freed by an op that waited for the send; torchgpipe's order has no such wait. A
    stage runs its first forward again while it waits for the gradient, so only m of them are seen."""
    program = made("gpipe", pp=4, microbatches=8, recompute="stage")
    assert simulate(program, Uniform(F=1, B=2, comm=0.25)).makespan == pytest.approx((8 + 3) * 3 + 8 + 6 * 0.25)
    assert not any(op.kind is Kind.FREE and not op.inputs[0].count("/again") for op in program.ranks[1].ops)


# --- receives


@pytest.mark.parametrize("comm", [0.0, 0.1])
def test_early_receives_delay_sends_and_deferring_them_does_not(comm: float) -> None:
    """8 ranks, interleaved with two stages each: the delay runs through all ranks."""
    program = made("interleaved_1f1b", pp=8, virtual=2, microbatches=8)
    early, costs = receive_early(program), Uniform(F=1, B=2, comm=comm)
    validate(early)
    assert simulate(early, costs).makespan > 1.5 * simulate(program, costs).makespan


def test_early_receives_come_in_the_order_of_torch() -> None:
    """The sequence of a rank's receives and that of its sends. How the two mix differs in places, since torch's lists
    hold blanks, which take turns too."""
    names = {"SEND_F": ("SEND", 1), "RECV_F": ("RECV", 0), "SEND_B": ("SEND", 0), "RECV_B": ("RECV", 1)}
    program = receive_early(made("interleaved_1f1b", pp=8, virtual=2, microbatches=8))
    for rank, actions in zip(program.ranks, get_schedule_ops("Interleaved1F1B", 8, 8, 2, with_comms=True), strict=True):
        theirs = []
        for action in actions:
            if action is not None and action.computation_type.name in names:
                what, offset = names[action.computation_type.name]
                back = "d." if action.computation_type.name.endswith("B") else ""
                theirs.append((what, f"{back}h{action.stage_index + offset}:{action.microbatch_index}"))
        ours = [(op.kind.value, (op.inputs or op.writes)[0]) for op in rank.ops if op.kind in (Kind.SEND, Kind.RECV)]
        for what in ("SEND", "RECV"):
            assert [value for kind, value in ours if kind == what] == [value for kind, value in theirs if kind == what]


def test_early_receives_are_exact_too() -> None:
    case = strategy("interleaved_1f1b", get("interleaved_1f1b").chosen(Plan(pp=3, microbatches=6, batch=12)))
    early = receive_early(case.programs[0])
    assert case.check(run_local([early], case.batch, case.settings)) < 1e-9


def test_early_receives_refuse_pairs() -> None:
    with pytest.raises(ValueError, match="dualpipe has messages that wait for more than their value"):
        receive_early(made("dualpipe", pp=2, microbatches=4))


def test_early_receives_go_to_every_rank_that_reads() -> None:
    """A table that gives each microbatch a rank sends gradients from each to the two others."""
    program = program_of_table("0F0,0B0\n0F1,0B1\n0F2,0B2\n", models.mlp(width=4, depth=4, itemsize=8))
    early = receive_early(program)
    validate(early)
    assert [len(rank.ops) for rank in early.ranks] == [len(rank.ops) for rank in program.ranks]


# --- stamping


@pytest.mark.parametrize("batch", [12, 13])
def test_microbatches_of_two_sizes_have_types_of_two_sizes(batch: int) -> None:
    program = made("zb_h1", models.mlp(width=8, depth=4, itemsize=8), pp=2, microbatches=5, batch=batch)
    for i, rows in enumerate(program.rows[0]):
        assert program.ranks[0].types[f"h1:{i}"].size == rows * 8 * 8


def test_samples_of_different_lengths_reach_processes() -> None:
    from pdlab.launch import Ranks

    model = models.transformer(width=8, depth=1, heads=4, itemsize=8, masked=1)
    program = made("1f1b", model, pp=2, microbatches=2, batch=4)
    digits = digits_batch(4)
    import numpy as np

    batch = Batch(digits.pixels, digits.labels, None, np.array([64, 64, 32, 7]))
    case_settings = strategy("single", Plan(batch=4)).settings
    with Ranks(2) as ranks:
        ours = assemble(program, ranks.run(program, batch, settings=case_settings).gradients)
    local = assemble(program, run_local([program], batch, case_settings).gradients)
    assert all(torch.equal(ours[name], local[name]) for name in local)


def test_tied_weights_that_step_after_each_microbatch_on_one_rank_are_refused() -> None:
    from pdlab.passes import lower

    model = models.transformer(width=8, depth=1, heads=4, itemsize=8, tied=1)
    schedule = [[F(0, 0), F(1, 0), B(1, 0), B(0, 0), STEP(0, 0), STEP(1, 0)]]
    plan = Plan(microbatches=1)
    with pytest.raises(ProgramError, match=r"embed\.token belongs to several stages of this rank"):
        lower("x", schedule, model, plan.mesh, plan.rows, num_stages=2)
