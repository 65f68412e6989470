"""One transformer block over a tensor group as the controls say it: program, prediction, picture and Python call.

A rank computes, a link carries, and a collective takes as long to begin, as much as these round what-if figures say:
no machine was measured. They are of the size of one accelerator's today, with 2-byte elements.
"""

from dataclasses import dataclass, replace

from matplotlib.figure import Figure

from pdlab import metrics, models, plots, strategies
from pdlab.costs import Analytic, Stretched
from pdlab.lab import lab_transformer
from pdlab.passes import Recompute
from pdlab.passes.excerpt import excerpt
from pdlab.passes.recompute import WHOLE_STAGES
from pdlab.plots.units import BYTES, SECONDS, suited, three_digits
from pdlab.program import Program
from pdlab.simulate import simulate
from pdlab.strategies import Plan, Strategy
from pdlab.trace import Trace
from pdlab.widgets.explored import ROWS

TFLOPS, MEMORY_TB_S, LATENCY_US, ITEMSIZE = 400, 3, 10, 2
"""What-if figures: 10^12 FLOP per second of a rank, 10^12 bytes per second of its memory, microseconds before a
collective moves anything, bytes of a number."""

SIZES, SPLITS = (1, 2, 4, 8), ("tensor", "sequence")
"""Ranks of the tensor groups that a picture compares, and what they split."""

WIDTHS = tuple(2**i for i in range(9, 14))
TOKENS = tuple(2**i for i in range(8, 14))
AGAIN = tuple(how.value for how in Recompute if how not in WHOLE_STAGES)

HEAD, FEWEST = 128, 8
"""Numbers of a head, where the width has enough for so many heads that the largest group can share them."""

STEP_S = 0.75
"""Seconds of a step of a real run."""

CALL = """\
from pdlab import models, plots, strategies
from pdlab.costs import Analytic
from pdlab.passes import Recompute
from pdlab.passes.excerpt import excerpt
from pdlab.simulate import simulate
costs = Analytic({tflops}e12, bandwidth={bandwidth:.12g}e9, latency={latency}e-6, memory_bandwidth={memory}e12)
def block(split, tp):
    plan = strategies.Plan(tp=tp, batch={b}, recompute=Recompute({recompute!r}), overlap={overlap})
    model = models.transformer(width={h}, depth=1, heads={a}, tokens={s}, itemsize={e}, tp=tp, split=split)
    strategy = strategies.get(split)
    program = strategies.build(strategy, strategy.chosen(plan), model)
    return simulate(excerpt(program, model.blocks[0]), costs)
tensor, sequence = ([block(split, tp) for tp in {sizes}] for split in ("tensor", "sequence"))
plots.block(tensor, sequence, tp={tp}, split={split!r})"""


@dataclass(frozen=True)
class BlockScenario:
    """A block of `width` h on `samples` b of `tokens` s, split over `tp` ranks whose links carry `link_gb_s` GB/s.

    With `overlap` weight gradients run under the collectives of input gradients; `recompute` is none, full or
    partitioned (`pdlab.passes.recompute`).
    """

    tp: int = 4
    split: str = "tensor"
    width: int = 4096
    tokens: int = 2048
    samples: int = 1
    link_gb_s: float = 100.0
    overlap: bool = False
    recompute: str = "none"

    def __post_init__(self) -> None:
        offers = {"tp": SIZES, "split": SPLITS, "width": WIDTHS, "tokens": TOKENS, "recompute": AGAIN}
        for name, offered in offers.items():
            if getattr(self, name) not in offered:
                known = ", ".join(map(str, offered))
                raise ValueError(f"{name} is {getattr(self, name)!r}; choose one of {known}")
        if type(self.samples) is not int or self.samples < 1:
            raise ValueError(f"samples is {self.samples!r}; give a whole number of at least 1")
        if not 0 < self.link_gb_s < float("inf"):
            raise ValueError(f"link_gb_s is {self.link_gb_s:g}; give a finite number of GB/s above 0")

    @property
    def num_ranks(self) -> int:
        return self.tp

    @property
    def heads(self) -> int:
        return max(FEWEST, self.width // HEAD)

    def costs(self) -> Analytic:
        """FLOP and bytes over the what-if figures; norms and residuals take the time of their bytes."""
        return Analytic(TFLOPS * 1e12, self.link_gb_s * 1e9, LATENCY_US * 1e-6, memory_bandwidth=MEMORY_TB_S * 1e12)

    def program(self) -> Program:
        """A step of the block between an embedding and a classifier."""
        strategy, plan = self._plan()
        model = models.transformer(
            width=self.width,
            depth=1,
            heads=self.heads,
            tokens=self.tokens,
            itemsize=ITEMSIZE,
            tp=self.tp,
            split=self.split,
        )
        return strategies.build(strategy, plan, model)

    def predict(self) -> Trace:
        """The block alone, forward and backward."""
        program = self.program()
        return simulate(excerpt(program, program.model.blocks[0]), self.costs())

    def compared(self) -> dict[str, list[Trace]]:
        """For each split the same block on 1, 2, 4 and 8 ranks."""
        return {split: [replace(self, split=split, tp=tp).predict() for tp in SIZES] for split in SPLITS}

    def draw(self) -> tuple[Figure, str]:
        series = self.compared()
        figure = plots.block(series["tensor"], series["sequence"], tp=self.tp, split=self.split)
        return figure, summary(series[self.split][SIZES.index(self.tp)])

    def python(self) -> str:
        """The Python that makes the picture of this scenario, with what it imports."""
        sizes = {"h": self.width, "a": self.heads, "s": self.tokens, "b": self.samples, "e": ITEMSIZE}
        how = {"recompute": self.recompute, "overlap": self.overlap, "tp": self.tp, "split": self.split}
        figures = {"tflops": TFLOPS, "memory": MEMORY_TB_S, "latency": LATENCY_US, "bandwidth": self.link_gb_s}
        return CALL.format(**sizes, **how, **figures, sizes=SIZES)

    def lab_program(self, itemsize: int) -> Program:
        """The same ops on the lab's transformer."""
        strategy, plan = self._plan()
        plan = replace(plan, batch=ROWS)
        return strategies.build(strategy, plan, lab_transformer(plan, itemsize))

    def pace(self) -> Stretched:
        """The times of the explored block, all as many times as long, so that a step takes `STEP_S` seconds."""
        program, costs = self.program(), self.costs()
        return Stretched(program, costs, STEP_S / simulate(program, costs).makespan)

    def pace_note(self) -> str:
        return f"each op {three_digits(self.pace().factor)} times as long as predicted"

    def _plan(self) -> tuple[Strategy, Plan]:
        strategy = strategies.get(self.split)
        plan = Plan(tp=self.tp, batch=self.samples, recompute=Recompute(self.recompute), overlap=self.overlap)
        return strategy, strategy.chosen(plan)


def summary(predicted: Trace) -> str:
    """What the block takes, what of it is computing, and what a rank keeps."""
    unit = suited(SECONDS, predicted.makespan)
    compute, exposed = metrics.busy_per_rank(predicted)[0], metrics.exposed_communication_per_rank(predicted)[0]
    kept = metrics.held_for_backward_per_rank(predicted)[0]
    return (
        f"forward and backward {unit.text(predicted.makespan)}: {unit.text(compute)} computing, {unit.text(exposed)} "
        f"exposed communication · {suited(BYTES, kept).text(kept)} kept per rank"
    )
