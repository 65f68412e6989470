"""Models as the simulator sees them: segments with shapes, FLOPs and bytes, without torch."""

from pdlab.models.cnn import cnn
from pdlab.models.experts import experts
from pdlab.models.mlp import mlp
from pdlab.models.model import Model
from pdlab.models.nominal import nominal
from pdlab.models.transformer import transformer

__all__ = ["Model", "cnn", "experts", "mlp", "nominal", "transformer"]
