"""PipeDream and its variants on one process: written from the rules of the papers, one minibatch after the other.

`rules` says in whole numbers which version of its weights each stage meets, `engine` trains by such a table, `variants`
brings in the models. Nothing here knows of programs, so a program that ends with these weights has followed its rule.
"""

from pdlab.reference.pipedream.engine import Trajectory
from pdlab.reference.pipedream.rules import StageRule
from pdlab.reference.pipedream.variants import (
    GROUPED,
    RULES,
    pipedream,
    pipedream_2bw,
    pipedream_flush,
    pipedream_naive,
    pipedream_trajectory,
    pipedream_vertical_sync,
    trajectory_of,
)

__all__ = [
    "GROUPED",
    "RULES",
    "StageRule",
    "Trajectory",
    "pipedream",
    "pipedream_2bw",
    "pipedream_flush",
    "pipedream_naive",
    "pipedream_trajectory",
    "pipedream_vertical_sync",
    "trajectory_of",
]
