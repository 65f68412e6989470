"""Any mistake in any program: either the validator names it, or it was none and the gradients are still exact."""

from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import NAMES, build, finished, with_rank

from pdlab import data, reference
from pdlab.batch import Batch
from pdlab.execute.local import run_local
from pdlab.execute.settings import Settings
from pdlab.launch import Ranks
from pdlab.mesh import Axis, Mesh
from pdlab.ops import Op
from pdlab.passes import insert_messages, lower
from pdlab.program import Program
from pdlab.state import FLOAT, assemble, initial_parameters
from pdlab.strategies.pipeline import gpipe, one_f_one_b
from pdlab.strategies.zero_bubble import zb_h1
from pdlab.validate import ProgramError, describe, validate


@cache
def base(name: str) -> Program:
    return build(name, microbatches=2)


@cache
def expected(name: str) -> tuple[Batch, reference.Parameters]:
    """The data of a program and the gradients of the whole batch on one process."""
    program = base(name)
    chosen = data.sample_indices(0, 0, program.batch)
    batch = Batch(data.digits().pixels[chosen], data.digits().labels[chosen])
    dtype = FLOAT[program.model.itemsize]
    parameters = initial_parameters(program.model, 0, dtype, program.mesh.degree(Axis.EP))
    x, target = reference.inputs(program.model, batch.pixels, batch.labels, dtype)
    return batch, reference.gradients(program.model, parameters, x, target)[1]


def error_of(name: str, program: Program, pool: Ranks | None = None) -> float:
    batch, gradients = expected(name)
    recording = Settings(record=True)
    run = run_local([program], batch, recording) if pool is None else pool.run(program, batch, settings=recording)
    found = run.gradients
    return max(reference.relative_errors(assemble(program, found), gradients).values())


def drop(ops: list[Op], i: int, j: int, names: list[str]) -> None:
    del ops[i]


def duplicate(ops: list[Op], i: int, j: int, names: list[str]) -> None:
    ops.insert(j, ops[i])


def swap(ops: list[Op], i: int, j: int, names: list[str]) -> None:
    ops[i], ops[j] = ops[j], ops[i]


def swap_with_next(ops: list[Op], i: int, j: int, names: list[str]) -> None:
    swap(ops, i, (i + 1) % len(ops), names)


def retarget_microbatch(ops: list[Op], i: int, j: int, names: list[str]) -> None:
    ops[i] = ops[i]._replace(microbatch=1 - ops[i].microbatch)


def retarget_peer(ops: list[Op], i: int, j: int, names: list[str]) -> None:
    ops[i] = ops[i]._replace(peer=1 - ops[i].peer)


def retarget_input(ops: list[Op], i: int, j: int, names: list[str]) -> None:
    inputs = list(ops[i].inputs)
    if inputs:
        inputs[j % len(inputs)] = names[j % len(names)]
    ops[i] = ops[i]._replace(inputs=tuple(inputs), consumes=ops[i].consumes & set(inputs))


def retarget_operands(ops: list[Op], i: int, j: int, names: list[str]) -> None:
    """The operands of another op of the same kind: well typed, where only the microbatch or the segment differs."""
    alike = [op for op in ops if op.kind is ops[i].kind]
    other = alike[j % len(alike)]
    ops[i] = ops[i]._replace(inputs=other.inputs, consumes=other.consumes)


def retarget_write(ops: list[Op], i: int, j: int, names: list[str]) -> None:
    writes = list(ops[i].writes)
    if writes:
        writes[j % len(writes)] = names[j % len(names)]
    ops[i] = ops[i]._replace(writes=tuple(writes))


SYNCHRONOUS = [name for name in NAMES if not name.startswith("pipedream") or name == "pipedream_flush"]
"""Where steps come along the way, a mutant that meets another version is another program, and a legal one."""

Mutation = Callable[[list[Op], int, int, list[str]], None]
MUTATIONS: list[Mutation] = [
    *(drop, duplicate, swap, swap_with_next),
    *(retarget_microbatch, retarget_peer, retarget_input, retarget_operands, retarget_write),
]


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_the_programs_to_mutate_are_right(name: str):
    assert error_of(name, base(name)) < 1e-9


MUTANTS = {
    "name": st.sampled_from(SYNCHRONOUS),
    "mutations": st.lists(st.sampled_from(MUTATIONS), min_size=1, max_size=2),
    "again": st.booleans(),
    "place": st.data(),
}


def mutated(name: str, mutations: list[Mutation], again: bool, place: st.DataObject) -> Program | None:
    """A mutant that validates; None for one that was rejected with a sentence and the grid."""
    program = base(name)
    rank = place.draw(st.integers(0, len(program.ranks) - 1))
    ops, names = list(program.ranks[rank].ops), sorted(program.ranks[rank].types)
    for mutation in mutations:
        i, j = (place.draw(st.integers(0, len(ops) - 1)) for _ in "ij")
        mutation(ops, i, j, names)
    mutant = with_rank(program, rank, ops=tuple(ops))
    if again:
        mutant = finished(mutant)
    try:
        validate(mutant)
    except ProgramError as error:
        assert len(describe(mutant, error).splitlines()) > len(program.ranks)
        return None
    return mutant


@settings(max_examples=100, deadline=None, derandomize=True)
@given(**MUTANTS)
def test_a_mutation_is_rejected_or_harmless(name: str, mutations: list[Mutation], again: bool, place: st.DataObject):
    mutant = mutated(name, mutations, again, place)
    assert mutant is None or error_of(name, mutant) < 1e-9


@pytest.mark.processes
@settings(max_examples=200, deadline=None, derandomize=True)
@given(**MUTANTS)
def test_the_same_on_processes(
    pool: Ranks, name: str, mutations: list[Mutation], again: bool, place: st.DataObject
) -> None:
    """A mutant that validates and hangs would end in a `PoolError` after the pool's timeout, and fail here."""
    mutant = mutated(name, mutations, again, place)
    assert mutant is None or error_of(name, mutant, pool) < 1e-9


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    generator=st.sampled_from([gpipe, one_f_one_b, zb_h1]),
    mutation=st.sampled_from([drop, swap, swap_with_next, retarget_microbatch]),
    place=st.data(),
)
def test_a_mistyped_schedule_is_rejected_or_harmless(generator: Callable, mutation: Mutation, place: st.DataObject):
    """The same one level up: the mistake is in the table, and the passes lower it consistently."""
    rows = [list(generator(stage, 2, 2)) for stage in range(2)]
    row = place.draw(st.sampled_from(rows))
    i, j = (place.draw(st.integers(0, len(row) - 1)) for _ in "ij")
    mutation(row, i, j, [])
    model, batch = base("gpipe").model, base("gpipe").rows
    try:
        program = finished(insert_messages(lower("typed", rows, model, Mesh.of(pp=2), batch, num_stages=2)))
        validate(program)
    except ProgramError as error:
        assert "rank" in str(error) or "stage" in str(error)
    else:
        assert error_of("gpipe", program) < 1e-9
