"""The oracle: the same training on one process, in plain PyTorch.

A distributed run is right if it ends with the weights that this file ends with. So the file shares nothing with what it
judges: no programs, ops, segments or cuts in autograd, only modules as a textbook has them and the update rules written
as loops. From a model spec it takes sizes, nothing else, and its parameters bear the spec's names.

Strategies that are not synchronous SGD are held to their own rule. PipeDream (Harlap et al. 2018, arXiv:1806.03377,
section 3.3) never flushes, so stage s of p runs minibatch i forward with weights that are d = p - 1 - s updates old:

    stage 0 of 3    F0 F1 F2 B0 F3 B1 F4 ...    before F3 one update is done: version 1 = max(0, 3 - 2)
    stage 2 of 3    F0 B0 F1 B1 F2 B2 F3 ...    before F3 all three are done: version 3
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from math import inf, isfinite
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from pdlab.models.spec import Block, Model

PIXELS, SIDE, CLASSES, INTENSITIES = 64, 8, 10, 17
MLP_BLOCKS = {Block.LINEAR, Block.RELU_LINEAR, Block.CLASSIFIER}

Parameters = dict[str, Tensor]
Batch = tuple[Tensor, Tensor]


class Mlp(nn.Sequential):
    """`depth` linear layers with a ReLU between any two."""

    def __init__(self, width: int, depth: int) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict(fc0=nn.Linear(PIXELS, width))
        for i in range(1, depth - 1):
            layers |= {f"relu{i}": nn.ReLU(), f"fc{i}": nn.Linear(width, width)}
        super().__init__(layers | {"relu": nn.ReLU(), "head": nn.Linear(width, CLASSES)})


class Embedding(nn.Module):
    """A pixel becomes the vector of its intensity plus the vector of its place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(INTENSITIES, width))
        self.position = nn.Parameter(torch.randn(PIXELS, width))

    def forward(self, x: Tensor) -> Tensor:
        return self.token[x] + self.position


class Attention(nn.Module):
    """Pre-norm multi-head attention over all tokens, with its residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        q, k, v = (f(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1)
        update: Tensor = self.out((weights @ v).transpose(1, 2).flatten(-2))
        return x + update


class FeedForward(nn.Module):
    """Pre-norm two-layer perceptron on each token, with its residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        update: Tensor = self.down(functional.gelu(self.up(self.norm(x))))
        return x + update


class TokenClassifier(nn.Linear):
    """Norm, mean over the tokens, linear."""

    def __init__(self, width: int) -> None:
        super().__init__(width, CLASSES)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x).mean(dim=1))


class Transformer(nn.Sequential):
    """`depth` pairs of attention and feed-forward between an embedding and a classifier."""

    def __init__(self, width: int, depth: int, heads: int) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict(embed=Embedding(width))
        for i in range(depth):
            layers |= {f"attn{i}": Attention(width, heads), f"ffn{i}": FeedForward(width)}
        super().__init__(layers | {"head": TokenClassifier(width)})


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


def build(model: Model) -> nn.Module:
    """The whole, unsharded network of a spec, freshly initialised from torch's global generator."""
    segments, blocks = list(model.segments.values()), _blocks(model)
    first = segments[0].groups[0].params[0].shape
    if Block.ROUTER in blocks:
        return Experts(first[0], model.segments["router"].option("experts"))
    if Block.EMBEDDING in blocks:
        heads = [segment.option("heads") for segment in segments if segment.block is Block.ATTENTION]
        return Transformer(first[1], len(heads), heads[0] if heads else 1)
    if Block.CONVOLUTION in blocks:
        return Cnn(first[0], len(segments))
    if blocks <= MLP_BLOCKS:
        return Mlp(first[0], len(segments))
    raise ValueError(f"model {model.name!r} is only numbers, not a network; use an mlp, transformer, cnn or experts")


