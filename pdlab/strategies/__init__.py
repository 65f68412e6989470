"""The strategies, one file per family: each a generator that reads like the training loop, and the passes that lower
it."""

from pdlab.strategies.catalog import STRATEGIES, Plan, Strategy, build, get, lower_schedule, names

__all__ = ["STRATEGIES", "Plan", "Strategy", "build", "get", "lower_schedule", "names"]
