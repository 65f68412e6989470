"""From a model's recipe to the model: only the makers that the reader lists, with arguments of the right kind.

A program may come from a file that somebody else wrote, so a name in it must never choose what Python runs.
"""

from collections.abc import Callable, Mapping
from inspect import signature

from pdlab import models
from pdlab.forms.fault import FormError, short
from pdlab.models.model import Model

MAKERS: Mapping[str, Callable[..., Model]] = {
    "cnn": models.cnn,
    "experts": models.experts,
    "mlp": models.mlp,
    "nominal": models.nominal,
    "transformer": models.transformer,
}
MOST_LAYERS = 10_000
LAYER_COUNTS = ("depth", "num_layers")


def rebuild(maker: str, arguments: Mapping[str, object], makers: Mapping[str, Callable[..., Model]] = MAKERS) -> Model:
    """The model of a recipe; a recipe that no maker follows is an error that says what it may hold."""
    if maker == "modules" and maker not in makers:
        raise FormError("the model is made of somebody's own modules, whose code would run; build the program here")
    if maker not in makers:
        raise FormError(f"model {short(maker)} is not known; models are {', '.join(makers)}")
    allowed = signature(makers[maker]).parameters
    for name, value in arguments.items():
        if name not in allowed:
            raise FormError(f"model {maker} has no argument {short(name)}; it takes {', '.join(allowed)}")
        least = 0 if allowed[name].annotation is float or allowed[name].default == 0 else 1
        _check_argument(f"model {maker}, {name}", value, allowed[name].annotation, least)
        if name in LAYER_COUNTS and isinstance(value, int) and value > MOST_LAYERS:
            raise FormError(f"model {maker}, {name} is {value}; at most {MOST_LAYERS} layers can be built")
    try:
        return makers[maker](**arguments)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise FormError(f"model {maker} cannot be made: {error}") from None


def _check_argument(where: str, value: object, kind: type, least: int) -> None:
    if kind is str and type(value) is str:
        return
    fits = type(value) is int or (kind is float and type(value) is float)
    if not fits or not isinstance(value, int | float) or not least <= value < float("inf"):
        what = "number" if kind is float else "whole number"
        raise FormError(f"{where} is {short(value)}; give a {what} of at least {least}")