def _blocks(model: Model) -> set[Block]:
    return {segment.block for segment in model.segments.values()}


def _skeleton(model: Model) -> nn.Module:
    """The network without memory, to be called with parameters from outside; building it draws no random numbers."""
    with torch.device("meta"):
        return build(model)


def inputs(model: Model, pixels: NDArray[Any], labels: NDArray[Any], dtype: torch.dtype) -> Batch:
    """Pixels and labels as this model takes them: intensities as tokens, or scaled to 0..1, as images for a CNN."""
    target = torch.tensor(labels, dtype=torch.int64)
    blocks = _blocks(model)
    if Block.EMBEDDING in blocks:
        return torch.tensor(pixels, dtype=torch.int64), target
    x = torch.tensor(pixels, dtype=dtype) / 16
    return x.reshape(-1, 1, SIDE, SIDE) if Block.CONVOLUTION in blocks else x, target


def gradients(model: Model, parameters: Parameters, x: Tensor, target: Tensor) -> tuple[float, Parameters]:
    """The mean cross-entropy of a batch and its gradient, in the dtype of the parameters."""
    leaves = _leaves(parameters)
    loss = functional.cross_entropy(functional_call(_skeleton(model), leaves, x, strict=True), target)
    return loss.item(), _differentiate(loss, leaves)


def _leaves(parameters: Parameters) -> Parameters:
    return {name: weight.detach().requires_grad_() for name, weight in parameters.items()}


