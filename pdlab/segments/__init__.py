"""The segments of `pdlab.models` in torch: one function per block, from inputs and weights to outputs.

Weights come by name, since in a program they are values with versions and no module owns them. Every function is free
of communication and of side effects. Losses are sums over rows, so that microbatches, ranks and uneven shares simply
add up.
"""

from collections.abc import Sequence

from torch import Tensor

from pdlab.models.spec import Block
from pdlab.segments import experts, images, linears, transformer, users, vocabulary
from pdlab.segments.frame import Frame, Function, Weights

__all__ = ["Frame", "run"]


def run(frame: Frame, inputs: Sequence[Tensor], weights: Weights) -> tuple[Tensor, ...]:
    """The outputs of a segment, in the order of its specification."""
    return FUNCTIONS[frame.segment.block](frame, inputs, weights)


FUNCTIONS: dict[Block, Function] = {
    Block.LINEAR: linears.plain,
    Block.RELU_LINEAR: linears.rectified,
    Block.ROW_LINEAR: linears.row_parallel,
    Block.CLASSIFIER: linears.classifier,
    Block.SKIP_LINEAR: linears.skipped,
    Block.SKIP_CLASSIFIER: linears.skipped_classifier,
    Block.CROSS_ENTROPY: linears.loss,
    Block.EMBEDDING: transformer.embedding,
    Block.ATTENTION: transformer.attention,
    Block.MASKED_ATTENTION: transformer.masked_attention,
    Block.FEED_FORWARD: transformer.feed_forward,
    Block.TOKEN_CLASSIFIER: transformer.classifier,
    Block.TIED_CLASSIFIER: transformer.tied_classifier,
    Block.NORM: transformer.norm,
    Block.HEADS: transformer.heads,
    Block.NEURONS: transformer.neurons,
    Block.RESIDUAL: transformer.residual,
    Block.POOL: transformer.pool,
    Block.VOCABULARY_EMBEDDING: vocabulary.embedding,
    Block.POSITION: vocabulary.position,
    Block.LOG_SUMS: vocabulary.log_sums,
    Block.VOCABULARY_LOSS: vocabulary.loss,
    Block.CONVOLUTION: images.convolved,
    Block.IMAGE_CLASSIFIER: images.classifier,
    Block.ROUTER: experts.router,
    Block.EXPERT: experts.expert,
    Block.COMBINE: experts.combine,
    Block.MODULE: users.module,
}
