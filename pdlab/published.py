"""What papers printed, beside what the same schedules take in the simulator.

Nothing is fitted: the times that a paper profiled go in, and the rates that it printed should come out. The numbers are
those of data/published, each file with its source.
"""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdlab import metrics
from pdlab.costs import Link, Uniform
from pdlab.lab import lab_nominal
from pdlab.simulate import simulate
from pdlab.strategies import Plan, Times, build, get

FOLDER = Path(__file__).parent.parent / "data" / "published"


def table(name: str) -> list[dict[str, str]]:
    """The lines of a file by their column names; ValueError where it is missing."""
    file = FOLDER / name
    if not file.is_file():
        raise ValueError(f"published numbers are expected in {file}, which is missing; restore it with git checkout")
    with file.open(encoding="utf-8") as lines:
        return list(csv.DictReader(line for line in lines if not line.startswith("#")))


@dataclass(frozen=True)
class Profile:
    """A line of the zero-bubble paper (Qi et al. 2024, arXiv:2401.10241): one model on p stages, with the times of
    table 9 and the bubble rates of table 5. `virtual` stages on each rank hold one layer each; of what a forward keeps,
    W still needs 32h / (34h + 5as)."""

    model: str
    p: int
    m: int
    times: Times
    virtual: int
    printed: dict[str, float]


def profiles() -> list[Profile]:
    """All lines, in the order of the paper."""
    models = {row["model"]: row for row in table("zero_bubble_table3_models.csv")}
    rates = {(row["model"], row["m"]): row for row in table("zero_bubble_table5_bubble_rates.csv")}
    found = []
    for row in table("zero_bubble_table9_profiled_times.csv"):
        about, p = models[row["model"]], int(row["p"])
        h, a, s = (int(about[key]) for key in ("hidden", "heads", "seq"))
        F, I, W, comm = (float(row[key]) for key in ("TF", "TB", "TW", "Tcomm"))
        times = Times(F, I, W, comm, M_W=32 * h / (34 * h + 5 * a * s))
        virtual = (int(about["layers"]) + 2) // p  # the first and the last stage hold a layer less
        printed = {column: float(rates[row["model"], row["m"]][column]) for column in SCHEDULES}
        found.append(Profile(row["model"], p, int(row["m"]), times, virtual, printed))
    return found


SCHEDULES: dict[str, tuple[str, Callable[[Profile], dict[str, Any]]]] = {
    "1F1B": ("1f1b", lambda line: {}),
    "1F1B-I": ("interleaved_1f1b", lambda line: {"virtual": line.virtual}),
    "ZB-H1": ("zb_h1", lambda line: {}),
    "ZB-H2": ("zb_h2", lambda line: {}),
    "ZB-1p": ("zb_auto", lambda line: {"limit": line.p}),
    "ZB-2p": ("zb_auto", lambda line: {"limit": 2 * line.p}),
}
"""For each column of table 5 our strategy and what the line says about it."""


def bubble_rate(line: Profile, column: str) -> float:
    """(cost - m (F + I + W)) / cost, where the cost is the longest span of a rank, and messages do not wait for each
    other."""
    name, choices = SCHEDULES[column]
    strategy, times = get(name), line.times
    plan = strategy.chosen(Plan(pp=line.p, microbatches=line.m, times=times, **choices(line)))
    costs = Uniform(F=times.F, I=times.I, W=times.W, comm=times.comm, link=Link.INDEPENDENT)
    trace = simulate(build(strategy, plan, lab_nominal(line.p, plan.num_stages)), costs)
    return 1 - line.m * (times.F + times.I + times.W) / metrics.largest_rank_span(trace)


@dataclass(frozen=True)
class Throughput:
    """A line of the GPipe paper (Huang et al. 2019, arXiv:1811.06965) with M = 32: what it printed, and what equal
    stages and free messages would give, K M / (M + K - 1), relative to the line that the table is normalised to."""

    table: str
    model: str
    hardware: str
    K: int
    printed: float
    bound: float


GPIPE_M = 32
"""Lines of other numbers of microbatches had other batches, and do not compare."""

NORMALISED_TO = {"2": (2, 1), "3": (2, 32)}
"""K and M of the line that is 1, by the number of the table."""


def throughputs() -> list[Throughput]:
    found = []
    for row in table("gpipe_table2_3_throughput.csv"):
        K, M = int(row["K_partitions"]), int(row["M_microbatches"])
        if M == GPIPE_M:
            bound = gpipe_speedup(K, M) / gpipe_speedup(*NORMALISED_TO[row["table"]])
            printed = float(row["normalised_throughput"])
            found.append(Throughput(row["table"], row["model"], row["hardware"], K, printed, bound))
    return found


