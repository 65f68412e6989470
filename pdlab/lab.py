"""The models that strategies are compared on: small enough to run, with every part that a strategy can split."""

from collections.abc import Callable

from pdlab import models
from pdlab.models import Model
from pdlab.models.split import Split
from pdlab.strategies import Plan


def lab_transformer(plan: Plan, itemsize: int, depth: int = 1, dropout: float = 0.0) -> Model:
    """The model of the comparison: embedding, `depth` times attention and feed-forward, classifier; eight heads."""
    return models.transformer(
        width=16,
        depth=depth,
        heads=8,
        itemsize=itemsize,
        tp=plan.tp,
        split=plan.split.value if plan.tp > 1 else "tensor",
        dropout=dropout,
    )


def lab_mlp(plan: Plan, itemsize: int, depth: int = 1, dropout: float = 0.0) -> Model:
    """As many layers, all of them linears."""
    if dropout:
        raise ValueError(f"dropout {dropout} with an mlp, which has none; take the transformer")
    return models.mlp(depth=2 * depth + 2, itemsize=itemsize, tp=plan.tp, split=plan.split.value)


LAB_MODELS: dict[str, Callable[[Plan, int, int, float], Model]] = {"transformer": lab_transformer, "mlp": lab_mlp}


def has_form(model: str, plan: Plan) -> bool:
    """Whether a model of the lab can be split as a plan has it."""
    whole = plan.tp == 1 or plan.split is Split.TENSOR
    return whole or (plan.split is Split.SEQUENCE) == (model == "transformer")


def lab_model(plan: Plan, itemsize: int, depth: int = 1, dropout: float = 0.0) -> Model:
    """The transformer, or the MLP for what a transformer has no form of."""
    make = lab_transformer if has_form("transformer", plan) else lab_mlp
    return make(plan, itemsize, depth, dropout)
