"""Sequence parallelism keeps a rank's own tokens only: what was gathered for a linear is freed after its forward, and
gathered a second time for its weight gradient.

    forward    u_i |all-gather| u  F      u freed
    backward   u_i |all-gather| u  B      (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2)

So the activations of a layer shrink to exactly 1/t, for one all-gather more on each of its two halves.
"""

from dataclasses import replace

from pdlab.models.spec import Exchange
from pdlab.ops import BACKWARD_KINDS, Kind, Op, Value
from pdlab.passes.recompute import again, is_again
from pdlab.program import Program, RankProgram, Role


def gather_again(program: Program) -> Program:
    """Gather for the backward what the forward had gathered of tokens; what a second forward gathers stays for its
    backward."""
    gathered = {
        item.result.name
        for layer in program.model.layers
        for item in layer
        if isinstance(item, Exchange) and (item.forward, item.backward) == (Kind.ALL_GATHER, Kind.REDUCE_SCATTER)
    }
    return program.with_ranks([_gather_again(rank, gathered) for rank in program.ranks]) if gathered else program


def _gather_again(rank: RankProgram, gathered: set[str]) -> RankProgram:
    kept = {value for op in rank.ops if op.kind in BACKWARD_KINDS for value in op.inputs}
    gathers = {
        value: op
        for op in rank.ops
        for value in op.writes
        if op.kind is Kind.ALL_GATHER
        and rank.types[value].role is Role.ACTIVATION
        and rank.types[value].of in gathered
        and value in kept
        and not is_again(value)
    }
    ops: list[Op] = []
    done: set[Value] = set()
    for op in rank.ops:
        if op.kind in BACKWARD_KINDS:
            for value in (value for value in op.inputs if value in gathers and value not in done):
                done.add(value)
                ops.append(gathers[value]._replace(writes=(again(value),)))
            op = op._replace(inputs=tuple(again(v) if v in gathers else v for v in op.inputs))
        ops.append(op)
    types = rank.types | {again(value): rank.types[value] for value in gathers}
    return replace(rank, ops=tuple(ops), types=types)
