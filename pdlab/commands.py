"""What each subcommand does: read the arguments into a plan, call the package, print."""

import json
import time
from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pdlab import forms, metrics, models, strategies
from pdlab.costs import Link, Uniform
from pdlab.depend import ProgramError
from pdlab.export import check_suffix, write_trace
from pdlab.mesh import Axis
from pdlab.models import Model
from pdlab.models.split import split_named
from pdlab.ops import Op
from pdlab.passes import Recompute
from pdlab.program import Program
from pdlab.simulate import read_trace, run_plan, start_plan
from pdlab.strategies import Plan, Strategy
from pdlab.trace import Trace
from pdlab.validate import describe, validate

ACTIVATION_UNITS = ("MB", "MW")
PICTURES = (".png", ".svg", ".pdf")


def list_strategies(_: Namespace) -> None:
    """One line for each strategy, its name first."""
    width = max(map(len, strategies.names()))
    for strategy in strategies.STRATEGIES:
        print(f"{strategy.name:<{width}}  {strategy.summary}")


def show(given: Namespace) -> None:
    """The program as text: a grid of what computes, all ops with their values, CSV (an order) or JSON (everything)."""
    if given.format == "csv" and (given.recompute != Recompute.NONE.value or given.overlap):
        raise ValueError("a CSV is the order of a schedule alone; give --recompute and --overlap when it is read")
    program = _program(given, _nominal({}))
    printers: dict[str, Callable[[Program], str]] = {
        "grid": forms.grid,
        "ops": forms.listing,
        "csv": forms.schedule_csv,
        "json": forms.to_json,
    }
    print(printers[given.format](program).rstrip("\n"))


def simulate_strategy(given: Namespace) -> None:
    """Predict one strategy on the nominal model."""
    if given.trace:
        check_suffix(given.trace)
    costs = parse_costs(given.costs)
    units = {name: costs.pop(name) for name in ACTIVATION_UNITS if name in costs}
    uniform = Uniform.of(link=Link(given.link), **costs)
    began = time.perf_counter()
    program = _program(given, _nominal(units))
    built = time.perf_counter() - began
    plan = start_plan(program, uniform)
    began = time.perf_counter()
    starts, ends = run_plan(plan)
    seconds = time.perf_counter() - began
    trace = read_trace(plan, starts, ends, uniform, {})
    if given.trace:
        write_trace(trace, given.trace)
    numbers = prediction(trace, units.get("MB", 1.0))
    numbers |= {"num_ops": program.num_ops, "ops_per_second": program.num_ops / max(seconds, 1e-9), "build_s": built}
    _print(numbers, as_json=given.json)


def prediction(trace: Trace, M_B: float = 1.0) -> dict[str, Any]:
    """What a simulation on the nominal model says. Activations are counted in what one stage keeps for one
    microbatch."""
    program = trace.program
    per_stage = len(program.model.layers) // len(program.stages)
    unit = models.nominal(1, M_B).segments["layer0"].saved.per_row * per_stage
    return {
        "makespan": trace.makespan,
        "largest_rank_span": metrics.largest_rank_span(trace),
        "busy_per_rank": metrics.busy_per_rank(trace),
        "bubble_fraction": metrics.bubble_fraction(trace),
        "peak_activations_per_rank": metrics.peak_activations_per_rank(trace, unit)
        if unit
        else [0.0] * len(program.ranks),
        "peak_bytes_per_rank": metrics.peak_bytes_per_rank(trace),
        "bytes_by_collective": metrics.bytes_by_collective(trace),
    }


def parse_costs(text: str) -> dict[str, float]:
    """`F=1,B=2` as numbers; ValueError names what cannot be read."""
    costs = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, number = part.partition("=")
        try:
            costs[name.strip()] = float(number)
        except ValueError:
            equals = ""
        if not equals:
            raise ValueError(f"cost {part!r} is not NAME=NUMBER; write for example --costs F=1,B=2,comm=0.1")
    return costs


ModelOf = Callable[[Plan, bool], Model]
"""From a plan, and whether its strategy is a pipeline, to a model."""


BatchOf = Callable[[Plan], int]
"""From a plan to the samples of a step."""


