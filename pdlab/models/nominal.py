"""A model that is only numbers: equal layers, everything one megabyte.

Schedules can be studied before there is a network. What a forward keeps is measured in M_B (all that the full
backward needs) and M_W (what the backward for the weights still needs), so closed forms read off directly. With `tp`
> 1 each layer stands between Megatron's f and g and holds its share of the weights.
"""

from pdlab.mesh import PARTIAL, REPLICATED, Axis, shard
from pdlab.models.spec import Block, Exchange, Flops, Group, Item, Kept, Model, Param, Segment, Tensor
from pdlab.ops import Kind

MEGABYTE = 10**6


def nominal(num_layers: int, M_B: float = 1.0, M_W: float = 1.0, unit: int = MEGABYTE, tp: int = 1) -> Model:
    """`num_layers` equal layers; weights and activations have `unit` bytes, what is kept `M_B` and `M_W` units."""
    if not (0 <= M_W < float("inf") and 0 <= M_B < float("inf")):
        raise ValueError(f"MB={M_B}, MW={M_W}; activation units are finite numbers of at least 0")
    recipe = ("nominal", (("num_layers", num_layers), ("M_B", M_B), ("M_W", M_W), ("unit", unit), ("tp", tp)))
    kept = Kept(per_row=round(M_B * unit)), Kept(per_row=round(M_W * unit))
    layers = tuple(_layer(i, num_layers, kept, unit, tp) for i in range(num_layers))
    return Model(recipe, layers, (_hidden(0, unit),), itemsize=1)


def _hidden(i: int, unit: int) -> Tensor:
    """What layer i is given; the first is given tokens, which weigh nothing beside activations."""
    return Tensor(f"h{i}", (unit if i else 1,), 1, grad=REPLICATED if i else None)


def _layer(i: int, num_layers: int, kept: tuple[Kept, Kept], unit: int, tp: int) -> tuple[Item, ...]:
    x = _hidden(i, unit)
    last = i == num_layers - 1
    y = Tensor("loss", (), 8, per_row=False) if last else _hidden(i + 1, unit)
    sharded = REPLICATED.put(Axis.TP, shard(0)) if tp > 1 else REPLICATED
    group = Group(f"layer{i}.w", (Param("w", (unit,), 0 if tp > 1 else None),), 1, sharded, sharded, tp)
    partial = REPLICATED.put(Axis.TP, PARTIAL)
    entered = Tensor(f"{x.name}.in", x.shape, 1, grad=partial) if tp > 1 and i else x
    part = Tensor(f"{y.name}.part", y.shape, 1, partial) if tp > 1 and not last else y
    segment = Segment(
        f"layer{i}", Block.NOMINAL, (entered,), (part,), (group,), saved=kept[0], pending=kept[1], flops=Flops(2, 2, 2)
    )
    f = Exchange(f"layer{i}.f", Axis.TP, x, entered, None, Kind.ALL_REDUCE)
    g = Exchange(f"layer{i}.g", Axis.TP, part, y, Kind.ALL_REDUCE, None)
    before, after = (f,) if tp > 1 and i else (), (g,) if tp > 1 and not last else ()
    return (*before, segment, *after)
