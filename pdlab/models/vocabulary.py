"""Vocabulary parallelism: the embedding's rows and the classifier's columns spread over the tensor group.

Nobody ever holds all logits. Of its own classes each rank finds three numbers for a sample: the logarithm of the summed
exponentials, the logit of the label if it is among them, and the sum of the logits (for label smoothing). Gathered
from all ranks they are enough:

    loss = log sum_i exp(lse_i) - sum_i z_i

Megatron-LM takes three all-reduces for the same (its `core/tensor_parallel/cross_entropy.py`): 6 (t - 1) / t numbers of
each sample in 6 (t - 1) rounds, where the gather moves 3 (t - 1) in t - 1 rounds: more numbers from t = 3 on, but fewer
messages, and no other reduction than sums. In the backward every rank knows what came of its three numbers, so nothing
moves. A vocabulary that the group does not divide is
filled up with rows that no sample uses.
"""

from pdlab.models.digits import CLASSES, INTENSITIES, TARGET, loss_tensor
from pdlab.models.dimensions import STATISTICS, Dimensions
from pdlab.models.exchanges import PARTIAL_SUM, WHOLE, along, exchange
from pdlab.models.linear import linear
from pdlab.models.megatron import whole
from pdlab.models.spec import Block, Group, Item, Kept, Param, Segment, Tensor

SUMS = 3
"""Numbers that a rank finds of each sample."""


def embedding(sizes: Dimensions, x: Tensor, y: Tensor) -> tuple[Item, ...]:
    """The vectors of this rank's part of the vocabulary, zero for the rest; summed, then the positions added."""
    h, e = sizes.width, sizes.itemsize
    part, summed = sizes.hidden("embed.part", PARTIAL_SUM, WHOLE), sizes.hidden("embed.z")
    token = Group("embed.w", (Param("token", (INTENSITIES, h), 0),), e, along(0), along(0), sizes.tp)
    of_place = Param("position", (sizes.tokens, h), 0 if sizes.sharded else None)
    place = Group("embed.place.w", (of_place,), e, sizes.place, sizes.place, sizes.tp if sizes.sharded else 1)
    return (
        Segment(
            name="embed",
            block=Block.VOCABULARY_EMBEDDING,
            inputs=(x,),
            outputs=(part,),
            groups=(token,),
            saved=Kept((8 + 1) * sizes.tokens),
            pending=Kept(fixed=token.bytes),
        ),
        exchange("embed.g", part, summed),
        Segment(
            name="embed.place",
            block=Block.POSITION,
            inputs=(summed,),
            outputs=(y,),
            groups=(place,),
            pending=Kept(fixed=place.bytes),
            layer="embed",
        ),
    )


def head(sizes: Dimensions, x: Tensor) -> tuple[Item, ...]:
    """Norm and mean over the tokens, then the classes, spread over the group."""
    h, e = sizes.width, sizes.itemsize
    pooled = Tensor("head.u", (h,), e, PARTIAL_SUM if sizes.sharded else WHOLE, WHOLE)
    norm = (Param("norm.weight", (h,)), Param("norm.bias", (h,)))
    pool = Segment(
        name="head.pool",
        block=Block.POOL,
        inputs=(x,),
        outputs=(pooled,),
        groups=(whole("head.norm.w", norm, sizes),),
        keeps=(x.name,),
        saved=Kept(e * STATISTICS * sizes.own_tokens),
        pending=Kept(fixed=e * 2 * h),
        options=(("tokens", sizes.tokens),),
        layer="head",
    )
    entered = Tensor("head.u.in", (h,), e, WHOLE, PARTIAL_SUM)
    return (
        pool,
        exchange("head.f", pooled, entered),
        *classifier("head", entered, sizes.tp, e, smoothing=sizes.smoothing),
    )


def classifier(
    name: str, x: Tensor, tp: int, itemsize: int, *, relu: bool = False, smoothing: float = 0.0
) -> tuple[Item, ...]:
    """A column-parallel linear from `x` (whole, its gradient partial) to this rank's logits, and their loss."""
    mine = -(-CLASSES // tp)
    params = (Param("weight", (CLASSES, x.shape[-1]), 0), Param("bias", (CLASSES,), 0))
    logits = Tensor(f"{name}.logits", (mine,), itemsize, along(1), along(1))
    group = Group(f"{name}.w", params, itemsize, along(0), along(0), tp)
    return (linear(name, x, logits, (group,), relu=relu), *loss(name, logits, tp, itemsize, smoothing))


def loss(name: str, logits: Tensor, tp: int, itemsize: int, smoothing: float) -> tuple[Item, ...]:
    """The cross-entropy of logits that are spread over the group."""
    sums = Tensor(f"{name}.sums", (SUMS,), itemsize, along(1), along(1))
    all_sums = Tensor(f"{name}.sums.all", (SUMS * tp,), itemsize)
    options = (("classes", CLASSES), ("tp", tp), *((("smoothing", smoothing),) if smoothing else ()))
    return (
        Segment(
            name=f"{name}.sums",
            block=Block.LOG_SUMS,
            inputs=(logits, TARGET),
            outputs=(sums,),
            keeps=(logits.name,),
            saved=Kept(itemsize + 8 + 1),
            options=options,
        ),
        exchange(f"{name}.gather", sums, all_sums),
        Segment(
            name=f"{name}.loss",
            block=Block.VOCABULARY_LOSS,
            inputs=(all_sums, TARGET),
            outputs=(loss_tensor(itemsize),),
            keeps=(all_sums.name,),
            saved=Kept(itemsize + 1),
            options=options,
        ),
    )
