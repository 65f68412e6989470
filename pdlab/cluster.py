"""Ranks on one or several machines, started by torchrun: rank 0 gives the work, all of them do it.

    torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \
        -m pdlab.worker run 1f1b --pp 4

Rank 0 listens on the address by which torchrun makes it known to the others, and takes only those that show the secret
which it has sent them through the process group. From there on all is as in a pool: connections, jobs, replies.
"""

import hmac
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from pdlab import wire
from pdlab.crew import Crew
from pdlab.duties import Duties, serve
from pdlab.errors import PoolError
from pdlab.execute.clock import Clock, set_clock
from pdlab.importing import locate
from pdlab.launch import Ranks

JOIN_S = 60.0
"""How long the ranks of all machines may take to join each other."""

GREET_S = 5.0
"""How long a stranger may take to show the secret."""

SECRET_BYTES = 32
NOTE_BYTES = 512
COMMAND_LINE = "pdlab.cli:drive"
"""What rank 0 does with a command line that names no function of its own."""


def join(rank: int, size: int, job: Sequence[str]) -> int:
    """Become one of the ranks; rank 0 also drives. Returns the exit code."""
    if not job:
        print("pdlab.worker: error: say what to do, as in: -m pdlab.worker run 1f1b --pp 4", file=sys.stderr)
        return 2
    _stay_on_loopback_if_told_so()
    dist.init_process_group("gloo", timeout=timedelta(seconds=JOIN_S))
    clock = set_clock(rank, size)
    duties = Duties(rank, size, clock)
    try:
        return _drive(duties, job) if rank == 0 else _follow(duties)
    finally:
        dist.destroy_process_group()


def _stay_on_loopback_if_told_so() -> None:
    if socket.gethostbyname(os.environ["MASTER_ADDR"]).startswith("127."):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def _drive(duties: Duties, job: Sequence[str]) -> int:
    function, arguments = (job[0], job[1:]) if ":" in job[0] else (COMMAND_LINE, job)
    crew = None
    try:
        crew = _gather(duties)
        code = int(locate(function)(Ranks.over(crew), list(arguments)) or 0)
    except (PoolError, ValueError) as error:
        print(f"pdlab: error: {error}", file=sys.stderr)
        code = 1
    if crew is not None and code == 0:
        crew.close()
    elif crew is not None:
        crew.end()  # so that the others fail too, and no torchrun waits for the one of rank 0
    return code


def _gather(duties: Duties) -> "Cluster":
    with socket.create_server((os.environ["MASTER_ADDR"], 0), backlog=duties.pool_size) as listener:
        secret = secrets.token_bytes(SECRET_BYTES)
        host, port = listener.getsockname()[:2]
        _tell(f"{host} {port} {secret.hex()}")
        return Cluster(listener, secret, duties)


def _follow(duties: Duties) -> int:
    host, port, secret = _tell("").split()
    with socket.create_connection((host, int(port)), JOIN_S) as channel:
        channel.settimeout(None)
        channel.sendall(bytes.fromhex(secret))
        wire.send(channel, {"rank": duties.rank, "machine": Machine.here(duties.clock)})
        over = wire.when_closed(channel, lambda: os._exit(1))
        try:
            serve(channel, duties)
        except wire.Closed:
            return 1
        finally:
            over.set()
    return 0


def _tell(text: str) -> str:
    """What rank 0 says, on every rank."""
    note = torch.zeros(NOTE_BYTES, dtype=torch.uint8)
    raw = text.encode()
    note[: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else 0
    dist.broadcast(note, 0)
    return bytes(note.tolist()).rstrip(b"\0").decode()


class Machine(NamedTuple):
    """Where a rank runs, and how well its clock is set (seconds)."""

    host: str
    cores: int
    give: float

    @classmethod
    def here(cls, clock: Clock) -> "Machine":
        return cls(socket.gethostname(), os.cpu_count() or 1, clock.give)


class Cluster(Crew):
    """The ranks that torchrun started, as rank 0 sees them; it serves as one of them in a thread of its own."""

    def __init__(self, listener: socket.socket, secret: bytes, duties: Duties) -> None:
        super().__init__()
        self.size = duties.pool_size
        self.channels[0], mine = socket.socketpair()
        threading.Thread(target=_serve_myself, args=(mine, duties), daemon=True).start()
        about = {0: Machine.here(duties.clock)}
        deadline = time.monotonic() + JOIN_S
        while len(self.channels) < self.size:
            channel, told = self._admit(listener, secret, deadline)
            self.channels[told["rank"]], about[told["rank"]] = channel, Machine(*told["machine"])
        self._about = about
        hosts, give = {told.host for told in about.values()}, max(told.give for told in about.values())
        self.machine = f"{self.size} ranks on {len(hosts)} machines, clocks set to within {1e6 * give:.0f} µs"

    def _admit(self, listener: socket.socket, secret: bytes, deadline: float) -> tuple[socket.socket, dict[str, Any]]:
        """The next rank that connects and shows the secret; whoever else connects is sent away."""
        while True:
            listener.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                channel, _ = listener.accept()
            except TimeoutError:
                raise PoolError(f"{len(self.channels)} of {self.size} ranks joined within {JOIN_S:g} s") from None
            channel.settimeout(GREET_S)
            try:
                if hmac.compare_digest(channel.recv(SECRET_BYTES, socket.MSG_WAITALL), secret):
                    told, _ = wire.receive(channel)
                    channel.settimeout(None)
                    return channel, told
            except OSError:
                pass
            channel.close()

    def crowded(self, size: int) -> bool:
        used = [self._about[rank] for rank in range(min(size, self.size))]
        hosts = [told.host for told in used]
        return any(hosts.count(told.host) > told.cores for told in used)

    def close(self) -> None:
        self.say_stop()
        self.end()

    def end(self) -> None:
        self.kill()
        for channel in self.channels.values():
            channel.close()
        self.channels = {}

    def kill(self) -> None:
        """Hang up; a rank whose connection ends exits."""
        for channel in self.channels.values():
            with suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)


def _serve_myself(channel: socket.socket, duties: Duties) -> None:
    with suppress(OSError):
        serve(channel, duties)
