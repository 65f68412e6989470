"""The list of strategies: for each name its schedule, the axis that it spreads over, and the passes that are its own.

A hybrid is no strategy of its own: `1f1b` with --dp 2 --tp 2 is the same schedule, and the passes see a larger mesh.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from pdlab.collector import paused
from pdlab.mesh import Axis
from pdlab.models.model import Model
from pdlab.models.split import Split
from pdlab.named import colons
from pdlab.ops import Op
from pdlab.passes import (
    all_reduce_gradients,
    assign_streams,
    consume_last_uses,
    gather_again,
    insert_messages,
    join_pairs,
    lower,
    overlap_weight_gradients,
    recompute,
    shard_weights,
    sum_copies,
)
from pdlab.program import Program
from pdlab.strategies.automatic import zb_auto
from pdlab.strategies.data_parallel import single
from pdlab.strategies.dualpipe import dualpipe, dualpipe_v
from pdlab.strategies.interleaved import interleaved_1f1b
from pdlab.strategies.pipedream import (
    Replica,
    pipedream,
    pipedream_2bw,
    pipedream_flush,
    pipedream_naive,
    pipedream_vertical_sync,
    replicas_of,
)
from pdlab.strategies.pipeline import gpipe, naive, one_f_one_b
from pdlab.strategies.plan import Plan
from pdlab.strategies.zero_bubble import zb_h1, zb_h2, zb_v

Schedule = list[list[Op]]
"""For each rank of a pipeline its ops in order."""


@dataclass(frozen=True)
class Strategy:
    """A schedule with its name. `axis` is where it uses its ranks; None means that it runs on one. `split` is how it
    splits layers, if that is what it is about. A rank holds `virtual` stages, or as many as one likes (`any_virtual`)
    with that as the default. Only a `limited` one looks at the plan's limit, only a `replicated` one at its replicas,
    and one that `accumulates` at how many microbatches an update has. Where `stale`, gradients are not those of the
    whole batch: it updates along the way, with what is in flight unaware of it. `by_hand`: its reference has to
    multiply by hand, which it can for an MLP, since a backward meets other weights than its forward."""

    name: str
    summary: str
    axis: Axis | None
    schedule: Callable[[Plan], Schedule]
    passes: tuple[Callable[[Program, Plan], Program], ...] = ()
    bucketed: bool = True
    split: Split | None = None
    virtual: int = 1
    any_virtual: bool = False
    limited: bool = False
    stale: bool = False
    replicated: bool = False
    accumulates: bool = False
    by_hand: bool = False

    def on(self, ranks: int, plan: Plan) -> Plan:
        """The plan with `ranks` ranks on the strategy's own axis."""
        degrees: dict[str, Any] = {self.axis.value: ranks} if self.axis else {}
        return self.chosen(replace(plan, **degrees))

    def chosen(self, plan: Plan) -> Plan:
        """The plan with what the strategy's name says about it; ValueError where the plan says otherwise."""
        if plan.virtual not in (None, self.virtual) and not self.any_virtual:
            has = f"{self.virtual} stage{'s' * (self.virtual > 1)} on each rank"
            raise ValueError(
                f"--virtual {plan.virtual} with {self.name}, which has {has}; leave it out, or take interleaved_1f1b"
            )
        if plan.limit is not None and not self.limited:
            raise ValueError(f"--limit {plan.limit:g} with {self.name}, whose order is fixed; leave it out")
        if plan.replicas is not None and not self.replicated:
            raise ValueError(
                f"--replicas {colons(plan.replicas)} with {self.name}, whose stages have one rank each; "
                "leave it out (--dp replicates all of them), or take pipedream"
            )
        if plan.accumulate is not None and not self.accumulates:
            raise ValueError(
                f"--accumulate {plan.accumulate} with {self.name}, which says itself when it steps; leave it out, or "
                "take pipedream_2bw or pipedream_flush"
            )
        return replace(plan, split=self.split or plan.split, virtual=plan.virtual or self.virtual)


def _each_rank(generator: Callable[[int, int, int], Iterable[Op]]) -> Callable[[Plan], Schedule]:
    """The schedule of a generator from (rank, number of ranks, number of microbatches) to the ops of the rank."""
    return lambda plan: [list(generator(rank, plan.pp, plan.microbatches)) for rank in range(plan.pp)]


def _with_virtual(generator: Callable[[int, int, int, int], Iterable[Op]]) -> Callable[[Plan], Schedule]:
    """The same for one that takes the stages of a rank besides."""
    return lambda plan: [
        list(generator(rank, plan.pp, plan.microbatches, plan.virtual or 1)) for rank in range(plan.pp)
    ]


def _replicas(generator: Callable[[Replica, int], Iterable[Op]]) -> Callable[[Plan], Schedule]:
    """The same for one that takes a replica of a stage in place of a rank."""
    return lambda plan: [
        list(generator(replica, plan.microbatches)) for replica in replicas_of(plan.replicas or (1,) * plan.pp)
    ]


def _two_versions(plan: Plan) -> Schedule:
    size = plan.accumulate or plan.pp
    return [list(pipedream_2bw(rank, plan.pp, plan.microbatches, size)) for rank in range(plan.pp)]


def _flushing(plan: Plan) -> Schedule:
    return [list(pipedream_flush(rank, plan.pp, plan.microbatches, plan.accumulate)) for rank in range(plan.pp)]


