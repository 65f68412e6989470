"""A board on which the ranks of one machine write when they arrived at each event: the clock of a paced run.

A paced communication begins when its last member arrives, so members have to learn each other's arrival. Sending it
would cost as much as the communication itself; a file that all ranks have mapped costs nothing. Their monotonic clock
is the same one, which is also why paced runs stay on one machine.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

POLL_S = 0.0003


class Board:
    """Arrival times by rank and event. An entry counts from the start of the step on; older ones belong to earlier
    steps."""

    def __init__(self, path: Path | str, size: int, num_events: int, rank: int) -> None:
        self._times = np.memmap(path, np.float64, "r+", shape=(size, num_events))
        self._rank = rank
        self._start = 0.0

    @staticmethod
    def create(path: Path, size: int, num_events: int) -> None:
        """An empty board, before any rank opens it."""
        np.memmap(path, np.float64, "w+", shape=(size, max(num_events, 1)))

    def begin(self, start: float) -> None:
        self._start = start

    def arrive(self, event: int, moment: float) -> None:
        self._times[self._rank, event] = moment

    def last_arrival(self, event: int, members: Sequence[int], timeout: float) -> float:
        """When the last member arrived. Waits for it; TimeoutError names who has not come."""
        deadline = time.monotonic() + timeout
        while (arrivals := [float(self._times[member, event]) for member in members]) and min(arrivals) < self._start:
            if time.monotonic() > deadline:
                late = [member for member, t in zip(members, arrivals, strict=True) if t < self._start]
                raise TimeoutError(f"waited {timeout:g} s for ranks {late} to arrive")
            time.sleep(POLL_S)
        return max(arrivals)


class Progress:
    """Which op each rank is at, kept where it can be read after the rank has died: (step, program, position), -1
    before the first."""

    def __init__(self, path: Path | str, size: int) -> None:
        self._at = np.memmap(path, np.int64, "r+", shape=(size, 3))

    @classmethod
    def create(cls, path: Path, size: int) -> "Progress":
        np.memmap(path, np.int64, "w+", shape=(size, 3))[:] = (0, 0, -1)
        return cls(path, size)

    def enter(self, rank: int, step: int, program: int, position: int) -> None:
        self._at[rank] = step, program, position

    def everything(self) -> bytes:
        """What changes whenever any rank gets on."""
        return self._at.tobytes()

    def of(self, rank: int) -> tuple[int, int, int]:
        step, program, position = self._at[rank]
        return int(step), int(program), int(position)
