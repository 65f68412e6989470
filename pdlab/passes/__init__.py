"""Lowering: small pure functions from program to program. A hybrid strategy is a schedule and a few of these in a
row."""

from pdlab.passes.consume import consume_last_uses
from pdlab.passes.copies import sum_copies
from pdlab.passes.cut import cut
from pdlab.passes.early import receive_early
from pdlab.passes.excerpt import excerpt
from pdlab.passes.gather_again import gather_again
from pdlab.passes.gradients import all_reduce_gradients
from pdlab.passes.guard import guard_steps
from pdlab.passes.lower import lower
from pdlab.passes.messages import insert_messages
from pdlab.passes.overlap import overlap_weight_gradients
from pdlab.passes.pairs import join_pairs
from pdlab.passes.recompute import Recompute, recompute
from pdlab.passes.shard import shard_weights
from pdlab.passes.streams import assign_streams

__all__ = [
    "Recompute",
    "all_reduce_gradients",
    "assign_streams",
    "consume_last_uses",
    "cut",
    "excerpt",
    "gather_again",
    "guard_steps",
    "insert_messages",
    "join_pairs",
    "lower",
    "overlap_weight_gradients",
    "receive_early",
    "recompute",
    "shard_weights",
    "sum_copies",
]