def _nominal(units: dict[str, float]) -> ModelOf:
    """One layer per stage for a pipeline; four where the model is whole, so that buckets and gathers have work."""

    def make(plan: Plan, is_pipeline: bool) -> Model:
        layers = plan.pp if is_pipeline else 4 * plan.pp
        return models.nominal(layers, units.get("MB", 1.0), units.get("MW", 1.0), tp=plan.tp, split=plan.split.value)

    return make


def _plan(given: Namespace) -> Plan:
    if given.virtual != 1:
        raise ValueError(f"--virtual {given.virtual}: these schedules have one stage per rank; leave it at 1")
    pp = 1 if given.pp is None else given.pp
    microbatches = 8 if given.microbatches is None else given.microbatches
    return Plan(pp=pp, dp=given.dp, tp=given.tp, microbatches=microbatches, **_inside_layers(given))


def _inside_layers(given: Namespace) -> dict[str, Any]:
    """What the command line says of how layers are split and what is run again."""
    return {
        "split": split_named(given.split or "tensor"),
        "recompute": Recompute(given.recompute),
        "overlap": given.overlap,
    }


def _chosen(strategy: Strategy, plan: Plan, given: Namespace) -> Plan:
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


def _program(given: Namespace, model_of: ModelOf, batch: BatchOf | None = None) -> Program:
    """The program of a strategy's name, or of a file; a faulty one is shown with the cells at fault marked."""
    if given.strategy.endswith((".csv", ".json")):
        program = _from_file(Path(given.strategy), given, model_of, batch)
        try:
            validate(program)
        except ProgramError as error:
            raise ProgramError(describe(program, error), error.cells) from None
        return program
    strategy = strategies.get(given.strategy)
    plan = _chosen(strategy, _plan(given), given)
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
    for name, value in usual.items():
        if getattr(given, name) != value:
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


def run_strategy(given: Namespace) -> None:
    """Run one strategy, or the schedule in a file, and lay the run beside its prediction."""
    if given.trace:
        check_suffix(given.trace)
    if not given.strategy.endswith((".csv", ".json")):
        strategies.get(given.strategy)
    from pdlab import running

    def program_of(itemsize: int) -> Program:
        def batch(plan: Plan) -> int:
            return running.default_batch(given.batch, plan.mesh.size, plan.microbatches)

        return _program(given, lambda plan, _: running.lab_model(given, plan, itemsize), batch)

    if given.strategy.endswith(".json"):
        raise ValueError(
            f"{given.strategy}: a JSON program has its own model and data; run the schedule from a CSV file"
        )
    comparison = running.run_one(program_of, given)
    if given.trace:
        write_trace(comparison.measured, given.trace)
    _print(comparison.summary(), as_json=given.json)


def train_strategy(given: Namespace) -> None:
    """Train with one strategy; losses and accuracies on the screen, the loss curve in a picture if asked."""
    strategies.get(given.strategy)
    if given.plot and given.plot.suffix not in PICTURES:
        raise ValueError(f"cannot draw {given.plot.name}; end it in {' or '.join(PICTURES)}")
    from pdlab import running

    running.train_one(lambda optimizer_bytes: _trained(given, optimizer_bytes), given)


def _trained(given: Namespace, optimizer_bytes: int) -> Program:
    from pdlab import running

    strategy = strategies.get(given.strategy)
    plan = replace(_plan(given), batch=given.batch, optimizer_bytes=optimizer_bytes)
    plan = _chosen(strategy, plan, given)
    return strategies.build(strategy, plan, running.lab_model(given, plan, 4))


def compare_strategies(given: Namespace) -> None:
    """Run several, print one table, write the report."""
    from pdlab import running

    chosen = [strategies.get(name) for name in given.strategies] or list(strategies.STRATEGIES)
    running.compare_all(chosen, given)


def picture(given: Namespace) -> None:
    """Draw one of the pictures of the README."""
    from pdlab.pictures import PICTURES as KNOWN

    if given.out.suffix not in PICTURES:
        raise ValueError(f"cannot draw {given.out.name}; end it in {' or '.join(PICTURES)}")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    KNOWN[given.what]().savefig(given.out, dpi=160)
    print(f"wrote {given.out}")


def _print(numbers: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(numbers, indent=2))
        return
    width = max(map(len, numbers))
    for name, value in numbers.items():
        print(f"{name:<{width}}  {_human(value)}")


def _human(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_human(x)}" for key, x in value.items()) or "none"
    if isinstance(value, Iterable) and not isinstance(value, str):
        return "  ".join(_human(x) for x in value)
    return str(value)
