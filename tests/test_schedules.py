"""Every synchronous pipeline schedule on shapes easy and hard: valid, no faster than its dependencies allow, run with
exact gradients, in the order that was simulated.

`every_case` lists all of them, and `make sweep` runs the list (benchmarks/sweep.py); here runs a sample of it, drawn by
a fixed seed, a few of each family.
"""

import gc
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from cases import small_mlp, synchronous
from cases import strategy as case_of

from pdlab import metrics, models
from pdlab.compare import digits_batch
from pdlab.costs import Uniform
from pdlab.execute import local
from pdlab.execute.local import fold_local, run_local
from pdlab.execute.settings import Settings
from pdlab.execute.store import Held
from pdlab.ops import Kind, Op, label
from pdlab.program import Role
from pdlab.simulate import simulate
from pdlab.strategies import Plan, Times, build, get
from pdlab.tape import Tape
from pdlab.trace import Trace
from pdlab.validate import validate

F, I, W, COMM = 2.0, 2.5, 1.5, 0.25
TIMES = {Kind.FORWARD: F, Kind.BACKWARD: I + W, Kind.BACKWARD_INPUT: I, Kind.BACKWARD_WEIGHT: W}
EXACT = 1e-9


@dataclass(frozen=True)
class Family:
    """A strategy with what it leaves open; the memory limit depends on the number of ranks."""

    name: str
    virtual: int | None = None
    limit: Callable[[int], float] | None = None


FAMILIES = {name: Family(name) for name in ("naive", "gpipe", "1f1b", "zb_h1", "zb_h2", "zb_v")}
FAMILIES |= {f"interleaved_1f1b, v {v}": Family("interleaved_1f1b", virtual=v) for v in (2, 3)}
FAMILIES |= {"zb_h1, v 2": Family("zb_h1", virtual=2)}
FAMILIES |= {
    "zb_auto, limit 1": Family("zb_auto", limit=lambda p: 1),
    "zb_auto, limit p": Family("zb_auto", limit=lambda p: p),
    "zb_auto, limit 2p": Family("zb_auto", limit=lambda p: 2 * p),
}
FAMILIES |= {name: Family(name) for name in ("dualpipe", "dualpipe_v")}

RANKS, MICROBATCHES, UNEVEN = range(1, 9), range(1, 17), (False, True)
SAMPLED = 9
"""Cases of each family that run with the tests."""


@dataclass(frozen=True)
class Case:
    """One shape of one family; with `uneven` stages that differ in time and in their number of layers."""

    family: str
    p: int
    m: int
    uneven: bool

    def __str__(self) -> str:
        return f"{self.family}, p {self.p}, m {self.m}, {'uneven' if self.uneven else 'equal'}"

    @property
    def plan(self) -> Plan:
        """The strategy's plan for this shape, of a batch that the microbatches do not divide evenly."""
        of = FAMILIES[self.family]
        limit = of.limit(self.p) if of.limit else None
        plan = Plan(pp=self.p, microbatches=self.m, batch=2 * self.m + 1, virtual=of.virtual, limit=limit)
        return get(of.name).chosen(plan)

    @property
    def scale(self) -> tuple[float, ...]:
        return tuple(0.5 + 3 * s % 4 / 2 for s in range(self.plan.num_stages)) if self.uneven else ()


def every_case() -> list[Case]:
    return [Case(family, p, m, uneven) for family in FAMILIES for p in RANKS for m in MICROBATCHES for uneven in UNEVEN]


def is_refused(case: Case) -> bool:
    """Only DualPipe needs certain numbers."""
    return case.family == "dualpipe" and bool(case.p % 2 or case.m % 2 or case.m < 2 * case.p)


