"""Small models over a tensor group, which the tests share."""

from cases import Case

from pdlab import models
from pdlab.execute.local import run_local
from pdlab.execute.result import Result
from pdlab.models import Model
from pdlab.models.split import Split
from pdlab.program import Program
from pdlab.strategies import Plan, build, get

B, S, H = 3, 64, 16
"""Samples, tokens and width of the models below."""


def network(tp: int, split: str = "tensor", **more: float) -> Model:
    chosen = {"width": H, "depth": 1, "heads": 8, "itemsize": 8, "tp": tp, "split": split, **more}
    return models.transformer(**chosen)  # type: ignore[arg-type]


def program_of(model: Model, tp: int, split: str, **choices: object) -> Program:
    plan = Plan(tp=tp, batch=B, split=Split(split), **choices)  # type: ignore[arg-type]
    return build(get(split), plan, model)


def run(case: Case) -> Result:
    return run_local(case.programs, case.batch, case.settings)
