"""The PipeDream family: who meets which weights, what that costs, and that real runs do exactly that.

The rules themselves are tested in `test_reference_pipedream`; here programs are held to them.
"""

import json
from dataclasses import replace
from itertools import product
from math import inf
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import LR, small_mlp, small_transformer, stream
from hypothesis import given, settings
from hypothesis import strategies as st

from pdlab import cli, forms, models, reference
from pdlab.batch import Batch
from pdlab.compare import digits_batch
from pdlab.convergence import converge, known_at, stream_of_digits
from pdlab.costs import Uniform
from pdlab.curve import Curve
from pdlab.execute.local import run_local
from pdlab.execute.settings import Settings
from pdlab.lab import lab_nominal
from pdlab.launch import Ranks
from pdlab.ledger import START, Ledger
from pdlab.models import Model
from pdlab.ops import Kind
from pdlab.optimizers import Adam, Sgd
from pdlab.program import Program
from pdlab.simulate import simulate
from pdlab.state import assemble, initial_parameters
from pdlab.steady import seconds_per_minibatch, steady_rounds
from pdlab.strategies import STRATEGIES, Plan, build, get, stopped
from pdlab.strategies.pipedream import Replica, replicas_of
from pdlab.trajectory import expected, trajectory_error
from pdlab.validate import validate

EXACT = 1e-9
STREAMS = ("pipedream_naive", "pipedream", "pipedream_vertical_sync")
VARIANTS = (*STREAMS, "pipedream_2bw", "pipedream_flush")
RECORDED = Settings(Sgd(LR), record=True)


def made(name: str, model: Model | None = None, **choices: object) -> Program:
    strategy = get(name)
    if strategy.accumulates:
        choices.setdefault("accumulate", choices.get("pp", 1))
    plan = strategy.chosen(Plan(**choices))  # type: ignore[arg-type]
    return build(strategy, plan, model or lab_nominal(plan.pp, plan.num_stages))


def error(program: Program) -> float:
    batch = digits_batch(program.batch)
    return trajectory_error([program], run_local([program], batch, RECORDED), batch, RECORDED)


# --- who meets which weights


def test_the_ledger_of_three_stages_by_hand() -> None:
    """Minibatch 3: stage 0 has stepped on 0 when it goes forward, stage 1 on 0 and 1, stage 2 on 0, 1 and 2."""
    met = {
        name: [(e.forward, e.backward, e.update) for e in Ledger.of(made(name, pp=3, microbatches=6)).entries[9:12]]
        for name in STREAMS
    }
    assert met["pipedream"] == [(0, 0, 3), (1, 1, 3), (2, 2, 3)]
    assert met["pipedream_naive"] == [(0, 2, 3), (1, 2, 3), (2, 2, 3)]
    assert met["pipedream_vertical_sync"] == [(0, 0, 3)] * 3
    two = [(e.forward, e.backward, e.update) for e in Ledger.of(made("pipedream_2bw", pp=2, microbatches=8)).entries]
    by_minibatch = {i: two[2 * i] for i in range(8)}
    assert by_minibatch == {0: (-1, -1, 1), 1: (-1, -1, 1), 2: (-1, -1, 3), 3: (-1, -1, 3)} | {
        4: (1, 1, 5), 5: (1, 1, 5), 6: (3, 3, 7), 7: (3, 3, 7)
    }  # fmt: skip


def test_minibatch_5_on_four_stages() -> None:
    stashing = [e for e in Ledger.of(made("pipedream", pp=4, microbatches=12)).entries if e.minibatch == 5]
    assert [e.forward for e in stashing] == [e.backward for e in stashing] == [1, 2, 3, 4]
    vertical = Ledger.of(made("pipedream_vertical_sync", pp=4, microbatches=12)).entries
    assert [(e.forward, e.backward) for e in vertical if e.minibatch == 5] == [(1, 1)] * 4


