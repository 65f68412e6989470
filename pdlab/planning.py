"""From the arguments of a command to a program: a strategy by its name, or a file that somebody wrote."""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pdlab import forms, lab, models, strategies
from pdlab.depend import ProgramError
from pdlab.mesh import Axis
from pdlab.models import Model
from pdlab.ops import Op
from pdlab.passes import Recompute
from pdlab.program import Program
from pdlab.strategies import Plan, Strategy
from pdlab.validate import describe, validate

ModelOf = Callable[[Plan, bool], Model]
"""From a plan, and whether its strategy is a pipeline, to a model."""


BatchOf = Callable[[Plan], int]
"""From a plan to the samples of a step."""


def predicted_model(given: Namespace, units: dict[str, float]) -> ModelOf:
    """What `--model` names for a prediction. The nominal one has a layer per stage of a pipeline, and four where the
    model is whole, so that buckets and gathers have work; its units M_B and M_W are the user's."""

    def make(plan: Plan, is_pipeline: bool) -> Model:
        if given.model != "nominal":
            return lab.LAB_MODELS[given.model](plan, 4, given.depth, 0.0)
        layers = plan.pp if is_pipeline else 4 * plan.pp
        return models.nominal(layers, units.get("MB", 1.0), units.get("MW", 1.0), tp=plan.tp, split=plan.split.value)

    return make


def plan_of(given: Namespace) -> Plan:
    if given.virtual != 1:
        raise ValueError(f"--virtual {given.virtual}: these schedules have one stage per rank; leave it at 1")
    pp = 1 if given.pp is None else given.pp
    microbatches = 8 if given.microbatches is None else given.microbatches
    return Plan(pp=pp, dp=given.dp, tp=given.tp, microbatches=microbatches, **_inside_layers(given))


def _inside_layers(given: Namespace) -> dict[str, Any]:
    """What the command line says of how layers are split and what is run again."""
    return {
        "split": given.split or "tensor",
        "recompute": given.recompute,
        "overlap": given.overlap,
    }


def chosen(strategy: Strategy, plan: Plan, given: Namespace) -> Plan:
    """The plan as the strategy's name has it; ValueError where an option says otherwise."""
    if given.split and strategy.split and given.split != strategy.split.value:
        raise ValueError(f"--split {given.split} with the strategy {strategy.name}, which has its own; leave it out")
    plan = strategy.chosen(plan)
    idle = [f"--{name}" for name, given_ in _only_for_groups(given).items() if given_]
    if plan.tp == 1 and idle:
        raise ValueError(f"{idle[0]} without a tensor group, on which alone it acts; give --tp, or leave it out")
    return plan


def _only_for_groups(given: Namespace) -> dict[str, bool]:
    return {
        "split": bool(given.split),
        "recompute partitioned": given.recompute == Recompute.PARTITIONED.value,
        "overlap": bool(given.overlap),
    }


def program_of_arguments(given: Namespace, model_of: ModelOf, batch: BatchOf | None = None) -> Program:
    """The program of a strategy's name, or of a file; a faulty one is shown with the cells at fault marked."""
    if given.strategy.endswith((".csv", ".json")):
        program = _from_file(Path(given.strategy), given, model_of, batch)
        try:
            validate(program)
        except ProgramError as error:
            raise ProgramError(describe(program, error), error.cells) from None
        return program
    strategy = strategies.get(given.strategy)
    plan = chosen(strategy, plan_of(given), given)
    plan = replace(plan, batch=batch(plan) if batch else None)
    return strategies.build(strategy, plan, model_of(plan, strategy.axis is Axis.PP))


def _from_file(path: Path, given: Namespace, model_of: ModelOf, batch: BatchOf | None) -> Program:
    """A program that `show` wrote: JSON is complete, CSV is an order that is lowered anew."""
    text = forms.read_text(path)
    try:
        if path.suffix == ".json":
            _refuse_choices(given)
            return forms.from_json(text)
        plan, schedule = _placed(forms.parse_csv(text), given)
        plan = replace(plan, batch=batch(plan) if batch else None)
        return strategies.lower_schedule(f"schedule in {path.name}", schedule, plan, model_of(plan, True))
    except ProgramError:
        raise
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _refuse_choices(given: Namespace) -> None:
    """A program that is complete leaves nothing to choose."""
    usual = {"pp": None, "dp": 1, "tp": 1, "microbatches": None, "split": None, "recompute": "none", "overlap": False}
    usual["model"] = "nominal"
    for name, value in usual.items():
        if getattr(given, name) not in (value, None):
            raise ValueError(f"--{name} {getattr(given, name)} for a program that is complete; leave it out")


def _placed(rows: list[list[Op]], given: Namespace) -> tuple[Plan, list[list[Op]]]:
    """The rows of a table on the mesh of --dp and --tp: replicas have the same row, and one of each is the schedule."""
    replicas = given.dp * given.tp
    if given.dp < 1 or given.tp < 1 or len(rows) % replicas:
        raise ValueError(f"{len(rows)} rows for --dp {given.dp} and --tp {given.tp}; give a row for each of the ranks")
    microbatches = 1 + max(op.microbatch for ops in rows for op in ops)
    degrees = {"pp": len(rows) // replicas, "dp": given.dp, "tp": given.tp}
    plan = Plan(**degrees, microbatches=max(1, microbatches), **_inside_layers(given))
    for name in ("pp", "microbatches"):
        if getattr(given, name) not in (None, getattr(plan, name)):
            raise ValueError(f"--{name} {getattr(given, name)} for a table of {getattr(plan, name)}; leave it out")
    schedule: list[list[Op]] = [[] for _ in range(plan.pp)]
    for rank, ops in enumerate(rows):
        stage = plan.mesh.coordinates[rank][Axis.PP]
        if schedule[stage] and schedule[stage] != ops:
            raise ValueError(f"row {rank + 1} differs from that of another replica of its stage; make them the same")
        schedule[stage] = ops
    return plan, schedule
