"""Loss curves: how well several trainings get on, step by step."""

from collections.abc import Mapping, Sequence

from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pdlab import theme
from pdlab.plots.page import page, plain

HEIGHT = 3.2
"""Inches: the height of a panel."""

LOOKS = (("#0072B2", "-"), ("#E69F00", "--"), ("#009E73", ":"), ("#CC79A7", "-."), ("#56B4E9", "-"), ("#D55E00", "--"))
"""Colour and dashes of each curve, so that they are told apart in greyscale too."""

SMOOTHING = 10
"""The strong line is the mean loss of so many steps; the pale one is every step."""


def loss_curves(
    losses: Mapping[str, Sequence[float]], *, title: str = "Loss", small_print: Sequence[str] = ()
) -> Figure:
    """The mean loss of each step, a curve for each named training."""
    if not any(losses.values()):
        raise ValueError("no losses to draw; train for a step at least")
    looks = dict(zip(losses, LOOKS * len(losses), strict=False))
    legend: list[Artist] = [Line2D([], [], color=c, ls=dashes, lw=2, label=name) for name, (c, dashes) in looks.items()]
    figure, [axes] = page(title, [HEIGHT], legend if len(losses) > 1 else [], small_print)
    plain(axes, f"mean cross-entropy of a batch (strong: of the last {SMOOTHING} steps)")
    for name, values in losses.items():
        colour, dashes = looks[name]
        axes.plot(values, color=colour, linewidth=0.8, alpha=0.35)
        axes.plot(smooth(values), color=colour, linestyle=dashes, linewidth=2)
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, max(1, *(len(values) - 1 for values in losses.values())))
    axes.set_xlabel("step", size=theme.TEXT_SIZE, color=theme.INK)
    axes.set_ylabel("nats", size=theme.TEXT_SIZE, color=theme.INK)
    axes.spines["left"].set_visible(True)
    return figure


def smooth(values: Sequence[float]) -> list[float]:
    """The mean of the last `SMOOTHING` values, or of as many as there are."""
    windows = (values[max(0, i + 1 - SMOOTHING) : i + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]
