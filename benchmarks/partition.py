"""How fast the partitioner is, and how far its prediction is from the simulated program where links are slow."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

from pdlab import models
from pdlab.costs import Link, moved_bytes
from pdlab.ops import PASS_KINDS, Kind, Op
from pdlab.partition import Layer, Links, Partition, Sums, layers_of, pipedream
from pdlab.program import Facts, Program
from pdlab.simulate import simulate
from pdlab.strategies import Plan, build, get

LAYERS, RANKS = 100, 16
SPANS = (60, 120)
"""Minibatches of two programs, whole rounds of up to 5 replicas; between their ends the pipeline is full."""


def partition() -> None:
    """100 layers on 16 ranks; then random small chains, predicted and simulated, over the speed of the links."""
    draw = random.Random(0)
    chain = [_layer(draw, i) for i in range(LAYERS)]
    print(f"partition: {LAYERS} layers on {RANKS} ranks, median of 5")
    for links in (Links(), Links(1e9), Links(1e9, sums=Sums.MESSAGES)):
        seconds = []
        for _ in range(5):
            began = time.perf_counter()
            found = pipedream(chain, RANKS, links)
            seconds.append(time.perf_counter() - began)
        print(f"  {links}: {median(seconds):.2f} s (aim 2), {found.shape}")
    print(
        "  simulated time between two minibatches as a multiple of the predicted one, 20 random chains of 2 to 8 layers"
    )
    for bandwidth in (inf, 1e8, 1e7, 1e6):
        found_ratios = _ratios(bandwidth)
        spread = f"{min(found_ratios):.2f} to {max(found_ratios):.2f}"
        print(f"  {bandwidth:>8g} bytes/s: median {median(found_ratios):.2f}, {spread}")


def _layer(draw: random.Random, i: int) -> Layer:
    return Layer(f"layer{i}", draw.uniform(1e-3, 1e-2), draw.randint(10**4, 10**6), draw.randint(10**3, 10**7))


@dataclass(frozen=True)
class _Timed:
    """A third of a layer's time is its forward; a message takes its bytes over the bandwidth (bytes per second)."""

    seconds_of: Sequence[float]
    bandwidth: float
    link: Link = Link.CHANNEL

    def seconds(self, op: Op, rank: int, program: Program, facts: Facts) -> float:
        if op.kind in PASS_KINDS:
            whole = self.seconds_of[program.model.layer_of[program.stages[op.stage][op.segment]]]
            return whole / 3 if op.kind is Kind.FORWARD else 2 * whole / 3
        return moved_bytes(op, rank, program, facts) / self.bandwidth if op.kind is Kind.SEND else 0.0


def _ratios(bandwidth: float) -> list[float]:
    """Chains in which an activation and the weights of a layer have a megabyte each."""
    draw, ratios = random.Random(1), []
    for _ in range(20):
        times = [draw.uniform(0.1, 2.0) for _ in range(draw.randint(2, 8))]
        layers = layers_of(models.nominal(len(times)), times)
        found = pipedream(layers, draw.randint(2, 5), Links(bandwidth, sums=Sums.MESSAGES))
        ratios.append(_simulated(found, _Timed(times, bandwidth)) / found.seconds)
    return ratios


def _simulated(found: Partition, costs: _Timed) -> float:
    """Seconds between two minibatches of PipeDream's program on this partition."""
    first, second = (
        simulate(
            build(
                get("pipedream"),
                Plan(pp=found.num_ranks, layers=found.layers, replicas=found.replicas, microbatches=minibatches),
                models.nominal(len(found.chain)),
            ),
            costs,
        ).makespan
        for minibatches in SPANS
    )
    return (second - first) / (SPANS[1] - SPANS[0])
