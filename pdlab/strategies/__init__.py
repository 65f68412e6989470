"""The strategies, one file per family: each a generator that reads like the training loop, and the passes that lower it."""

from pdlab.strategies.catalog import Plan, Strategy, build, get, names

__all__ = ["Plan", "Strategy", "build", "get", "names"]
