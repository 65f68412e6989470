"""What a model is made of, told without tensors: the numbers that a prediction needs.

A model is a chain of layers; a layer is one or more items. An item is either a *segment* (computation without any
communication) or an *exchange* (a collective that the mathematics of the layer needs, with its counterpart in the
backward). A stage is a contiguous range of layers. `pdlab.segments` holds the same segments in torch, and a test
holds the two equal.
"""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from math import prod

from pdlab.mesh import REPLICATED, Axis, Layout
from pdlab.ops import FORWARD_KINDS, Kind


class Block(Enum):
    """Which computation a segment does; `pdlab.segments` maps each to a function."""

    NOMINAL = "nominal"
    LINEAR = "linear"
    RELU_LINEAR = "relu_linear"
    CLASSIFIER = "classifier"
    SKIP_LINEAR = "skip_linear"
    SKIP_CLASSIFIER = "skip_classifier"
    EMBEDDING = "embedding"
    ATTENTION = "attention"
    MASKED_ATTENTION = "masked_attention"
    FEED_FORWARD = "feed_forward"
    TOKEN_CLASSIFIER = "token_classifier"
    TIED_CLASSIFIER = "tied_classifier"
    CONVOLUTION = "convolution"
    IMAGE_CLASSIFIER = "image_classifier"
    ROUTER = "router"
    EXPERT = "expert"
    COMBINE = "combine"
    MODULE = "module"
    ROW_LINEAR = "row_linear"
    NORM = "norm"
    HEADS = "heads"
    NEURONS = "neurons"
    RESIDUAL = "residual"
    VOCABULARY_EMBEDDING = "vocabulary_embedding"
    POSITION = "position"
    POOL = "pool"
    LOG_SUMS = "log_sums"
    VOCABULARY_LOSS = "vocabulary_loss"
    CROSS_ENTROPY = "cross_entropy"


class Feed(Enum):
    """How the samples of a batch are fed to a model."""

    SCALED_PIXELS = "pixels as numbers from 0 to 1"
    TOKENS = "pixels as whole numbers from 0 to 16"
    KEYS = "a random number for each sample, from which dropout is drawn"
    LABELS = "labels"
    LENGTHS = "how many of its tokens each sample has; those after them are padding"


@dataclass(frozen=True)
class Tensor:
    """One tensor between segments.

    `shape` is what one rank holds, per row, and a row is a sample unless `rows` names the value that counts them
    (tokens sent to an expert); with `per_row=False` the shape is the whole. In a layout the rows are dim 0 and the
    shape begins at dim 1. `feed` says what of a batch it is, if it comes from outside. `grad` is the layout of the
    gradient, None if there is none.
    """

    name: str
    shape: tuple[int, ...]
    itemsize: int
    layout: Layout = REPLICATED
    grad: Layout | None = REPLICATED
    per_row: bool = True
    rows: str | None = None
    feed: Feed | None = None

    @property
    def row_bytes(self) -> int:
        return prod(self.shape) * self.itemsize


@dataclass(frozen=True)
class Param:
    """A weight with its full shape, and the dim along which the tensor axis shards it (None: every rank has all of
    it). Where the degree does not divide that dim, the last shards are filled up with zeros."""

    name: str
    shape: tuple[int, ...]
    shard: int | None = None


@dataclass(frozen=True)
class Group:
    """The weights of a segment that share a layout: they live in one flat value and travel together.

    The same group in two segments is one set of weights that both use. `num_elements` counts what one rank holds,
    before any data-parallel sharding.
    """

    name: str
    params: tuple[Param, ...]
    itemsize: int
    layout: Layout = REPLICATED
    grad: Layout = REPLICATED
    tp: int = 1

    @cached_property
    def num_elements(self) -> int:
        return sum(prod(self.local_shape(param)) for param in self.params)

    @property
    def bytes(self) -> int:
        return self.num_elements * self.itemsize

    def local_shape(self, param: Param) -> tuple[int, ...]:
        return tuple(-(-size // self.tp) if dim == param.shard else size for dim, size in enumerate(param.shape))


@dataclass(frozen=True)
class Kept:
    """Bytes that a segment holds between two of its ops: so many per row and so many however few rows there are."""

    per_row: int = 0
    fixed: int = 0


@dataclass(frozen=True)
class Flops:
    """FLOP per row of the forward, of the backward for the input and of the backward for the weights."""

    forward: int = 0
    backward_input: int = 0
    backward_weight: int = 0


@dataclass(frozen=True)
class Segment:
    """The smallest piece of a model that runs without communication.

    `keeps` names the inputs that the backward needs again (they stay alive, or are brought back, as values of their
    own), `late` those of them that only the weight gradients need; `saved` is what the forward holds for the backward
    besides those and the weights, and `pending` what an `I` op leaves for the `W` op. `layer` is what the names of
    its parameters begin with (empty: the segment's own name). `rows` names the value that counts the rows where they
    are not samples, `code` is the import path of the user's modules that a `MODULE` block is one of. `running` counts
    the channels of which a forward keeps running statistics.
    """

    name: str
    block: Block
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    groups: tuple[Group, ...] = ()
    keeps: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    saved: Kept = Kept()
    pending: Kept = Kept()
    flops: Flops = Flops()
    options: tuple[tuple[str, float], ...] = ()
    layer: str = ""
    rows: str | None = None
    code: str = ""
    running: int = 0

    def option(self, name: str) -> int:
        """A whole number that the computation needs."""
        return int(dict(self.options)[name])

    def rate(self, name: str) -> float:
        """A share between 0 and 1; 0 where the segment does not name it."""
        return dict(self.options).get(name, 0.0)

    @cached_property
    def kept_inputs(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.inputs if t.name in self.keeps)

    def inputs_of(self, kind: Kind) -> tuple[Tensor, ...]:
        """The inputs that a pass reads: a forward all of them, a backward those that are kept, an `I` those of these
        that are not `late`."""
        if kind in FORWARD_KINDS:
            return self.inputs
        late = self.late if kind is Kind.BACKWARD_INPUT else ()
        return tuple(t for t in self.kept_inputs if t.name not in late)

    @cached_property
    def graded_inputs(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.inputs if t.grad is not None)

    @cached_property
    def graded_outputs(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.outputs if t.grad is not None)


@dataclass(frozen=True)
class Exchange:
    """A collective inside a layer: `forward` acts on the payload, `backward` on its gradient; None means nothing moves.

    Megatron's f is (None, ALL_REDUCE) and its g is (ALL_REDUCE, None). An all-to-all may name the two values that
    hold the rows it sends to and receives from each rank; its backward sends them the other way.
    """

    name: str
    axis: Axis
    payload: Tensor
    result: Tensor
    forward: Kind | None
    backward: Kind | None
    splits: tuple[str, str] | None = None


Item = Segment | Exchange
