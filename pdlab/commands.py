"""What each subcommand does: read the arguments into a plan, call the package, print."""

import json
import time
from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from pdlab import forms, metrics, strategies
from pdlab.bubbles import unit_bytes
from pdlab.costs import Link, Uniform
from pdlab.export import check_suffix, write_trace
from pdlab.ledger import Ledger
from pdlab.passes import Recompute
from pdlab.planning import chosen, file_of, plan_of, predicted_model, program_of_arguments, times_of
from pdlab.program import Program
from pdlab.simulate import read_trace, run_plan, start_plan
from pdlab.trace import Trace

ACTIVATION_UNITS = ("MB", "MW")
PICTURE_SUFFIXES = (".png", ".svg", ".pdf")


def list_strategies(_: Namespace) -> None:
    """One line for each strategy, its name first."""
    width = max(map(len, strategies.names()))
    for strategy in strategies.STRATEGIES:
        print(f"{strategy.name:<{width}}  {strategy.summary}")


def show(given: Namespace) -> None:
    """The program as text: a grid of what computes, all ops with their values, CSV (an order), JSON (everything), or
    the versions that minibatches meet."""
    if given.format == "csv" and (given.recompute != Recompute.NONE.value or given.overlap):
        raise ValueError("a CSV is the order of a schedule alone; give --recompute and --overlap when it is read")
    program = program_of_arguments(given, predicted_model(given, {}))
    printers: dict[str, Callable[[Program], str]] = {
        "grid": forms.grid,
        "ops": forms.listing,
        "csv": forms.schedule_csv,
        "json": forms.to_json,
        "versions": lambda program: Ledger.of(program).text(),
    }
    print(printers[given.format](program).rstrip("\n"))


def simulate_strategy(given: Namespace) -> None:
    """Predict one strategy."""
    if given.trace:
        check_suffix(given.trace)
    costs = parse_costs(given.costs)
    units = {name: costs.pop(name) for name in ACTIVATION_UNITS if name in costs}
    uniform = Uniform.of(link=Link(given.link), scale=parse_scale(given.scale), **costs)
    began = time.perf_counter()
    program = program_of_arguments(given, predicted_model(given, units), times=lambda: times_of(uniform, units))
    built = time.perf_counter() - began
    plan = start_plan(program, uniform)
    began = time.perf_counter()
    starts, ends = run_plan(plan)
    seconds = time.perf_counter() - began
    trace = read_trace(plan, starts, ends, uniform, {})
    if given.trace:
        write_trace(trace, given.trace)
    numbers = prediction(trace)
    numbers |= {"num_ops": program.num_ops, "ops_per_second": program.num_ops / max(seconds, 1e-9), "build_s": built}
    _print(numbers, as_json=given.json)


def prediction(trace: Trace) -> dict[str, Any]:
    """What a simulation says. Activations are counted in M_B: what a rank keeps for one microbatch in all of its
    stages, if all are as large as the largest."""
    program = trace.program
    return {
        "makespan": trace.makespan,
        "largest_rank_span": metrics.largest_rank_span(trace),
        "busy_per_rank": metrics.busy_per_rank(trace),
        "bubble_fraction": metrics.bubble_fraction(trace),
        "peak_activations_per_rank": metrics.peak_activations_per_rank(trace, unit_bytes(program)),
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


def parse_scale(text: str | None) -> tuple[float, ...]:
    """`1,2,1,1` as numbers, one for each stage."""
    try:
        return tuple(float(piece) for piece in text.split(",")) if text else ()
    except ValueError:
        raise ValueError(f"--scale {text}; give a number for each stage with commas between: 1,2,1,1") from None


def run_strategy(given: Namespace) -> None:
    """Run one strategy, or the schedule in a file, and lay the run beside its prediction."""
    if given.trace:
        check_suffix(given.trace)
    file = file_of(given)
    if file is None:
        strategies.get(given.strategy)
    elif file.suffix == ".json":
        raise ValueError(f"{file}: a JSON program has its own model and data; run the schedule from a CSV file")
    from pdlab import running

    comparison = running.run_one(lambda itemsize: running.program_to_run(given, itemsize), given)
    if given.trace:
        write_trace(comparison.measured, given.trace)
    _print(comparison.summary(), as_json=given.json)


def train_strategy(given: Namespace) -> None:
    """Train with one strategy; losses and accuracies on the screen, the loss curve in a picture if asked."""
    strategies.get(given.strategy)
    if given.plot and given.plot.suffix not in PICTURE_SUFFIXES:
        raise ValueError(f"cannot draw {given.plot.name}; end it in {' or '.join(PICTURE_SUFFIXES)}")
    from pdlab import running

    running.train_one(lambda optimizer_bytes: _trained(given, optimizer_bytes), given)


def _trained(given: Namespace, optimizer_bytes: int) -> Program:
    from pdlab import running

    strategy = strategies.get(given.strategy)
    plan = replace(plan_of(given), batch=given.batch, optimizer_bytes=optimizer_bytes)
    plan = chosen(strategy, plan, given)
    return strategies.build(strategy, plan, running.lab_model(given, plan, 4, plan.num_stages, strategy))


def compare_strategies(given: Namespace) -> None:
    """Run several, print one table, write the report."""
    from pdlab import running

    chosen = [strategies.get(name) for name in given.strategies] or list(strategies.STRATEGIES)
    running.compare_all(chosen, given)


def picture(given: Namespace) -> None:
    """Draw one of the pictures of the README."""
    from pdlab.pictures import PICTURES

    if given.out.suffix not in PICTURE_SUFFIXES:
        raise ValueError(f"cannot draw {given.out.name}; end it in {' or '.join(PICTURE_SUFFIXES)}")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    PICTURES[given.what]().savefig(given.out, dpi=160)
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
