"""The critical path: exact where times are predicted, whatever the program, the costs and the links."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdlab.costs import Link, Uniform
from pdlab.critical import BETWEEN, critical_path, critical_share
from pdlab.mesh import Mesh
from pdlab.models import nominal
from pdlab.ops import COMMUNICATION_KINDS, Kind, label
from pdlab.program import Program
from pdlab.simulate import simulate
from pdlab.trace import Trace
from tests.programs import build, everything

PROGRAMS = {name: p for name, p in everything().items() if "moe" not in name and "experts" not in name}
"""All but those whose sizes a run has to find out first."""

SECONDS = st.sampled_from([0.0, 0.1, 1.0, 1.7, 3.0, 20.0])


def check_exact(trace: Trace) -> None:
    path = critical_path(trace)
    assert trace.starts[path[0]] == 0.0
    assert [trace.starts[row] for row in path[1:]] == [trace.ends[row] for row in path[:-1]]
    assert trace.ends[path[-1]] == trace.makespan
    shares = critical_share(trace)
    assert BETWEEN not in shares
    assert sum(shares.values()) == pytest.approx(sum(trace.ends[row] - trace.starts[row] for row in path))
    assert sum(shares.values()) == pytest.approx(trace.makespan)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(PROGRAMS)), SECONDS, SECONDS, SECONDS, SECONDS, st.sampled_from(Link))
def test_a_prediction_is_a_chain_without_gaps(name: str, F: float, B: float, comm: float, step: float, link: Link):
    check_exact(simulate(PROGRAMS[name], Uniform(F=F, B=B, comm=comm, step=step, link=link)))


@pytest.mark.parametrize("link", Link)
@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb_h1", "ddp", "zero3", "tensor"])
def test_slow_messages(name: str, link: Link) -> None:
    """With long messages many of one stream are under way at once, if links are independent."""
    check_exact(simulate(build(name, ranks=4, microbatches=40), Uniform(comm=30.0, link=link)))


def test_the_path_through_gpipe() -> None:
    """The first microbatch goes down the stages and up again; on the last and the first one all others are in its way.

    On the way up every stage is as busy, and the walk back stays where it is.
    """
    p, m = 3, 4
    trace = simulate(build("gpipe", ranks=p, microbatches=m, model=nominal(p)), Uniform(F=1, B=2, comm=0.5))
    rows = trace.rows()
    there = [f"{rows[row][0]}:{label(rows[row][1])}" for row in critical_path(trace) if not is_message(trace, row)]
    last, first = [f"2:2.0F{i}" for i in range(m)], [f"0:0.0B{i}" for i in range(m)]
    assert there == ["0:0.0F0", "1:1.0F0", *last, "2:2.0B0", "1:1.0B0", *first]
    assert critical_share(trace) == pytest.approx({"forward": 6.0, "backward": 12.0, "message": 2.0})


@pytest.mark.parametrize("comm", [1.0, 2.0, 3.0])
def test_independent_messages_do_not_hold_each_other_up(comm: float) -> None:
    """Though some end just when the next of their stream starts: what held that one up ends then, too."""
    trace = simulate(build("zero3", microbatches=2), Uniform(F=1, B=1, comm=comm, link=Link.INDEPENDENT))
    ops = trace.rows()
    pairs = [(ops[a], ops[b]) for a, b in pairwise(critical_path(trace)) if is_message(trace, a)]
    assert pairs and all(a.stream != b.stream for (_, a), (_, b) in pairs)


def is_message(trace: Trace, row: int) -> bool:
    return trace.rows()[row][1].kind in COMMUNICATION_KINDS


def test_there_is_one_row_for_each_event() -> None:
    trace = simulate(build("tensor", ranks=4), Uniform(comm=1.0))
    path = critical_path(trace)
    assert {trace.rows()[row][0] for row in path} == {0}, "ranks that do the same are all critical; one is enough"
    counts = [kind for row in path if (kind := trace.rows()[row][1].kind) is Kind.ALL_REDUCE]
    assert len(counts) == sum(op.kind is Kind.ALL_REDUCE for op in trace.program.ranks[0].ops)


@pytest.mark.parametrize("name", ["1f1b", "zero3"])
def test_a_run_with_gaps_has_the_same_path_and_says_what_no_op_accounts_for(name: str) -> None:
    exact = simulate(build(name, ranks=4, microbatches=4), Uniform(F=1, B=2.1, comm=0.13))
    late = np.random.default_rng(3).uniform(0, 1e-4, len(exact.starts)).tolist()
    starts = [1.01 * start + lag for start, lag in zip(exact.starts, late, strict=True)]
    ends = [max(start, 1.01 * end) for start, end in zip(starts, exact.ends, strict=True)]
    run = replace(exact, starts=starts, ends=ends)
    paths = [[row for row in critical_path(t) if exact.ends[row] > exact.starts[row]] for t in (exact, run)]
    assert [label(run.rows()[row][1]) for row in paths[1]] == [label(run.rows()[row][1]) for row in paths[0]]
    shares = critical_share(run)
    assert 0 < shares[BETWEEN] < 1e-4 * len(critical_path(run))
    assert sum(shares.values()) == pytest.approx(run.makespan)


def test_nothing_at_all() -> None:
    empty = simulate(Program("nothing", Mesh.of(), nominal(1), (), ((1,),), ()), Uniform())
    assert critical_path(empty) == [] and critical_share(empty) == {}
