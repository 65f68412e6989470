"""Errors that a user may meet without having loaded torch."""


class PoolError(RuntimeError):
    """A pool of ranks that could not start, or a run on it that failed."""


class Cancelled(PoolError):
    """A run that somebody ended on purpose."""