def check(case: Case) -> float:
    """The worst relative error of a gradient; AssertionError where anything else is not as it should be."""
    if is_refused(case):
        return check_refusal(case)
    strategy = get(FAMILIES[case.family].name)
    costs = Uniform(F=F, I=I, W=W, comm=COMM, scale=case.scale)
    plan = Plan(**vars(case.plan) | {"times": Times(F, I, W, COMM, scale=case.scale)})
    model = models.mlp(width=12, depth=max(2, case.plan.num_stages + case.uneven), itemsize=8)
    program = build(strategy, plan, model)
    validate(program)
    predicted = simulate(program, costs)
    assert predicted.makespan >= dependency_bound(strategy.schedule(plan), case) - 1e-9, f"{case}: too fast"
    to_run = synchronous(program)
    result = run_local(to_run.programs, to_run.batch, to_run.settings)
    assert result.trace.moved == predicted.moved, f"{case}: other bytes"
    assert by_stream(result.trace) == by_stream(predicted), f"{case}: another order"
    return to_run.check(result)


def check_refusal(case: Case) -> float:
    """The message names both numbers, the rule, and the nearest numbers that are valid: none smaller, both even, the
    microbatches twice the ranks."""
    p, m, plan = case.p, case.m, case.plan
    next_p = p + p % 2
    next_m = max(m + m % 2, 2 * next_p)
    with pytest.raises(ValueError) as caught:
        get("dualpipe").schedule(plan)
    for part in (
        f"{p} ranks and {m} microbatches",
        "both must be even",
        "at least twice the ranks",
        f"take {next_p} ranks and {next_m} microbatches",
    ):
        assert part in str(caught.value), f"{case}: {caught.value}"
    assert get("dualpipe").schedule(Plan(pp=next_p, microbatches=next_m))
    return 0.0


def dependency_bound(schedule: list[list[Op]], case: Case) -> float:
    """No rank is done before it has done all of its work, and no microbatch before it has gone forward through all
    stages and back, with a message wherever the next stage is on another rank."""
    num_stages = case.plan.num_stages
    scale = case.scale or (1.0,) * num_stages
    way = [0.0] * case.m
    work = [0.0] * case.p
    place: dict[tuple[int, int], int] = {}
    for rank, ops in enumerate(schedule):
        for op in ops:
            if op.kind is Kind.STEP:
                continue
            seconds = TIMES[op.kind] * scale[op.stage] * case.p / num_stages
            work[rank] += seconds
            way[op.microbatch] += seconds if op.kind is not Kind.BACKWARD_WEIGHT else 0.0
            place[op.microbatch, op.stage] = rank
    for i in range(case.m):
        hops = sum(place[i, stage] != place[i, stage + 1] for stage in range(num_stages - 1))
        way[i] += 2 * hops * COMM
    return max(*work, *way)


def by_stream(trace: Trace) -> dict[tuple[int, str], list[str]]:
    """For each rank and stream its ops in the order in which they ended; ties keep the order of the list."""
    streams: dict[tuple[int, str], list[tuple[float, int, str]]] = {}
    for row, (rank, op) in enumerate(trace.rows()):
        streams.setdefault((rank, str(op.stream)), []).append((trace.ends[row], row, label(op)))
    return {key: [name for *_, name in sorted(ops)] for key, ops in streams.items()}


def sample(seed: int = 0) -> list[Case]:
    """The same few of each family in every run; of DualPipe, only shapes that it takes."""
    draw, every = random.Random(seed), every_case()
    of_family = {name: [c for c in every if c.family == name and not is_refused(c)] for name in FAMILIES}
    return [case for name in FAMILIES for case in draw.sample(of_family[name], SAMPLED)]


@pytest.mark.parametrize("case", sample(), ids=str)
def test_a_sample_of_the_sweep(case: Case) -> None:
    assert check(case) < EXACT


def test_the_sample_has_all_families_and_the_sweep_all_shapes() -> None:
    assert {case.family for case in sample()} == set(FAMILIES)
    assert len(sample()) == 9 * 14 and sample() == sample()
    assert len(every_case()) == len(set(every_case())) == 14 * 8 * 16 * 2


