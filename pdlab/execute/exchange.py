"""What each collective and message means, apart from how bytes travel.

`together` performs one joint event for all its members in one process. `local` mode runs on it, and it is the
plainest statement of what a collective does.
"""

from collections.abc import Sequence
from typing import assert_never

import torch
from torch import Tensor

from pdlab.execute.pieces import cut_up, put_together
from pdlab.execute.store import Held, Store
from pdlab.ops import Kind, Op, Value, label, payload
from pdlab.program import Facts, Program, Role


def reduces_by_and(program: Program, rank: int, value: Value) -> bool:
    """Flags are and-ed, everything else is summed."""
    return program.ranks[rank].types[value].role is Role.FLAG


def together(program: Program, op: Op, ranks: list[int], inputs: list[list[Tensor]]) -> list[list[Tensor]]:
    """One communication of several ranks: from the inputs of each member to the outputs of each member."""
    match op.kind:
        case Kind.SEND | Kind.RECV:
            (message,) = next(given for given in inputs if given)
            return [[] if given else [message.clone()] for given in inputs]
        case Kind.ALL_REDUCE:
            return _all_reduce(program, op, ranks, inputs)
        case Kind.ALL_GATHER:
            whole = put_together(program, ranks[0], op, [given[0] for given in inputs])
            return [[whole.clone()] for _ in ranks]
        case Kind.REDUCE_SCATTER:
            total = _sum([given[0] for given in inputs])
            return [[piece] for piece in cut_up(program, ranks[0], op, total, len(ranks))]
        case Kind.ALL_TO_ALL:
            return _all_to_all(inputs)
        case (
            Kind.FORWARD
            | Kind.BACKWARD
            | Kind.BACKWARD_INPUT
            | Kind.BACKWARD_WEIGHT
            | Kind.STEP
            | Kind.ADD
            | Kind.FINITE
            | Kind.FREE
            | Kind.SPLIT
            | Kind.RECOMPUTE
        ):
            raise AssertionError(f"{label(op)} concerns one rank only")
        case _:
            assert_never(op.kind)


def _all_reduce(program: Program, op: Op, ranks: list[int], inputs: list[list[Tensor]]) -> list[list[Tensor]]:
    results: list[list[Tensor]] = [[] for _ in ranks]
    for i, value in enumerate(payload(op.inputs)):
        tensors = [given[i] for given in inputs]
        both = torch.stack(tensors).amin(0) if reduces_by_and(program, ranks[0], value) else _sum(tensors)
        for result in results:
            result.append(both.clone())
    return results


def _sum(tensors: list[Tensor]) -> Tensor:
    total = tensors[0].clone()
    for t in tensors[1:]:
        total += t
    return total


def _all_to_all(inputs: list[list[Tensor]]) -> list[list[Tensor]]:
    """Member i's j-th piece goes to member j. The pieces have one row each, or as many as the split values say."""
    pieces = [
        given[0].split(split_sizes(given[1]) if len(given) > 1 else len(given[0]) // len(inputs)) for given in inputs
    ]
    return [[torch.cat([sent[j] for sent in pieces])] for j in range(len(inputs))]


def split_sizes(counts: Tensor) -> list[int]:
    return [int(count) for count in counts]


def sent_bytes(op: Op, store: Store, members: int) -> int:
    """The size of a communication (nccl-tests: all-gather its output, the others their input), counted from real
    tensors."""
    match op.kind:
        case Kind.SEND | Kind.ALL_TO_ALL:
            return num_bytes(store.tensors(op.inputs)[:1])
        case Kind.ALL_REDUCE:
            return num_bytes(store.tensors(op.inputs))
        case Kind.ALL_GATHER:
            return num_bytes(store.tensors(op.inputs)) * members
        case Kind.REDUCE_SCATTER:
            return num_bytes(cut_up(store.program, store.rank, op, store.tensor(op.inputs[0]), members))
        case Kind.RECV | Kind.STEP | Kind.ADD | Kind.FINITE | Kind.FREE | Kind.SPLIT:
            return 0
        case Kind.FORWARD | Kind.RECOMPUTE | Kind.BACKWARD | Kind.BACKWARD_INPUT | Kind.BACKWARD_WEIGHT:
            return 0
        case _:
            assert_never(op.kind)


def num_bytes(tensors: Sequence[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def note_facts(facts: Facts, program: Program, rank: int, op: Op, written: Sequence[Held]) -> None:
    """Record the facts and flags that an op has written."""
    types = program.ranks[rank].types
    for value, held in zip(payload(op.writes), written, strict=True):
        if types[value].role in (Role.FACT, Role.FLAG) and isinstance(held, Tensor):
            facts[rank, value] = tuple(int(x) for x in held.reshape(-1))
