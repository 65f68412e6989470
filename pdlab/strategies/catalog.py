"""The list of strategies: for each name its schedule, the axis that it spreads over, and the passes that are its own.

A hybrid is no strategy of its own: `1f1b` with --dp 2 --tp 2 is the same schedule, and the passes see a larger mesh.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from pdlab.collector import paused
from pdlab.mesh import Axis, Mesh
from pdlab.models.model import Model
from pdlab.models.split import Split
from pdlab.named import named
from pdlab.ops import Op
from pdlab.passes import (
    Recompute,
    all_reduce_gradients,
    assign_streams,
    consume_last_uses,
    gather_again,
    insert_messages,
    lower,
    overlap_weight_gradients,
    recompute,
    shard_weights,
)
from pdlab.program import Program, split_rows
from pdlab.strategies.data_parallel import single
from pdlab.strategies.pipeline import gpipe, one_f_one_b, zb_h1

MOST_RANKS = 4096
"""A program has a list of ops for each rank; more would take minutes to build."""


@dataclass(frozen=True)
class Plan:
    """What a student chooses: degrees, microbatches, samples, and details of the passes.

    `batch` counts the samples of a step over all ranks; None is one for each microbatch of each data shard. `buckets`
    is how many pieces the gradients are summed in, `prefetch` how many gathers of ZeRO-3 run ahead, `optimizer_bytes`
    the optimizer state per weight. `split` says what `tp` ranks split of a layer, `recompute` what is run again before
    its backward; with `overlap` weight gradients run under the collective of their input gradient.
    """

    pp: int = 1
    dp: int = 1
    ep: int = 1
    tp: int = 1
    microbatches: int = 1
    batch: int | None = None
    buckets: int = 4
    prefetch: int = 1
    optimizer_bytes: int = 0
    split: Split = Split.TENSOR
    recompute: Recompute = Recompute.NONE
    overlap: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "split", named(Split, self.split))
        object.__setattr__(self, "recompute", named(Recompute, self.recompute))
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("split", "recompute", "overlap") or (field.name == "batch" and value is None):
                continue
            least = 0 if field.name in ("prefetch", "optimizer_bytes") else 1
            if type(value) is not int or value < least:
                raise ValueError(f"{field.name} is {value!r}; give a whole number of at least {least}")
        if type(self.overlap) is not bool:
            raise ValueError(f"overlap is {self.overlap!r}; give True or False")
        if self.mesh.size > MOST_RANKS:
            raise ValueError(f"a mesh of {self.mesh} has {self.mesh.size} ranks; at most {MOST_RANKS} can be built")

    @property
    def mesh(self) -> Mesh:
        return Mesh.of(dp=self.dp, ep=self.ep, pp=self.pp, tp=self.tp)

    @property
    def rows(self) -> tuple[tuple[int, ...], ...]:
        shards = self.dp * self.ep
        return split_rows(self.batch or shards * self.microbatches, shards, self.microbatches)


Generator = Callable[[int, int, int], Iterable[Op]]
"""From (stage, number of stages, number of microbatches) to the ops of the rank that holds the stage."""


@dataclass(frozen=True)
class Strategy:
    """A schedule with its name. `axis` is where it uses its ranks; None means that it runs on one. `split` is how it
    splits layers, if that is what it is about."""

    name: str
    summary: str
    axis: Axis | None
    schedule: Generator
    passes: tuple[Callable[[Program, Plan], Program], ...] = ()
    bucketed: bool = True
    split: Split | None = None

    def on(self, ranks: int, plan: Plan) -> Plan:
        """The plan with `ranks` ranks on the strategy's own axis."""
        degrees: dict[str, Any] = {self.axis.value: ranks} if self.axis else {}
        return self.chosen(replace(plan, **degrees))

    def chosen(self, plan: Plan) -> Plan:
        """The plan with what the strategy's name says about it."""
        return replace(plan, split=self.split) if self.split else plan


def _whole_model(stage: int, num_stages: int, num_microbatches: int) -> Iterable[Op]:
    if num_stages > 1:
        raise ValueError(
            f"--pp {num_stages} with a strategy that keeps the whole model on every rank; "
            "take a pipeline schedule (1f1b, gpipe, zb_h1) and add --dp or --tp to it"
        )
    return single(num_microbatches)


