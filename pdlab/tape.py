"""What a forward leaves for its backward, with the weights and inputs taken out.

Autograd saves tensors, among them views of weights and inputs. If it kept those, freeing a gathered weight would free
nothing, and a backward could never meet another weight version than its forward. So a tape notes for every saved
tensor that lies within an operand which operand and where in it, and the backward op's own operands take its place.
One mechanism serves ZeRO-3's second gather, weight stashing and PipeDream without stashing.

Operands are told apart by where they lie in memory only while an op runs, when all of its operands are alive; what is
kept is the operand's role, never an address.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge, saved_tensors_hooks

Rule = Callable[[Tensor, Tensor], dict[str, Tensor]]
"""From a saved input and an output gradient to weight gradients by role."""


@dataclass(frozen=True)
class View:
    """A saved tensor that lies within an operand: its role, and shape, strides and offset relative to it."""

    role: str
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int

    def within(self, operand: Tensor) -> Tensor:
        return operand.as_strided(self.shape, self.stride, operand.storage_offset() + self.offset)


@dataclass
class Deferred:
    """A weight gradient that `I` has put off: the saved input (or its view), the output gradient, and the rule."""

    rule: Rule
    x: Any
    dy: Tensor


@dataclass
class Tape:
    """One forward of one segment on one microbatch, waiting for its backward.

    `operands` maps roles to tensors: those of the forward while it runs, later those of the backward op. `gradients`
    collects what the backward finds, by role. While `postpone` is set, weight gradients of linears go to `deferred`
    instead.
    """

    operands: dict[str, Tensor]
    roots: tuple[GradientEdge, ...] = ()
    gradients: dict[str, Tensor] = field(default_factory=dict)
    own: list[Tensor] = field(default_factory=list)
    postpone: bool = False
    deferred: list[Deferred] = field(default_factory=list)

    def recording(self) -> saved_tensors_hooks:
        """While this is on, autograd saves through the tape."""
        return saved_tensors_hooks(self.pack, self.unpack)

    def pack(self, saved: Tensor) -> Any:
        kept = self.as_view(saved)
        if kept is saved:
            self.own.append(saved)
        return kept

    def as_view(self, saved: Tensor) -> Any:
        """The tensor as a view of an operand, or itself where it is none."""
        for role, start, length in self.places.get(saved.untyped_storage()._cdata, ()):
            offset = int(saved.storage_offset()) - start
            if 0 <= offset < max(length, 1):
                return View(role, saved.shape, saved.stride(), offset)
        return saved

    @cached_property
    def places(self) -> dict[int, list[tuple[str, int, int]]]:
        """For each storage, the operands in it: role, first element, number of elements."""
        found: dict[int, list[tuple[str, int, int]]] = {}
        for role, operand in self.operands.items():
            place = (role, int(operand.storage_offset()), operand.numel())
            found.setdefault(operand.untyped_storage()._cdata, []).append(place)
        return found

    def bind(self, operands: dict[str, Tensor]) -> None:
        """Put other operands in the place of those so far."""
        self.operands = operands
        self.__dict__.pop("places", None)

    def unpack(self, kept: Any) -> Tensor:
        return kept.within(self.operands[kept.role]) if isinstance(kept, View) else kept

    def enter(self, role: str, tensor: Tensor) -> Tensor:
        """A tensor as the forward uses it; its gradient comes out of the backward under `role`.

        The graph holds no reference to the tensor, unlike to a leaf that requires a gradient.
        """
        if not tensor.is_floating_point():
            return tensor
        anchor = torch.zeros((), requires_grad=True)
        return _Enter.apply(anchor, tensor, self, role)

    def collect(self, role: str, gradient: Tensor) -> None:
        known = self.gradients.get(role)
        self.gradients[role] = gradient if known is None else known + gradient

    def watch(self, outputs: Sequence[Tensor]) -> None:
        """Remember where the backward starts. The graph is held, the outputs are not."""
        self.roots = tuple(get_gradient_edge(t) for t in outputs if t.requires_grad)
        self.bind({})

    def backward(self, output_gradients: Sequence[Tensor], postpone: bool) -> None:
        """Run the backward once; `gradients` has what it finds. `postpone` leaves weight gradients of linears for
        later."""
        self.postpone = postpone
        if self.roots:
            torch.autograd.backward(self.roots, output_gradients)
        self.roots = ()
        self.own.clear()

    def num_bytes(self) -> int:
        """Bytes that are held here and nowhere else: saved tensors, put-off work, finished gradients. A storage
        counts once."""
        waiting = [d.x for d in self.deferred if isinstance(d.x, Tensor)] + [d.dy for d in self.deferred]
        return storage_bytes([*self.own, *waiting, *self.gradients.values()])

    def weight_gradient(self, rule: Rule, x: Any, dy: Tensor) -> None:
        """Find a weight gradient now, or put it off if this backward is for the input only. `x` is what `pack` gave."""
        if self.postpone:
            self.deferred.append(Deferred(rule, x, dy))
        else:
            self._apply(rule, self.unpack(x), dy)

    def _apply(self, rule: Rule, x: Tensor, dy: Tensor) -> None:
        for role, gradient in rule(x, dy).items():
            self.collect(role, gradient)

    def run_deferred(self) -> None:
        """Do what was put off, with the operands bound now."""
        for item in self.deferred:
            self._apply(item.rule, self.unpack(item.x), item.dy)
        self.deferred.clear()


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of distinct storages, each counted by the largest tensor seen in it (tensors must be alive together)."""
    sizes: dict[int, int] = {}
    for t in tensors:
        key = t.untyped_storage()._cdata
        sizes[key] = max(sizes.get(key, 0), t.numel() * t.element_size())
    return sum(sizes.values())


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, tensor: Tensor, tape: Tape, role: str) -> Tensor:
        ctx.tape, ctx.role = tape, role
        ctx.set_materialize_grads(False)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[None, ...]:
        if gradient is not None:
            ctx.tape.collect(ctx.role, gradient)
        return None, None, None, None
