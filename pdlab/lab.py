"""The models that strategies are compared on: small enough to run, with every part that a strategy can split."""

from collections.abc import Callable

from pdlab import models
from pdlab.models import Model
from pdlab.models.split import Split
from pdlab.strategies import Plan, Strategy


def lab_transformer(plan: Plan, itemsize: int, depth: int | None = None, dropout: float = 0.0) -> Model:
    """The model of the comparison: embedding, `depth` times attention and feed-forward, classifier; eight heads.
    Without a depth there is a layer for each stage."""
    depth = depth_for(plan.num_stages) if depth is None else depth
    return models.transformer(
        width=16,
        depth=depth,
        heads=8,
        itemsize=itemsize,
        tp=plan.tp,
        split=plan.split.value if plan.tp > 1 else "tensor",
        dropout=dropout,
    )


def lab_mlp(plan: Plan, itemsize: int, depth: int | None = None, dropout: float = 0.0) -> Model:
    """As many layers, all of them linears."""
    depth = depth_for(plan.num_stages) if depth is None else depth
    if dropout:
        raise ValueError(f"dropout {dropout} with an mlp, which has none; take the transformer")
    return models.mlp(depth=2 * depth + 2, itemsize=itemsize, tp=plan.tp, split=plan.split.value)


def depth_for(stages: int) -> int:
    """The least depth with a layer for each stage: a transformer has two layers in a block, and two around them."""
    return max(1, (stages - 1) // 2)


Maker = Callable[[Plan, int, int | None, float], Model]
"""From plan, bytes of a number, depth and dropout to a model."""

LAB_MODELS: dict[str, Maker] = {"transformer": lab_transformer, "mlp": lab_mlp}


def lab_nominal(
    ranks: int, stages: int, M_B: float = 1.0, M_W: float = 1.0, tp: int = 1, split: str = "tensor"
) -> Model:
    """A layer for each stage. A p-th of the model keeps M_B and M_W and has weights of one unit, however many stages a
    rank has of it."""
    each = ranks / stages
    return models.nominal(stages, M_B * each, M_W * each, tp=tp, split=split, weight=each)


def suited(strategy: Strategy | None) -> Maker:
    """What makes the model that a strategy (None: a table) is tried on."""
    return lab_mlp if strategy and strategy.by_hand else lab_model


def has_form(model: str, plan: Plan) -> bool:
    """Whether a model of the lab can be split as a plan has it."""
    whole = plan.tp == 1 or plan.split is Split.TENSOR
    return whole or (plan.split is Split.SEQUENCE) == (model == "transformer")


def lab_model(plan: Plan, itemsize: int, depth: int | None = None, dropout: float = 0.0) -> Model:
    """The transformer, or the MLP for what a transformer has no form of."""
    make = lab_transformer if has_form("transformer", plan) else lab_mlp
    return make(plan, itemsize, depth, dropout)
