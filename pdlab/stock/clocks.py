"""The clocks of a step that torchgpipe hands out: how a stock pipeline on one CPU is paced.

A pass that a GPU is handed begins when the GPU has done what it was handed before and what the pass needs has arrived,
but not before it is handed out. So does one here, on the clock of its stage; what it computes is there at once.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pdlab.costs import Costs
from pdlab.ops import Kind
from pdlab.program import Program
from pdlab.state import microbatch_of

Durations = dict[tuple[Any, ...], float]
"""Seconds of the passes of a stage on a microbatch (kind, stage, microbatch), of messages (SEND, from, to, microbatch)
and of steps (STEP, stage, -1)."""


def durations(program: Program, costs: Costs) -> Durations:
    """What a pipeline of one stage on each rank takes, the segments of a stage together. A stage without weights has no
    step, and one with nothing to train before it sends no gradients."""
    found: Durations = defaultdict(float)
    for stage, rank in enumerate(program.ranks):
        for op in rank.ops:
            if op.kind is Kind.SEND:
                found[op.kind, stage, op.peer, microbatch_of(op.inputs[0])] += costs.seconds(op, stage, program, {})
            elif op.kind is not Kind.RECV:
                found[op.kind, stage, op.microbatch] += costs.seconds(op, stage, program, {})
    return dict(found)


class Clocks:
    """When each stage will be done with what it was handed so far.

    torchgpipe says of no pass which microbatch it is on. Forwards come in the order of the microbatches; a forward that
    is run again has the input of the first, which is kept until then and so recognised by its memory. `now` is the time
    at which something is handed out.
    """

    def __init__(self, num_stages: int, durations: Durations, now: Callable[[], float] = time.perf_counter) -> None:
        self.num_stages, self.durations, self.now = num_stages, durations, now
        self.start()

    def start(self) -> None:
        self.busy = 0.0
        self.free = [self.now()] * self.num_stages
        self.inputs: list[list[int]] = [[] for _ in range(self.num_stages)]
        self.arrived: dict[tuple[int, int, int], float] = {}
        self.wire: dict[tuple[int, int], float] = {}

    def forward(self, stage: int, _: nn.Module, given: tuple[Tensor], output: Tensor) -> Tensor:
        """The hook after a forward of a stage."""
        from torchgpipe import is_recomputing

        memory, known = given[0].data_ptr(), self.inputs[stage]
        if is_recomputing():
            microbatch = known.index(memory)
            self._run(Kind.RECOMPUTE, stage, microbatch)
        else:
            microbatch = len(known)
            known.append(memory)
            self._run(Kind.FORWARD, stage, microbatch, after=stage - 1, to=stage + 1)
        held: Tensor = _Held.apply(output, self, stage, microbatch)
        return held

    def backward(self, stage: int, microbatch: int) -> None:
        self._run(Kind.BACKWARD, stage, microbatch, after=stage + 1, to=stage - 1)

    def _run(self, kind: Kind, stage: int, microbatch: int, after: int | None = None, to: int = -1) -> None:
        """Hand a pass to a stage: it begins when that is free and what came from `after` is there, then sends."""
        there = self.arrived.get((after, stage, microbatch), 0.0) if after is not None else 0.0
        seconds = self.durations[kind, stage, microbatch]
        end = self.free[stage] = max(self.now(), self.free[stage], there) + seconds
        self.busy += seconds
        if 0 <= to < self.num_stages:
            seconds = self.durations.get((Kind.SEND, stage, to, microbatch), 0.0)
            sent = max(end, self.wire.get((stage, to), 0.0)) + seconds
            self.arrived[stage, to, microbatch] = self.wire[stage, to] = sent

    def finish(self) -> float:
        """Hand out the optimizer's steps; when the slowest stage is done."""
        for stage in range(self.num_stages):
            if (Kind.STEP, stage, -1) in self.durations:
                self._run(Kind.STEP, stage, -1)
        return max(self.free)


class _Held(torch.autograd.Function):
    """Leaves numbers alone and tells the clocks when a backward reaches the end of a stage."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, clocks: Clocks, stage: int, microbatch: int) -> Tensor:
        ctx.at = clocks, stage, microbatch
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        clocks, stage, microbatch = ctx.at
        clocks.backward(stage, microbatch)
        return gradients[0], None, None, None
