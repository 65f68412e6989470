"""Balance a model over stages: how many layers each gets, and on how many ranks.

PipeDream (Harlap et al. 2018, arXiv:1806.03377, section 3.2; Narayanan et al., SOSP 2019, section 3.1) measures every
layer on one rank and then asks which stages let the most minibatches through. In a full pipeline that is decided by
the slowest thing in it alone:

    layers    fc0 fc1 fc2 fc3 fc4 | fc5 fc6 head
    ranks     0 1 2               | 3                   minibatch i is on rank i mod 3 of stage 0
              max(sum of T, sums of gradients) / 3      2 a / B      max(sum of T, 0) / 1

`links` holds what each of these takes, `search` the dynamic programme, `choose` the ways to cut (PipeDream's, and equal
shares of layers, time or parameters), `result` what comes of a cut and what limits it, `sources` where layer times come
from.
"""

from pdlab.partition.choose import By, balanced, pipedream
from pdlab.partition.layer import Layer
from pdlab.partition.links import Links, Sums, stage_seconds
from pdlab.partition.result import Load, Partition, What
from pdlab.partition.sources import layers_of, profile

__all__ = [
    "By",
    "Layer",
    "Links",
    "Load",
    "Partition",
    "Sums",
    "What",
    "balanced",
    "layers_of",
    "pipedream",
    "profile",
    "stage_seconds",
]