@pytest.mark.parametrize("p", range(1, 7))
def test_how_many_versions_live_at_once(p: int) -> None:
    """Stashing: p - s on stage s; vertical sync: p on every stage; 2BW: two; naive and flush: one."""
    most = {name: Ledger.of(made(name, pp=p, microbatches=3 * p)).most_by_stage for name in VARIANTS}
    assert most["pipedream"] == tuple(range(p, 0, -1))
    assert most["pipedream_vertical_sync"] == (p,) * p
    assert most["pipedream_2bw"] == (2,) * p
    assert most["pipedream_naive"] == most["pipedream_flush"] == (1,) * p


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("p", [1, 2, 4])
def test_the_ledger_flags_naive_alone(name: str, p: int) -> None:
    ledger = Ledger.of(made(name, pp=p, microbatches=12))
    assert bool(ledger.inconsistent) == (name == "pipedream_naive" and p > 1)
    assert bool(ledger.torn) == (name in ("pipedream_naive", "pipedream") and p > 1)
    assert ("INCONSISTENT" in ledger.verdicts()[0]) == bool(ledger.inconsistent)
    assert set(ledger.final.values()) == {11}
    frame = ledger.frame()
    assert len(frame) == 12 * p and frame.consistent.all() == (not ledger.inconsistent)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_ledger_says_what_the_rule_says(name: str) -> None:
    """Two ledgers that know nothing of each other: one read off the program, one written from the papers."""
    program = made(name, small_mlp(), pp=4, microbatches=13, batch=26)
    rule = expected(program, digits_batch(26), RECORDED).stages
    for entry in Ledger.of(program).entries:
        by_rule = rule[entry.stage]
        wanted = (by_rule.forward[entry.minibatch], by_rule.backward[entry.minibatch])
        assert (entry.forward, entry.backward) == wanted, entry


def test_a_synchronous_schedule_has_a_ledger_too() -> None:
    ledger = Ledger.of(made("1f1b", pp=3, microbatches=5))
    assert {(e.forward, e.backward, e.update) for e in ledger.entries} == {(START, START, 4)}
    assert ledger.most_by_stage == (1, 1, 1)


# --- replicas


def test_warm_up_of_replicas() -> None:
    """Ranks from a stage on, less one, over its replicas: 3:1 gives 1, without replicas p - s - 1."""
    assert [replica.warm_up for replica in replicas_of((3, 1))] == [1, 1, 1, 0]
    assert [replica.warm_up for replica in replicas_of((1, 1, 1, 1))] == [3, 2, 1, 0]
    assert Replica(0, 0, (2, 3, 1)).warm_up == 2 and Replica(1, 2, (2, 3, 1)).warm_up == 1


def test_a_minibatch_comes_back_to_the_replica_that_it_went_through() -> None:
    program = made("pipedream", pp=4, replicas=(3, 1), microbatches=10)
    for rank, of_rank in enumerate(program.ranks[:3]):
        passes = [(op.kind, op.microbatch) for op in of_rank.ops if op.kind in (Kind.FORWARD, Kind.BACKWARD)]
        mine = {i for i in range(10) if i % 3 == rank}
        assert {i for kind, i in passes if kind is Kind.FORWARD} == mine
        assert {i for kind, i in passes if kind is Kind.BACKWARD} == mine
        before_the_first_backward = [i for kind, i in passes[: [k for k, _ in passes].index(Kind.BACKWARD)]]
        assert before_the_first_backward == [rank, rank + 3], "a warm-up of one, and the forward beside the first"
        assert [op.microbatch for op in of_rank.ops if op.kind is Kind.STEP] == [2, 5, 8, 9]


def test_replicas_stay_equal_and_step_on_the_mean() -> None:
    """`assemble` refuses copies that differ in the last bit; a round's gradient is the mean of its minibatches'."""
    program = made("pipedream", small_mlp(), pp=4, replicas=(3, 1), microbatches=7, batch=21)
    batch = digits_batch(21)
    result = run_local([program], batch, RECORDED)
    start = initial_parameters(program.model, 0, torch.float64)
    x, target = reference.inputs(program.model, batch.pixels, batch.labels, torch.float64)
    first = program.stages[0][0]
    met = dict(start)
    grads = []
    for i in range(3):
        tail = {k: t for k, t in result.weights.items() if k[0] == 3 and k[1].endswith(f"@{i}")}
        met |= assemble(program, tail) if i else {}
        grads.append(reference.gradients(program.model, met, x[3 * i : 3 * i + 3], target[3 * i : 3 * i + 3])[1])
    stepped = assemble(program, {k: t for k, t in result.weights.items() if k[0] < 3 and k[1].endswith("@1")})
    wanted = start[f"{first}.weight"] - LR * sum(g[f"{first}.weight"] for g in grads) / 3
    assert torch.allclose(stepped[f"{first}.weight"], wanted, rtol=1e-12, atol=1e-15)


