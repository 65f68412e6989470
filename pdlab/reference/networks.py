"""The networks of the lab as a textbook has them: ordinary modules, whole, on one process.

They share nothing with `pdlab.segments` but the draws of dropout, which are part of what a model says. From a spec
they take sizes only; their parameters bear the names of the spec.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from pdlab.models.model import Model
from pdlab.models.spec import Block, Feed
from pdlab.modules import listed
from pdlab.noise import keep

PIXELS, SIDE, CLASSES, INTENSITIES = 64, 8, 10, 17
EMBEDDINGS = {Block.EMBEDDING, Block.VOCABULARY_EMBEDDING}
MLP_BLOCKS = {Block.LINEAR, Block.RELU_LINEAR, Block.CLASSIFIER}
SKIP_BLOCKS = {Block.SKIP_LINEAR, Block.SKIP_CLASSIFIER}
SPLIT_MLP_BLOCKS = MLP_BLOCKS | {Block.ROW_LINEAR, Block.LOG_SUMS, Block.VOCABULARY_LOSS, Block.CROSS_ENTROPY}

Batch = tuple[Tensor, Tensor]


class Mlp(nn.Sequential):
    """`depth` linear layers with a ReLU between any two."""

    def __init__(self, width: int, depth: int) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict(fc0=nn.Linear(PIXELS, width))
        for i in range(1, depth - 1):
            layers |= {f"relu{i}": nn.ReLU(), f"fc{i}": nn.Linear(width, width)}
        super().__init__(layers | {"relu": nn.ReLU(), "head": nn.Linear(width, CLASSES)})


class SkipMlp(Mlp):
    """Layer number `skip` reads the sum of what the first layer and the one before it have answered."""

    def __init__(self, width: int, depth: int, skip: int) -> None:
        super().__init__(width, depth)
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        answers: list[Tensor] = []
        for i, layer in enumerate(module for module in self if isinstance(module, nn.Linear)):
            if i:
                x = torch.relu(answers[-1] + answers[0] if i == self.skip else answers[-1])
            answers.append(layer(x))
        return answers[-1]


class Embedding(nn.Module):
    """A pixel becomes the vector of its intensity plus the vector of its place; [n, k] to [n, k, width], k up to 64."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(INTENSITIES, width))
        self.position = nn.Parameter(torch.randn(PIXELS, width))

    def forward(self, x: Tensor) -> Tensor:
        return self.token[x] + self.position[: x.shape[1]]


@dataclass(frozen=True)
class Dropout:
    """Drops a share `rate` of what it is given; a sample's key and a name say what.

    x is [n, k, width] or [n, heads, k, k] for the first k tokens, which lose what they would lose among all.
    """

    rate: float
    keys: NDArray[np.int64]

    def __call__(self, name: str, x: Tensor) -> Tensor:
        own = slice(x.shape[-2])
        if x.ndim == 3:
            left = keep(self.keys, name, (PIXELS, x.shape[2]), self.rate)[:, own]
        else:
            left = keep(self.keys, name, (x.shape[1], PIXELS, PIXELS), self.rate)[:, :, own, own]
        return torch.where(torch.from_numpy(left), x, 0) / (1 - self.rate)


def _nothing(_: str, x: Tensor) -> Tensor:
    return x


Drop = Callable[[str, Tensor], Tensor]


class Attention(nn.Module):
    """Pre-norm multi-head attention over all tokens, with its residual."""

    def __init__(self, name: str, width: int, heads: int, drop: Drop) -> None:
        super().__init__()
        self.name, self.heads, self.drop = name, heads, drop
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        q, k, v = (f(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1)
        weights = self.drop(f"{self.name}.probabilities", weights)
        update: Tensor = self.out((weights @ v).transpose(1, 2).flatten(-2))
        return x + self.drop(f"{self.name}.hidden", update)


class FeedForward(nn.Module):
    """Pre-norm two-layer perceptron on each token, with its residual."""

    def __init__(self, name: str, width: int, drop: Drop) -> None:
        super().__init__()
        self.name, self.drop = name, drop
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        update: Tensor = self.down(functional.gelu(self.up(self.norm(x))))
        return x + self.drop(f"{self.name}.hidden", update)


class TokenClassifier(nn.Linear):
    """Norm, mean over the tokens, linear."""

    def __init__(self, width: int) -> None:
        super().__init__(width, CLASSES)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x).mean(dim=1))


class Transformer(nn.Sequential):
    """`depth` pairs of attention and feed-forward between an embedding and a classifier."""

    def __init__(self, width: int, depth: int, heads: int, drop: Drop = _nothing) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict(embed=Embedding(width))
        for i in range(depth):
            attention, feed_forward = f"attn{i}", f"ffn{i}"
            layers[attention] = Attention(attention, width, heads, drop)
            layers[feed_forward] = FeedForward(feed_forward, width, drop)
        super().__init__(layers | {"head": TokenClassifier(width)})


