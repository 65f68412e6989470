"""The hard cases, each with its programs, its data and the independent answer. They run locally and on processes
alike."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from pdlab import models, reference
from pdlab.batch import Batch
from pdlab.compare import digits_batch
from pdlab.costs import Uniform
from pdlab.execute.local import run_local
from pdlab.execute.result import Result
from pdlab.execute.settings import Settings
from pdlab.mesh import Axis, Mesh
from pdlab.models import Model
from pdlab.models.split import Split
from pdlab.optimizers import MasterSgd, Sgd
from pdlab.passes import (
    Recompute,
    all_reduce_gradients,
    assign_streams,
    consume_last_uses,
    cut,
    guard_steps,
    lower,
    shard_weights,
)
from pdlab.program import Program, split_rows
from pdlab.simulate import simulate
from pdlab.state import assemble, initial_parameters
from pdlab.strategies import Plan, build, get
from pdlab.strategies.catalog import connected, unconnected
from pdlab.strategies.data_parallel import single
from pdlab.trajectory import trajectory_error

LR = 0.5


@dataclass(frozen=True)
class Case:
    """`check` gives the worst relative error of a result against the independent answer."""

    programs: list[Program]
    batch: Batch
    settings: Settings
    check: Callable[[Result], float]


def finished(program: Program) -> Program:
    return assign_streams(consume_last_uses(program))


def small_mlp() -> Model:
    return models.mlp(width=16, depth=8, itemsize=8)


def small_transformer(tp: int = 1, split: str = "tensor", dropout: float = 0.0) -> Model:
    return models.transformer(width=16, depth=2, heads=8, itemsize=8, tp=tp, split=split, dropout=dropout)


def synchronous(program: Program, seed: int = 0, batch: Batch | None = None) -> Case:
    """A strategy that must give the gradients of the whole batch on one process."""
    batch = batch or digits_batch(program.batch)
    parameters = initial_parameters(program.model, seed, torch.float64, program.mesh.degree(Axis.EP))
    x, target = reference.inputs(program.model, batch.pixels, batch.labels, torch.float64)
    _, expected = reference.gradients(program.model, parameters, x, target, batch.keys)

    def check(result: Result) -> float:
        return max(reference.relative_errors(assemble(program, result.gradients), expected).values())

    return Case([program], batch, Settings(Sgd(LR), seed=seed, record=True), check)


def strategy(name: str, plan: Plan, model: Model | None = None) -> Case:
    return synchronous(build(get(name), plan, model or small_mlp()))


def uneven_shards() -> Case:
    """Two ranks with local batches of 5 and 1: the six samples together, not the mean of two means."""
    program = lower("uneven", [list(single(1))], small_mlp(), Mesh.of(dp=2), ((5,), (1,)), num_stages=1)
    return synchronous(finished(all_reduce_gradients(program, bucket_bytes=1)))


def stream(name: str, plan: Plan, *, cuts: tuple[int, ...] = (), model: Model | None = None) -> Case:
    """A pipeline that steps along the way, cut into programs after the given minibatches; the whole trajectory is
    compared."""
    rest, parts = unconnected(get(name), plan, model or small_mlp()), []
    for after in cuts:
        first, rest = cut(rest, after)
        parts.append(first)
    programs = [connected(part) for part in (*parts, rest)]
    batch, settings = digits_batch(programs[0].batch), Settings(Sgd(LR), record=True)
    return Case(programs, batch, settings, lambda result: trajectory_error(programs, result, batch, settings))


def half_precision(loss_scale: float, sharded: bool) -> Case:
    """Mixed precision on two ranks, with the gradients summed whole or sharded; the float32 weights are compared."""
    model = models.mlp(width=16, depth=3, itemsize=2)
    program = lower("half", [list(single(1))], model, Mesh.of(dp=2), ((4,), (4,)), num_stages=1, optimizer_bytes=4)
    program = finished(guard_steps(shard_weights(program) if sharded else all_reduce_gradients(program)))
    batch = digits_batch(8)
    loud = np.where(np.arange(8)[:, None] < 4, 0, 10 * batch.pixels).astype(batch.pixels.dtype)
    quiet = Batch(loud, batch.labels)
    x, target = reference.inputs(model, quiet.pixels, quiet.labels, torch.float32)
    parameters = initial_parameters(model, 0, torch.float32)
    shards = [(x[:4], target[:4]), (x[4:], target[4:])]
    expected, taken = reference.half_precision_step(model, parameters, shards, LR, loss_scale)

    def check(result: Result) -> float:
        if bool(result.weights) != taken:
            return float("inf")
        return max(reference.relative_errors(assemble(program, result.weights), expected).values()) if taken else 0.0

    settings = Settings(MasterSgd(LR), loss_scale=loss_scale, record=True)
    return Case([program], quiet, settings, check)


def two_experts(num_microbatches: int = 2, size: int = 13) -> Case:
    """Experts on two ranks: who gets how many rows is known only when the router has run."""
    model = models.experts(width=8, ep=2, itemsize=8)
    rows = split_rows(size, 2, num_microbatches)
    program = lower("experts", [list(single(num_microbatches))], model, Mesh.of(ep=2), rows, num_stages=1)
    return synchronous(finished(all_reduce_gradients(program)))


OVERFLOWING = 2.0**15
"""A loss scale at which half precision overflows on the rank with the loud images."""


PIPELINES: tuple[tuple[str, dict[str, int]], ...] = (
    ("naive", {"pp": 3, "microbatches": 2}),
    ("interleaved_1f1b", {"pp": 4, "microbatches": 6}),
    ("interleaved_1f1b", {"pp": 2, "microbatches": 5, "virtual": 3}),
    ("interleaved_1f1b", {"pp": 2, "microbatches": 1, "dp": 2}),
    ("zb_h1", {"pp": 3, "microbatches": 4, "virtual": 2}),
    ("zb_h2", {"pp": 4, "microbatches": 8}),
    ("zb_h2", {"pp": 4, "microbatches": 3}),
    ("zb_h2", {"pp": 2, "microbatches": 4, "tp": 2}),
    ("zb_v", {"pp": 4, "microbatches": 7}),
    ("zb_v", {"pp": 3, "microbatches": 2}),
    ("zb_v", {"pp": 2, "microbatches": 4, "tp": 2}),
    ("zb_auto", {"pp": 4, "microbatches": 6, "limit": 8}),
    ("zb_auto", {"pp": 2, "microbatches": 5, "limit": 1, "dp": 2}),
    ("dualpipe", {"pp": 4, "microbatches": 8}),
    ("dualpipe", {"pp": 2, "microbatches": 6, "dp": 2}),
    ("dualpipe", {"pp": 2, "microbatches": 4, "tp": 2}),
    ("dualpipe_v", {"pp": 4, "microbatches": 8}),
    ("dualpipe_v", {"pp": 2, "microbatches": 3, "dp": 2}),
    ("dualpipe_v", {"pp": 2, "microbatches": 4, "tp": 2}),
)
"""The other pipeline schedules, with and without replicas and tensor groups; `test_schedules` has many more shapes."""


def pipelines() -> dict[str, Case]:
    """One sample more than the microbatches share evenly."""
    cases = {}
    for name, choices in PIPELINES:
        plan = Plan(batch=2 * choices.get("dp", 1) * choices["microbatches"] + 1, **choices)
        model = small_transformer(plan.tp) if plan.tp > 1 else small_mlp()
        cases[" ".join((name, *(f"{key} {value}" for key, value in choices.items())))] = strategy(name, plan, model)
    return cases


def streams() -> dict[str, Case]:
    """Every variant of PipeDream, with minibatches of unequal sizes; whole and in pieces, with replicas and without."""
    cases = {
        f"{name} pp {pp}": stream(name, Plan(pp=pp, microbatches=20, batch=70))
        for name in ("pipedream_naive", "pipedream", "pipedream_vertical_sync", "pipedream_2bw")
        for pp in (2, 4)
    }
    for name, accumulate in (("pipedream_2bw", 5), ("pipedream_flush", 3)):
        plan = Plan(pp=3, microbatches=20, batch=70, accumulate=accumulate)
        cases[f"{name} pp 3, {accumulate} to an update"] = stream(name, plan)
    for name in ("pipedream_naive", "pipedream", "pipedream_vertical_sync"):
        for replicas in ((3, 1), (2, 2), (1, 2, 1)):
            plan = Plan(pp=sum(replicas), replicas=replicas, microbatches=14, batch=31)
            cases[f"{name} on {':'.join(map(str, replicas))}"] = stream(name, plan)
    plan = Plan(pp=3, microbatches=12, batch=48)
    cases["pipedream in three programs"] = stream("pipedream", plan, cuts=(0, 6))
    cases["pipedream_naive in three programs"] = stream("pipedream_naive", plan, cuts=(3, 10))
    return cases


def kill_test() -> dict[str, Case]:
    """Everything that both interpreters must run with no strategy named in either."""
    cases = {
        "single": strategy("single", Plan(microbatches=3, batch=8)),
        "ddp_naive": strategy("ddp_naive", Plan(dp=2, microbatches=3, batch=11)),
        "ddp": strategy("ddp", Plan(dp=2, microbatches=3, batch=11)),
        "ddp uneven 5 and 1": uneven_shards(),
        "tensor 2": strategy("tensor", Plan(tp=2, microbatches=2, batch=6), small_transformer(2)),
        "tensor 4": strategy("tensor", Plan(tp=4, microbatches=1, batch=3), small_transformer(4)),
        "half precision": half_precision(1024.0, False),
        "half precision overflow": half_precision(OVERFLOWING, False),
        "half precision overflow, sharded": half_precision(OVERFLOWING, True),
        "two experts": two_experts(),
    }
    for prefetch in (0, 1, 3):
        plan = Plan(dp=2, microbatches=3, batch=11, prefetch=prefetch)
        cases[f"zero3 prefetch {prefetch}"] = strategy("zero3", plan)
    for name in ("gpipe", "1f1b", "zb_h1"):
        for pp, microbatches in ((1, 3), (4, 2), (4, 3), (4, 4), (4, 5), (3, 7)):
            plan = Plan(pp=pp, microbatches=microbatches, batch=2 * microbatches + 1)
            cases[f"{name} pp {pp} m {microbatches}"] = strategy(name, plan)
    for split in ("column", "row", "tensor"):
        for tp in (2, 4):
            mlp = models.mlp(width=16, depth=3 + tp // 4, itemsize=8, tp=tp, split=split)
            cases[f"mlp {split} {tp}"] = strategy(split, Plan(tp=tp, microbatches=2, batch=5), mlp)
    for how in Recompute:
        plan = Plan(tp=2, microbatches=2, batch=5, recompute=how, overlap=how is not Recompute.FULL)
        cases[f"tensor, recompute {how.value}"] = strategy("tensor", plan, small_transformer(2, dropout=0.1))
        plan, model = replace(plan, tp=4, split=Split.SEQUENCE), small_transformer(4, "sequence", dropout=0.1)
        cases[f"sequence, recompute {how.value}"] = strategy("sequence", plan, model)
    cases |= pipelines() | streams()
    cases["1f1b pp 2 dp 2"] = strategy("1f1b", Plan(pp=2, dp=2, microbatches=3, batch=13))
    cases["zb_h1 pp 2 tp 2"] = strategy("zb_h1", Plan(pp=2, tp=2, microbatches=3, batch=7), small_transformer(2))
    both = Plan(pp=2, tp=2, microbatches=3, batch=7, split=Split.SEQUENCE, recompute=Recompute.FULL, overlap=True)
    cases["1f1b pp 2 sequence 2"] = strategy("1f1b", both, small_transformer(2, "sequence", 0.1))
    cases["zero3 dp 2 tp 2"] = strategy("zero3", Plan(dp=2, tp=2, microbatches=2, batch=7), small_transformer(2))
    return cases


def worst_error_as_predicted(case: Case) -> float:
    """The worst error of a case run in this process, where bytes moved and held are as the simulator says."""
    result = run_local(case.programs, case.batch, case.settings)
    for program, measured in zip(case.programs, result.traces[0], strict=True):
        predicted = simulate(program, Uniform(), measured.facts)
        assert predicted.moved == measured.moved
        for rank in range(program.mesh.size):
            rows = predicted.rows_of(rank)
            ours, real = max(predicted.live[row] for row in rows), max(measured.live[row] for row in rows)
            assert math.isclose(ours, real, rel_tol=0.05), f"rank {rank}: predicted {ours}, held {real}"
    return case.check(result)
