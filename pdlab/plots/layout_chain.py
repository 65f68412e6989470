"""What a picture says of layers over a tensor group: chains of items, and how tensors and weights lie on the ranks.

A layer is a chain of items with a tensor between each two. A tensor, its gradient and a weight are whole on each rank,
in bands, or sums still to be taken. All words, no sizes.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from pdlab import theme
from pdlab.mesh import Axis, Layout, Spread
from pdlab.models.model import Model
from pdlab.models.spec import Block, Exchange, Item, Param, Segment, Tensor
from pdlab.ops import Kind

NOTHING, NO_GRADIENT = "nothing", "no gradient"

WORDS = {**theme.WORDS, Kind.SPLIT: "split"}


class Pattern(Enum):
    """How something lies on the ranks, as a square shows it: samples or tokens down, width across."""

    WHOLE = "copies"
    DOWN = "bands under each other"
    ACROSS = "bands beside each other"
    PARTIAL = "summands"


class Holding(NamedTuple):
    """What the ranks hold of something, as a pattern and in a word."""

    pattern: Pattern
    word: str

    @property
    def stacked(self) -> bool:
        """Whether each rank has something as large as the whole."""
        return self.pattern in (Pattern.WHOLE, Pattern.PARTIAL)


class Weights(NamedTuple):
    """Weights of a segment that are split alike; `flat` if they are vectors."""

    names: str
    holding: Holding
    flat: bool


class Link(NamedTuple):
    """An item between the tensor that comes from the item before it and the one that it hands on."""

    before: Tensor
    item: Item
    after: Tensor


def holding(layout: Layout, num_dims: int) -> Holding:
    """Of a tensor, or its gradient, of so many dims besides the samples."""
    place = layout.at(Axis.TP)
    if place is None:
        return Holding(Pattern.WHOLE, "whole")
    if place.spread is Spread.PARTIAL:
        return Holding(Pattern.PARTIAL, "partial")
    if place.dim == num_dims:
        return Holding(Pattern.ACROSS, "columns")
    return Holding(Pattern.DOWN, "tokens" if place.dim else "samples")


LOOKED_UP = {Block.VOCABULARY_EMBEDDING: "vocabulary", Block.POSITION: "tokens"}
"""What the rows of a table stand for; every other weight is a matrix A of Y = X A."""


def weights(segment: Segment) -> list[Weights]:
    """The weights of a segment by how they are split. Columns and rows are those of A in Y = X A, as in the papers."""
    by_shard: dict[int | None, list[Param]] = {}
    for group in segment.groups:
        for param in group.params:
            by_shard.setdefault(param.shard, []).append(param)
    return [
        Weights(_names(params), _held(segment.block, shard), all(len(param.shape) == 1 for param in params))
        for shard, params in by_shard.items()
    ]


def _names(params: Sequence[Param]) -> str:
    """Weight and bias of one layer by its name, where they are split alike."""
    names = [param.name for param in params]
    short = [name.removesuffix(".weight") for name in names]
    return ", ".join(name for name in short if not (name.endswith(".bias") and name.removesuffix(".bias") in short))


def _held(block: Block, shard: int | None) -> Holding:
    if shard is None:
        return Holding(Pattern.WHOLE, "whole")
    if block in LOOKED_UP:
        return Holding(Pattern.DOWN, LOOKED_UP[block])
    return Holding(Pattern.ACROSS, "columns") if shard == 0 else Holding(Pattern.DOWN, "rows")


def said(kind: Kind | None) -> str:
    """What an exchange does in one direction."""
    return NOTHING if kind is None else WORDS[kind]


def degree(model: Model) -> int:
    """Ranks of the tensor group; ValueError for a model that nothing is exchanged in."""
    if model.split is None:
        raise ValueError(
            f"model {model.name} exchanges nothing over a tensor group, so there is no layout to draw; "
            "give a model of tp 2 or more, like mlp(tp=4, split='column')"
        )
    return model.tp


def check_layers(model: Model, layers: Sequence[int]) -> None:
    """ValueError for none, or for any that the model does not have."""
    last = len(model.layers) - 1
    unknown = [i for i in layers if not 0 <= i <= last]
    if unknown or not layers:
        given = ", ".join(map(str, unknown)) or "none"
        raise ValueError(f"layers {given}: model {model.name} has layers 0 to {last}; choose one or more of those")


def worth_showing(model: Model) -> list[int]:
    """The block that the model repeats; or of the layers that split something the first of each kind."""
    if model.repeated:
        return list(model.repeated[0])
    first: dict[tuple[object, ...], int] = {}
    for i, layer in enumerate(model.layers):
        if _splits(layer):
            first.setdefault(_kinds(layer), i)
    return list(first.values())


def _exchanges(layer: Sequence[Item]) -> list[Exchange]:
    return [item for item in layer if isinstance(item, Exchange) and item.axis is Axis.TP]


def _splits(layer: Sequence[Item]) -> bool:
    groups = [group for item in layer if isinstance(item, Segment) for group in item.groups]
    return bool(_exchanges(layer)) or any(param.shard is not None for group in groups for param in group.params)


def _kinds(layer: Sequence[Item]) -> tuple[object, ...]:
    return tuple(item.block if isinstance(item, Segment) else (item.forward, item.backward) for item in layer)


def links(layer: Sequence[Item]) -> list[Link]:
    """A layer as a chain. Of several tensors that a segment reads, the one that the item before it makes is in it."""
    found: list[Link] = []
    for item in layer:
        ends = (item.inputs, item.outputs) if isinstance(item, Segment) else ((item.payload,), (item.result,))
        came = found[-1].after if found else None
        found.append(Link(came if came in ends[0] and came else ends[0][0], item, ends[1][0]))
    return found
