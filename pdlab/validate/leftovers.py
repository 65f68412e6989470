"""Nothing is left over: what a rank holds at the end is what the program promised to leave, no more and no less.

A value that nobody consumes is memory that a real run never gets back, and mostly the trace of a forgotten backward.
"""

from pdlab.depend import ProgramError
from pdlab.ops import Value
from pdlab.program import Program, RankProgram


def check_leftovers(program: Program) -> None:
    for rank, of_rank in enumerate(program.ranks):
        written = {value for op in of_rank.ops for value in op.writes}
        consumed = {value for op in of_rank.ops for value in op.consumes}
        held = (of_rank.live_in | written) - consumed
        for value in sorted(held - of_rank.live_out):
            raise _left_over(rank, of_rank, value)
        for value in sorted(of_rank.live_out - held):
            raise _never_there(rank, of_rank, value)


def _left_over(rank: int, of_rank: RankProgram, value: Value) -> ProgramError:
    at = next((i for i, op in enumerate(of_rank.ops) if value in op.writes), None)
    origin = "there from the start (live_in)" if at is None else f"written by op {at} ({of_rank.ops[at]})"
    last = next((i for i in reversed(range(len(of_rank.ops))) if value in of_rank.ops[i].operands), None)
    reader = f"last read by op {last} ({of_rank.ops[last]})" if last is not None else "read by no op"
    return ProgramError(
        f"rank {rank} is left with {value!r}, {origin} and {reader}; "
        "let its last reader consume it (consume_last_uses), or name it in live_out",
        tuple((rank, i) for i in (at, last) if i is not None),
    )


def _never_there(rank: int, of_rank: RankProgram, value: Value) -> ProgramError:
    at = next((i for i, op in enumerate(of_rank.ops) if value in op.consumes), None)
    fate = "no op writes it" if at is None else f"op {at} ({of_rank.ops[at]}) consumes it"
    remedy = "add the op that writes it" if at is None else "only read it there"
    return ProgramError(
        f"rank {rank} ends without {value!r}, which live_out promises: {fate}; {remedy}, or take it out of live_out",
        () if at is None else ((rank, at),),
    )
