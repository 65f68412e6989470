"""The order of each rank's ops against torch.distributed.pipelining, an implementation that shares nothing with ours.

What torch draws (`_schedule_visualizer.get_schedule_ops`) for GPipe, Interleaved1F1B, InterleavedZeroBubble (our zb_h1
with several stages on a rank), ZBVZeroBubble and DualPipeV is our order, op by op. Where the two differ, and why:

- torch refuses numbers of microbatches that do not come out even (interleaved, where some rounds would be longer), and
  fewer than stages (1F1B, DualPipeV). Ours takes all of them; `test_schedules` runs those.
- torch pads with None for a unit of time in which a rank waits, and ends with REDUCE_GRAD. Our lists are orders
  without times, and passes put the sums of gradients in. Both are skipped.
- Of two ops that overlap torch makes one action (OVERLAP_F_B); ours are two neighbours of one `pair`.
- ZB-V is drawn for at least 2p - 1 microbatches. With fewer, torch 2.13 puts None in the place of those that do not
  exist; were it to list them, they would be left out here. Ours has no such ops.
- torch's *drawing* of 1F1B is wrong on the last rank: it begins with microbatch 1 and ends with a microbatch m that
  does not exist, so F0 never happens. What torch *executes* is not read off the drawing: `_step_microbatches` does the
  warm-up, then B and F in turn, then the cooldown, and that is our order. It is run here on a stage that only notes
  what it is told to do.
- torch has no ZB-H1 with one stage on a rank, no naive schedule, ZB-H2 or automatic schedule. Pictures of these are in
  the docstrings, their numbers in `test_closed_forms`, `test_published` and `test_automatic`.
- torch has no DualPipe in two directions either. But it is DualPipeV unfolded: ranks r and p - 1 - r each do what rank
  r of p / 2 does in the V, one for the microbatches of either half; so it is held against the V that torch draws.
"""

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe, _schedule_visualizer, schedules
from torch.distributed.pipelining.schedules import _Action, _ComputationType, _PipelineScheduleRuntime

from pdlab.ops import Kind, Op
from pdlab.strategies import Plan, get

KINDS = {
    _ComputationType.FORWARD: Kind.FORWARD,
    _ComputationType.FULL_BACKWARD: Kind.BACKWARD,
    _ComputationType.BACKWARD_INPUT: Kind.BACKWARD_INPUT,
    _ComputationType.BACKWARD_WEIGHT: Kind.BACKWARD_WEIGHT,
}
DRAWN = (
    ("GPipe", "gpipe", None),
    ("Interleaved1F1B", "interleaved_1f1b", 2),
    ("Interleaved1F1B", "interleaved_1f1b", 3),
    ("InterleavedZeroBubble", "zb_h1", 2),
    ("InterleavedZeroBubble", "zb_h1", 3),
    ("ZBVZeroBubble", "zb_v", None),
    ("DualPipeV", "dualpipe_v", None),
)
MICROBATCHES = range(1, 17)

Passes = list[tuple[Kind, int, int]]
"""Kind, stage and microbatch of each op of a rank."""


def ours(name: str, p: int, m: int, virtual: int | None = None) -> list[list[Op]]:
    """The ops of each rank but for its steps."""
    strategy = get(name)
    schedule = strategy.schedule(strategy.chosen(Plan(pp=p, microbatches=m, virtual=virtual)))
    return [[op for op in ops if op.kind is not Kind.STEP] for ops in schedule]


def passes(ops: list[Op]) -> Passes:
    return [(op.kind, op.stage, op.microbatch) for op in ops]


def pairs(ops: list[Op]) -> list[tuple[int, ...]]:
    """The positions of the ops of each pair."""
    numbers = dict.fromkeys(op.pair for op in ops if op.pair >= 0)
    return [tuple(i for i, op in enumerate(ops) if op.pair == number) for number in numbers]


def drawn(name: str, p: int, m: int, virtual: int | None = None) -> list[list[_Action]] | None:
    """What torch draws for each rank, without waiting and sums of gradients; None where it refuses the numbers.

    The messages that it works out besides, and its stand-in for a stage, take most of its time and change nothing."""
    no_messages = mock.patch.object(_PipelineScheduleRuntime, "_prepare_schedule_with_comms")
    with no_messages, mock.patch.object(_schedule_visualizer, "PipelineStage", object):
        try:
            rows = _schedule_visualizer.get_schedule_ops(name, p, m, num_stages_per_rank=virtual)
        except ValueError as refusal:
            assert "microbatches" in str(refusal)
            return None
    return [[a for a in row if a and a.computation_type is not _ComputationType.REDUCE_GRAD] for row in rows]


def taken_apart(actions: list[_Action], m: int) -> tuple[Passes, list[tuple[int, ...]]]:
    """The passes that exist, and the positions of those that overlap."""
    found: Passes = []
    overlapping = []
    for action in actions:
        if action.sub_actions:
            overlapping.append((len(found), len(found) + 1))
        for a in action.sub_actions or (action,):
            if a.microbatch_index < m:
                found.append((KINDS[a.computation_type], a.stage_index, a.microbatch_index))
    return found, overlapping


