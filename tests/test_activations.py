"""What autograd keeps of a transformer layer, counted tensor by tensor, against the published closed forms.

Korthikanti et al. 2022 (arXiv:2205.05198) give s b h (34 + 5 a s / h) bytes for 2-byte elements (equation 1),
s b h (10 + 24 / t + 5 a s / (h t)) with tensor parallelism (2), s b h / t (34 + 5 a s / h) with sequence parallelism
too (4). Of these, one byte an element are dropout's masks; with e bytes for the others they become what `published`
says.
"""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from pdlab import models
from pdlab.compare import digits_batch
from pdlab.execute.local import run_local
from pdlab.models import Model
from pdlab.models.spec import Exchange, Segment
from pdlab.models.split import Split
from pdlab.ops import Kind
from pdlab.program import Role
from pdlab.segments import Frame, run
from pdlab.state import FLOAT
from pdlab.strategies import Plan, build, get
from pdlab.tape import Tape

S, B = 64, 3


def published(h: int, a: int, e: int, t: int, split: str, dropout: bool) -> float:
    """Bytes that a rank keeps of a layer."""
    masks, scores = int(dropout), e * (2 if dropout else 1) + int(dropout)
    inside = (12 * e + scores * a * S / h) / t
    between = 4 * e + 2 * masks
    return S * B * h * (inside + (between / t if split == "sequence" else between))


def test_the_forms_are_the_published_ones() -> None:
    h, a = 4096, 32
    for t in (1, 8):
        assert published(h, a, 2, t, "tensor", True) == pytest.approx(S * B * h * (10 + 24 / t + 5 * a * S / (h * t)))
        assert published(h, a, 2, t, "sequence", True) == pytest.approx(S * B * h / t * (34 + 5 * a * S / h))
    for e in (2, 4):
        whole = e * S * B * h * (16 + 2 * a * S / h) + S * B * h * (2 + a * S / h)
        assert published(h, a, e, 1, "tensor", True) == pytest.approx(whole)
        assert published(h, a, e, 1, "tensor", False) == pytest.approx(e * S * B * h * (16 + a * S / h))


CASES = [(t, split) for t in (1, 2, 4, 8) for split in ("tensor", "sequence")]


@pytest.mark.parametrize("e", [2, 4, 8])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(("t", "split"), CASES)
def test_saved_tensors_of_a_layer(t: int, split: str, dropout: float, e: int) -> None:
    h, a = 128, 8
    model = models.transformer(width=h, depth=1, heads=a, itemsize=e, tp=t, split=split, dropout=dropout)
    assert kept_by_autograd(model) == pytest.approx(published(h, a, e, t, split, bool(dropout)), rel=0.02)


def kept_by_autograd(model: Model) -> int:
    """Bytes of the distinct storages that one rank's layer saves, weights apart, in plain autograd without a tape that
    packs. Where a whole was gathered from shards, the shard is what stays."""
    torch.manual_seed(0)
    saved: dict[int, int] = {}
    apart: set[int] = set()
    keep: list[Tensor] = []
    items = [item for layer in model.layers[1:3] for item in layer]
    values: dict[str, Tensor] = {"keys": torch.randint(2**62, (B,))}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        keep.append(x)
        saved[storage._cdata] = storage.nbytes()
        return x

    class Watched(Tape):
        """Linears hand what they keep to their tape."""

        def pack(self, saved: Tensor) -> Tensor:
            return pack(saved)

    with saved_tensors_hooks(pack, lambda x: x):
        for item in items:
            if isinstance(item, Exchange):
                values[item.result.name] = _exchanged(item, values[item.payload.name], saved, apart, keep)
                continue
            inputs = [_given(values, t.name, t.shape, model.itemsize) for t in item.inputs]
            outputs = run(Frame(item, Watched({}), 0), inputs, _weights(item, apart, keep))
            values |= {t.name: y for t, y in zip(item.outputs, outputs, strict=True)}
    return sum(size for storage, size in saved.items() if storage not in apart)


def _given(values: dict[str, Tensor], name: str, shape: Sequence[int], itemsize: int) -> Tensor:
    if name not in values:
        values[name] = torch.randn(B, *shape, dtype=FLOAT[itemsize], requires_grad=True)
    return values[name]


def _weights(segment: Segment, apart: set[int], keep: list[Tensor]) -> dict[str, Tensor]:
    found = {}
    for group in segment.groups:
        for param in group.params:
            weight = torch.randn(group.local_shape(param), dtype=FLOAT[group.itemsize], requires_grad=True)
            keep.append(weight)
            apart.add(weight.untyped_storage()._cdata)
            found[param.name] = weight
    return found


def _exchanged(item: Exchange, x: Tensor, saved: dict[int, int], apart: set[int], keep: list[Tensor]) -> Tensor:
    """The shapes of what the collective would make, on one rank alone."""
    if item.forward is Kind.ALL_GATHER:
        whole = torch.cat([x] * (item.result.shape[0] // item.payload.shape[0]), 1)
        keep.append(whole)
        apart.add(whole.untyped_storage()._cdata)
        saved[x.untyped_storage()._cdata] = x.untyped_storage().nbytes()
        return whole
    if item.forward is Kind.REDUCE_SCATTER:
        return x[:, : item.result.shape[0]].clone()
    return x.clone() if item.forward is Kind.ALL_REDUCE else x


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(("t", "split"), CASES)
def test_a_run_holds_as_much(t: int, split: str, dropout: float) -> None:
    """What the stores of a real run hold more for a second layer, when the forward has ended."""
    h, a, e = 128, 8, 4
    held = []
    for depth in (1, 2):
        model = models.transformer(width=h, depth=depth, heads=a, itemsize=e, tp=t, split=split, dropout=dropout)
        program = build(get(split), Plan(tp=t, batch=B, split=Split(split)), model)
        trace = run_local([program], digits_batch(B)).trace
        ops = program.ranks[0].ops
        last = max(i for i, op in enumerate(ops) if op.kind is Kind.FORWARD)
        weights = sum(
            int(str(x.size)) for v, x in program.ranks[0].types.items() if x.role is Role.WEIGHT and v.endswith("@0")
        )
        held.append(trace.live[last] - weights)
    assert held[1] - held[0] == pytest.approx(published(h, a, e, t, split, bool(dropout)), rel=0.02)
