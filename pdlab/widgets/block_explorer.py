"""The explorer of one transformer block over a tensor group: where communication eats what more ranks gain.

In a cell: `explorer = BlockExplorer(tp=4); explorer`.
"""

from typing import TYPE_CHECKING

from pdlab.widgets.block import AGAIN, SIZES, SPLITS, STEP_S, TOKENS, WIDTHS, BlockScenario
from pdlab.widgets.controls import Controls, choice, controlled, rate, stops, switch, whole
from pdlab.widgets.explorer import Explorer

if TYPE_CHECKING:
    from pdlab.launch import Ranks

HINT = (
    "Paced on real processes, one for each rank of the group: the same ops on the lab's small transformer, stretched "
    f"so that a step takes about {STEP_S:g} s."
)


class BlockExplorer(Explorer[BlockScenario]):
    """Controls, the predicted block on 1 to 8 ranks, the Python that makes it, and a real run beside its prediction."""

    tp = controlled("tp", "How many ranks the block is split over.")
    split = controlled("split", "What they split: tensor, or sequence, the tokens between the layers too.")
    overlap = controlled("overlap", "Whether weight gradients run under the collectives of input gradients.")
    recompute = controlled("recompute", "What is run again before the backward: none, full or partitioned.")
    width = controlled("width", "Numbers of a hidden state.")
    tokens = controlled("tokens", "Tokens of a sample.")
    samples = controlled("samples", "Samples that go through the block together.")
    link_gb_s = controlled("link_gb_s", "What a link carries, in GB/s.")

    def __init__(
        self,
        tp: int = 4,
        *,
        split: str = "tensor",
        width: int = 4096,
        tokens: int = 2048,
        samples: int = 1,
        link_gb_s: float = 100.0,
        overlap: bool = False,
        recompute: str = "none",
        pool: "Ranks | None" = None,
        steps: int = 3,
    ) -> None:
        start = BlockScenario(tp, split, width, tokens, samples, link_gb_s, overlap, recompute)
        super().__init__(start, _columns(), hint=HINT, pool=pool, steps=steps)


def _columns() -> tuple[Controls, Controls]:
    """How the block is run on the left, its sizes and the links on the right."""
    how: Controls = {
        "tp": stops("ranks tp", SIZES),
        "split": choice("split", SPLITS),
        "recompute": choice("recompute", AGAIN),
        "overlap": switch("overlap"),
    }
    sizes: Controls = {
        "width": stops("width h", WIDTHS),
        "tokens": stops("tokens s", TOKENS),
        "samples": whole("samples b", 16),
        "link_gb_s": rate("link speed (GB/s)", 1, 1000),
    }
    return how, sizes
