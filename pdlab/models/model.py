"""A whole model: a chain of layers, cut into stages, and what follows from the chain alone."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod

from pdlab.models.spec import Exchange, Group, Item, Segment, Tensor
from pdlab.models.split import Split
from pdlab.named import colons


@dataclass(frozen=True)
class Model:
    """A chain of layers with the tensors it is fed. `itemsize` is the size of one weight in bytes.

    `recipe` is the function of `pdlab.models` that makes it and the arguments it was given: a model travels as its
    recipe. `split` says what of its layers `tp` ranks share (None: nothing). `repeated` are the layers that make up one
    block of the model (attention and feed-forward); where nothing is said, each layer is one.
    """

    recipe: tuple[str, tuple[tuple[str, float | str], ...]]
    layers: tuple[tuple[Item, ...], ...]
    feeds: tuple[Tensor, ...]
    itemsize: int
    loss: str = "loss"
    repeated: tuple[tuple[int, ...], ...] = ()
    tp: int = 1
    split: Split | None = None

    @cached_property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """Layers that are recomputed together."""
        return self.repeated or tuple((i,) for i in range(len(self.layers)))

    @cached_property
    def name(self) -> str:
        maker, arguments = self.recipe
        return f"{maker}({', '.join(f'{key}={value}' for key, value in arguments)})"

    @property
    def code(self) -> str:
        """The import path of the user's modules that the model is made of; empty for the models of the lab."""
        return next(iter(self.segments.values())).code

    @cached_property
    def segments(self) -> dict[str, Segment]:
        return {item.name: item for layer in self.layers for item in layer if isinstance(item, Segment)}

    @cached_property
    def groups(self) -> dict[str, Group]:
        return {group.name: group for segment in self.segments.values() for group in segment.groups}

    @cached_property
    def segment_of_group(self) -> dict[str, Segment]:
        """The segment that gives the parameters of a group their names: the first of those that use it."""
        found: dict[str, Segment] = {}
        for segment in self.segments.values():
            for group in segment.groups:
                found.setdefault(group.name, segment)
        return found

    @cached_property
    def users(self) -> dict[str, list[str]]:
        """For each group of weights the segments that use it; several where weights are tied."""
        found: dict[str, list[str]] = {}
        for name, segment in self.segments.items():
            for group in segment.groups:
                found.setdefault(group.name, []).append(name)
        return found

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor between segments, by name."""
        found: dict[str, Tensor] = {}
        for layer in self.layers:
            for item in layer:
                ends = (*item.inputs, *item.outputs) if isinstance(item, Segment) else (item.payload, item.result)
                found |= {t.name: t for t in ends}
        return found

    @cached_property
    def exchanges(self) -> tuple[Exchange, ...]:
        return tuple(item for layer in self.layers for item in layer if isinstance(item, Exchange))

    @cached_property
    def made_in(self) -> dict[str, int]:
        """The layer that makes each tensor, by a segment or by an exchange."""
        return {
            t.name: i
            for i, layer in enumerate(self.layers)
            for item in layer
            for t in (item.outputs if isinstance(item, Segment) else (item.result,))
        }

    @cached_property
    def takers(self) -> dict[str, list[str]]:
        """For each tensor with a gradient the items that find a term of it, in the order of the model."""
        found: dict[str, list[str]] = {}
        for item in (item for layer in self.layers for item in layer):
            taken = item.graded_inputs if isinstance(item, Segment) else (item.payload,)
            for t in taken:
                found.setdefault(t.name, []).append(item.name)
        return found

    def same_value(self, backward: bool) -> dict[str, str]:
        """Where an exchange moves nothing, its two tensors are one value, called like the one that was made first."""
        return self._backward_names if backward else self._forward_names

    @cached_property
    def _forward_names(self) -> dict[str, str]:
        names = {name: name for name in self.tensors}
        for item in self.exchanges:
            if item.forward is None:
                names[item.result.name] = names[item.payload.name]
        return names

    @cached_property
    def _backward_names(self) -> dict[str, str]:
        names = {name: name for name in self.tensors}
        for item in reversed(self.exchanges):
            if item.backward is None:
                names[item.payload.name] = names[item.result.name]
        return names

    @cached_property
    def layer_of(self) -> dict[str, int]:
        """The layer of each segment."""
        return {item.name: i for i, layer in enumerate(self.layers) for item in layer if isinstance(item, Segment)}

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model, however it is sharded."""
        return sum(prod(param.shape) for group in self.groups.values() for param in group.params)

    def stages(self, num_stages: int, layers: tuple[int, ...] | None = None) -> tuple[tuple[Item, ...], ...]:
        """Cut the layers into contiguous stages: of as many layers each as `layers` says, or of as equal a number as
        possible, the longer ones first."""
        counts = self._equal_stages(num_stages) if layers is None else self._given_stages(num_stages, layers)
        ends = list(accumulate(counts))
        return tuple(
            tuple(item for layer in self.layers[end - count : end] for item in layer)
            for end, count in zip(ends, counts, strict=True)
        )

    def _given_stages(self, num_stages: int, layers: tuple[int, ...]) -> tuple[int, ...]:
        if len(layers) != num_stages or sum(layers) != len(self.layers):
            raise ValueError(
                f"stages of {colons(layers)} layers for {num_stages} stages of model {self.name}, which "
                f"has {len(self.layers)} layers; give a number for each stage, {len(self.layers)} together"
            )
        return layers

    def _equal_stages(self, num_stages: int) -> tuple[int, ...]:
        if num_stages > len(self.layers):
            raise ValueError(
                f"{num_stages} stages are more than the {len(self.layers)} layers of model {self.name}; "
                f"use at most {len(self.layers)} stages or a model of more layers"
            )
        each, extra = divmod(len(self.layers), num_stages)
        return tuple(each + (s < extra) for s in range(num_stages))
