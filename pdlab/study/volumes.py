"""Closed forms: what ZeRO-3 and tensor parallelism put on the wire, and at which batch that is the same.

Per rank and step, in bytes, with ring collectives: an all-reduce of S takes 2 (n-1)/n S, an all-gather or a
reduce-scatter (n-1)/n S. They count the blocks of the transformer, without recomputation; the docstrings say what its
ends add. h is the width, s the tokens, b the batch over all ranks, e the bytes of a number, n the ranks.
"""

from pdlab.study.setup import Setup

WIRE_FACTORS = {"tensor": 8, "sequence": 10}
"""How often b s h crosses the wire in a block, in units of (n - 1) / n."""


def zero3_wire_bytes(setup: Setup) -> float:
    """3 (n-1)/n x parameter bytes: every weight is gathered for the forward and for the backward, and its gradient
    reduce-scattered (Rajbhandari et al. 2020, arXiv:1910.02054, section 7.2.2). A block has 12 h^2 + 13 h weights.

    The embedding adds (17 + s) h weights and the head 12 h + 10; the weights of a segment that n does not divide are
    filled up.
    """
    weights = setup.depth * (12 * setup.width**2 + 13 * setup.width)
    return 3 * _ring(setup) * weights * setup.itemsize


def tensor_wire_bytes(setup: Setup, batch: float, strategy: str = "tensor") -> float:
    """8 (n-1)/n b s h e for each block: two all-reduces of b s h in the forward and two in the backward (Shoeybi et al.
    2019, arXiv:1909.08053, section 3). 10 for `sequence`, where each is an all-gather and a reduce-scatter, and the
    inputs of attention and feed-forward, of which a rank has kept its own tokens only, are gathered again in the
    backward (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2).

    The vocabulary-parallel embedding adds 2 (n-1)/n b s h e, the head 2 (n-1)/n b h e for the gradient of its input and
    3 (n-1) b e for the sums of its loss. `sequence` adds 2 (n-1)/n b h e more to pool the tokens, and 2 (n-1)/n e for
    each of the (6 depth + 2) h weights that every rank has all of, whose gradients are summed.
    """
    if strategy not in WIRE_FACTORS:
        raise ValueError(f"strategy {strategy!r}; choose one of {', '.join(WIRE_FACTORS)}")
    hidden = batch * setup.tokens * setup.width * setup.itemsize
    return WIRE_FACTORS[strategy] * setup.depth * _ring(setup) * hidden


def crossover_batch(setup: Setup, strategy: str = "tensor") -> float:
    """The batch of which both put as many bytes on the wire: 3 (12 h^2 + 13 h) = 8 b s h, so b = (36 h + 39) / (8 s),
    about 4.5 h / s. Depth, ranks and bytes of a number cancel out.

    Below it tensor parallelism moves less. Where it is also faster is another question: `hidden_crossover_batch`.
    """
    return zero3_wire_bytes(setup) / tensor_wire_bytes(setup, 1, strategy)


def hidden_crossover_batch(setup: Setup, bandwidth: float, strategy: str = "tensor") -> float:
    """The batch of which both take as long if prefetch hides all that it can.

    With Z the bytes that ZeRO-3 moves, A those that tensor parallelism moves for a sample, C the seconds that a rank
    computes for a sample of the batch, and W the bandwidth, ZeRO-3 takes max(b C, Z / W), for its gathers run under the
    computation, and tensor parallelism b C + b A / W, for its collectives cannot. They are equal at

        b = Z / (A + C W)

    On slow links that is `crossover_batch`; it falls as links get faster, for then ZeRO-3 hides more of what it moves.
    Left out are the first gather and the last reduce-scatter, which nothing hides and which raise the crossover,
    and latency and the ends of the model, which lower or raise it. A block computes 3 (24 s h^2 + 4 s^2 h) FLOP for a
    sample.
    """
    s, h = setup.tokens, setup.width
    seconds = 3 * setup.depth * (24 * s * h**2 + 4 * s**2 * h) / setup.ranks / setup.flops_per_second
    return zero3_wire_bytes(setup) / (tensor_wire_bytes(setup, 1, strategy) + seconds * bandwidth)


def _ring(setup: Setup) -> float:
    return (setup.ranks - 1) / setup.ranks
