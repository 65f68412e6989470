"""Messages between ranks and whoever gives them work: JSON and raw tensors over a socket. Nothing is pickled.

A frame is the length of a header, the header (JSON, which lists the tensors), and the tensors' bytes.
"""

import json
import select
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

_LENGTH = struct.Struct("!Q")
_DTYPES = {
    str(dtype): dtype
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool)
}


class Closed(ConnectionError):
    """The other side is gone."""


LOOK_AGAIN_S = 0.1


def when_closed(channel: socket.socket, do: Callable[[], None]) -> threading.Event:
    """Call `do`, from a thread of its own, when the other side is gone, whatever this side is busy with.

    Not any more once the event is set: an end that was agreed on is no loss.
    """
    over = threading.Event()

    def watch() -> None:
        while not _gone(channel):
            if over.wait(LOOK_AGAIN_S):
                return
        if not over.wait(LOOK_AGAIN_S):
            do()

    threading.Thread(target=watch, daemon=True).start()
    return over


def _gone(channel: socket.socket) -> bool:
    """Wait until there is something to read, for somebody else, or until the other side is gone."""
    try:
        select.select([channel], [], [])
        return channel.recv(1, socket.MSG_PEEK) == b""
    except (OSError, ValueError):
        return True


def send(channel: socket.socket, message: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> None:
    """Send a message and the tensors that belong to it."""
    parts = {name: t.detach().contiguous() for name, t in (tensors or {}).items()}
    shapes = [[name, str(t.dtype), list(t.shape)] for name, t in parts.items()]
    header = json.dumps({"message": message, "tensors": shapes}).encode()
    channel.sendall(_LENGTH.pack(len(header)) + header)
    for t in parts.values():
        channel.sendall(t.reshape(-1).view(torch.uint8).numpy().data if t.numel() else b"")


def receive(channel: socket.socket) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The next message. Raises `Closed` when the other side is gone."""
    header = json.loads(_read(channel, _LENGTH.unpack(_read(channel, _LENGTH.size))[0]))
    tensors = {}
    for name, dtype, shape in header["tensors"]:
        empty = torch.empty(shape, dtype=_DTYPES[dtype])
        raw = _read(channel, empty.numel() * empty.element_size())
        tensors[name] = torch.frombuffer(raw, dtype=_DTYPES[dtype]).reshape(shape) if raw else empty
    return header["message"], tensors


def _read(channel: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    view, at = memoryview(data), 0
    while at < length:
        count = channel.recv_into(view[at:])
        if count == 0:
            raise Closed("the connection was closed")
        at += count
    return data