SHAPES = st.lists(st.integers(1, 3), min_size=1, max_size=4).filter(lambda shape: sum(shape) <= 6).map(tuple)


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(STREAMS), replicas=SHAPES, minibatches=st.integers(1, 13))
def test_any_shape_of_replicas_is_exact(name: str, replicas: tuple[int, ...], minibatches: int) -> None:
    try:
        program = made(name, small_mlp(), pp=sum(replicas), replicas=replicas, microbatches=minibatches,
                       batch=2 * minibatches + 1)  # fmt: skip
    except ValueError as refused:
        assert name == "pipedream_vertical_sync" and "version in common" in str(refused)
        return
    assert error(program) < EXACT
    assert {e.minibatch for e in Ledger.of(program).entries} == set(range(minibatches))


@pytest.mark.parametrize(("replicas", "minibatches", "meet"), [((2, 3), 5, 6), ((3, 1), 2, 3), ((2, 3, 1), 5, 6)])
def test_vertical_sync_refuses_replicas_that_never_meet(replicas: tuple[int, ...], minibatches: int, meet: int) -> None:
    with pytest.raises(ValueError, match=f"after every {meet} minibatches, and there are {minibatches}"):
        made("pipedream_vertical_sync", pp=sum(replicas), replicas=replicas, microbatches=minibatches)


# --- whole trajectories


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize(("p", "minibatches"), [(1, 1), (1, 5), (4, 1), (4, 2), (4, 3), (3, 4), (8, 20)])
def test_short_streams_and_deep_pipelines(name: str, p: int, minibatches: int) -> None:
    assert error(made(name, small_mlp(), pp=p, microbatches=minibatches, batch=2 * minibatches)) < EXACT


@pytest.mark.parametrize("name", STREAMS)
def test_one_stage_is_sgd(name: str) -> None:
    program, batch = made(name, small_mlp(), microbatches=6, batch=18), digits_batch(18)
    x, target = reference.inputs(program.model, batch.pixels, batch.labels, torch.float64)
    start = initial_parameters(program.model, 0, torch.float64)
    sgd = reference.sgd(program.model, start, zip(x.split(3), target.split(3), strict=True), LR)
    result = run_local([program], batch, RECORDED)
    last = assemble(program, {k: t for k, t in result.weights.items() if k[1].endswith("@6")})
    assert max(reference.relative_errors(last, sgd[-1]).values()) < EXACT


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("pipedream", {"pp": 2, "dp": 2}),
        ("pipedream", {"pp": 2, "tp": 2}),
        ("pipedream", {"pp": 3, "replicas": (2, 1), "dp": 2}),
        ("pipedream_vertical_sync", {"pp": 2, "tp": 2}),
        ("pipedream_2bw", {"pp": 2, "dp": 2, "accumulate": 3}),
        ("pipedream", {"pp": 3, "layers": (1, 4, 1)}),
        ("pipedream", {"pp": 3, "recompute": "stage"}),
    ],
)
def test_hybrids_on_a_transformer(name: str, choices: dict[str, object]) -> None:
    program = made(name, small_transformer(int(str(choices.get("tp", 1)))), microbatches=9, batch=45, **choices)
    assert error(program) < EXACT


def test_dropout_and_lengths_are_in_the_rule_too() -> None:
    dropping = models.transformer(width=16, depth=2, heads=8, itemsize=8, dropout=0.2)
    assert error(made("pipedream", dropping, pp=3, microbatches=7, batch=21)) < EXACT
    assert error(made("pipedream", dropping, pp=3, microbatches=7, batch=21, recompute="stage")) < EXACT
    masked = models.transformer(width=16, depth=2, heads=8, itemsize=8, masked=1)
    program, few = made("pipedream_vertical_sync", masked, pp=3, microbatches=7, batch=21), digits_batch(21)
    batch = Batch(few.pixels, few.labels, few.keys, np.arange(21) % 9 + 3)
    assert trajectory_error([program], run_local([program], batch, RECORDED), batch, RECORDED) < EXACT


