"""A model that is only numbers: equal layers, everything one megabyte.

Schedules can be studied before there is a network. What a forward keeps is measured in M_B (all that the full
backward needs) and M_W (what the backward for the weights still needs), so closed forms read off directly. With `tp`
> 1 each rank holds its share of a layer's weights, and `split` says what moves around it.
"""

from pdlab.mesh import Axis, Layout, Spread
from pdlab.models.digits import loss_tensor
from pdlab.models.exchanges import PARTIAL_SUM, WHOLE, along, exchange
from pdlab.models.model import Model
from pdlab.models.spec import Block, Flops, Group, Item, Kept, Param, Segment, Tensor
from pdlab.models.split import Split, check_degree
from pdlab.named import named

MEGABYTE = 10**6

ENDS: dict[Split, tuple[tuple[Layout, Layout], tuple[Layout, Layout], Layout]] = {
    Split.TENSOR: ((WHOLE, PARTIAL_SUM), (PARTIAL_SUM, WHOLE), WHOLE),
    Split.SEQUENCE: ((WHOLE, PARTIAL_SUM), (PARTIAL_SUM, WHOLE), along(1)),
    Split.COLUMN: ((WHOLE, PARTIAL_SUM), (along(1), along(1)), WHOLE),
    Split.ROW: ((along(1), along(1)), (PARTIAL_SUM, WHOLE), WHOLE),
}
"""How a layer takes its input and makes its output, each with its gradient, and how it lies between two layers."""


def nominal(
    num_layers: int,
    M_B: float = 1.0,
    M_W: float = 1.0,
    unit: int = MEGABYTE,
    tp: int = 1,
    split: str = "tensor",
    weight: float = 1.0,
) -> Model:
    """`num_layers` equal layers; activations have `unit` bytes, what is kept `M_B` and `M_W` units, weights `weight`
    units."""
    for name, value in (("MB", M_B), ("MW", M_W), ("weight", weight)):
        if not 0 <= value < float("inf"):
            raise ValueError(f"{name}={value}; what a layer holds is a finite number of at least 0 units")
    if num_layers < 1:
        raise ValueError(f"{num_layers} layers; give at least 1")
    check_degree(tp)
    recipe: dict[str, float | str] = {"num_layers": num_layers, "M_B": M_B, "M_W": M_W, "unit": unit, "tp": tp}
    recipe |= ({} if split == "tensor" else {"split": split}) | ({} if weight == 1 else {"weight": weight})
    kept = Kept(per_row=round(M_B * unit)), Kept(per_row=round(M_W * unit))
    size = max(1, round(weight * unit))
    layers = tuple(_layer(i, num_layers, kept, (unit, size), tp, named(Split, split)) for i in range(num_layers))
    shared = named(Split, split) if tp > 1 else None
    return Model(("nominal", tuple(recipe.items())), layers, (_tokens(),), itemsize=1, tp=tp, split=shared)


def _tokens() -> Tensor:
    """What the first layer is given, which weighs nothing beside activations."""
    return Tensor("h0", (1,), 1, grad=None)


def _layer(
    i: int, num_layers: int, kept: tuple[Kept, Kept], sizes: tuple[int, int], tp: int, split: Split
) -> tuple[Item, ...]:
    """`sizes` are the bytes of an activation and of the weights."""
    unit, weights = sizes
    last = i == num_layers - 1
    taken, made, between = ENDS[split] if tp > 1 else ((WHOLE, WHOLE), (WHOLE, WHOLE), WHOLE)

    def hidden(name: str, layout: Layout, grad: Layout) -> Tensor:
        place = layout.at(Axis.TP)
        pieces = tp if place is not None and place.spread is Spread.SHARD else 1
        return Tensor(name, (-(-unit // pieces),), 1, layout, grad)

    x = hidden(f"h{i}", between, between) if i else _tokens()
    y = hidden(f"h{i + 1}", between, between) if not last else loss_tensor(8)
    entered = hidden(f"h{i}.in", *taken) if i and tp > 1 else x
    part = hidden(f"h{i + 1}.part", *made) if not last and tp > 1 else y
    sharded, degree = (along(0), tp) if tp > 1 else (WHOLE, 1)
    group = Group(f"layer{i}.w", (Param("w", (weights,), 0 if tp > 1 else None),), 1, sharded, sharded, degree)
    segment = Segment(
        f"layer{i}", Block.NOMINAL, (entered,), (part,), (group,), saved=kept[0], pending=kept[1], flops=Flops(2, 2, 2)
    )
    before = (exchange(f"layer{i}.before", x, entered),) if entered is not x else ()
    after = (exchange(f"layer{i}.after", part, y),) if part is not y else ()
    return (*before, segment, *after)
