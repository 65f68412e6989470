"""A schedule of your own, typed as a table, made a program: completed with its messages and checked.

    program = program_of_table('''
        0F0,0F1,0B0,0B1
        1F0,1B0,1F1,1B1
    ''')

One row per pipeline rank; `pdlab.forms.table` says what may stand in it. What comes out is drawn, simulated and run as
every other program is.
"""

from dataclasses import replace

from pdlab import forms, lab, strategies
from pdlab.depend import ProgramError
from pdlab.forms import Table
from pdlab.models import Model
from pdlab.program import Program
from pdlab.strategies import Plan
from pdlab.validate import describe, validate


def program_of_table(
    text: str, model: Model | None = None, plan: Plan | None = None, name: str = "own schedule"
) -> Program:
    """The program of a table. Without a model its layers are only numbers, one for each stage; `plan` says what the
    table does not: replicas, samples, what is run again. ValueError shows the table with the faulty cell marked."""
    table = forms.read_table(text)
    plan = plan_of_table(table, plan or Plan())
    model = model or lab.lab_nominal(plan.pp, table.num_stages, tp=plan.tp, split=plan.split.value)
    return lower_table(table, plan, model, name)


def plan_of_table(table: Table, plan: Plan) -> Plan:
    """The plan with the ranks and microbatches of a table; ValueError where it says otherwise. Where it says 1, it says
    nothing."""
    ranks, microbatches = len(table.rows), table.num_microbatches
    for of, value in (("pp", ranks), ("microbatches", microbatches)):
        if getattr(plan, of) not in (1, value):
            raise ValueError(f"{of}={getattr(plan, of)} for a table of {value}; leave it out")
    for of in ("virtual", "limit"):
        if getattr(plan, of) is not None:
            raise ValueError(f"{of}={getattr(plan, of)} for a table, which says all that; leave it out")
    return replace(plan, pp=ranks, microbatches=microbatches)


def lower_table(table: Table, plan: Plan, model: Model, name: str) -> Program:
    """The program of a table on a model; one that cannot run is shown with the cells at fault marked."""
    return valid(strategies.lower_schedule(name, table.schedule, plan, model))


def valid(program: Program) -> Program:
    """The same program; ProgramError shows what is wrong with it where it is."""
    try:
        validate(program)
    except ProgramError as error:
        raise ProgramError(describe(program, error), error.cells) from None
    return program
