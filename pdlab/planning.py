"""From the arguments of a command to a program: a strategy by its name, or a file that somebody wrote."""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pdlab import forms, lab, models, strategies
from pdlab.costs import Uniform
from pdlab.depend import ProgramError
from pdlab.forms import Table
from pdlab.mesh import Axis
from pdlab.models import Model
from pdlab.named import colons
from pdlab.own_schedule import lower_table, plan_of_table, valid
from pdlab.passes import Recompute
from pdlab.program import Program
from pdlab.strategies import Plan, Strategy, Times

STAGES = ("layers", "replicas", "accumulate")
"""Options of what each stage is like, and of how many microbatches it steps after."""

ModelOf = Callable[[Plan, int | None], Model]
"""From a plan and the number of its pipeline stages (None: the model is not cut) to a model."""


BatchOf = Callable[[Plan], int]
"""From a plan to the samples of a step."""


TimesOf = Callable[[], Times]
"""What a search for an order is to believe; ValueError where that cannot be."""


def predicted_model(given: Namespace, units: dict[str, float]) -> ModelOf:
    """What `--model` names for a prediction. The nominal one has a layer per stage of a pipeline, and four where the
    model is whole, so that buckets and gathers have work; its units M_B and M_W are the user's, for all stages of a
    rank together."""

    def make(plan: Plan, stages: int | None) -> Model:
        if given.model != "nominal":
            depth = given.depth or lab.depth_for(plan.num_layers or stages or 1)
            return lab.LAB_MODELS[given.model](plan, 4, depth, 0.0)
        kept = units.get("MB", 1.0), units.get("MW", 1.0)
        if stages is None:
            return models.nominal(4, *kept, tp=plan.tp, split=plan.split.value)
        return lab.lab_nominal(plan.pp, plan.num_layers or stages, *kept, tp=plan.tp, split=plan.split.value)

    return make


def times_of(costs: Uniform, units: dict[str, float] | None = None) -> Times:
    """What a search for an order is told, by costs and units of what is kept."""
    given = {"MB": 1.0, "MW": 1.0} | (units or {})
    return Times.of(costs, given["MW"] / given["MB"] if given["MB"] else 1.0)


def plan_of(given: Namespace) -> Plan:
    pp = sum(given.replicas or (1,)) if given.pp is None else given.pp
    microbatches = 8 if given.microbatches is None else given.microbatches
    degrees = {"pp": pp, "dp": given.dp, "tp": given.tp, "virtual": given.virtual}
    stages = {name: getattr(given, name) for name in STAGES}
    return Plan(**degrees, **stages, microbatches=microbatches, limit=given.limit, **_inside_layers(given))


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


def program_of_arguments(
    given: Namespace, model_of: ModelOf, batch: BatchOf | None = None, times: TimesOf = Times
) -> Program:
    """The program of a strategy's name, or of a file; a faulty one is shown with the cells at fault marked. A search
    for an order asks for `times`, and believes in them."""
    if file := file_of(given):
        return _from_file(file, given, model_of, batch)
    strategy = strategies.get(given.strategy)
    plan = chosen(strategy, plan_of(given), given)
    plan = replace(plan, times=times()) if strategy.limited else plan
    plan = replace(plan, batch=batch(plan) if batch else None)
    return strategies.build(strategy, plan, model_of(plan, plan.num_stages if strategy.axis is Axis.PP else None))


def file_of(given: Namespace) -> Path | None:
    """The file that a command names, or None where it names a strategy; ValueError for both and for neither."""
    name, file = given.strategy, given.schedule
    if name is not None and file is not None:
        raise ValueError(f"{name} and --schedule {file} are two schedules; give one of them")
    if name is None and file is None:
        raise ValueError(
            "no schedule is given; name a strategy, as in 1f1b, or a table of your own with --schedule FILE"
        )
    if file is None and name.endswith((".csv", ".json")):
        return Path(name)
    return Path(file) if file else None


def _from_file(path: Path, given: Namespace, model_of: ModelOf, batch: BatchOf | None) -> Program:
    """A program that `show` wrote or somebody typed: JSON is complete, a table is an order that is lowered anew."""
    text = forms.read_text(path)
    try:
        if path.suffix == ".json":
            _refuse_choices(given)
            return valid(forms.from_json(text))
        table = forms.read_table(text)
        plan = _placed(table, given)
        plan = replace(plan, batch=batch(plan) if batch else None)
        return lower_table(table, plan, model_of(plan, table.num_stages), f"schedule in {path.name}")
    except ProgramError:
        raise
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _refuse_choices(given: Namespace) -> None:
    """A program that is complete leaves nothing to choose."""
    usual = {"dp": 1, "tp": 1, "recompute": "none", "overlap": False, "model": "nominal"}
    usual |= dict.fromkeys(("pp", "microbatches", "virtual", "limit", "split", *STAGES))
    for name, value in usual.items():
        if getattr(given, name) not in (value, None):
            raise ValueError(f"--{name} {_typed(getattr(given, name))} for a program that is complete; leave it out")


def _placed(table: Table, given: Namespace) -> Plan:
    """The plan of a table: a row for each rank of a pipeline, and --dp and --tp for how often there is one."""
    plan = plan_of_table(table, Plan(dp=given.dp, tp=given.tp, **_inside_layers(given)))
    for name in ("pp", "microbatches"):
        if getattr(given, name) not in (None, getattr(plan, name)):
            raise ValueError(f"--{name} {getattr(given, name)} for a table of {getattr(plan, name)}; leave it out")
    for name in ("virtual", "limit", *STAGES):
        if getattr(given, name) is not None:
            raise ValueError(f"--{name} {_typed(getattr(given, name))} for a table, which says all that; leave it out")
    return plan


def _typed(value: object) -> str:
    """As it stands on a command line."""
    return colons(value) if isinstance(value, tuple) else str(value)