def test_batchnorm_is_not_versioned() -> None:
    """Each minibatch is normalised by its own statistics, which belong to no version."""
    program = made("pipedream", models.cnn(width=4, depth=4, itemsize=8), pp=3, microbatches=7, batch=35)
    assert error(program) < EXACT


def test_a_run_is_not_excused_by_another_rule() -> None:
    """What would be found if a program followed the rule of its neighbour."""
    batch = digits_batch(24)
    for name, other in product(("pipedream_naive", "pipedream", "pipedream_vertical_sync"), repeat=2):
        program = made(name, small_mlp(), pp=3, microbatches=12, batch=24)
        result = run_local([program], batch, RECORDED)
        held = made(other, small_mlp(), pp=3, microbatches=12, batch=24)
        assert (trajectory_error([held], result, batch, RECORDED) < EXACT) == (name == other)


def test_a_version_that_is_missing_or_too_many_is_no_small_error() -> None:
    program, batch = made("pipedream", small_mlp(), pp=2, microbatches=4, batch=8), digits_batch(8)
    result = run_local([program], batch, RECORDED)
    assert trajectory_error([program], result, batch, RECORDED) < EXACT
    ranks = list(program.ranks)
    ranks[1] = replace(ranks[1], ops=tuple(op for op in ranks[1].ops if str(op) != "1.0STEP2"))
    assert trajectory_error([program.with_ranks(ranks)], result, batch, RECORDED) == inf
    doubled = [op._replace(microbatch=9) for op in ranks[0].ops if op.kind is Kind.STEP and op.microbatch == 3]
    ranks = [replace(program.ranks[0], ops=(*program.ranks[0].ops, *doubled)), program.ranks[1]]
    assert trajectory_error([program.with_ranks(ranks)], result, batch, RECORDED) == inf


@pytest.mark.parametrize("lost", [float("nan"), float("inf"), 0.0])
def test_a_loss_that_is_no_number_is_no_small_error(lost: float) -> None:
    program, batch = made("pipedream", small_mlp(), pp=2, microbatches=4, batch=8), digits_batch(8)
    result = run_local([program], batch, RECORDED)
    wrong = replace(result, losses=result.losses | {(1, "loss:2"): torch.tensor(lost, dtype=torch.float64)})
    assert not trajectory_error([program], wrong, batch, RECORDED) < 0.1


def test_a_training_that_explodes_is_still_held_to_its_rule() -> None:
    program, batch = made("pipedream", small_mlp(), pp=2, microbatches=6, batch=12), digits_batch(12)
    wild = Settings(Sgd(30.0), record=True)
    assert trajectory_error([program], run_local([program], batch, wild), batch, wild) < EXACT


def test_rules_are_for_sgd() -> None:
    program = made("pipedream", small_mlp(), pp=2, microbatches=4, batch=8)
    with pytest.raises(ValueError, match="give it Sgd"):
        expected(program, digits_batch(8), Settings(Adam(), record=True))


# --- on real processes


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("p", [2, 4])
def test_200_minibatches_on_processes(name: str, p: int, pool: Ranks) -> None:
    """Weights after each of them equal the rule's, and the stash is as large as simulated."""
    program, batch = made(name, small_mlp(), pp=p, microbatches=200, batch=600), digits_batch(600)
    result = pool.run(program, batch, settings=RECORDED)
    assert trajectory_error([program], result, batch, RECORDED) < EXACT
    assert simulate(program, Uniform()).peak_weights == result.trace.peak_weights


def test_replicas_and_a_stop_on_processes(pool: Ranks) -> None:
    strategy, plan = get("pipedream"), Plan(pp=4, replicas=(3, 1), microbatches=30, batch=90)
    programs = stopped(strategy, plan, small_mlp(), after=11)
    batch = digits_batch(programs[0].batch)
    result = pool.run(programs, batch, settings=RECORDED)
    assert trajectory_error(programs, result, batch, RECORDED) < EXACT


# --- memory and time


ONE_EACH = (1, 1, 1, 1)
STASHES = [(name, ONE_EACH) for name in VARIANTS] + [(n, shape) for n in STREAMS for shape in ((3, 1), (1, 2, 1))]


