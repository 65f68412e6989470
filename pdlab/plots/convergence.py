"""How stale gradients train: loss against minibatches, and against time, for several variants."""

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pdlab import theme
from pdlab.curve import GUESSING, Curve
from pdlab.plots.page import AXIS, HEADING, page, plain
from pdlab.plots.training import HEIGHT, LOOKS, smooth


def convergence(curves: Sequence[Curve], *, title: str = "Stale gradients", small_print: Sequence[str] = ()) -> Figure:
    """Loss over minibatches above, over time below. A curve that ends worse than guessing is called diverged; times are
    measured where all curves were timed, otherwise simulated."""
    if not curves:
        raise ValueError("no curves to draw; train a variant at least")
    looks = dict(zip((curve.name for curve in curves), LOOKS * len(curves), strict=False))
    timed = all(curve.measured_s for curve in curves)
    entries = [_entry(curve, *looks[curve.name]) for curve in curves]
    figure, [upper, lower] = page(title, [HEIGHT] * 2, entries, small_print, heading=(HEADING, HEADING + AXIS))
    for curve in curves:
        colour, dashes = looks[curve.name]
        times = curve.measured_s if timed and curve.measured_s else curve.predicted_s
        upper.plot(smooth(curve.losses), color=colour, linestyle=dashes, linewidth=2)
        lower.plot(times, smooth(curve.losses), color=colour, linestyle=dashes, linewidth=2)
    _axes(upper, "over minibatches: what each update is worth", "minibatch", max(len(c.losses) for c in curves) - 1)
    last = max(max(c.measured_s if timed and c.measured_s else c.predicted_s) for c in curves)
    _axes(lower, "over time: and how many there are in it", f"seconds ({'paced' if timed else 'simulated'})", last)
    return figure


def _entry(curve: Curve, colour: str, dashes: str) -> Artist:
    said = "" if curve.diverged is None else f": diverged, from minibatch {curve.diverged}"
    return Line2D([], [], color=colour, ls=dashes, lw=2, label=curve.name + said)


def _axes(axes: Axes, heading: str, x: str, last: float) -> None:
    plain(axes, heading)
    axes.axhline(GUESSING, color=theme.INK, linewidth=0.8, linestyle=(0, (1, 2)))
    axes.annotate("guessing", (1, GUESSING), xycoords=("axes fraction", "data"), ha="right", va="bottom",
                  size=theme.TEXT_SIZE, color=theme.INK,
                  bbox={"facecolor": theme.PAPER, "edgecolor": "none", "pad": 1.5})  # fmt: skip
    axes.set_ylim(0, 1.4 * GUESSING)
    axes.set_xlim(0, last)
    axes.set_xlabel(x, size=theme.TEXT_SIZE, color=theme.INK)
    axes.set_ylabel("loss (nats)", size=theme.TEXT_SIZE, color=theme.INK)
    axes.spines["left"].set_visible(True)
