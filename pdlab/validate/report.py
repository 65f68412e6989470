"""How an error of a schedule is shown: its sentence, and under it the grid with the cells at fault marked."""

from pdlab.depend import ProgramError
from pdlab.forms.grid import grid
from pdlab.program import Program


def describe(program: Program, error: ProgramError) -> str:
    """The message and the grid. The faulty cells look like `[2F0]!`."""
    return f"{error}\n{grid(program, error.cells)}"