class TiedHead(nn.Module):
    """Norm, mean over the tokens, then the likeness to the vector of each intensity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(INTENSITIES))

    def forward(self, x: Tensor, token: Tensor) -> Tensor:
        return self.norm(x).mean(dim=1) @ token.T + self.bias


class TiedTransformer(Transformer):
    """The matrix that the embedding reads rows of is the one that the classifier multiplies by: 17 classes."""

    def __init__(self, width: int, depth: int, heads: int, drop: Drop = _nothing) -> None:
        super().__init__(width, depth, heads, drop)
        self.head = TiedHead(width)

    def forward(self, x: Tensor) -> Tensor:
        embed, *blocks, head = self
        h = embed(x)
        for block in blocks:
            h = block(h)
        logits: Tensor = head(h, embed.token)
        return logits


class Convolution(nn.Conv2d):
    """3 x 3 convolution, then BatchNorm with the statistics of the batch at hand."""

    def __init__(self, fan_in: int, channels: int) -> None:
        super().__init__(fan_in, channels, kernel_size=3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(super().forward(x))
        return normed


class Cnn(nn.Sequential):
    """`depth` - 1 convolutions with a ReLU after each, mean over the pixels, linear."""

    def __init__(self, width: int, depth: int) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict(conv0=Convolution(1, width))
        for i in range(1, depth - 1):
            layers |= {f"relu{i}": nn.ReLU(), f"conv{i}": Convolution(width, width)}
        head = nn.Linear(width, CLASSES)
        super().__init__(
            layers | {"relu": nn.ReLU(), "mean": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten(), "head": head}
        )


class Expert(nn.Sequential):
    def __init__(self, width: int) -> None:
        up, down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        super().__init__(OrderedDict(up=up, relu=nn.ReLU(), down=down))


class Experts(nn.Module):
    """Each sample goes to its likeliest expert, whose answer counts as much as the router trusts it."""

    def __init__(self, width: int, ep: int) -> None:
        super().__init__()
        self.fc0 = nn.Linear(PIXELS, width)
        self.router = nn.Linear(width, ep, bias=False)
        self.expert = nn.ModuleList(Expert(width) for _ in range(ep))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc0(x)
        trust, chosen = torch.softmax(self.router(h), dim=-1).max(dim=-1)
        answers = torch.zeros_like(h)
        for i, expert in enumerate(self.expert):
            rows = (chosen == i).nonzero().squeeze(1)
            answers = answers.index_copy(0, rows, expert(h[rows]))
        logits: Tensor = self.head(torch.relu(trust.unsqueeze(1) * answers))
        return logits


def build(model: Model, keys: NDArray[np.int64] | None = None) -> nn.Module:
    """The whole, unsharded network of a spec, freshly initialised from torch's global generator.

    `keys` are those of the samples that it will be given, for models with dropout.
    """
    segments, blocks = list(model.segments.values()), blocks_of(model)
    if blocks == {Block.MODULE}:
        return nn.Sequential(OrderedDict((f"layer{i}", module) for i, module in enumerate(listed(model.code))))
    first = segments[0].groups[0].params[0].shape
    if Block.ROUTER in blocks:
        return Experts(first[0], model.segments["router"].option("experts"))
    if blocks & EMBEDDINGS:
        said = dict(model.recipe[1])
        width, depth, heads = (int(said[name]) for name in ("width", "depth", "heads"))
        made = TiedTransformer if said.get("tied") else Transformer
        return made(width, depth, heads, _dropout(float(said.get("dropout", 0)), keys))
    if Block.CONVOLUTION in blocks:
        return Cnn(first[0], len(segments))
    if blocks <= SPLIT_MLP_BLOCKS:
        return Mlp(first[0], len(model.layers))
    if blocks <= MLP_BLOCKS | SKIP_BLOCKS:
        return SkipMlp(first[0], len(model.layers), int(dict(model.recipe[1])["skip"]))
    raise ValueError(f"model {model.name!r} is only numbers, not a network; use an mlp, transformer, cnn or experts")


def without_dropout(model: Model) -> Model:
    maker, said = model.recipe
    return replace(model, recipe=(maker, tuple((name, value) for name, value in said if name != "dropout")))


def _dropout(rate: float, keys: NDArray[np.int64] | None) -> Drop:
    if not rate:
        return _nothing
    if keys is None:
        raise ValueError("the model has dropout; give the keys of the samples, from which it is drawn")
    return Dropout(rate, keys)


def blocks_of(model: Model) -> set[Block]:
    return {segment.block for segment in model.segments.values()}


def skeleton(model: Model, keys: NDArray[np.int64] | None = None) -> nn.Module:
    """The network, to be called with parameters from outside: without memory of its own, but for a user's modules."""
    with torch.device("cpu" if model.code else "meta"):
        return build(model, keys)


def inputs(model: Model, pixels: NDArray[Any], labels: NDArray[Any], dtype: torch.dtype) -> Batch:
    """Pixels and labels as this model takes them: intensities as tokens, or scaled to 0..1, as images for a CNN."""
    target = torch.tensor(labels, dtype=torch.int64)
    blocks = blocks_of(model)
    if blocks & EMBEDDINGS or model.feeds[0].feed is Feed.TOKENS:
        return torch.tensor(pixels, dtype=torch.int64), target
    x = torch.tensor(pixels, dtype=dtype) / 16
    return x.reshape(-1, 1, SIDE, SIDE) if Block.CONVOLUTION in blocks else x, target