@pytest.mark.parametrize(("name", "replicas"), STASHES)
def test_the_stash_is_as_large_as_simulated(name: str, replicas: tuple[int, ...]) -> None:
    """Versions times the bytes of the stage, which the store's own tensors add up to."""
    chosen = {"replicas": replicas} if name in STREAMS else {}
    program = made(name, small_mlp(), pp=4, microbatches=12, batch=24, **chosen)
    held = run_local([program], digits_batch(24)).trace.peak_weights
    most = Ledger.of(program).most
    for rank, replica in enumerate(replicas_of(replicas)):
        groups = [g for s in program.stages[replica.stage] for g in program.model.segments[s].groups]
        assert held[rank] == most[replica.stage, rank] * sum(group.bytes for group in groups)
    assert simulate(program, Uniform()).peak_weights == held


def test_no_bubble_in_the_steady_state() -> None:
    """F + B for each minibatch, where a flush after every p takes (2p - 1) / p as long."""
    p, costs = 4, Uniform(F=1, B=2)
    rounds = steady_rounds(simulate(made("pipedream", pp=p, microbatches=40), costs))
    assert rounds == pytest.approx([3.0] * len(rounds)) and len(rounds) >= 8
    flush = simulate(made("pipedream_flush", pp=p, microbatches=40), costs)
    assert flush.makespan == pytest.approx(40 / p * (2 * p - 1) * 3)


def test_a_balanced_replication_has_no_bubble() -> None:
    """A stage of three times the work on three ranks: each minibatch takes what the single one takes."""
    program = made("pipedream", pp=4, replicas=(3, 1), microbatches=60)
    trace = simulate(program, Uniform(F=1, B=2, scale=(1.5, 0.5)))
    assert seconds_per_minibatch(trace) == pytest.approx(3.0)


def test_too_short_for_a_steady_state() -> None:
    short = simulate(made("pipedream", pp=4, microbatches=3), Uniform())
    assert steady_rounds(short) == [] and seconds_per_minibatch(short) is None


# --- stopping


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("after", [0, 3, 7])
def test_a_stop_drains(name: str, after: int) -> None:
    """Every minibatch that went in counts once, nothing else goes in, and the weights are those of a stream of that
    length."""
    strategy, plan = get(name), Plan(pp=4, microbatches=20, batch=50)
    plan = Plan(pp=4, microbatches=20, batch=50, accumulate=4) if strategy.accumulates else plan
    if strategy.accumulates and after % 4 != 3:
        with pytest.raises(ValueError, match="stop after one of 3, 7, 11, 15, 19"):
            stopped(strategy, plan, small_mlp(), after)
        return
    first, drain = stopped(strategy, plan, small_mlp(), after)
    validate(first), validate(drain)
    entered = first.num_microbatches
    assert entered == (after + 1 if name == "pipedream_flush" else after + 4)
    ledger = Ledger.of(first, drain)
    assert [(e.minibatch, e.stage) for e in ledger.entries] == list(product(range(entered), range(4)))
    assert ledger.final == dict.fromkeys(range(4), entered - 1)
    batch = digits_batch(first.batch)
    result = run_local([first, drain], batch, RECORDED)
    assert trajectory_error([first, drain], result, batch, RECORDED) < EXACT


def test_the_first_part_does_not_know_of_the_stop() -> None:
    """Up to the stop, the endless stream and the stopped one do the same."""
    endless = made("pipedream", small_mlp(), pp=4, microbatches=20, batch=40)
    first, _ = stopped(get("pipedream"), Plan(pp=4, microbatches=20, batch=40), small_mlp(), 7)
    for ours, whole in zip(first.ranks, endless.ranks, strict=True):
        computed = [(op.kind, op.stage, op.microbatch, op.version) for op in whole.ops if op.stage >= 0]
        stopped_ = [(op.kind, op.stage, op.microbatch, op.version) for op in ours.ops if op.stage >= 0]
        assert stopped_ == computed[: len(stopped_)]


def test_a_ledger_needs_the_beginning() -> None:
    _, drain = stopped(get("pipedream"), Plan(pp=2, microbatches=8), small_mlp(), 3)
    with pytest.raises(ValueError, match="begins with step"):
        Ledger.of(drain)


# --- what is refused


