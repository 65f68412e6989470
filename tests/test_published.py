"""Predictions against published tables: nothing is fitted, the profiled times go in and the bubble rates come out."""

import csv
from pathlib import Path

import pytest

from pdlab import models
from pdlab.costs import Link, Uniform
from pdlab.simulate import simulate
from pdlab.strategies import Plan, build, get

PUBLISHED = Path(__file__).parent.parent / "data" / "published"


def table(name: str) -> list[dict[str, str]]:
    with (PUBLISHED / name).open() as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


TIMES, RATES = table("zero_bubble_table9_profiled_times.csv"), table("zero_bubble_table5_bubble_rates.csv")


@pytest.mark.parametrize(("strategy", "column"), [("1f1b", "1F1B"), ("zb_h1", "ZB-H1")])
@pytest.mark.parametrize("row", range(len(TIMES)))
def test_bubble_rates_of_the_zero_bubble_paper(row: int, strategy: str, column: str) -> None:
    """Qi et al. 2024, tables 9 and 5: rate = (cost - m (TF + TB + TW)) / cost, to the four printed digits."""
    times, rates = TIMES[row], RATES[row]
    p, m = int(times["p"]), int(times["m"])
    forward, backward_input, backward_weight, comm = (float(times[key]) for key in ("TF", "TB", "TW", "Tcomm"))
    costs = Uniform(F=forward, I=backward_input, W=backward_weight, comm=comm, link=Link.INDEPENDENT)
    program = build(get(strategy), Plan(pp=p, microbatches=m), models.nominal(p))
    cost = simulate(program, costs).makespan
    assert round(1 - m * (forward + backward_input + backward_weight) / cost, 4) == float(rates[column])