def _automatic(plan: Plan) -> Schedule:
    return zb_auto(plan.pp, plan.microbatches, plan.limit or plan.pp, plan.times)


def _whole_model(plan: Plan) -> Schedule:
    if plan.pp > 1:
        raise ValueError(
            f"--pp {plan.pp} with a strategy that keeps the whole model on every rank; "
            "take a pipeline schedule (1f1b, gpipe, zb_h1) and add --dp or --tp to it"
        )
    return [list(single(plan.microbatches))]


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
    Strategy("naive", "pipeline; one microbatch at a time, there and back", Axis.PP, _each_rank(naive)),
    Strategy("gpipe", "pipeline; all forwards, then all backwards", Axis.PP, _each_rank(gpipe)),
    Strategy("1f1b", "pipeline; one forward, one backward (PipeDream-Flush)", Axis.PP, _each_rank(one_f_one_b)),
    Strategy("interleaved_1f1b", "pipeline; 1F1B over several stages on each rank (Megatron)", Axis.PP,
             _with_virtual(interleaved_1f1b), virtual=2, any_virtual=True),
    Strategy("zb_h1", "pipeline; 1F1B with the backward split, weight gradients fill the bubbles", Axis.PP,
             _with_virtual(zb_h1), any_virtual=True),
    Strategy("zb_h2", "pipeline; more forwards ahead and weight gradients later, no bubble, twice the memory", Axis.PP,
             _each_rank(zb_h2)),
    Strategy("zb_v", "pipeline; an early and a late stage on each rank, no bubble in the memory of 1F1B", Axis.PP,
             _each_rank(zb_v), virtual=2),
    Strategy("zb_auto", "pipeline; order found by a search under a memory limit (--limit)", Axis.PP, _automatic,
             limited=True),
    Strategy("dualpipe", "pipeline; two at once in opposite directions, every weight on two ranks", Axis.PP,
             _each_rank(dualpipe)),
    Strategy("dualpipe_v", "pipeline; DualPipe folded: two stages on each rank, every weight once", Axis.PP,
             _each_rank(dualpipe_v), virtual=2),
    Strategy("pipedream_naive", "pipeline without flush; a backward meets the newest weights, so no gradient at all",
             Axis.PP, _replicas(pipedream_naive), stale=True, replicated=True, by_hand=True),
    Strategy("pipedream", "pipeline without flush; a backward meets the weights of its forward (weight stashing)",
             Axis.PP, _replicas(pipedream), stale=True, replicated=True),
    Strategy("pipedream_vertical_sync", "pipeline without flush; a minibatch meets one version on all stages", Axis.PP,
             _replicas(pipedream_vertical_sync), stale=True, replicated=True),
    Strategy("pipedream_2bw", "pipeline without flush; updates of p microbatches or more, two versions of the weights",
             Axis.PP, _two_versions, stale=True, accumulates=True),
    Strategy("pipedream_flush", "pipeline; 1F1B for each update of --accumulate microbatches (all: 1f1b)", Axis.PP,
             _flushing, accumulates=True),
)  # fmt: skip


def names() -> tuple[str, ...]:
    return tuple(strategy.name for strategy in STRATEGIES)


def get(name: str) -> Strategy:
    """A strategy by its name; ValueError lists the names."""
    for strategy in STRATEGIES:
        if strategy.name == name:
            return strategy
    near = get_close_matches(name, names(), 1)
    hint = f"did you mean {near[0]}? " if near else ""
    if "." in name:
        hint = "a schedule in a file (.csv, .json) is for show, simulate and run; "
    raise ValueError(f"unknown strategy {name!r}; {hint}choose one of {', '.join(names())}")


def num_stages(schedule: Schedule) -> int:
    """How many stages a schedule names, from 0 on."""
    return 1 + max((op.stage for ops in schedule for op in ops), default=0)


def build(strategy: Strategy, plan: Plan, model: Model) -> Program:
    """The whole way from a schedule to a program that interpreters walk; the model is split as the plan says."""
    with paused():
        return connected(unconnected(strategy, plan, model))


def unconnected(strategy: Strategy, plan: Plan, model: Model) -> Program:
    """All but the messages and what follows from them, which is where a program can be cut."""
    plan = strategy.chosen(plan)
    return _lowered(strategy.name, strategy.schedule(plan), plan, model, strategy.passes, strategy.bucketed)


def lower_schedule(name: str, schedule: Schedule, plan: Plan, model: Model) -> Program:
    """Lower the ops of each pipeline rank, as somebody typed them."""
    return connected(_lowered(name, schedule, plan, model))


def _lowered(
    name: str,
    schedule: Schedule,
    plan: Plan,
    model: Model,
    passes: tuple[Callable[[Program, Plan], Program], ...] = (),
    bucketed: bool = True,
) -> Program:
    _check_split(plan, model)
    program = lower(
        *(name, schedule, model, plan.mesh, plan.rows),
        num_stages=num_stages(schedule),
        optimizer_bytes=plan.optimizer_bytes,
        layers=plan.layers,
    )
    program = recompute(program, plan.recompute)
    program = gather_again(program)
    program = overlap_weight_gradients(program) if plan.overlap else program
    for own in passes:
        program = own(program, plan)
    program = all_reduce_gradients(program, bucket_bytes=_bucket_bytes(program, plan) if bucketed else None)
    return sum_copies(program)


def connected(program: Program) -> Program:
    """With its messages, the ends of its values and its streams."""
    return assign_streams(consume_last_uses(join_pairs(insert_messages(program))))


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
