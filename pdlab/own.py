"""A model of your own: from a list of modules to the numbers that a prediction needs, by trying it.

    # my_model.py
    def layers():
        return [nn.Linear(64, 32), nn.Sequential(nn.Tanh(), nn.Linear(32, 32)), nn.Linear(32, 10)]

`model("my_model:layers")` runs each module on a few samples and sees its shapes, what it keeps for the backward and how
much it computes. The first module is given pixels [n, 64] between 0 and 1, or, if it is an embedding, whole numbers
from 0 to 16; the last one answers with logits [n, 10]. Weights are drawn from the seed and their names, as for every
model here, so whatever the modules were initialised with does not matter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import getsourcefile, getsourcelines
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parameter import UninitializedParameter
from torch.utils.flop_counter import FlopCounterMode

from pdlab import segments
from pdlab.forms.recipe import MAKERS as KNOWN
from pdlab.importing import blame, locate
from pdlab.importing import stamp as stamp_of
from pdlab.mesh import REPLICATED
from pdlab.models.digits import CLASSES, PIXELS, loss_tensor
from pdlab.models.model import Model
from pdlab.models.spec import Block, Feed, Flops, Group, Kept, Param, Segment
from pdlab.models.spec import Tensor as Spec
from pdlab.modules import listed, loaded
from pdlab.state import FLOAT
from pdlab.tape import Tape, View

TRIED = (2, 3)
"""Rows of the two trials from which bytes per row and fixed bytes follow."""


def model(path: str, *, itemsize: int = 4, stamp: int | None = None) -> Model:
    """The model of the modules that `package.module:name` lists. ValueError names the file and line at fault."""
    now = stamp_of(path) if stamp is None else stamp
    modules = listed(path)
    _check_separate(path, modules)
    if not any(True for module in modules for _ in module.parameters()):
        raise ValueError(f"{_place(path)}: the modules have no parameters, so there is nothing to train")
    feeds = (_feed(modules[0], itemsize), Spec("target", (), 8, grad=None, feed=Feed.LABELS))
    layers, x = [], feeds[0]
    for i, module in enumerate(modules):
        segment = _Trial(path, now, i, module, x, feeds[1] if i == len(modules) - 1 else None, itemsize).segment()
        layers.append((segment,))
        x = segment.outputs[0]
    recipe = ("modules", (("path", path), ("itemsize", itemsize), ("stamp", now)))
    return Model(recipe, tuple(layers), feeds, itemsize)


MAKERS: dict[str, Callable[..., Model]] = {**KNOWN, "modules": model}
"""The makers that a rank may follow: its programs come from whoever started it, who may name code."""


def _feed(first: nn.Module, itemsize: int) -> Spec:
    if isinstance(first, nn.Embedding):
        return Spec("x", (PIXELS,), 8, grad=None, feed=Feed.TOKENS)
    return Spec("x", (PIXELS,), itemsize, grad=None, feed=Feed.SCALED_PIXELS)


def _check_separate(path: str, modules: Sequence[nn.Module]) -> None:
    """Layers live on different ranks, so none may hold another's weights."""
    owner: dict[int, int] = {}
    for i, module in enumerate(modules):
        for name, parameter in module.named_parameters():
            if owner.setdefault(id(parameter), i) != i:
                raise ValueError(
                    f"{_place(path)}: entries {owner[id(parameter)]} and {i} share the parameter {name!r}; "
                    "give each its own"
                )


def _place(path: str) -> str:
    """The file and line of what an import path names, as well as they can be told."""
    found = locate(path)
    try:
        return f"{getsourcefile(found)}, line {getsourcelines(found)[1]}"
    except (TypeError, OSError):
        name = path.partition(":")[2]
        file = Path(locate(f"{path.partition(':')[0]}:__file__"))
        lines = [n for n, line in enumerate(file.read_text().splitlines(), 1) if line.startswith(name)]
        return f"{file}, line {lines[-1]}" if lines else str(file)


