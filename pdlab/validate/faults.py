"""How the rules name what they find: rank, position and shorthand of the op, then the sentence."""

from pdlab.depend import Graph, ProgramError
from pdlab.ops import Value
from pdlab.program import Type


def fault(graph: Graph, row: int, text: str) -> ProgramError:
    """The error of one op."""
    return joint_fault(graph, (row,), text)


def joint_fault(graph: Graph, rows: tuple[int, ...], text: str) -> ProgramError:
    """The error of ops that meet; the sentence begins with the first of them."""
    return ProgramError(f"{graph.describe(rows[0])} {text}", tuple(graph.cell(row) for row in rows))


def types_of(graph: Graph, row: int) -> dict[Value, Type]:
    """The types of the rank that a row belongs to."""
    return graph.program.ranks[graph.rank_of[row]].types


def say(t: Type) -> str:
    return f"{t.role.value} of {t.of or 'nothing'}, {t.layout}"
