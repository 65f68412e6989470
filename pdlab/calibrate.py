"""Costs from a measurement: how long this machine takes for each kind of op, to predict what it was not measured on.

An op takes from the moment at which the dependency rule allowed it (on its last member) until it has ended: what the
interpreter needs between two ops is part of it. A compute op costs the mean of its kind, stage and segment, for a step
is a sum of ops, and a median would leave out their long tail. A communication costs alpha + S beta, fitted by least
squares over the sizes S that were seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from pdlab.costs import Link, moved_bytes
from pdlab.depend import build
from pdlab.mesh import Axis
from pdlab.ops import COMMUNICATION_KINDS, Kind, Op
from pdlab.program import Facts, Program
from pdlab.trace import Mode, Trace

ComputeKey = tuple[Kind, int, int]
"""Kind, stage, segment."""

WireKey = tuple[Kind, Axis | None]


@dataclass(frozen=True)
class Line:
    """alpha + S beta: seconds, and seconds per byte."""

    alpha: float
    beta: float

    def at(self, size: int) -> float:
        return self.alpha + self.beta * size


@dataclass(frozen=True)
class Calibrated:
    """Costs of one program's ops on one machine. Valid for programs of the same model, stages and microbatch sizes."""

    compute: dict[ComputeKey, float]
    communication: dict[WireKey, Line]
    steps: int
    link: Link = Link.CHANNEL

    def __str__(self) -> str:
        return f"costs measured in {self.steps} steps"

    def seconds(self, op: Op, rank: int, program: Program, facts: Facts) -> float:
        """ValueError for an op whose like was not measured."""
        if op.kind in COMMUNICATION_KINDS:
            line = self.communication.get(_wire(op))
            found = line.at(moved_bytes(op, rank, program, facts)) if line else None
        else:
            found = self.compute.get((op.kind, op.stage, op.segment))
        if found is None:
            raise ValueError(f"no {op} was measured; calibrate on a run that has such an op")
        return found


def calibrate(traces: Sequence[Trace]) -> Calibrated:
    """Fit to measured traces of one or more programs on the same model.

    ValueError for anything but a measurement: held ops measure the model, and with more ranks than cores the
    operating system.
    """
    if not traces:
        raise ValueError("no traces to calibrate on; measure at least one step")
    for trace in traces:
        made = trace.provenance
        if made.mode is not Mode.MEASURED or made.oversubscribed:
            raise ValueError(
                f"a {made.how} trace says nothing about this machine's costs; measure with a core per rank"
            )
    compute: dict[ComputeKey, list[float]] = {}
    messages: dict[WireKey, list[tuple[int, float]]] = {}
    for trace in traces:
        _sort(trace, compute, messages)
    means = {key: fmean(seconds) for key, seconds in compute.items()}
    return Calibrated(means, {key: fit(points) for key, points in messages.items()}, len(traces))


def _sort(
    trace: Trace, compute: dict[ComputeKey, list[float]], messages: dict[WireKey, list[tuple[int, float]]]
) -> None:
    graph = build(trace.program)
    for rows in graph.members:
        op = graph.ops[rows[0]]
        before = [row for member in rows for row in (*graph.waits[member], graph.previous[member]) if row >= 0]
        allowed = max((trace.ends[row] for row in before), default=0.0)
        seconds = max(trace.ends[row] for row in rows) - allowed
        if op.kind in COMMUNICATION_KINDS:
            messages.setdefault(_wire(op), []).append((max(trace.moved[row] for row in rows), seconds))
        else:
            compute.setdefault((op.kind, op.stage, op.segment), []).append(seconds)


def _wire(op: Op) -> WireKey:
    """A message is known by its sending side, a collective also by its group."""
    return Kind.SEND if op.kind is Kind.RECV else op.kind, op.axis


def fit(points: Sequence[tuple[int, float]]) -> Line:
    """Least squares over the mean of each size, with neither alpha nor beta below 0."""
    by_size: dict[int, list[float]] = {}
    for size, seconds in points:
        by_size.setdefault(size, []).append(seconds)
    sizes, times = list(by_size), [fmean(seconds) for seconds in by_size.values()]
    mean_size, mean_time = sum(sizes) / len(sizes), sum(times) / len(times)
    spread = sum((size - mean_size) ** 2 for size in sizes)
    together = sum((size - mean_size) * (time - mean_time) for size, time in zip(sizes, times, strict=True))
    beta = max(0.0, together / spread) if spread else 0.0
    alpha = mean_time - beta * mean_size
    if alpha < 0:
        return Line(0.0, sum(s * t for s, t in zip(sizes, times, strict=True)) / sum(s * s for s in sizes))
    return Line(alpha, beta)
