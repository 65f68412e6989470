"""What must hold before a program runs: here a mistake ends in a sentence, on real processes it would end in a hang.

Each file is one rule. What waits for what is not among them: `pdlab.depend` and `pdlab.order` say that for everybody,
and they find what is read too early, written twice, used after its end, without a partner, or waiting in a circle.
"""

from pdlab.depend import ProgramError, build
from pdlab.order import order
from pdlab.program import Program
from pdlab.validate.coverage import check_coverage
from pdlab.validate.layouts import check_layouts
from pdlab.validate.leftovers import check_leftovers
from pdlab.validate.needs import Needs
from pdlab.validate.report import describe
from pdlab.validate.shapes import check_shapes, check_types
from pdlab.validate.terms import check_terms

__all__ = ["ProgramError", "describe", "validate"]


def validate(program: Program) -> None:
    """Raise `ProgramError` with the numbers and the remedy where a program breaks a rule.

    A message is taken to block both sides until they meet (rendezvous), in the order of their streams: what passes here
    needs no buffers anywhere.
    """
    check_shapes(program)
    graph = build(program)
    events = order(graph)
    check_types(program)
    needs = Needs(program)
    check_layouts(graph, events, needs)
    check_terms(graph, events)
    check_coverage(graph, events, needs)
    check_leftovers(program)