@dataclass(frozen=True)
class _Trial:
    """One module of a path, tried on what the one before it gives. `target` is there for the last one."""

    path: str
    stamp: int
    index: int
    module: nn.Module
    x: Spec
    target: Spec | None
    itemsize: int

    @property
    def who(self) -> str:
        return f"{_place(self.path)}: entry {self.index} ({type(self.module).__name__})"

    def segment(self) -> Segment:
        """The module's specification."""
        self._check_parameters()
        draft = self._draft(self._output())
        try:
            few, more = (try_out(draft, rows) for rows in TRIED)
        except Exception as error:
            remedy = "a layer works out of place and lets gradients through"
            raise ValueError(f"{self.who} has no backward here: {blame(error)}; {remedy}") from None
        return replace(
            draft,
            keeps=tuple(t.name for t in draft.inputs if t.name in few.kept_inputs),
            saved=_line(few.saved, more.saved),
            pending=_line(few.pending, more.pending),
            flops=few.flops,
        )

    def _draft(self, out: Spec) -> Segment:
        name = f"layer{self.index}"
        params = tuple(Param(key, tuple(p.shape)) for key, p in self.module.named_parameters())
        options = (("index", self.index), ("loss", int(self.target is not None)), ("stamp", self.stamp))
        return Segment(
            name=name,
            block=Block.MODULE,
            inputs=(self.x, self.target) if self.target else (self.x,),
            outputs=(out,),
            groups=(Group(f"{name}.w", params, self.itemsize),) if params else (),
            options=options,
            code=self.path,
        )

    def _check_parameters(self) -> None:
        for name, p in self.module.named_parameters():
            if isinstance(p, UninitializedParameter) or p.is_meta or not p.numel() or not p.is_floating_point():
                raise ValueError(f"{self.who}: parameter {name!r} is no array of real numbers; give it values")
            if not p.requires_grad:
                raise ValueError(f"{self.who}: parameter {name!r} is frozen, which cannot be had here; let it train")

    def _output(self) -> Spec:
        """What the module gives, after a look at how it behaves."""
        few, again, more = (self._run(rows) for rows in (TRIED[0], *TRIED))
        if not all(bool(torch.isfinite(y).all()) for y in (few, again, more)):
            raise ValueError(f"{self.who} answers ordinary input with numbers that are not finite")
        if not torch.equal(few, again):
            raise ValueError(f"{self.who} answers differently to the same input; take out dropout (p = 0)")
        if not few.dim() or len(few) != TRIED[0] or len(more) != TRIED[1] or few.shape[1:] != more.shape[1:]:
            raise ValueError(f"{self.who} makes {list(more.shape)} of {TRIED[1]} samples; keep the samples first")
        if self.target is not None:
            if more.shape[1:] != (CLASSES,):
                raise ValueError(f"{self.who} is the last and makes {list(more.shape)}; end with [n, {CLASSES}] logits")
            return loss_tensor(self.itemsize)
        flows = self.x.grad is not None or any(True for _ in self.module.parameters())
        return Spec(f"h{self.index + 1}", tuple(few.shape[1:]), self.itemsize, grad=REPLICATED if flows else None)

    def _run(self, rows: int) -> Tensor:
        module = loaded(self.path, self.stamp, FLOAT[self.itemsize])[self.index]
        buffers = {name: t.clone() for name, t in module.named_buffers()}
        try:
            with torch.no_grad():
                y = module(sample(self.x, rows))
        except (Exception, SystemExit) as error:
            came = f"what entry {self.index - 1} gives" if self.index else "the pixels"
            raise ValueError(f"{self.who} does not take {came}, [n, {_list(self.x.shape)}]: {blame(error)}") from None
        if not isinstance(y, Tensor):
            raise ValueError(f"{self.who} gives a {type(y).__name__}; a layer gives one tensor")
        for name, t in module.named_buffers():
            if not torch.equal(t, buffers[name]):
                raise ValueError(
                    f"{self.who} changes its buffer {name!r} while it runs, which no schedule could repeat; "
                    "for BatchNorm say track_running_stats=False"
                )
        return y


def _list(shape: Sequence[int]) -> str:
    return ", ".join(map(str, shape))


@dataclass(frozen=True)
class Seen:
    """What a trial of a segment shows: the inputs kept for the backward, bytes after F and after I, FLOP of each op."""

    kept_inputs: frozenset[str]
    saved: int
    pending: int
    flops: Flops


def try_out(segment: Segment, rows: int) -> Seen:
    """Run F, I and W of a segment once, as a rank would, and look at the tape."""
    dtype = FLOAT[segment.groups[0].itemsize if segment.groups else segment.inputs[0].itemsize]
    inputs = {f"input {t.name}": sample(t, rows) for t in segment.inputs}
    weights = {p.name: torch.full(p.shape, 0.1, dtype=dtype) for group in segment.groups for p in group.params}
    tape, kept = Tape({**inputs, **weights}), set[str]()

    def pack(t: Tensor) -> object:
        found = tape.pack(t)
        kept.update([found.role] if isinstance(found, View) else [])
        return found

    with FlopCounterMode(display=False) as forward, torch.enable_grad(), saved_tensors_hooks(pack, tape.unpack):
        graded = {f"input {t.name}" for t in segment.inputs if t.grad is not None}
        entered = [tape.enter(role, t) if role in graded else t for role, t in inputs.items()]
        (y,) = segments.run(
            segments.Frame(segment, tape), entered, {name: tape.enter(name, t) for name, t in weights.items()}
        )
    if y.requires_grad:
        tape.watch([y])
    saved = tape.num_bytes()
    tape.bind({**inputs, **weights})
    with FlopCounterMode(display=False) as backward_input:
        tape.backward([torch.ones_like(y)], postpone=True)
    if (weights and not y.requires_grad) or not graded <= set(tape.gradients):
        raise ValueError("no gradient comes out of it")
    kept.update(d.x.role for d in tape.deferred if isinstance(d.x, View))
    pending = tape.num_bytes() - sum(_size(tape.gradients.get(role)) for role in graded)
    with FlopCounterMode(display=False) as backward_weight:
        tape.run_deferred()
    counted = (counter.get_total_flops() // rows for counter in (forward, backward_input, backward_weight))
    names = frozenset(role.removeprefix("input ") for role in kept if role.startswith("input "))
    return Seen(names, saved, pending, Flops(*counted))


def sample(t: Spec, rows: int) -> Tensor:
    """Made-up values for a tensor of a segment."""
    generator = torch.Generator().manual_seed(0)
    if t.feed in (Feed.TOKENS, Feed.LABELS):
        return torch.randint(CLASSES, (rows, *t.shape), generator=generator)
    return torch.rand((rows, *t.shape), generator=generator, dtype=torch.float64).to(FLOAT[t.itemsize])


def _size(t: Tensor | None) -> int:
    return 0 if t is None else t.numel() * t.element_size()


def _line(few: int, more: int) -> Kept:
    """Bytes per row and fixed bytes from those of the two trials."""
    per_row = (more - few) // (TRIED[1] - TRIED[0])
    return Kept(per_row, few - TRIED[0] * per_row)
