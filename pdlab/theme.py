"""How every picture looks, in one place: colours, hatches, words and sizes.

The colours are those of Okabe and Ito (2008, "Color Universal Design"), which colour-blind readers can tell apart. In
greyscale print vermilion and green are one grey, and so are orange and sky blue: what is split from the full backward,
and what runs a second time, is also hatched. Microbatches are told by their numbers, and get only slightly lighter;
weight versions are told by lightness, and so are the stages of a rank that has several.
"""

from functools import lru_cache
from typing import Final, NamedTuple

from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb

from pdlab.ops import Kind
from pdlab.program import Role
from pdlab.trace import Trace

WIDTH: Final = 12.0
"""Inches; a figure is as high as it needs to be."""

PAPER, INK = "#FFFFFF", "#1A1A1A"
TITLE_SIZE, HEADING_SIZE, TEXT_SIZE, SMALL_SIZE, STREAM_SIZE, PRINT_SIZE = 15.0, 12.5, 11.0, 9.5, 7.5, 8.5
"""Points: the title, the heading of a panel, axes and legend, names with a number beside a strip, the names of
communication streams, the small print."""

LABEL_SIZES = (11.0, 10.0, 9.0, 8.0, 7.0)
"""Points; a box takes the largest in which its number fits."""

PALEST_MICROBATCH, PALEST_VERSION = 0.12, 0.6
"""How far towards white the last microbatch and the newest weight version are lightened, from 0 to 1."""

PALEST_FORWARD, PALEST_BACKWARD = 0.27, 0.5
"""The same for the last of a rank's stages. Forward, the same of a later stage, backward and the same of a later stage
are then four greys in print, each as far from the next."""

DIM, DIM_INK = 0.82, "#9A9A9A"
"""How far towards white everything is lightened that a picture is not about, and the grey of its numbers."""

DARK = 0.21
"""Relative luminance (WCAG 2) up to which a number is white: above forward blue, below vermilion."""

COLOURS: Final = {
    Kind.FORWARD: "#0072B2",
    Kind.BACKWARD: "#E69F00",
    Kind.BACKWARD_INPUT: "#D55E00",
    Kind.BACKWARD_WEIGHT: "#009E73",
    Kind.RECOMPUTE: "#56B4E9",
    Kind.STEP: "#CC79A7",
    Kind.ADD: "#F0E442",
    Kind.FINITE: "#F0E442",
    Kind.FREE: "#F0E442",
    Kind.SPLIT: "#F0E442",
    Kind.SEND: "#8C8C8C",
    Kind.RECV: "#8C8C8C",
    Kind.ALL_REDUCE: "#707070",
    Kind.ALL_GATHER: "#A8A8A8",
    Kind.REDUCE_SCATTER: "#4D4D4D",
    Kind.ALL_TO_ALL: "#5E5E5E",
}

RANK_PALE, RANK_DARK, PARTIAL_HATCH = "#E3D9F5", "#3A2468", "..."
"""Violet, which no kind of op has, in steps of lightness for the ranks of a group; and the hatch of a sum that is still
to be taken."""

VERSIONS = ("#D0D0D0", "#0072B2", "#EEBC4C", "#009E73", "#F0E442", "#56B4E9", "#4D4D4D", "#D55E00")
"""Weight versions in turn: a grey to begin with, then the colours of Okabe and Ito without the purple of steps, black
and orange lightened. In this order each differs from the next by 18 or more in lightness (CIE L*), and for readers with
any kind of colour blindness by 40 or more in colour (CIE76). There are eight, as eight ranks hold eight versions."""

WRONG, WRONG_HATCH = "#B3001B", "//"
"""The red of what is no gradient, and its hatch."""

QUIET = "#6B6B6B"
"""The grey of words for what does not happen."""

HATCHES: Final = {
    Kind.BACKWARD_INPUT: "\\\\",
    Kind.BACKWARD_WEIGHT: "//",
    Kind.RECOMPUTE: "||",
    Kind.STEP: "xx",
}

WORDS: Final = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.BACKWARD_INPUT: "backward for the input",
    Kind.BACKWARD_WEIGHT: "backward for the weights",
    Kind.RECOMPUTE: "forward again",
    Kind.STEP: "optimizer step",
    Kind.ADD: "bookkeeping",
    Kind.FINITE: "bookkeeping",
    Kind.FREE: "bookkeeping",
    Kind.SPLIT: "bookkeeping",
    Kind.SEND: "message",
    Kind.RECV: "message",
    Kind.ALL_REDUCE: "all-reduce",
    Kind.ALL_GATHER: "all-gather",
    Kind.REDUCE_SCATTER: "reduce-scatter",
    Kind.ALL_TO_ALL: "all-to-all",
}


class Share(NamedTuple):
    """A part of memory, in the colour and hatch of the op that makes it."""

    label: str
    roles: frozenset[Role]
    colour: str
    hatch: str = ""


MEMORY: Final = (
    Share("weights", frozenset({Role.WEIGHT}), "#BDBDBD"),
    Share("optimizer state", frozenset({Role.OPTIMIZER}), COLOURS[Kind.STEP]),
    Share("weight gradients", frozenset({Role.GRADIENT}), COLOURS[Kind.BACKWARD_WEIGHT], "//"),
    Share("saved for the backward", frozenset({Role.SAVED}), COLOURS[Kind.FORWARD]),
    Share("pending weight gradients", frozenset({Role.PENDING}), COLOURS[Kind.BACKWARD_INPUT], "\\\\"),
    Share("inputs and activations", frozenset({Role.FEED, Role.ACTIVATION}), "#B5DCF3"),
    Share("activation gradients", frozenset({Role.ACTIVATION_GRADIENT}), COLOURS[Kind.BACKWARD]),
)
"""What memory goes to, from the bottom of the stack to its top."""


@lru_cache(maxsize=4096)
def shade(kind: Kind, paleness: float = 0.0) -> str:
    """The colour of an op, lightened by a part of the way to white."""
    red, green, blue = (channel + (1 - channel) * paleness for channel in to_rgb(COLOURS[kind]))
    return to_hex((red, green, blue))


def rank_colours(num_ranks: int) -> list[str]:
    """A colour for each rank of a group, rank 0 palest, as far apart as the group allows."""
    mixed = LinearSegmentedColormap.from_list("ranks", [RANK_PALE, RANK_DARK])
    return [to_hex(mixed(rank / max(num_ranks - 1, 1))) for rank in range(num_ranks)]


@lru_cache(maxsize=4096)
def ink_on(colour: str) -> str:
    """The colour of a number on a box of this colour."""
    luminance = sum(weight * _linear(c) for weight, c in zip((0.2126, 0.7152, 0.0722), to_rgb(colour), strict=True))
    return PAPER if luminance < DARK else INK


def small_print(*traces: Trace) -> list[str]:
    """Where the numbers of a picture come from, a line for each trace, and of which model they speak."""
    models = dict.fromkeys(trace.program.model.name for trace in traces)
    return [*(str(trace.provenance) for trace in traces), f"model {', '.join(models)}"]


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4
