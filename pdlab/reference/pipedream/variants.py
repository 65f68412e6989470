"""The variants of PipeDream on the models of the lab. In the formulas w_s(t) is stage s of p after t updates.

`layers` says how many layers of the model each stage has, `replicas` how many ranks. Minibatches may differ in size;
a round or a group of them takes the mean of their mean gradients.
"""

from collections.abc import Callable, Sequence

from pdlab.models.model import Model
from pdlab.reference.networks import Batch
from pdlab.reference.pipedream import rules
from pdlab.reference.pipedream.by_hand import backprop, require_mlp
from pdlab.reference.pipedream.engine import Gradient, Trajectory, follow
from pdlab.reference.pipedream.rules import StageRule
from pdlab.reference.training import Parameters, gradients

Batches = Sequence[Batch]
Counts = Sequence[int]


def pipedream_naive(
    model: Model, parameters: Parameters, batches: Batches, lr: float, layers: Counts, replicas: Counts | None = None
) -> Trajectory:
    """PipeDream with one copy of the weights: what the forward kept meets the newest weights on the way back.

    Section 3.3 of Harlap et al. (2018, arXiv:1806.03377) warns of it: the result is the gradient of no weights.
    """
    require_mlp(model)
    names = list(model.segments)

    def crossed(i: int, ahead: Parameters, back: Parameters) -> tuple[float, Parameters]:
        return backprop(ahead, back, names, *batches[i])

    return _train(rules.naive(len(batches), _ranks(layers, replicas)), model, parameters, lr, layers, crossed)


def pipedream(
    model: Model, parameters: Parameters, batches: Batches, lr: float, layers: Counts, replicas: Counts | None = None
) -> Trajectory:
    """PipeDream with weight stashing (section 3.3 of the same):

    w(t+1) = w(t) - lr grad f(w_0(t-p+1), w_1(t-p+2), ..., w_{p-1}(t))
    """
    stages = rules.stashing(len(batches), _ranks(layers, replicas))
    return _train(stages, model, parameters, lr, layers, _true_gradient(model, batches))


def pipedream_vertical_sync(
    model: Model, parameters: Parameters, batches: Batches, lr: float, layers: Counts, replicas: Counts | None = None
) -> Trajectory:
    """PipeDream with vertical sync, one version for the whole way (section 3.3 of the same):

    w(t+1) = w(t) - lr grad f(w_0(t-p+1), w_1(t-p+1), ..., w_{p-1}(t-p+1))
    """
    stages = rules.vertical_sync(len(batches), _ranks(layers, replicas))
    return _train(stages, model, parameters, lr, layers, _true_gradient(model, batches))


def pipedream_2bw(
    model: Model, parameters: Parameters, batches: Batches, lr: float, layers: Counts, accumulate: int
) -> Trajectory:
    """PipeDream-2BW: two buffers of weights, an update for every `accumulate` microbatches (Narayanan et al. 2021,
    arXiv:2006.09503, section 3.1):

    w(t+1) = w(t) - lr grad f(w(t-1)), w(-1) = w(0)
    """
    stages = rules.double_buffering(len(batches), len(layers), accumulate)
    return _train(stages, model, parameters, lr, layers, _true_gradient(model, batches))


def pipedream_flush(
    model: Model, parameters: Parameters, batches: Batches, lr: float, layers: Counts, accumulate: int
) -> Trajectory:
    """PipeDream-Flush, which others call 1F1B: w(t+1) = w(t) - lr grad f(w(t)) (section 3.2 of the same)."""
    stages = rules.flush(len(batches), len(layers), accumulate)
    return _train(stages, model, parameters, lr, layers, _true_gradient(model, batches))


ROUNDS: dict[str, Callable[..., Trajectory]] = {
    "pipedream_naive": pipedream_naive,
    "pipedream": pipedream,
    "pipedream_vertical_sync": pipedream_vertical_sync,
}
"""A step for each round of minibatches over the replicas."""

GROUPED: dict[str, Callable[..., Trajectory]] = {"pipedream_2bw": pipedream_2bw, "pipedream_flush": pipedream_flush}
"""A step for each group of microbatches."""

RULES = ROUNDS | GROUPED


def pipedream_trajectory(
    name: str,
    model: Model,
    parameters: Parameters,
    batches: Batches,
    lr: float,
    *,
    layers: Counts,
    replicas: Counts | None = None,
    accumulate: int | None = None,
) -> Trajectory:
    """A variant by its name. ValueError for a choice that it does not have."""
    if name in ROUNDS:
        if accumulate not in (None, 1):
            raise ValueError(f"accumulate {accumulate} for {name}, which updates after each round; leave it out")
        return ROUNDS[name](model, parameters, batches, lr, layers, replicas)
    if name in GROUPED:
        if set(_ranks(layers, replicas)) != {1}:
            raise ValueError(f"replicas {replicas} for {name}, which has one of each stage; leave them out")
        if accumulate is None:
            raise ValueError(f"{name} needs accumulate, the number of microbatches of an update")
        return GROUPED[name](model, parameters, batches, lr, layers, accumulate)
    raise ValueError(f"{name!r} is no variant of PipeDream; choose among {', '.join(RULES)}")


def trajectory_of(
    stages: Sequence[StageRule], model: Model, parameters: Parameters, batches: Batches, lr: float, layers: Counts
) -> Trajectory:
    """Whatever versions the stages meet, as long as each backward meets its forward's; ValueError otherwise."""
    if any(stage.forward != stage.backward for stage in stages):
        raise ValueError("a backward meets other weights than its forward; only pipedream_naive has a rule for that")
    return _train(stages, model, parameters, lr, layers, _true_gradient(model, batches))


def _true_gradient(model: Model, batches: Batches) -> Gradient:
    """For rules whose backward meets what its forward met: versions may be mixed, but it is one set of weights."""

    def gradient(i: int, met: Parameters, _: Parameters) -> tuple[float, Parameters]:
        return gradients(model, met, *batches[i])

    return gradient


def _train(
    stages: Sequence[StageRule], model: Model, start: Parameters, lr: float, layers: Counts, gradient: Gradient
) -> Trajectory:
    stage_of = _stage_of(model, layers)
    for segments in model.users.values():
        places = sorted({stage_of[segment] for segment in segments})
        if any(stages[place] != stages[places[0]] for place in places):
            raise ValueError(f"{' and '.join(segments)} share weights, but stages {places} meet different versions")
    return follow(stages, {name: stage_of[name.partition(".")[0]] for name in start}, start, lr, gradient)


def _stage_of(model: Model, layers: Counts) -> dict[str, int]:
    """The stage of each segment, and of what the names of its parameters begin with."""
    if sum(layers) != len(model.layers) or min(layers, default=0) < 1:
        raise ValueError(
            f"stages of {tuple(layers)} layers for the {len(model.layers)} layers of model {model.name!r}; "
            f"give each stage at least 1, and {len(model.layers)} together"
        )
    stage_of = [stage for stage, num in enumerate(layers) for _ in range(num)]
    found = {name: stage_of[layer] for name, layer in model.layer_of.items()}
    return found | {s.layer: found[name] for name, s in model.segments.items() if s.layer}


def _ranks(layers: Counts, replicas: Counts | None) -> Counts:
    """The replicas of each stage; one where nothing is said."""
    ranks = [1] * len(layers) if replicas is None else replicas
    if len(ranks) != len(layers) or min(ranks, default=0) < 1:
        raise ValueError(f"replicas {tuple(ranks)} for {len(layers)} stages; give each of them at least 1")
    return ranks