def gpipe_speedup(K: int, M: int) -> float:
    """K equal stages with free messages against one rank that does it all, by simulation."""
    program = build(get("gpipe"), Plan(pp=K, microbatches=M), lab_nominal(K, K))
    return K * (1 - metrics.bubble_fraction(simulate(program, Uniform(F=1, B=2))))


Heading = tuple[str, tuple[str, ...]]
"""A heading and the words over its columns; one empty word where there is only one column."""


@dataclass(frozen=True)
class Compared:
    """A table for people: its headings, the cells of each line, where the printed numbers are from, what to mind."""

    title: str
    groups: tuple[Heading, ...]
    lines: tuple[tuple[str, ...], ...]
    notes: str


LARGEST = 1024
"""Stages times microbatches of a line that a report waits for: the larger ones take half a minute together."""


def comparisons() -> tuple[Compared, ...]:
    """All tables: some seconds of work. ValueError where the printed numbers are missing."""
    return zero_bubble(), gpipe()


def zero_bubble() -> Compared:
    every = profiles()
    chosen = [line for line in every if line.p * line.m <= LARGEST]
    groups: list[Heading] = [(heading, ("",)) for heading in ("model", "p", "m")]
    groups += [(f"{column} (%)", ("printed", "ours", "diff.")) for column in SCHEDULES]
    lines = [(line.model, str(line.p), str(line.m), *_rates(line)) for line in chosen]
    return Compared(
        "Bubble rates of the zero-bubble paper",
        tuple(groups),
        tuple(lines),
        "Printed: Qi, Wan, Huang, Lin, Zero Bubble Pipeline Parallelism, ICLR 2024, arXiv:2401.10241, table 5, for p "
        "stages and m microbatches. Its authors worked it out from the times that they had profiled (table 9), as is "
        "done here with nothing fitted: so two models of a schedule are compared, not a model with a machine. The rate "
        "is the idle share of the rank that takes longest from its first op to its last; messages may overlap. ZB-1p "
        "and ZB-2p are what our own search finds for a memory of p and 2p microbatches.\n"
        "1F1B-I, with one layer on each stage, comes out higher here, by exactly p transfers. Here every microbatch "
        "waits for its hop from the last rank back to the first; in the script that the authors published "
        "(interleave.py of zero-bubble-pipeline-parallelism) only the first one of each round does. With that rule the "
        "same order gives all of their numbers.\n"
        f"Shown are {len(chosen)} of the {len(every)} lines, those with p × m up to {LARGEST}. The others take longer "
        "to simulate and come out alike: tests/test_published.py and tests/test_automatic.py work out all of them.",
    )


def _rates(line: Profile) -> list[str]:
    """Printed, ours and the difference in per cent for each column; ours to as many digits as are printed."""
    cells = []
    for column in SCHEDULES:
        printed, ours = line.printed[column], round(bubble_rate(line, column), 4)
        cells += [f"{100 * printed:.2f}", f"{100 * ours:.2f}", _signed(100 * (ours - printed))]
    return cells


def _signed(number: float) -> str:
    text = f"{number:+.2f}"
    return "0" if float(text) == 0 else text.replace("-", "−")


def gpipe() -> Compared:
    every = throughputs()
    Ks = sorted({line.K for line in every})
    rows: dict[tuple[str, str, str], list[str]] = {}
    for line in every:
        cells = rows.setdefault((line.table, line.model, line.hardware), [])
        cells += [f"{line.printed:.2f}", f"{line.bound:.2f}"]
    groups: list[Heading] = [(heading, ("",)) for heading in ("table", "model", "hardware")]
    groups += [(f"K = {K}", ("printed", "bound")) for K in Ks]
    shares = ", ".join(f"{1 - gpipe_speedup(K, 4 * K) / K:.0%}".replace("%", " %") for K in Ks)
    return Compared(
        "Throughput in the GPipe paper, against its bubble",
        tuple(groups),
        tuple((*key, *cells) for key, cells in rows.items()),
        "Printed: Huang et al., GPipe, NeurIPS 2019, arXiv:1811.06965, measured on K accelerators with M = 32 "
        "microbatches, relative to K = 2, M = 1 (table 2) or K = 2, M = 32 (table 3). The bound is what the schedule "
        "would give with equal stages and free messages, K M / (M + K − 1), here by simulation. No printed number is "
        "above it; the Transformers, whose layers are equal, come within a tenth of it.\n"
        f"The paper calls the bubble negligible from M = 4 K on. At M = 4 K it is {shares} of the time for K = "
        f"{', '.join(map(str, Ks))}, if nothing runs in it; the paper adds that part of it goes to recomputation.",
    )
