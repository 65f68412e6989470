"""Local mode: all ranks in one process, stepped through one valid order. No clocks, no processes, the real arithmetic.

Gradients and orders are checked here in milliseconds; what this mode cannot show is time.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from pdlab.batch import Batch
from pdlab.depend import build
from pdlab.execute.exchange import note_facts, sent_bytes, together
from pdlab.execute.fold import Stretch, Told, following, joined, losses, newest, taken
from pdlab.execute.result import Result, collect
from pdlab.execute.settings import Settings, new_store
from pdlab.execute.store import Held, Store
from pdlab.ops import COMMUNICATION_KINDS, Op
from pdlab.order import order
from pdlab.program import Facts, Program
from pdlab.state import Start
from pdlab.trace import Mode, Provenance, Trace
from pdlab.validate import validate


def run_local(programs: Sequence[Program], batch: Batch, settings: Settings | None = None) -> Result:
    """Run programs one after the other, each from the values that the last one left; ends with one repetition's
    result."""
    settings = settings or Settings()
    for program in programs:
        validate(program)
    stores = [new_store(programs[0], rank, batch, settings) for rank in range(programs[0].mesh.size)]
    provenance = Provenance(Mode.LOCAL, versions=f"torch {torch.__version__}", seed=settings.seed)
    with one_thread():
        traces = [_walk(program, stores, provenance) for program in programs]
    return collect([traces], stores)


def fold_local(program: Program, batches: Sequence[Batch], settings: Settings, start: Start | None = None) -> Stretch:
    """Train for one step on each batch, from `start` or from the seed."""
    validate(program)
    stores = [new_store(program, rank, batches[0], settings, start) for rank in range(program.mesh.size)]
    told: list[list[Told]] = [[] for _ in stores]
    for i, batch in enumerate(batches):
        began = time.perf_counter()
        stores = [following(store, batch, settings) for store in stores] if i else stores
        with one_thread():
            trace = _walk(program, stores, Provenance(Mode.LOCAL, seed=settings.seed))
        seconds = time.perf_counter() - began
        for rank, store in enumerate(stores):
            told[rank].append(Told(losses(store), seconds, trace.facts if not rank else {}))
    left = {store.rank: newest(store) for store in stores}
    return joined(program, told, left, max(map(taken, stores)), batches)


@contextmanager
def one_thread() -> Iterator[None]:
    """The tensors are small: threads that wait for each other take longer than the work, much longer on busy cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _walk(program: Program, stores: Sequence[Store], provenance: Provenance) -> Trace:
    """Every event in a valid order. The trace counts events instead of seconds: event k lasts from k to k + 1."""
    graph = build(program)
    count = len(graph.ops)
    starts, ends, moved, live = [0.0] * count, [0.0] * count, [0] * count, [0] * count
    before = [store.begin(program) for store in stores]
    facts: Facts = {}
    for turn, event in enumerate(order(graph)):
        rows = graph.members[event]
        ranks, ops = [graph.rank_of[row] for row in rows], [graph.ops[row] for row in rows]
        for row, rank, op in zip(rows, ranks, ops, strict=True):
            moved[row] = sent_bytes(op, stores[rank], len(rows))
        for row, rank, op, written in zip(rows, ranks, ops, _perform(program, ops, ranks, stores), strict=True):
            note_facts(facts, program, rank, op, written)
            stores[rank].finish(op, written)
            starts[row], ends[row], live[row] = float(turn), float(turn + 1), stores[rank].live
    heaviest = [store.peak_weights for store in stores]
    return Trace(program, starts, ends, moved, live, before, heaviest, provenance, facts)


def _perform(program: Program, ops: list[Op], ranks: list[int], stores: Sequence[Store]) -> list[list[Held]]:
    if ops[0].kind not in COMMUNICATION_KINDS:
        return [stores[ranks[0]].compute(ops[0])]
    inputs = [stores[rank].tensors(op.inputs) for op, rank in zip(ops, ranks, strict=True)]
    return [list(outputs) for outputs in together(program, ops[0], ranks, inputs)]
