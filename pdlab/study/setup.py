"""What the two strategies share: the transformer, the ranks and how fast they compute."""

from dataclasses import dataclass, fields

from pdlab.costs import Analytic


@dataclass(frozen=True)
class Setup:
    """A transformer and the ranks that it is trained on.

    `itemsize` is bytes of a weight and of an activation, `optimizer_bytes` of optimizer state per weight (8: Adam on
    4-byte weights; 12: Adam and a 4-byte copy of 2-byte ones), `latency` seconds of each collective, `prefetch` the
    gathers of ZeRO-3 that run ahead. How fast the links are is no part of it: that is what is varied.
    """

    width: int
    depth: int
    heads: int
    tokens: int
    itemsize: int
    ranks: int
    flops_per_second: float
    latency: float = 0.0
    optimizer_bytes: int = 8
    prefetch: int = 1

    def __post_init__(self) -> None:
        least = {"ranks": 2, "latency": 0, "optimizer_bytes": 0, "prefetch": 0}
        for field in fields(self):
            value = getattr(self, field.name)
            if not least.get(field.name, 1) <= value < float("inf"):
                raise ValueError(f"{field.name} is {value}; give a number of at least {least.get(field.name, 1)}")

    def __str__(self) -> str:
        blocks = "1 block" if self.depth == 1 else f"{self.depth} blocks"
        return (
            f"transformer of width {self.width:,}, {blocks}, {self.heads} heads, {self.tokens} tokens, "
            f"{self.itemsize} + {self.optimizer_bytes} bytes per weight and its optimizer state"
        )

    def costs(self, bandwidth: float) -> Analytic:
        """Durations with links of `bandwidth` bytes per second."""
        if not 0 < bandwidth < float("inf"):
            raise ValueError(f"a bandwidth of {bandwidth:g} bytes per second; give a number above 0")
        return Analytic(self.flops_per_second, bandwidth, self.latency)


GPT3_BLOCKS = Setup(12288, 4, 96, 512, 2, ranks=8, flops_per_second=4e14, latency=1e-5, optimizer_bytes=12)
"""Four blocks as wide as those of GPT-3 175B (Brown et al. 2020, arXiv:2005.14165, table 2.1) on sequences a quarter as
long, on eight accelerators that reach 400 TFLOP/s each."""

LAB = Setup(192, 1, 8, 64, 4, ranks=4, flops_per_second=4e9, latency=1e-3)
"""Small enough to be run, paced as ranks that would be this slow: the batch decides as it does for a large model. A
width of 16 would not do: with 4.5 h / s = 1.1 samples ZeRO-3 moves less from one sample per rank on."""

LAB_BANDWIDTH = 5e6
"""Bytes per second of the links that the lab's runs are paced by."""
