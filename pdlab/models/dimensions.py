"""The sizes of a transformer and how it is split: what all of its segments are made from."""

from dataclasses import dataclass

from pdlab.mesh import Layout
from pdlab.models.digits import KEYS, LENGTHS
from pdlab.models.exchanges import WHOLE, along
from pdlab.models.spec import Kept, Tensor
from pdlab.models.split import Split, check_degree, check_divides

GROWTH = 4
"""How many times wider a feed-forward layer is inside."""

STATISTICS = 2
"""Numbers that a norm keeps of each token: its mean and the inverse of its spread."""


@dataclass(frozen=True)
class Dimensions:
    """`tokens` s, `width` h, `heads` a, `itemsize` e bytes, `tp` t ranks in the tensor group.

    `tied` is 1 if the classifier's matrix is that of the tokens, `masked` if samples have lengths of their own.
    """

    tokens: int
    width: int
    heads: int
    itemsize: int
    tp: int
    split: Split
    dropout: float
    smoothing: float
    tied: int = 0
    masked: int = 0

    def __post_init__(self) -> None:
        for name in ("tokens", "width", "heads", "itemsize", "tp", "tied", "masked"):
            if type(getattr(self, name)) is not int:
                raise ValueError(f"{name} is {getattr(self, name)!r}; give a whole number")
        if self.itemsize not in (2, 4, 8):
            raise ValueError(f"itemsize {self.itemsize}; numbers have 2, 4 or 8 bytes")
        if min(self.width, self.heads, self.tokens) < 1:
            raise ValueError(f"width {self.width}, heads {self.heads}, tokens {self.tokens}; each is at least 1")
        if not (0 <= self.dropout < 1 and 0 <= self.smoothing < 1):
            raise ValueError(f"dropout {self.dropout}, smoothing {self.smoothing}; each is at least 0 and below 1")
        check_degree(self.tp)
        if self.width % self.heads or self.heads % self.tp:
            raise ValueError(
                f"width {self.width}, {self.heads} heads, tp {self.tp}: the heads must divide the width, and tp must "
                "divide the heads"
            )
        if self.split not in (Split.TENSOR, Split.SEQUENCE):
            raise ValueError(f"a transformer has no split {self.split.value!r}; use tensor or sequence, or an mlp")
        if self.sharded:
            check_divides("tokens", self.tokens, self.tp)
        self._check_variants()

    def _check_variants(self) -> None:
        for name, what in (("tied", "a matrix that two layers share"), ("masked", "samples of different lengths")):
            if getattr(self, name) not in (0, 1):
                raise ValueError(f"{name} is {getattr(self, name)}; give 0 or 1")
            if getattr(self, name) and self.tp > 1:
                raise ValueError(f"{name} with tp {self.tp}: {what} cannot be split over a tensor group; take tp 1")

    @property
    def sharded(self) -> bool:
        """Whether each rank has only its own tokens between the blocks."""
        return self.split is Split.SEQUENCE and self.tp > 1

    @property
    def own_tokens(self) -> int:
        """The tokens that a rank has between the blocks."""
        return self.tokens // self.tp if self.sharded else self.tokens

    @property
    def stream(self) -> Layout:
        """How the hidden state lies on the ranks between the blocks."""
        return along(1) if self.sharded else WHOLE

    @property
    def place(self) -> Layout:
        """How the positions lie on the ranks: like the tokens that they belong to."""
        return along(0) if self.sharded else WHOLE

    def hidden(self, name: str, layout: Layout | None = None, grad: Layout | None = None) -> Tensor:
        """A hidden state in a layout (default: that between the blocks); its gradient has the same one if not said
        otherwise."""
        layout = self.stream if layout is None else layout
        tokens = self.own_tokens if layout == along(1) else self.tokens
        return Tensor(name, (tokens, self.width), self.itemsize, layout, layout if grad is None else grad)

    def drop(self) -> tuple[Tensor, ...]:
        """The input that dropout needs."""
        return (KEYS,) if self.dropout else ()

    def lengths(self) -> tuple[Tensor, ...]:
        """The input that says which tokens are a sample's own."""
        return (LENGTHS,) if self.masked else ()

    @property
    def rates(self) -> tuple[tuple[str, float], ...]:
        return (("dropout", self.dropout),) if self.dropout else ()

    def attention_kept(self) -> Kept:
        """What attention holds of one sample besides its input: q, k, v, the context, the probabilities of this rank's
        heads; with dropout their masks, of one byte each, and the probabilities that are left."""
        s, e = self.tokens, self.itemsize
        scores = self.heads // self.tp * s * s
        dropped = (e + 1) * scores if self.dropout else 0
        return Kept(e * (4 * s * self.width // self.tp + scores) + dropped)

    def mask(self, tokens: int) -> int:
        """Bytes that dropout of a hidden state holds of one sample."""
        return tokens * self.width if self.dropout else 0
