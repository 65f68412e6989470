"""The oracle: the same training on one process, in plain PyTorch.

A distributed run is right if it ends with the weights that these files end with. So they share nothing with what they
judge: no programs, ops, segments or cuts in autograd, only modules as a textbook has them and the update rules
written as loops. Strategies that are not synchronous SGD are held to their own rule.
"""

from pdlab.reference.half import half_precision_step
from pdlab.reference.networks import Attention, Batch, build, inputs
from pdlab.reference.pipedream import (
    GROUPED,
    RULES,
    StageRule,
    Trajectory,
    pipedream,
    pipedream_2bw,
    pipedream_flush,
    pipedream_naive,
    pipedream_trajectory,
    pipedream_vertical_sync,
    trajectory_of,
)
from pdlab.reference.training import Parameters, gradients, logits, relative_errors, sgd

__all__ = [
    "GROUPED",
    "RULES",
    "Attention",
    "Batch",
    "Parameters",
    "StageRule",
    "Trajectory",
    "build",
    "gradients",
    "half_precision_step",
    "inputs",
    "logits",
    "pipedream",
    "pipedream_2bw",
    "pipedream_flush",
    "pipedream_naive",
    "pipedream_trajectory",
    "pipedream_vertical_sync",
    "relative_errors",
    "sgd",
    "trajectory_of",
]
