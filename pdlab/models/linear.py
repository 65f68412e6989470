"""One linear, y = x W^T + b, whole or as one rank of a tensor group has it: what it keeps, holds and computes."""

from pdlab.models.spec import Block, Flops, Group, Kept, Segment, Tensor


def linear(
    name: str,
    x: Tensor,
    y: Tensor,
    groups: tuple[Group, ...],
    *,
    relu: bool = False,
    rows: int = 0,
    skip: Tensor | None = None,
) -> Segment:
    """From x [n, k] to y [n, m], after a ReLU if asked; `rows` > 0 is the size of a group over which y is a sum.
    `skip` [n, k] is added to x before the ReLU.

    Only the weight gradient looks at the input again; after a ReLU what it looks at is the segment's own. A
    row-parallel linear adds its share of the bias outside of the product, so the bias's gradient is found with that of
    the input.
    """
    fan_in, fan_out, e = x.shape[-1], y.shape[-1], x.itemsize
    kept, own = () if relu else (x.name,), fan_in * e if relu else 0
    flops = 2 * fan_in * fan_out
    rectified = Block.RELU_LINEAR if skip is None else Block.SKIP_LINEAR
    return Segment(
        name=name,
        block=Block.ROW_LINEAR if rows else rectified if relu else Block.LINEAR,
        inputs=(x,) if skip is None else (x, skip),
        outputs=(y,),
        groups=groups,
        keeps=kept,
        late=kept,
        saved=Kept(own),
        pending=Kept(fan_out * e + own, fixed=fan_out * e if rows else 0),
        flops=Flops(flops, flops if x.grad is not None else 0, flops),
        options=(("relu", int(relu)), ("tp", rows)) if rows else (),
    )
