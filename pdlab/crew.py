"""The ranks as those see them who give them work: one connection to each, a job out, a reply back.

A rank that dies is noticed by the end of its connection, and what broke first is what is reported. How the processes
came about, and how they end, is for `pdlab.pool` (on this machine) and `pdlab.cluster` (on several).
"""

import selectors
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pdlab import wire
from pdlab.errors import PoolError

Reply = tuple[dict[str, Any], dict[str, Tensor]]
Look = Callable[[], object]
"""Called while replies are awaited; what it returns changes as long as the work gets on."""

PATIENCE_S = 3.0
"""How long processes get to end by themselves before they are ended, and a message to arrive whole."""

ECHO_S = 0.5
"""How long after the first bad news to wait for the rest: what broke first is what to report."""

TICK_S = 0.1
"""How often whoever waits may look around."""


class Crew(ABC):
    """Ranks behind connections. `folder` is one that all of them see, None where they are on several machines."""

    folder: Path | None = None
    machine = ""

    def __init__(self) -> None:
        self.channels: dict[int, socket.socket] = {}

    @abstractmethod
    def crowded(self, size: int) -> bool:
        """Whether any of ranks 0 to `size` - 1 has to share a core."""

    @abstractmethod
    def close(self) -> None:
        """Let every process end. Safe to call twice."""

    @abstractmethod
    def end(self) -> None:
        """End every process of a crew that is broken, asking nobody."""

    @abstractmethod
    def kill(self) -> None:
        """End every process at once; safe from another thread while a reply is awaited."""

    def send(self, rank: int, message: Mapping[str, Any], tensors: Mapping[str, Tensor], patience: float) -> None:
        channel = self.channels[rank]
        try:
            channel.settimeout(patience)
            wire.send(channel, message, tensors)
            channel.settimeout(None)
        except TimeoutError:
            raise PoolError(f"rank {rank} took no job for {patience:g} s: its process is stopped or stuck") from None
        except OSError:
            raise PoolError(f"rank {rank} is gone: its process ended between two runs") from None

    def collect(self, patience: float, where: Callable[[int], str], look: Look) -> dict[int, Reply]:
        """One reply from every rank. `where` says for a rank what it was last seen doing.

        Raises `PoolError` for the error or the death that came first, or where nothing has got on for `patience`
        seconds.
        """
        channels, seen = dict(self.channels), look()
        replies: dict[int, Reply] = {}
        bad: list[tuple[float, int, str]] = []
        deadline = time.monotonic() + patience
        with selectors.DefaultSelector() as selector:
            for rank, channel in channels.items():
                selector.register(channel, selectors.EVENT_READ, rank)
            while len(selector.get_map()) and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(min(TICK_S, left)):
                    selector.unregister(key.fileobj)
                    trouble = _read(channels[key.data], key.data, replies, where)
                    if trouble:
                        bad.append((trouble[0], len(bad), trouble[1]))
                        deadline = min(deadline, time.monotonic() + ECHO_S)
                now = look()
                if now != seen and not bad:
                    seen, deadline = now, time.monotonic() + patience
        if bad:
            raise PoolError(min(bad)[-1])
        silent = sorted(set(channels) - set(replies))
        if silent:
            doing = "; ".join(f"rank {rank} {where(rank)}" for rank in silent)
            raise PoolError(f"no answer within {patience:.0f} s: {doing}")
        return replies

    def say_stop(self) -> None:
        """Ask every process to end."""
        for channel in self.channels.values():
            channel.settimeout(PATIENCE_S)
            try:
                wire.send(channel, {"do": "stop"})
            except OSError:
                continue


def _read(
    channel: socket.socket, rank: int, replies: dict[int, Reply], where: Callable[[int], str]
) -> tuple[float, str] | None:
    """Take a reply; for bad news, when it happened (deaths come before errors) and what to say."""
    channel.settimeout(PATIENCE_S)
    try:
        reply, tensors = wire.receive(channel)
    except OSError:
        return 0.0, f"rank {rank} died: its process ended {where(rank)}"
    finally:
        channel.settimeout(None)
    if "error" in reply:
        return reply["at"], f"{reply['error']}\n{reply['traceback']}".rstrip()
    replies[rank] = reply, tensors
    return None
