"""Messages between a pool and its workers: JSON and raw tensors over a local socket. Nothing is pickled.

A frame is the length of a header, the header (JSON, which lists the tensors), and the tensors' bytes.
"""

import json
import socket
import struct
from collections.abc import Mapping
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
