"""A residual's gradient is a sum: a program that lacks a term of it, or counts one twice, is refused."""

import pytest
from groups import network, program_of
from programs import find, finished, rejected, with_op, with_rank

from pdlab.ops import Kind, Op
from pdlab.passes import Recompute
from pdlab.program import Program

SUM, NORM, RESIDUAL = "d.h1:0", "d.h1/ffn0.norm:0", "d.h1/ffn0.add:0"


def without_the_sum(program: Program, kept: str) -> Program:
    """One term in the place of the sum, the other freed."""
    (dropped,) = {NORM, RESIDUAL} - {kept}
    for rank in range(program.mesh.size):
        ops = [
            Op(Kind.FREE, inputs=(dropped,))
            if op.kind is Kind.ADD and op.writes == (SUM,)
            else op._replace(inputs=tuple(kept if v == SUM else v for v in op.inputs))
            for op in program.ranks[rank].ops
        ]
        program = with_rank(program, rank, ops=tuple(ops))
    return finished(program)


@pytest.mark.parametrize("split", ["tensor", "sequence"])
@pytest.mark.parametrize(("kept", "lacking"), [(NORM, "ffn0.add"), (RESIDUAL, "ffn0.norm")])
def test_a_term_that_is_left_out(kept: str, lacking: str, split: str) -> None:
    program = program_of(network(2, split), 2, split)
    rejected(without_the_sum(program, kept), f"a gradient that lacks what {lacking} finds for h1; add the terms first")


def test_a_term_that_counts_twice() -> None:
    program = program_of(network(2), 2, "tensor")
    for rank in (0, 1):
        at = find(program, rank, f"ADD {RESIDUAL}")
        add = program.ranks[rank].ops[at]
        again = Op(Kind.ADD, 0, microbatch=0, inputs=("d.h1/once:0", NORM), writes=(SUM,))
        program.ranks[rank].types["d.h1/once:0"] = program.ranks[rank].types[SUM]
        program = with_op(program, rank, at, add._replace(writes=("d.h1/once:0",)), again)
    rejected(finished(program), "adds what ffn0.norm has found", "a second time; add each term once")


def test_activations_are_not_added() -> None:
    program = program_of(network(2), 2, "tensor", recompute=Recompute.FULL)
    for rank in (0, 1):
        at = find(program, rank, "0.4R0")
        reader = program.ranks[rank].ops[at]
        twice = Op(Kind.ADD, 0, microbatch=0, inputs=("attn0.z/again:0", "attn0.z/again:0"), writes=("sum:0",))
        other = next(v for v in reader.inputs if v.startswith("h0"))
        program.ranks[rank].types["sum:0"] = program.ranks[rank].types["attn0.z/again:0"]._replace(of="h0")
        twice = twice._replace(inputs=(other, "attn0.z/again:0"))
        given = reader._replace(inputs=tuple("sum:0" if v == other else v for v in reader.inputs))
        program = with_op(program, rank, at, twice, given)
    rejected(finished(program), "what is added is a gradient")