def _differentiate(loss: Tensor, leaves: Parameters, seed: Tensor | None = None) -> Parameters:
    found = torch.autograd.grad(loss, list(leaves.values()), seed, materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def _descend(parameters: Parameters, grads: Parameters, lr: float) -> Parameters:
    return {name: weight - lr * grads[name] for name, weight in parameters.items()}


def sgd(model: Model, parameters: Parameters, batches: Iterable[Batch], lr: float) -> list[Parameters]:
    """The parameters after each step of synchronous training, one batch per step."""
    trajectory = [parameters]
    for x, target in batches:
        trajectory.append(_descend(trajectory[-1], gradients(model, trajectory[-1], x, target)[1], lr))
    return trajectory[1:]


def pipedream_stashed(
    model: Model, parameters: Parameters, batches: Iterable[Batch], lr: float, num_stages: int
) -> list[Parameters]:
    """PipeDream with stashing: backward meets the forward's weights. Entry i: all stages after i + 1 updates."""
    delay = _delays(model, num_stages)
    versions = [parameters]
    for i, (x, target) in enumerate(batches):
        _, grads = gradients(model, _stale(versions, i, delay), x, target)
        versions.append(_descend(versions[-1], grads, lr))
    return versions[1:]


def pipedream_naive(
    model: Model, parameters: Parameters, batches: Iterable[Batch], lr: float, num_stages: int
) -> list[Parameters]:
    """PipeDream with one copy of the weights: backward meets the latest ones, so what it computes is no gradient."""
    delay = _delays(model, num_stages)
    versions = [parameters]
    for i, (x, target) in enumerate(batches):
        grads = _backprop(_stale(versions, i, delay), versions[i], list(delay), x, target)
        versions.append(_descend(versions[-1], grads, lr))
    return versions[1:]


def _delays(model: Model, num_stages: int) -> dict[str, int]:
    """Layer -> how many updates its forward lags behind in a full pipeline; earlier stages are the longer ones."""
    layers = list(model.segments)
    if not _blocks(model) <= MLP_BLOCKS:
        raise ValueError(f"model {model.name!r} has no PipeDream reference, only an MLP has one")
    if not 1 <= num_stages <= len(layers):
        raise ValueError(f"{num_stages} stages for the {len(layers)} layers of {model.name!r}; use 1 to {len(layers)}")
    cuts = torch.arange(len(layers)).tensor_split(num_stages)
    return {layers[i]: num_stages - 1 - stage for stage, cut in enumerate(cuts) for i in cut.tolist()}


def _stale(versions: Sequence[Parameters], i: int, delay: dict[str, int]) -> Parameters:
    return {name: versions[max(0, i - delay[name.partition(".")[0]])][name] for name in versions[0]}


def _backprop(ahead: Parameters, back: Parameters, layers: list[str], x: Tensor, target: Tensor) -> Parameters:
    """Backpropagation by hand through an MLP, forward with the weights `ahead` and backward with the weights `back`."""
    seen: list[Tensor] = []
    y = x
    for layer in layers:
        seen.append(y.relu() if seen else x)
        y = seen[-1] @ ahead[f"{layer}.weight"].T + ahead[f"{layer}.bias"]
    dy = (y.softmax(dim=1) - functional.one_hot(target, CLASSES)) / len(target)
    grads: Parameters = {}
    for layer, entered in zip(reversed(layers), reversed(seen), strict=True):
        grads |= {f"{layer}.weight": dy.T @ entered, f"{layer}.bias": dy.sum(dim=0)}
        dy = (dy @ back[f"{layer}.weight"]) * (entered > 0)
    return grads


def half_precision_step(
    model: Model, master: Parameters, shards: Sequence[Batch], lr: float, loss_scale: float
) -> tuple[Parameters, bool]:
    """One mixed-precision step (Micikevicius et al. 2018, arXiv:1710.03740): new weights, and whether it was taken.

    One shard per data-parallel rank. Gradients are computed and summed in fp16; overflow in any shard skips the step.
    """
    seed = torch.tensor(loss_scale / sum(len(target) for _, target in shards), dtype=torch.float16)
    halves = {name: weight.half() for name, weight in master.items()}
    found = [_half_gradients(model, halves, batch, seed) for batch in shards]
    if not all(grad.isfinite().all() for grads in found for grad in grads.values()):
        return master, False
    total = found[0]
    for grads in found[1:]:
        total = {name: grad + grads[name] for name, grad in total.items()}
    return _descend(master, {name: grad.to(master[name].dtype) / loss_scale for name, grad in total.items()}, lr), True


def _half_gradients(model: Model, halves: Parameters, batch: Batch, seed: Tensor) -> Parameters:
    x, target = batch
    leaves = _leaves(halves)
    logits = functional_call(_skeleton(model), leaves, x.half() if x.is_floating_point() else x, strict=True)
    return _differentiate(functional.cross_entropy(logits, target, reduction="sum"), leaves, seed)


def relative_errors(ours: Parameters, reference: Parameters) -> dict[str, float]:
    """Per parameter: the largest deviation over the largest entry of its reference.

    Some gradients are truly zero (a key bias, an idle expert) and would compare noise with noise, so the scale is never
    below 1e-6 of the largest entry of all. A NaN counts as infinitely wrong, lest `max` and `<` overlook it.
    """
    _require_alike(ours, reference)
    largest = {name: value.abs().max().item() for name, value in reference.items()}
    floor = 1e-6 * max(largest.values(), default=0.0)
    return {name: _ratio(ours[name], reference[name], max(largest[name], floor)) for name in reference}


def _ratio(value: Tensor, reference: Tensor, scale: float) -> float:
    deviation = (value.double() - reference.double()).abs().max().item()
    if deviation == 0:
        return 0.0
    return deviation / scale if scale and isfinite(deviation) else inf


def _require_alike(ours: Parameters, reference: Parameters) -> None:
    missing, extra = sorted(reference.keys() - ours.keys()), sorted(ours.keys() - reference.keys())
    if missing or extra:
        raise ValueError(f"{len(missing)} parameters are missing {missing}, {len(extra)} are extra {extra}")
    for name, value in reference.items():
        if ours[name].shape != value.shape:
            raise ValueError(f"{name} has shape {tuple(ours[name].shape)}, the reference has {tuple(value.shape)}")
