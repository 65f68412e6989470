"""A model that is only numbers: one segment per stage, everything one megabyte.

Schedules can be studied before there is a network. Saved activations are measured in M_B (what one forward keeps for its
full backward) and M_W (what the backward for the weights still needs), so closed forms read off directly.
"""

from pdlab.mesh import REPLICATED
from pdlab.models.spec import Block, Flops, Group, Kept, Model, Param, Segment, Tensor

MEGABYTE = 10**6


def nominal(num_layers: int, M_B: float = 1.0, M_W: float = 1.0, unit: int = MEGABYTE) -> Model:
    """`num_layers` equal layers. Weights, activations and messages have `unit` bytes, saved tensors `M_B` and `M_W` units."""

    def layer(i: int) -> Segment:
        last = i == num_layers - 1
        x = Tensor(f"h{i}", (unit,), 1, grad=None if i == 0 else REPLICATED)
        y = Tensor("loss", (), 8, per_row=False) if last else Tensor(f"h{i + 1}", (unit,), 1)
        return Segment(
            name=f"layer{i}",
            block=Block.NOMINAL,
            inputs=(x,),
            outputs=(y,),
            groups=(Group(f"layer{i}.w", (Param("w", (unit,)),), 1),),
            saved=Kept(per_row=round(M_B * unit)),
            pending=Kept(per_row=round(M_W * unit)),
            flops=Flops(1, 1, 1),
        )

    feeds = (Tensor("h0", (unit,), 1, grad=None),)
    recipe = ("nominal", (("num_layers", num_layers), ("M_B", M_B), ("M_W", M_W), ("unit", unit)))
    return Model(recipe, tuple((layer(i),) for i in range(num_layers)), feeds, itemsize=1)