@pytest.mark.parametrize(
    ("p", "m", "nearest"),
    [(3, 8, "4 ranks and 8"), (4, 9, "4 ranks and 10"), (4, 6, "4 ranks and 8"), (1, 1, "2 ranks and 4"),
     (5, 3, "6 ranks and 12"), (8, 2, "8 ranks and 16")],
)  # fmt: skip
def test_dualpipe_says_what_it_needs(p: int, m: int, nearest: str) -> None:
    case = Case("dualpipe", p, m, False)
    assert is_refused(case) and check(case) == 0.0
    with pytest.raises(ValueError, match=f"dualpipe with {p} ranks and {m} microbatches.*take {nearest} microbatches"):
        get("dualpipe").schedule(case.plan)


def test_more_microbatches_of_a_fixed_batch_take_no_more_memory() -> None:
    """ZB-H1 at 64 samples: what it puts off is bounded by the ranks, not by the microbatches: r + 1 of them on rank r,
    which is p on the last. So smaller microbatches only ever save."""
    p, peaks = 4, []
    for m in (8, 16, 32):
        case = case_of("zb_h1", Plan(pp=p, microbatches=m, batch=64), small_mlp())
        measured = run_local(case.programs, case.batch, case.settings).trace
        predicted = simulate(case.programs[0], Uniform())
        peaks.append([max(metrics.peak_bytes_per_rank(trace)) for trace in (predicted, measured)])
        for trace in (predicted, measured):
            assert [most_pending(trace, rank) for rank in range(p)] == [rank + 1 for rank in range(p)]
    for of_one in zip(*peaks, strict=True):
        assert sorted(of_one, reverse=True) == list(of_one)


def most_pending(trace: Trace, rank: int) -> int:
    """The most microbatches whose weight gradients a rank has put off at once."""
    types, ops = trace.program.ranks[rank].types, trace.program.ranks[rank].ops
    held, most = 0, 0
    for _, op in sorted(zip(trace.rows_of(rank), ops, strict=True), key=lambda of: (trace.ends[of[0]], of[0])):
        if op.segment == 0:
            held += sum(types[v].role is Role.PENDING for v in op.writes)
            held -= sum(types[v].role is Role.PENDING for v in op.consumes)
        most = max(most, held)
    assert held == 0
    return most


Contents = dict[str, Held]
"""What a store holds."""


@pytest.fixture
def at_the_ends(monkeypatch: pytest.MonkeyPatch) -> list[list[Contents]]:
    """What every rank holds at the end of each step that is run locally."""
    walk, seen = local._walk, list[list[Contents]]()

    def watched(program, stores, provenance):  # type: ignore[no-untyped-def]
        trace = walk(program, stores, provenance)
        seen.append([dict(store.values) for store in stores])
        assert all(store.live == trace.live[trace.rows_of(store.rank)[-1]] for store in stores)
        return trace

    monkeypatch.setattr(local, "_walk", watched)
    return seen


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_put_off_beyond_the_end_of_a_step(family: str, at_the_ends: list[list[Contents]]) -> None:
    """Also where the backward is not split: no tape and nothing pending in any store, after each of three steps, and no
    tape alive anywhere."""
    case = Case(family, 2, 6, False)
    program = build(get(FAMILIES[family].name), case.plan, models.mlp(width=8, depth=8, itemsize=8))
    splits = any(op.kind is Kind.BACKWARD_WEIGHT for rank in program.ranks for op in rank.ops)
    assert splits == (family.split(",")[0] not in ("naive", "gpipe", "1f1b", "interleaved_1f1b"))
    gc.collect()
    before = num_tapes()
    fold_local(program, [digits_batch(program.batch, step=step) for step in range(3)], Settings())
    assert len(at_the_ends) == 3
    for step in at_the_ends:
        for rank, values in enumerate(step):
            types = program.ranks[rank].types
            assert set(values) == program.ranks[rank].live_out
            assert not [v for v, held in values.items() if types[v].role in (Role.PENDING, Role.SAVED)]
            assert not [v for v, held in values.items() if isinstance(held, Tape)]
    assert num_tapes() == before


def num_tapes() -> int:
    return sum(type(thing) is Tape for thing in gc.get_objects())
