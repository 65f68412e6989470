"""Torch's own wrappers on the same data: a second oracle, found by somebody else."""

import pytest

from pdlab import models
from pdlab.launch import Ranks
from pdlab.models import Model
from pdlab.stock.tensor import arguments_of

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("model", "split"),
    [
        (models.mlp(width=16, depth=4), "tensor"),
        (models.mlp(width=16, depth=5), "tensor"),
        (models.transformer(width=16, depth=2, heads=8), "tensor"),
        (models.transformer(width=16, depth=2, heads=8), "sequence"),
    ],
)
def test_torchs_tensor_parallelism_agrees_with_the_reference(model: Model, split: str, pool: Ranks) -> None:
    answers = pool.call("pdlab.stock.tensor:step", split=split, batch=6, steps=1, **arguments_of(model))
    assert len(answers) == 4
    assert all(answer["grad_max_rel_error"] < 1e-9 and answer["seconds"] > 0 for answer in answers)
