"""Every hard case in one process: exact against the reference, and what was predicted of bytes and memory is what
happened."""

import math

import pytest
import torch
from cases import OVERFLOWING, Case, half_precision, kill_test, two_experts, worst_error_as_predicted

from pdlab.costs import Analytic, Uniform
from pdlab.execute.local import run_local
from pdlab.execute.settings import new_store
from pdlab.ops import Kind
from pdlab.program import Role
from pdlab.simulate import simulate

CASES = kill_test()


@pytest.mark.parametrize("name", CASES)
def test_exact_and_as_predicted(name: str) -> None:
    case: Case = CASES[name]
    assert worst_error_as_predicted(case) < 1e-9


def test_overflow_is_seen_on_one_rank_only_and_stops_the_step_on_both() -> None:
    case = half_precision(OVERFLOWING, sharded=True)
    facts = run_local(case.programs, case.batch, case.settings).trace.facts
    assert sorted(facts[rank, "finite"] for rank in (0, 1)) == [(0,), (1,)]
    assert facts[0, "finite.dp"] == facts[1, "finite.dp"] == (0,)


def test_a_skipped_step_hands_on_the_float32_weights() -> None:
    case = half_precision(OVERFLOWING, sharded=False)
    program = case.programs[0]
    store = new_store(program, 0, case.batch, case.settings)
    store.begin(program)
    before = {value: store.tensor(value).clone() for value in store.values if value.endswith("@0")}
    store.values["finite.dp"] = torch.tensor(0, dtype=torch.uint8)
    step = next(op for op in program.ranks[0].ops if op.kind is Kind.STEP)
    store.values[step.inputs[1]] = torch.full_like(before[step.inputs[0]], float("inf"))
    weight, state = store.compute(step)
    assert torch.equal(weight, before[step.inputs[0]])
    assert torch.equal(state, before[step.inputs[2]]) and state.dtype is torch.float32


def test_a_skipped_step_takes_no_time_in_the_simulation() -> None:
    case = half_precision(OVERFLOWING, sharded=False)
    costs = Uniform(step=5.0)
    facts = run_local(case.programs, case.batch, case.settings).trace.facts
    taken, skipped = (simulate(case.programs[0], costs, f).makespan for f in ({}, facts))
    assert math.isclose(taken - skipped, 5.0)


def test_sizes_that_depend_on_data_are_facts_that_the_simulator_replays() -> None:
    case = two_experts()
    program = case.programs[0]
    result = run_local(case.programs, case.batch, case.settings)
    facts = result.trace.facts
    counts = [facts[rank, "counts:0"] for rank in (0, 1)]
    assert facts[0, "arrivals:0"] == tuple(c[0] for c in counts)
    assert any(t.role is Role.FACT for t in program.ranks[0].types.values())
    costs = Analytic(flops_per_second=1e6, bandwidth=1e6)
    more = facts | {(0, "arrivals:0"): tuple(10 * n + 5 for n in facts[0, "arrivals:0"])}
    assert simulate(program, costs, more).makespan > simulate(program, costs, facts).makespan
    with pytest.raises(ValueError, match=r"arrivals:0.*scenario"):
        simulate(program, costs)


@pytest.mark.parametrize("microbatches", [1, 2, 4, 8])
def test_gradients_do_not_depend_on_the_number_of_microbatches(microbatches: int) -> None:
    from cases import strategy

    from pdlab.strategies import Plan

    case = strategy("1f1b", Plan(pp=2, microbatches=microbatches, batch=8))
    assert case.check(run_local(case.programs, case.batch, case.settings)) < 1e-9


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb_h1"])
@pytest.mark.parametrize("microbatches", [1, 7, 8, 9])
def test_eight_ranks(name: str, microbatches: int) -> None:
    from cases import strategy

    from pdlab.strategies import Plan

    case = strategy(name, Plan(pp=8, microbatches=microbatches, batch=2 * microbatches))
    assert case.check(run_local(case.programs, case.batch, case.settings)) < 1e-9
