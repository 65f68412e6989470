"""The commands that run strategies for real: `pdlab run` and `pdlab compare`."""

import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tqdm import tqdm

from pdlab import models, plots, report
from pdlab.compare import Comparison, ProgramOf, compare, lab_transformer
from pdlab.files import make_folder
from pdlab.launch import Ranks
from pdlab.models import Model
from pdlab.strategies import Plan, Strategy, build
from pdlab.trace import Mode
from pdlab.validate import validate

SAMPLES = 2
"""Samples of each microbatch and rank, where the user does not say."""


def lab_model(given: Namespace, tp: int, itemsize: int) -> Model:
    """The model that `--model` and `--depth` name."""
    if given.model == "transformer":
        return lab_transformer(tp, itemsize, given.depth)
    if tp > 1:
        raise ValueError(
            f"--tp {tp} with --model {given.model}: it has no tensor-parallel form; use --model transformer"
        )
    return models.mlp(depth=2 * given.depth + 2, itemsize=itemsize)


def default_batch(given: int | None, ranks: int, microbatches: int) -> int:
    return SAMPLES * ranks * microbatches if given is None else given


def run_one(program_of: ProgramOf, given: Namespace) -> Comparison:
    """One program, from a strategy or a file."""
    _check_steps(given.steps)
    program = program_of(4)
    with _pool(program.mesh.size, Mode(given.mode)) as pool:
        return compare(program_of, pool, steps=given.steps)


def compare_all(chosen: Sequence[Strategy], given: Namespace) -> None:
    """Several strategies on `--ranks` ranks each; the table on the screen, report and summary in the folder."""
    _check_steps(given.steps)
    made = [_program_of(strategy, given) for strategy in chosen]
    for program_of in made:
        validate(program_of(4))
    make_folder(given.out)
    done: list[Comparison] = []
    with _pool(given.ranks, Mode(given.mode)) as pool:
        for strategy, program_of in (bar := tqdm(list(zip(chosen, made, strict=True)), unit="strategy", leave=False)):
            bar.set_description(strategy.name)
            done.append(compare(program_of, pool, steps=given.steps))
    rows = [comparison.summary() for comparison in done]
    figures = [(comparison.predicted.program.name, figure(comparison)) for comparison in done]
    page = report.write_report(given.out, rows, figures, str(done[0].measured.provenance))
    table = report.write_summary(given.out, rows)
    print(table_text(rows))
    print(f"\nwrote {page} and {table}")


def figure(comparison: Comparison) -> plots.Figure:
    """Prediction over measurement, or the prediction alone where no time was measured."""
    if comparison.measured.provenance.mode is Mode.LOCAL:
        return plots.timeline(comparison.predicted)
    return plots.compare(comparison.predicted, comparison.measured)


def _program_of(strategy: Strategy, given: Namespace) -> ProgramOf:
    """The same number of samples for every strategy, and `--microbatches` microbatches on every data shard."""
    if given.ranks < 1:
        raise ValueError(f"--ranks {given.ranks}; give at least 1")
    plan = Plan(microbatches=given.microbatches, batch=default_batch(given.batch, given.ranks, given.microbatches))
    placed = strategy.on(given.ranks, plan)
    return lambda itemsize: build(strategy, placed, lab_model(given, placed.tp, itemsize))


def _check_steps(steps: int) -> None:
    if steps < 1:
        raise ValueError(f"--steps {steps}; give at least 1")


@contextmanager
def _pool(size: int, mode: Mode) -> Iterator[Ranks | None]:
    if mode is Mode.LOCAL:
        yield None
        return
    cores = os.cpu_count() or 1
    if size > cores:
        print(f"{size} ranks on {cores} cores: paced, so order and overlap are real and speed is modelled", flush=True)
    with Ranks(size) as ranks:
        yield ranks


HEADINGS = (
    *("strategy", "predicted ms", "measured ms", "error %", "bubble", "measured"),
    *("MB moved", "peak MB", "gradient error"),
)


def table_text(rows: Sequence[dict[str, object]]) -> str:
    """The comparison as a table for the screen."""
    lines = [HEADINGS, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    )


def _cells(row: dict[str, object]) -> tuple[str, ...]:
    def number(key: str, form: str, scale: float = 1.0) -> str:
        return "-" if row[key] is None else format(float(str(row[key])) * scale, form)

    return (
        str(row["strategy"]),
        number("simulated_s", ".1f", 1e3),
        number("measured_s", ".1f", 1e3),
        number("error_pct", "+.1f"),
        number("bubble_simulated", ".0%"),
        number("bubble_measured", ".0%"),
        number("bytes_measured", ".3f", 1e-6),
        number("peak_bytes_measured", ".3f", 1e-6),
        number("grad_max_rel_error", ".1e"),
    )