@pytest.mark.parametrize(
    ("name", "choices", "said"),
    [
        ("1f1b", {"pp": 4, "replicas": (3, 1)}, "stages have one rank each"),
        ("pipedream_2bw", {"pp": 4, "replicas": (3, 1)}, "stages have one rank each"),
        ("pipedream", {"pp": 4, "accumulate": 4}, "says itself when it steps"),
        ("pipedream_2bw", {"pp": 4, "accumulate": 3}, "give --accumulate 4 or more"),
        ("pipedream", {"pp": 5, "replicas": (3, 1)}, "are 4 ranks and pp is 5"),
        ("pipedream", {"pp": 3, "replicas": (3, 0)}, "whole numbers of at least 1"),
        ("pipedream", {"pp": 3, "layers": (3, 3)}, "for 2 stages and there are 3"),
        ("pipedream", {"pp": 2, "layers": (3, 3)}, "which has 8 layers"),
    ],
)
def test_refusals(name: str, choices: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        strategy = get(name)
        build(strategy, strategy.chosen(Plan(microbatches=8, **choices)), small_mlp())  # type: ignore[arg-type]


def test_tied_weights_cannot_step_along_the_way() -> None:
    tied = models.transformer(width=16, depth=2, heads=8, itemsize=8, tied=1)
    with pytest.raises(ValueError, match="take a schedule that flushes"):
        made("pipedream", tied, pp=2, microbatches=4)


def test_flush_is_1f1b() -> None:
    one = build(get("pipedream_flush"), Plan(pp=4, microbatches=8, accumulate=8), small_mlp())
    other = build(get("1f1b"), Plan(pp=4, microbatches=8), small_mlp())
    for ours, theirs in zip(one.ranks, other.ranks, strict=True):
        assert [(op.kind, op.stage, op.segment) for op in ours.ops] == [
            (op.kind, op.stage, op.segment) for op in theirs.ops
        ]
    assert build(get("pipedream_flush"), Plan(pp=4, microbatches=8), small_mlp()).ranks == other.ranks
    assert "1F1B" in get("pipedream_flush").summary
    assert {s.name for s in STRATEGIES if s.stale or s.accumulates} == set(VARIANTS)


# --- on the command line


def test_show_versions(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "pipedream_naive", "--pp", "4", "--microbatches", "8", "--format", "versions"]) == 0
    said = capsys.readouterr().out
    assert "minibatch 3 on stage 0: forward start, backward w2" in said
    assert "versions held at once, by stage: 1, 1, 1, 1" in said


