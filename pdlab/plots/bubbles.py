"""How much is idle and what is held, over microbatches and over ranks, for every schedule at once.

A schedule has the colour of its family and dashes of its own, and its name stands where its lines end.
"""

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from pdlab import theme
from pdlab.bubbles import Bubbles, Point
from pdlab.ops import Kind
from pdlab.plots.line_ends import TEXT, End, name_ends
from pdlab.plots.page import AXIS, PANEL_WIDTH, page, plain, text_width
from pdlab.plots.units import three_digits

HEIGHT, BETWEEN = 3.1, 0.8
"""Inches: the height of a panel, and what is left for the numbers and the name of an axis between two of them."""

LETTERS = 18
"""A name that is longer takes another line."""

NAMES_WIDTH = TEXT + text_width("x" * LETTERS, theme.TEXT_SIZE)
WIDTH = (PANEL_WIDTH - BETWEEN) / 2 - NAMES_WIDTH
"""Inches: the room right of a panel, and its width."""

BLUE, GREEN, PURPLE = theme.COLOURS[Kind.FORWARD], theme.COLOURS[Kind.BACKWARD_WEIGHT], theme.COLOURS[Kind.STEP]
LOOKS = {
    "naive": (theme.QUIET, ":", "x"),
    "gpipe": (theme.COLOURS[Kind.BACKWARD], "-", "o"),
    "1f1b": (BLUE, "--", "s"),
    "interleaved_1f1b": (BLUE, "-", "s"),
    "zb_h1": (GREEN, "-", "^"),
    "zb_h2": (GREEN, "--", "^"),
    "zb_v": (GREEN, "-.", "v"),
    "zb_auto": (GREEN, ":", "v"),
    "dualpipe": (PURPLE, "-", "D"),
    "dualpipe_v": (PURPLE, "--", "D"),
}
"""Colour, dashes and mark: those of a family share the colour."""

OTHER = (theme.INK, "-", ".")

GRID = "#E4E4E4"

LEAST = 1e-3
"""A bubble below this is drawn as none: not at all, on an axis of powers."""

NONE_WITHIN = "*"
NOTES = (
    "interleaved_1f1b with 2 stages on each rank, zb_auto with a limit of p M_B; a bubble of 0 is not on the axis",
    f"{NONE_WITHIN} idle only before a rank's first op and after its last, while other ranks already or still work",
)

Number = Callable[[Point], float]


@dataclass(frozen=True)
class Panel:
    """One of the four: a line for each schedule of `points`, from `along` to `value`."""

    heading: str
    points: tuple[Point, ...]
    along: tuple[str, Number]
    value: tuple[str, Number]
    text: Callable[[float], str]


def bubbles(found: Bubbles, *, title: str | None = None) -> Figure:
    """Four panels: bubble and peak activations, over microbatches on the left and over ranks on the right."""
    heading = title or "Pipeline schedules: how much is idle, and how much is held"
    prints = [f"simulated, {found.costs}; M_B: what a p-th of the model saves in the forward of a microbatch", *NOTES]
    figure, bands = page(heading, [HEIGHT + AXIS, HEIGHT], [], prints)
    for band, panels in zip(bands, _panels(found), strict=True):
        place = band.get_position()
        band.remove()
        height = HEIGHT / figure.get_figheight()
        for panel, left in zip(panels, (0.0, PANEL_WIDTH - WIDTH - NAMES_WIDTH), strict=True):
            axes = figure.add_axes((place.x0 + left / theme.WIDTH, place.y1 - height, WIDTH / theme.WIDTH, height))
            _draw(axes, panel)
    return figure


def _panels(found: Bubbles) -> tuple[tuple[Panel, Panel], tuple[Panel, Panel]]:
    m: tuple[str, Number] = "microbatches m", lambda point: point.m
    p: tuple[str, Number] = "ranks p", lambda point: point.p
    idle: tuple[str, Number] = "idle share of ranks x makespan", lambda point: point.bubble
    held: tuple[str, Number] = "M_B", lambda point: point.peak
    over_m, over_p = found.over_microbatches, found.over_ranks
    on, of = f"{found.p} ranks", f"{found.m} microbatches"
    return (
        (Panel(f"bubble, {on}", over_m, m, idle, _percent), Panel(f"bubble, {of}", over_p, p, idle, _percent)),
        (
            Panel(f"peak activations, {on}", over_m, m, held, three_digits),
            Panel(f"peak activations, {of}", over_p, p, held, three_digits),
        ),
    )


def _percent(share: float) -> str:
    return f"{three_digits(100 * share)} %"


def _draw(axes: Axes, panel: Panel) -> None:
    plain(axes, panel.heading)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ends = []
    for name in dict.fromkeys(point.strategy for point in panel.points):
        drawn = [p for p in panel.points if p.strategy == name and panel.value[1](p) >= LEAST]
        if not drawn:
            continue
        colour, dashes, mark = LOOKS.get(name, OTHER)
        x, y = [panel.along[1](p) for p in drawn], [panel.value[1](p) for p in drawn]
        axes.plot(x, y, color=colour, ls=dashes, lw=2.0, marker=mark, ms=5.5, clip_on=False)
        star = NONE_WITHIN if panel.text is _percent and drawn[-1].within < LEAST else ""
        ends.append((name + star, colour, x[-1], y[-1]))
    _axes(axes, panel)
    inches = axes.transData - axes.transAxes
    places = inches.transform([(x, y) for *_, x, y in ends]) * (WIDTH, HEIGHT)
    named = [End(name, colour, *place) for (name, colour, _, _), place in zip(ends, places, strict=True)]
    name_ends(axes, named, (WIDTH, HEIGHT), LETTERS)


def _axes(axes: Axes, panel: Panel) -> None:
    """A tick at every point of the sweep; upwards at 1, 2, 5, 10, ... % and at powers of two."""
    ticks = sorted({panel.along[1](point) for point in panel.points})
    axes.set_xlim(ticks[0], ticks[-1])
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    powers = LogLocator(10, subs=(1.0, 2.0, 5.0)) if panel.text is _percent else LogLocator(2)
    axes.yaxis.set_major_locator(powers)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: panel.text(value)))
    for axis, (name, _) in ((axes.xaxis, panel.along), (axes.yaxis, panel.value)):
        axis.set_minor_locator(NullLocator())
        axis.set_label_text(name, size=theme.TEXT_SIZE, color=theme.INK)
    axes.spines["left"].set_visible(True)
    axes.grid(color=GRID, lw=0.6)
    axes.set_axisbelow(True)
