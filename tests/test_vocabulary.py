"""The loss of logits that are spread over a tensor group, held to `torch.nn.functional.cross_entropy`."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pdlab.batch import IGNORED
from pdlab.models.digits import CLASSES
from pdlab.models.exchanges import along
from pdlab.models.spec import Segment
from pdlab.models.spec import Tensor as Spec
from pdlab.models.vocabulary import loss
from pdlab.segments import Frame, run
from pdlab.tape import Tape

N = 12


def spread_loss(logits: Tensor, target: Tensor, tp: int, smoothing: float) -> list[Tensor]:
    """The summed loss as each rank finds it, from its part of the logits [n, classes], filled up with rubbish."""
    size = -(-CLASSES // tp)
    scores, _, total = loss("head", Spec("logits", (size,), 8, along(1), along(1)), tp, 8, smoothing)
    assert isinstance(scores, Segment) and isinstance(total, Segment)
    rubbish = logits.new_full((len(logits), size * tp - CLASSES), 1e6)
    parts = torch.cat([logits, rubbish], 1).split(size, 1)
    sums = [run(Frame(scores, Tape({}), rank), [part, target], {})[0] for rank, part in enumerate(parts)]
    return [run(Frame(total, Tape({}), rank), [torch.cat(sums, 1), target], {})[0] for rank in range(tp)]


LABELS = {
    "ordinary": torch.arange(N) % CLASSES,
    "some ignored": torch.where(torch.arange(N) % 3 == 0, IGNORED, torch.arange(N) % CLASSES),
    "all ignored": torch.full((N,), IGNORED),
    "all on the first rank": torch.zeros(N, dtype=torch.int64),
    "all on the last rank that has any": torch.full((N,), CLASSES - 1),
}


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("spread", [1.0, 1e4])
@pytest.mark.parametrize("labels", LABELS)
def test_loss_and_gradient_equal_torchs(labels: str, spread: float, smoothing: float, tp: int) -> None:
    torch.manual_seed(0)
    target = LABELS[labels]
    logits = (spread * torch.randn(N, CLASSES, dtype=torch.float64)).requires_grad_()
    expected = cross_entropy(logits, target, label_smoothing=smoothing, reduction="sum")
    ours = spread_loss(logits, target, tp, smoothing)
    for each in ours:
        torch.testing.assert_close(each, expected, rtol=1e-12, atol=1e-12)
    assert all(torch.equal(ours[0], each) for each in ours)
    (found,) = torch.autograd.grad(ours[0], logits)
    (gradient,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(found, gradient, rtol=1e-10, atol=1e-12)