def test_show_replicas(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "pipedream", "--replicas", "3:1", "--microbatches", "6"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 4 and all("0STEP5" in row for row in rows[:3]) and "1STEP5" in rows[3]


@pytest.mark.parametrize("given_", ["3:0", "a:b", "3:", "1,2", "-1:2", "٣:1"])
def test_replicas_that_are_no_numbers(given_: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["show", "pipedream", f"--replicas={given_}"])
    assert "give a number from 1 to 4096 for each stage, as in 3:1" in capsys.readouterr().err


def test_naive_runs_on_the_mlp_alone(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "pipedream_naive", "--pp", "2", "--microbatches", "4", "--mode", "local"]
    assert cli.main(words) == 0
    assert cli.main([*words, "--model", "transformer"]) == 2
    assert "known for the mlp alone" in capsys.readouterr().err


# --- convergence


def test_all_variants_train() -> None:
    curves = converge(p=2, minibatches=60, lr=0.1)
    assert {curve.name for curve in curves} == set(VARIANTS)
    assert all(curve.final_loss < 2.25 and curve.diverged is None for curve in curves)
    first = {round(curve.losses[0], 6) for curve in curves}
    assert len(first) == 1, "all start from the same weights with the same digits"


def test_stale_gradients_diverge_where_synchronous_ones_do_not() -> None:
    flush, stashing, vertical = converge(("pipedream_flush", *STREAMS[1:]), p=4, minibatches=200, size=32, lr=0.6)
    assert flush.diverged is None and flush.final_loss < 1.9
    assert stashing.diverged is not None and vertical.diverged is not None


@pytest.mark.parametrize(
    ("losses", "diverged"),
    [
        ([2.4] * 40, None),
        ([2.4] * 10 + [1.0] * 30, None),
        ([1.0] * 20 + [2.5] * 30, 27),
        ([2.4] * 10 + [9.0] * 40, 9),
        ([1.0] * 20 + [float("nan")] * 20, 20),
        ([1.0] * 35 + [9.0] * 5, None),
        ([2.1] + [2.35] * 40, None),
    ],
)
def test_what_counts_as_diverged(losses: list[float], diverged: int | None) -> None:
    assert Curve("x", losses, [0.0] * len(losses), None).diverged == diverged


def test_the_stream_of_digits_is_epoch_after_epoch() -> None:
    stream_ = stream_of_digits(100, 20)
    assert len(stream_) == 2000
    once = stream_.pixels[:1500]
    assert len({row.tobytes() for row in once}) > 1490, "no digit of an epoch comes twice"


def test_a_loss_is_known_after_the_last_forward() -> None:
    trace = simulate(made("pipedream", pp=2, microbatches=3), Uniform(F=1, B=2))
    assert known_at(trace) == [2.0, 5.0, 8.0]


def test_no_such_variant() -> None:
    with pytest.raises(ValueError, match="'1f1b' is no variant of PipeDream"):
        converge(("1f1b",))


def test_cut_between_minibatches() -> None:
    case = stream("pipedream", Plan(pp=3, replicas=(2, 1), microbatches=12, batch=24), cuts=(3, 7))
    assert case.check(run_local(case.programs, case.batch, case.settings)) < EXACT


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("pipedream", {"pp": 3}),
        ("pipedream", {"pp": 3, "recompute": "stage"}),
        ("pipedream_vertical_sync", {"pp": 3}),
        ("pipedream", {"pp": 3, "replicas": (2, 1)}),
    ],
)
def test_running_statistics_count_each_minibatch_once(name: str, choices: dict[str, object]) -> None:
    """Plain PyTorch with `BatchNorm2d` that tracks, forward with the weights that each minibatch met: the statistics of
    a rank are those after the minibatches that it saw, in their order. Backwards with other versions change nothing."""
    program, batch = made(name, models.cnn(width=4, depth=4, itemsize=8), microbatches=9, batch=45, **choices), None
    batch = digits_batch(45)
    result = run_local([program], batch, RECORDED)
    rule = expected(program, batch, RECORDED)
    x, _ = reference.inputs(program.model, batch.pixels, batch.labels, torch.float64)
    stage_of = {segment: stage for stage, segments in enumerate(program.stages) for segment in segments}
    for rank, replica in enumerate(replicas_of(choices.get("replicas", (1, 1, 1)))):  # type: ignore[arg-type]
        net = reference.build(program.model).double()
        norms = {f"conv{i}": torch.nn.BatchNorm2d(4).double() for i in range(3)}
        for segment, norm in norms.items():
            getattr(net, segment).norm = norm
        for i in range(9):
            if i % replica.count == replica.turn:
                met = {
                    k: made_[rule.stages[stage_of[k.partition(".")[0]]].forward[i]]
                    for k, made_ in rule.versions.items()
                }
                net.load_state_dict(met, strict=False)
                net(x[5 * i : 5 * i + 5])
        for segment in program.stages[replica.stage]:
            if segment in norms:
                wanted = torch.stack([norms[segment].running_mean, norms[segment].running_var])
                assert torch.allclose(result.running[rank, segment], wanted, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("name", "choices"), [("zero3", {"dp": 2}), ("zb_v", {"pp": 2}), ("dualpipe", {"pp": 2})])
def test_every_program_has_a_ledger(name: str, choices: dict[str, object]) -> None:
    """Shards and gathered copies of a version are of that version."""
    ledger = Ledger.of(made(name, models.nominal(4), microbatches=4, **choices))
    assert not ledger.inconsistent and not ledger.torn and set(ledger.most.values()) == {1}


