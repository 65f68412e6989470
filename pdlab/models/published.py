"""Closed forms that papers give for a transformer layer, to lay beside what the specification says."""

from pdlab.models.split import Split


def activation_bytes(
    *,
    tokens: int,
    width: int,
    heads: int,
    samples: int = 1,
    itemsize: int = 2,
    tp: int = 1,
    split: Split = Split.TENSOR,
) -> float:
    """Bytes that one of `tp` ranks keeps of a layer without dropout for its backward (Korthikanti et al. 2022,
    arXiv:2205.05198).

    e s b h (4 + 12 / t + a s / (h t)) with tensor parallelism, e s b h / t (16 + a s / h) with sequence parallelism
    too. The paper's equations 2 and 4 are for e = 2 and count dropout: 10 instead of 8 with its two masks of one byte,
    5 instead of 2 with the mask of the softmax and what is left of it.
    """
    between = tp if split is Split.SEQUENCE else 1
    return itemsize * tokens * samples * width * (4 / between + (12 + heads * tokens / width) / tp)
