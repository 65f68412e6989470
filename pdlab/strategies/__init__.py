"""The strategies, one file per family: each a generator that reads like the training loop, and the passes that lower
it."""

from pdlab.strategies.automatic import Times
from pdlab.strategies.catalog import STRATEGIES, Strategy, build, get, lower_schedule, names, num_stages
from pdlab.strategies.plan import Plan
from pdlab.strategies.stopped import stopped

__all__ = [
    "STRATEGIES",
    "Plan",
    "Strategy",
    "Times",
    "build",
    "get",
    "lower_schedule",
    "names",
    "num_stages",
    "stopped",
]
