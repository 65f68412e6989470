"""Every pipeline schedule on real processes against its simulation, and the largest one that a course would draw."""

import time
from io import BytesIO
from itertools import pairwise
from statistics import median

from pdlab import lab, plots
from pdlab.compare import compare_strategy
from pdlab.costs import Uniform
from pdlab.launch import Ranks
from pdlab.mesh import Axis
from pdlab.ops import PASS_KINDS
from pdlab.simulate import read_trace, run_plan, simulate, start_plan
from pdlab.strategies import STRATEGIES, Plan, build, get

COSTS = {2: Uniform(F=0.040, B=0.080, comm=0.008), 4: Uniform(F=0.040, B=0.080, comm=0.008)}
COSTS[8] = Uniform(F=0.080, B=0.160, comm=0.016)
"""Eight ranks share two cores here, so that an op is modelled to take longer than it waits for one."""


def pipelines() -> None:
    """All schedules at p = 2, 4, 8, paced: time, bytes, gradients."""
    print("pipelines: gloo ranks, 2 p microbatches, paced, median of 2 steps")
    errors = []
    for p, costs in COSTS.items():
        with Ranks(p) as pool:
            for strategy in (s for s in STRATEGIES if s.axis is Axis.PP and not s.stale):
                plan = strategy.on(p, Plan(microbatches=2 * p, batch=4 * p))
                found = compare_strategy(strategy.name, plan, pool, costs=costs, steps=2)
                assert found.error_pct is not None
                errors.append(abs(found.error_pct))
                same = "equal" if found.predicted.moved == found.measured.moved else "DIFFER"
                numbers = f"{1e3 * found.predicted.makespan:>7.0f} ms {found.error_pct:>+6.2f}% {same:>7}"
                print(f"  {p} {strategy.name:<17} {numbers} {found.grad_max_rel_error:>9.1e}", flush=True)
    print(f"  median |time error| {median(errors):.2f} % (aim 3), largest {max(errors):.2f} % (aim 8)")


def large() -> None:
    """Interleaved 1F1B at p = 64, v = 8, m = 512; then a picture of 4,000 ops."""
    strategy, seconds = get("interleaved_1f1b"), [time.perf_counter()]
    plan = strategy.chosen(Plan(pp=64, virtual=8, microbatches=512))
    program = build(strategy, plan, lab.lab_nominal(plan.pp, plan.num_stages))
    seconds.append(time.perf_counter())
    work = start_plan(program, Uniform(comm=0.1))
    seconds.append(time.perf_counter())
    starts, ends = run_plan(work)
    seconds.append(time.perf_counter())
    read_trace(work, starts, ends, Uniform(comm=0.1), {})
    seconds.append(time.perf_counter())
    built, compiled, ran, read = (after - before for before, after in pairwise(seconds))
    print(f"large: interleaved_1f1b, p 64, v 8, m 512: {program.num_ops:,} ops")
    print(f"  build {built:.1f} s (aim 10), compile {compiled:.1f} s, simulate {ran:.2f} s (aim 3), read {read:.1f} s")
    plan = strategy.chosen(Plan(pp=64, virtual=8, microbatches=4))
    trace = simulate(build(strategy, plan, lab.lab_nominal(plan.pp, plan.num_stages)), Uniform(comm=0.1))
    drawn = []
    for _ in range(5):
        began = time.perf_counter()
        plots.timeline(trace).savefig(BytesIO(), format="png")
        drawn.append(time.perf_counter() - began)
    num_passes = sum(op.kind in PASS_KINDS for _, op in trace.rows())
    print(f"  a timeline of {num_passes:,} passes (m 4) drawn and written in {median(drawn):.2f} s (aim 0.5)")