@pytest.mark.parametrize("choices", [{"pp": 2}, {"pp": 4, "replicas": (3, 1)}])
def test_a_table_of_a_stream_runs_and_is_held_to_what_it_says(
    choices: dict[str, object], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "stream.csv"
    file.write_text(forms.schedule_csv(made("pipedream", microbatches=7, **choices)))
    for more in ((), ("--dp", "2"), ("--tp", "2")):
        assert cli.main(["run", str(file), "--mode", "local", "--json", *more]) == 0
        assert json.loads(capsys.readouterr().out)["grad_max_rel_error"] < EXACT


def test_steps_at_odd_places_have_no_rule(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "odd.csv"
    file.write_text("0F0,0B0,0STEP0,0F1,0F2,0B1,0B2,0STEP2,0F3,0B3,0STEP3\n")
    assert cli.main(["run", str(file), "--mode", "local"]) == 2
    assert "steps after microbatches 0, 2, 3" in capsys.readouterr().err


def test_tied_weights_flush() -> None:
    """Both ends step after the same microbatches with nothing in flight, so the copies meet one version."""
    tied = models.transformer(width=16, depth=2, heads=8, itemsize=8, tied=1)
    program = made("pipedream_flush", tied, pp=2, microbatches=8, batch=16, accumulate=4)
    assert error(program) < EXACT


def test_ignored_labels_do_not_count() -> None:
    for name in STREAMS:
        program, few = made(name, small_mlp(), pp=3, microbatches=5, batch=20), digits_batch(20)
        labels = few.labels.copy()
        labels[[1, 5, 6]] = -100
        batch = Batch(few.pixels, labels, few.keys)
        assert trajectory_error([program], run_local([program], batch, RECORDED), batch, RECORDED) < EXACT


def test_no_ranks_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", "1f1b", "--pp", "0"]) == 2
    assert "pp is 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [
        {"minibatches": 0},
        {"size": -1},
        {"minibatches": 2.5},
        {"p": 0},
        {"lr": float("nan")},
        {"lr": 0},
        {"lr": 1e300},
        {"seed": -1},
        {"variants": "pipedream"},
    ],
)
def test_a_convergence_of_nonsense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="give a"):
        converge(**wrong)  # type: ignore[arg-type]


def test_a_ledger_believes_operands_not_words() -> None:
    """A version that an op is only said to meet: what it reads counts."""
    program = made("pipedream", pp=2, microbatches=4)
    rank = program.ranks[0]
    lying = [op._replace(version=op.version + 1) if op.kind is Kind.BACKWARD else op for op in rank.ops]
    assert Ledger.of(program.with_ranks([replace(rank, ops=tuple(lying)), program.ranks[1]])) == replace(
        Ledger.of(program), program=program.with_ranks([replace(rank, ops=tuple(lying)), program.ranks[1]])
    )


def test_a_ledger_of_what_is_no_stream() -> None:
    first, drain = stopped(get("pipedream"), Plan(pp=4, microbatches=10), models.nominal(4), 3)
    assert len(Ledger.of(first, drain).entries) == 4 * 7
    for parts in ((first, first), (made("pipedream", pp=2, microbatches=4), first)):
        with pytest.raises(ValueError, match="does not go on from"):
            Ledger.of(*parts)
    with pytest.raises(ValueError, match="no programs"):
        Ledger.of()


@pytest.mark.parametrize("after", [True, 1.0, "3", None])
def test_a_stop_is_after_a_minibatch(after: object) -> None:
    with pytest.raises(ValueError, match="give the number of a minibatch"):
        stopped(get("pipedream"), Plan(pp=2, microbatches=4), models.nominal(2), after)  # type: ignore[arg-type]


def test_nothing_to_stop() -> None:
    with pytest.raises(ValueError, match="steps once, at its end"):
        stopped(get("1f1b"), Plan(pp=2, microbatches=4), models.nominal(2), -1)


def test_a_ledger_looks_at_every_segment() -> None:
    """One layer of a stage that goes back over newer weights than it went forward is enough."""
    right, wrong = (
        made(name, small_mlp(), pp=2, microbatches=6, batch=12) for name in ("pipedream", "pipedream_naive")
    )
    mixed = [
        theirs if ours.kind is Kind.BACKWARD and (ours.segment, ours.microbatch) == (1, 3) else ours
        for ours, theirs in zip(right.ranks[0].ops, wrong.ranks[0].ops, strict=True)
    ]
    ledger = Ledger.of(right.with_ranks([replace(right.ranks[0], ops=tuple(mixed)), right.ranks[1]]))
    assert [(e.minibatch, e.stage) for e in ledger.inconsistent] == [(3, 0)]
