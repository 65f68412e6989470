"""Every term of an activation's gradient exactly once: where several segments take a tensor, its gradient is their sum.

A term and the sum have one type, so a residual whose gradient lacks the norm's share trains, and is wrong.
"""

from pdlab.depend import Graph
from pdlab.ops import COLLECTIVE_KINDS, P2P_KINDS, PASS_KINDS, Kind, Op, Value, payload
from pdlab.program import Role
from pdlab.signature import operands
from pdlab.validate.faults import fault, types_of

Terms = frozenset[str]
"""The items of the model that found a gradient, or the terms of it."""


def check_terms(graph: Graph, events: list[int]) -> None:
    """In the order of `events`, after the layouts are known to be right."""
    found = _Terms(graph)
    for event in events:
        rows = graph.members[event]
        kind = graph.ops[rows[0]].kind
        if kind in PASS_KINDS:
            found.run(rows[0])
        elif kind is Kind.ADD:
            found.add(rows[0])
        elif kind in P2P_KINDS:
            found.hand_on(rows)
        elif kind in COLLECTIVE_KINDS or kind is Kind.SPLIT:
            for row in rows:
                found.exchange(row)


class _Terms:
    """For each rank the terms that its gradients are made of; what it began with is not in it and is not checked."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.model = graph.program.model
        self.held: list[dict[Value, Terms]] = [{} for _ in graph.program.ranks]

    def run(self, row: int) -> None:
        op = self.graph.ops[row]
        segment = self.model.segments[self.graph.program.stages[op.stage][op.segment]]
        found = operands(op, segment)
        for value, t in zip(found.output_gradients, segment.graded_outputs, strict=False):
            self._complete(row, value, t.name)
        for value in found.input_gradients:
            self._held(row)[value] = frozenset({segment.name})

    def add(self, row: int) -> None:
        op, held = self.graph.ops[row], self._held(row)
        first, second = payload(op.inputs)
        if not {first, second} <= set(held):
            return
        if twice := held[first] & held[second]:
            text = f"adds what {sorted(twice)[0]} has found to {first!r} a second time"
            raise fault(self.graph, row, f"{text}; add each term once")
        held[payload(op.writes)[0]] = held[first] | held[second]

    def hand_on(self, rows: tuple[int, ...]) -> None:
        send, recv = sorted(rows, key=lambda row: self.graph.ops[row].kind is Kind.RECV)
        value = self.graph.ops[send].inputs[0]
        if value in self._held(send):
            self._held(recv)[value] = self._held(send)[value]

    def exchange(self, row: int) -> None:
        op = self.graph.ops[row]
        if self._is_gradient(row, op):
            self._complete(row, op.inputs[0], types_of(self.graph, row)[op.inputs[0]].of)
            self._held(row)[op.writes[0]] = frozenset({str(op)})

    def _is_gradient(self, row: int, op: Op) -> bool:
        return types_of(self.graph, row)[op.inputs[0]].role is Role.ACTIVATION_GRADIENT

    def _held(self, row: int) -> dict[Value, Terms]:
        return self.held[self.graph.rank_of[row]]

    def _complete(self, row: int, value: Value, tensor: str) -> None:
        takers, found = frozenset(self.model.takers.get(tensor, ())), self._held(row).get(value)
        if len(takers) > 1 and found is not None and (missing := takers - found):
            text = f"is given {value!r}, a gradient that lacks what {sorted(missing)[0]} finds for {tensor}"
            raise fault(self.graph, row, f"{text}; add the terms first")
