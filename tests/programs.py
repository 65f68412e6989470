"""Small programs of every strategy, which the tests share: `build("1f1b", ranks=4, microbatches=8)`."""

from dataclasses import replace
from typing import Any

import pytest

from pdlab import models, strategies
from pdlab.models import Model
from pdlab.models.split import Split
from pdlab.ops import Op
from pdlab.passes import Recompute, assign_streams, consume_last_uses, cut, guard_steps, insert_messages, lower
from pdlab.passes.streams import Channels
from pdlab.program import Program, RankProgram
from pdlab.strategies import Plan
from pdlab.strategies.data_parallel import single
from pdlab.strategies.pipedream import pipedream, pipedream_naive, replicas_of
from pdlab.validate import ProgramError, validate

NAMES = (*strategies.names(), "moe")


def build(
    name: str,
    *,
    ranks: int = 2,
    microbatches: int = 3,
    model: Model | None = None,
    channels: Channels = Channels.PER_DIRECTION,
    **choices: Any,
) -> Program:
    """A strategy on `ranks` ranks of its own axis, ready to run; `choices` are further entries of its plan."""
    if name == "dualpipe":
        ranks, microbatches = ranks + ranks % 2, max(microbatches + microbatches % 2, 2 * (ranks + ranks % 2))
    plan = Plan(microbatches=microbatches, **choices)
    if name == "moe":
        plan = replace(plan, ep=ranks)
        model = model or models.experts(width=4, ep=ranks, itemsize=8)
    else:
        plan = strategies.get(name).on(ranks, plan)
    if plan.batch is None:
        plan = replace(plan, batch=plan.dp * plan.ep * microbatches + 1)
    model = model or small_model(plan.tp, plan.split, plan.num_stages)
    strategy = strategies.get("ddp" if name == "moe" else name)
    return assign_streams(strategies.build(strategy, plan, model), channels)


def small_model(tp: int = 1, split: Split = Split.TENSOR, stages: int = 1) -> Model:
    """Split over a tensor group a transformer, or what is split singly an MLP; else an MLP of four layers or as many as
    there are stages."""
    if tp > 1 and split in (Split.TENSOR, Split.SEQUENCE):
        return models.transformer(width=8, depth=1, heads=4, itemsize=8, tp=tp, split=split.value)
    return models.mlp(depth=max(4, stages), width=8, itemsize=8, tp=tp, split=split.value)


def finished(program: Program) -> Program:
    return assign_streams(consume_last_uses(program))


def from_rows(rows: list[list[Op]], model: Model | None = None, **choices: int) -> Program:
    """The program of a schedule that somebody wrote, one row per pipeline rank."""
    microbatches = 1 + max(op.microbatch for row in rows for op in row)
    plan = Plan(pp=len(rows), microbatches=microbatches, **choices)
    return strategies.lower_schedule("typed", rows, plan, model or small_model())


def with_op(program: Program, rank: int, position: int, *ops: Op) -> Program:
    """The program with one op of one rank replaced by others, or dropped."""
    old = program.ranks[rank].ops
    return with_rank(program, rank, ops=(*old[:position], *ops, *old[position + 1 :]))


def with_rank(program: Program, rank: int, **changes: object) -> Program:
    ranks: list[RankProgram] = list(program.ranks)
    ranks[rank] = replace(ranks[rank], **changes)  # type: ignore[arg-type]
    return program.with_ranks(ranks)


def find(program: Program, rank: int, shorthand: str) -> int:
    """The position of the first op of a rank that prints so: `1.0F2`, or the beginning of a longer one."""
    return next(i for i, op in enumerate(program.ranks[rank].ops) if str(op).startswith(shorthand))


def endless(stashing: bool, after: int | None = None) -> list[Program]:
    """PipeDream on 3 ranks over 6 minibatches, whole or cut in two."""
    generator = pipedream if stashing else pipedream_naive
    rows = [list(generator(replica, 6)) for replica in replicas_of((1, 1, 1))]
    plan = Plan(pp=3, microbatches=6)
    whole = lower("pipedream", rows, small_model(), plan.mesh, plan.rows, num_stages=3)
    parts = [whole] if after is None else cut(whole, after)
    return [finished(insert_messages(part)) for part in parts]


def half_precision(**degrees: int) -> Program:
    """Steps that a flag guards, with optimizer state."""
    plan = Plan(microbatches=2, optimizer_bytes=4, **degrees)
    model = models.mlp(depth=4, width=8, itemsize=2)
    strategy = strategies.get("1f1b" if plan.pp > 1 else "ddp")
    return finished(guard_steps(strategies.build(strategy, plan, model)))


def rejected(program: Program, *names: str) -> ProgramError:
    """The error of a program that must not pass; its message has all of these in it."""
    with pytest.raises(ProgramError) as caught:
        validate(program)
    for name in names:
        assert name in str(caught.value)
    return caught.value


def retyped(program: Program, value: str, **changes: object) -> Program:
    """Another type for a value, on every rank that has it."""
    for rank, of_rank in enumerate(program.ranks):
        if value in of_rank.types:
            t = of_rank.types[value]._replace(**changes)
            program = with_rank(program, rank, types={**of_rank.types, value: t})
    return program


def edit(program: Program, rank: int, shorthand: str, **changes: object) -> Program:
    """One op with other entries."""
    at = find(program, rank, shorthand)
    return with_op(program, rank, at, program.ranks[rank].ops[at]._replace(**changes))


def everything() -> dict[str, Program]:
    """Programs of every kind, hybrids, cuts and guards included."""
    found = {f"{name} on {ranks}": build(name, ranks=ranks) for name in NAMES for ranks in (2, 4)}
    found |= {f"1f1b with {m}": build("1f1b", ranks=4, microbatches=m) for m in (1, 2, 5)}
    found["1f1b, dp and tp"] = build("1f1b", tp=2, dp=2)
    found["zero3 and tp"] = build("zero3", tp=2)
    for how in (Recompute.FULL, Recompute.PARTITIONED):
        found[f"tensor, recompute {how.value}"] = build("tensor", recompute=how)
        found[f"sequence, recompute {how.value}"] = build("sequence", recompute=how, overlap=True)
    found["experts and dp"] = build("moe", dp=2)
    for stashing in (True, False):
        found[f"pipedream {stashing}"] = endless(stashing)[0]
        for after in (0, 3):
            first, second = endless(stashing, after)
            found |= {f"pipedream {stashing} to {after}": first, f"pipedream {stashing} from {after}": second}
    found["half precision"] = half_precision(dp=2)
    found["half precision in a pipeline"] = half_precision(pp=2, dp=2)
    found["nominal"] = build("zb_h1", model=models.nominal(4, M_B=1.5, M_W=0.5))
    found["one rank, no stream"] = single_lowered()
    return found


def single_lowered() -> Program:
    plan = Plan(microbatches=2)
    return consume_last_uses(lower("single", [list(single(2))], small_model(), plan.mesh, plan.rows, num_stages=1))
