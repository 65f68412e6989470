"""Every kind of op goes through the validator, the simulator under both cost models, and the executor."""

from dataclasses import replace

import pytest
from cases import finished, kill_test, strategy

from pdlab.costs import Analytic, Uniform
from pdlab.execute.local import run_local
from pdlab.ops import F, Kind, Lane, Op, Stream, consuming, receiving, sending, stamped
from pdlab.program import Program
from pdlab.simulate import simulate
from pdlab.strategies import Plan

CASES = kill_test()


def with_explicit_free() -> Program:
    """One process, where the first activation ends with an op of its own instead of with its last reader."""
    program = strategy("single", Plan(microbatches=1, batch=2)).programs[0]
    rank = program.ranks[0]
    last = max(i for i, op in enumerate(rank.ops) if "h1:0" in op.inputs)
    ops = (*rank.ops[: last + 1], Op(Kind.FREE, inputs=("h1:0",)), *rank.ops[last + 1 :])
    return finished(program.with_ranks([replace(rank, ops=ops)]))


def test_the_cases_cover_every_kind() -> None:
    programs = [*(program for case in CASES.values() for program in case.programs), with_explicit_free()]
    used = {op.kind for program in programs for rank in program.ranks for op in rank.ops}
    assert used == set(Kind)


def test_a_free_ends_its_value() -> None:
    case = strategy("single", Plan(microbatches=1, batch=2))
    result = run_local([with_explicit_free()], case.batch, case.settings)
    assert case.check(result) < 1e-9
    assert simulate(with_explicit_free(), Uniform()).live == result.trace.live


@pytest.mark.parametrize("name", CASES)
def test_both_cost_models_price_every_op(name: str) -> None:
    case = CASES[name]
    result = run_local(case.programs, case.batch, case.settings)
    for program, trace in zip(case.programs, result.traces[0], strict=True):
        for costs in (Uniform(comm=0.1, step=0.1), Analytic(1e9, 1e9, 1e-5)):
            found = simulate(program, costs, trace.facts)
            assert found.makespan > 0 and all(end >= start for start, end in zip(found.starts, found.ends, strict=True))


def test_ops_made_the_short_way_are_ops() -> None:
    """`tuple.__new__` knows no defaults: a field more, and these would be short."""
    op = F(1, 2)._replace(segment=3, inputs=("x",), writes=("y",), version=4, pair=5)
    assert consuming(op, frozenset({"x"})) == op._replace(consumes=frozenset({"x"}))
    assert stamped(op, 7, ("a",), ("b",), 6) == op._replace(microbatch=7, inputs=("a",), writes=("b",), pair=6)
    to = Stream(Lane.TO, peer=3)
    assert sending("v", 3, to) == Op(Kind.SEND, inputs=("v",), peer=3, stream=to)
    assert receiving("v", 3, to) == Op(Kind.RECV, writes=("v",), peer=3, stream=to)
