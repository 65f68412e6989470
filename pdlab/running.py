"""The commands that run strategies for real: `pdlab run` and `pdlab compare`."""

import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tqdm import tqdm

from pdlab import models, plots, report
from pdlab.compare import Comparison, compare, lab_transformer
from pdlab.files import make_folder
from pdlab.launch import Ranks
from pdlab.models import Model
from pdlab.strategies import Plan, Strategy, get
from pdlab.trace import Mode

SAMPLES = 2
"""Samples of each microbatch and data shard, times the ranks, where the user does not say."""


def run_one(given: Namespace, plan: Plan) -> Comparison:
    """One strategy at the degrees that the user gave."""
    size = plan.mesh.size
    plan = replace(plan, batch=given.batch or SAMPLES * size * plan.microbatches)
    strategy = get(given.strategy)
    _check(strategy, plan, given)
    with _pool(size, Mode(given.mode)) as pool:
        return compare(strategy, plan, pool, model_of=_model_of(given.model), steps=given.steps)


def compare_all(chosen: Sequence[Strategy], given: Namespace) -> None:
    """Several strategies on `--ranks` ranks each; the table on the screen, report and summary in the folder."""
    plans = [_comparable(strategy, given) for strategy in chosen]
    for strategy, plan in zip(chosen, plans, strict=True):
        _check(strategy, plan, given)
    make_folder(given.out)
    done: list[Comparison] = []
    with _pool(given.ranks, Mode(given.mode)) as pool:
        for strategy, plan in (bar := tqdm(list(zip(chosen, plans, strict=True)), unit="strategy", leave=False)):
            bar.set_description(strategy.name)
            done.append(compare(strategy, plan, pool, model_of=_model_of(given.model), steps=given.steps))
    rows = [comparison.summary() for comparison in done]
    figures = [(c.strategy, plots.compare(c.predicted, c.measured)) for c in done]
    page = report.write_report(given.out, rows, figures, str(done[0].measured.provenance))
    table = report.write_summary(given.out, rows)
    print(table_text(done))
    print(f"\nwrote {page} and {table}")


def _comparable(strategy: Strategy, given: Namespace) -> Plan:
    """The same number of samples for every strategy, and `--microbatches` microbatches on every data shard."""
    if given.ranks < 1:
        raise ValueError(f"--ranks {given.ranks}; give at least 1")
    if given.microbatches < 1:
        raise ValueError(f"--microbatches {given.microbatches}; give at least 1")
    batch = given.batch or SAMPLES * given.ranks * given.microbatches
    return strategy.on(given.ranks, Plan(microbatches=given.microbatches, batch=batch))


def _check(strategy: Strategy, plan: Plan, given: Namespace) -> None:
    """Everything that can be wrong with a plan is found before a process starts."""
    from pdlab.strategies import build
    from pdlab.validate import validate

    if given.steps < 1:
        raise ValueError(f"--steps {given.steps}; give at least 1")
    validate(build(strategy, plan, _model_of(given.model)(plan.tp, 4)))


def _model_of(name: str):  # type: ignore[no-untyped-def]
    if name == "transformer":
        return lab_transformer

    def make(tp: int, itemsize: int) -> Model:
        if tp > 1:
            raise ValueError(f"--tp {tp} with --model mlp: it has no tensor-parallel form; use --model transformer")
        return models.mlp(itemsize=itemsize)

    return make


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
    "strategy",
    "predicted ms",
    "measured ms",
    "error %",
    "bubble",
    "measured",
    "MB moved",
    "peak MB",
    "gradient error",
)


def table_text(done: Sequence[Comparison]) -> str:
    """The comparison as a table for the screen."""
    lines = [HEADINGS, *(_cells(c.summary()) for c in done)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def _cells(row: dict[str, object]) -> tuple[str, ...]:
    def number(key: str, form: str, scale: float = 1.0) -> str:
        return format(float(str(row[key])) * scale, form)

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
