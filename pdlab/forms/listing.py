"""A program in full as text: every op of every rank in its order, with its stream and the values it touches.

rank 0
   0  compute   0F0                  h0:0, fc0.w@0 -> h1:0, fc0.saved:0
   1  to 1      SEND h1:0 to 1       h1:0 ->            frees h1:0
"""

from pdlab.ops import Op, label
from pdlab.program import Program


def listing(program: Program) -> str:
    """A line for each op. `frees` names what the op is the last to need."""
    blocks = []
    for number, rank in enumerate(program.ranks):
        rows = [(str(op.stream), label(op), _operands(op), _freed(op)) for op in rank.ops]
        widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
        lines = [
            f"{position:>4}  " + "  ".join((*(text.ljust(w) for text, w in zip(row, widths, strict=False)), row[3]))
            for position, row in enumerate(rows)
        ]
        blocks.append("\n".join([f"rank {number}", *(line.rstrip() for line in lines)]))
    return "\n".join(blocks)


def _operands(op: Op) -> str:
    return f"{', '.join(op.operands)} -> {', '.join(op.writes)}".strip()


def _freed(op: Op) -> str:
    return f"frees {', '.join(value for value in op.inputs if value in op.consumes)}" if op.consumes else ""