@pytest.mark.parametrize("p", range(1, 7))
@pytest.mark.parametrize(("theirs", "name", "virtual"), DRAWN)
def test_the_order_is_the_one_that_torch_draws(theirs: str, name: str, virtual: int | None, p: int) -> None:
    compared = 0
    for m in MICROBATCHES:
        rows = drawn(theirs, p, m, virtual)
        for rank, ops in enumerate(ours(name, p, m, virtual)):
            if rows is not None:
                assert (passes(ops), pairs(ops)) == taken_apart(rows[rank], m), f"rank {rank} of {p}, m {m}"
        compared += rows is not None
    even = [m for m in MICROBATCHES if m % max(1, m // p) == 0]
    accepted = {"DualPipeV": [m for m in MICROBATCHES if m >= 2 * p]}.get(theirs, even if virtual else MICROBATCHES)
    assert compared == len(accepted)


@pytest.mark.parametrize("p", range(1, 7))
def test_the_drawing_of_1f1b_lacks_a_forward_on_the_last_rank(p: int) -> None:
    """Were torch to mend it, this test would say so, and 1F1B would go to the list above."""
    for m in range(p, 17):
        rows = drawn("1F1B", p, m)
        assert rows is not None
        found = [taken_apart(row, m + 1)[0] for row in rows]
        right = [passes(ops) for ops in ours("1f1b", p, m)]
        assert found[:-1] == right[:-1]
        forwards = [microbatch for kind, _, microbatch in found[-1] if kind is Kind.FORWARD]
        assert forwards == list(range(1, m + 1))
        later = [(k, s, i - 1 if k is Kind.FORWARD else i) for k, s, i in found[-1]]
        assert later == right[-1]


@pytest.fixture
def no_messages() -> Iterator[None]:
    """torch's schedules without what they send, receive and wait for."""
    silent = {name: mock.Mock(return_value={}) for name in ("_batch_p2p", "_sorted_batch_p2p", "_wait_batch_p2p")}
    with mock.patch.multiple(schedules, **silent):
        yield


class Noting:
    """A stage that notes which passes it is told to do, and has nothing to send, to receive or to say."""

    def __init__(self, stage: int, p: int) -> None:
        self.stage_index, self.num_stages, self.is_first, self.is_last = stage, p, stage == 0, stage == p - 1
        self.submod, self.noted = None, list[tuple[Kind, int, int]]()

    def forward_one_chunk(self, i: int, *_: Any, **__: Any) -> None:
        self.noted.append((Kind.FORWARD, self.stage_index, i))

    def backward_one_chunk(self, i: int, **_: Any) -> None:
        self.noted.append((Kind.BACKWARD, self.stage_index, i))

    def __getattr__(self, _: str) -> Callable[..., list[Any]]:
        return lambda *_, **__: []


def executed(schedule_class: type, stage: int, p: int, m: int) -> Passes:
    """What a stage is told to do, in order, when torch executes a step."""
    noting = Noting(stage, p)
    schedule = schedule_class(noting, m)
    schedule._initialize_stage = lambda *_: None
    schedule._step_microbatches([()] * m, [{}] * m)
    return noting.noted


@pytest.mark.parametrize(("schedule_class", "name"), [(ScheduleGPipe, "gpipe"), (Schedule1F1B, "1f1b")])
@pytest.mark.parametrize("p", range(1, 7))
def test_the_order_is_the_one_that_torch_executes(schedule_class: type, name: str, p: int, no_messages: None) -> None:
    for m in range(p, 17):
        for rank, ops in enumerate(ours(name, p, m)):
            assert passes(ops) == executed(schedule_class, rank, p, m), f"rank {rank} of {p}, m {m}"


@pytest.mark.parametrize("p", [2, 4, 6, 8])
def test_dualpipe_is_the_dualpipe_v_that_torch_draws_unfolded(p: int) -> None:
    """The stages have the same numbers in both. Those on the way there see the microbatches of the rank's own end."""
    for m in range(2 * p, 25, 2):
        folded = drawn("DualPipeV", p // 2, m // 2)
        assert folded is not None
        for rank, ops in enumerate(ours("dualpipe", p, m)):
            own, other = (0, m // 2) if rank < p // 2 else (m // 2, 0)
            expected, overlapping = taken_apart(folded[min(rank, p - 1 - rank)], m)
            unfolded = [(kind, stage, i + (own if stage < p // 2 else other)) for kind, stage, i in expected]
            assert (passes(ops), pairs(ops)) == (unfolded, overlapping), f"rank {rank} of {p}, m {m}"


def test_pairs_are_what_only_dualpipe_has() -> None:
    """A forward and a backward side by side, as many as there are in the steady state of the rank next to the turn."""
    for name in ("naive", "gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_h2", "zb_v", "zb_auto"):
        assert all(op.pair < 0 for ops in ours(name, 4, 8) for op in ops)
    for name, count in (("dualpipe", 8 - 4 - 1), ("dualpipe_v", 2 * (8 - 4) - 1)):
        rows = ours(name, 4, 8)
        assert max(len(pairs(ops)) for ops in rows) == count
        for ops in rows:
            for first, second in pairs(ops):
                assert second == first + 1
                assert (ops[first].kind, ops[second].kind) == (Kind.FORWARD, Kind.BACKWARD)
                assert ops[first].stage != ops[second].stage