def _shard(program: Program, plan: Plan) -> Program:
    return shard_weights(program, prefetch=plan.prefetch)


STRATEGIES = (
    Strategy("single", "one process; gradients add up over the microbatches", None, _whole_model),
    Strategy("ddp_naive", "data parallel; gradients summed after the backward", Axis.DP, _whole_model, bucketed=False),
    Strategy("ddp", "data parallel; buckets of gradients summed under the backward", Axis.DP, _whole_model),
    Strategy("zero3", "data parallel; weights, gradients and state sharded, weights gathered ahead of use", Axis.DP,
             _whole_model, (_shard,)),
    Strategy("column", "tensor parallel; every linear split by columns, its output gathered", Axis.TP, _whole_model,
             split=Split.COLUMN),
    Strategy("row", "tensor parallel; every linear split by rows, its input split first", Axis.TP, _whole_model,
             split=Split.ROW),
    Strategy("tensor", "tensor parallel; column-then-row attention and MLP (Megatron)", Axis.TP, _whole_model,
             split=Split.TENSOR),
    Strategy("sequence", "tensor parallel; and between the blocks each rank has its own tokens only", Axis.TP,
             _whole_model, split=Split.SEQUENCE),
    Strategy("gpipe", "pipeline; all forwards, then all backwards", Axis.PP, gpipe),
    Strategy("1f1b", "pipeline; one forward, one backward (PipeDream-Flush)", Axis.PP, one_f_one_b),
    Strategy("zb_h1", "pipeline; 1F1B with the backward split, weight gradients fill the bubbles", Axis.PP, zb_h1),
)  # fmt: skip


def names() -> tuple[str, ...]:
    return tuple(strategy.name for strategy in STRATEGIES)


def get(name: str) -> Strategy:
    """A strategy by its name; ValueError lists the names."""
    for strategy in STRATEGIES:
        if strategy.name == name:
            return strategy
    raise ValueError(f"unknown strategy {name!r}; choose one of {', '.join(names())}")


def build(strategy: Strategy, plan: Plan, model: Model) -> Program:
    """The whole way from a schedule to a program that interpreters walk; the model is split as the plan says."""
    plan = strategy.chosen(plan)
    p, m = plan.pp, plan.microbatches
    with paused():
        schedule = [list(strategy.schedule(stage, p, m)) for stage in range(p)]
        return lower_schedule(strategy.name, schedule, plan, model, strategy.passes, strategy.bucketed)


def lower_schedule(
    name: str,
    schedule: list[list[Op]],
    plan: Plan,
    model: Model,
    passes: tuple[Callable[[Program, Plan], Program], ...] = (),
    bucketed: bool = True,
) -> Program:
    """Lower the ops of each pipeline rank, from a generator or from a table that somebody typed."""
    _check_split(plan, model)
    stages = len(schedule)
    program = lower(
        name, schedule, model, plan.mesh, plan.rows, num_stages=stages, optimizer_bytes=plan.optimizer_bytes
    )
    program = recompute(program, plan.recompute)
    program = gather_again(program)
    program = overlap_weight_gradients(program) if plan.overlap else program
    program = insert_messages(program)
    for own in passes:
        program = own(program, plan)
    program = all_reduce_gradients(program, bucket_bytes=_bucket_bytes(program, plan) if bucketed else None)
    return assign_streams(consume_last_uses(program))


def _check_split(plan: Plan, model: Model) -> None:
    """A whole model on a tensor group would run as so many replicas that all do the same."""
    if plan.tp > 1 and (model.tp, model.split) != (plan.tp, plan.split):
        has = f"split by {model.split.value} over {model.tp} ranks" if model.split else "not split"
        raise ValueError(
            f"model {model.name} is {has}, and the plan splits by {plan.split.value} over {plan.tp}; make the model "
            f"with tp={plan.tp}, split={plan.split.value!r}"
        )


def _bucket_bytes(program: Program, plan: Plan) -> int:
    """Equal buckets by bytes of the largest stage."""
    stages = [sum(g.bytes for name in stage for g in program.model.segments[name].groups) for stage in program.stages]
    return max(1, -(-max(stages) // plan.buckets))
