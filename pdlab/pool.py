"""Worker processes, one per rank: brought up, given jobs, and ended without a trace.

`torchrun` starts the workers. They connect to a Unix socket in a private folder, and find each other through a file
in it; gloo is bound to the loopback device. So nothing of a pool listens to the network, and removing the folder
removes everything. Whoever dies is noticed by the end of its connection: a worker that loses its pool exits, a pool
that loses a worker is broken.
"""

import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
from torch import Tensor

from pdlab import wire
from pdlab.errors import PoolError

Reply = tuple[dict[str, Any], dict[str, Tensor]]

PATIENCE_S = 3.0
"""How long processes get to end by themselves before they are ended."""

ECHO_S = 0.5
"""How long after the first bad news to wait for the rest: what broke first is what to report."""


class Pool:
    """`size` running workers. Raises `PoolError` if they do not come up within `start_timeout` seconds."""

    def __init__(self, size: int, start_timeout: float) -> None:
        self.size = size
        self.folder = Path(tempfile.mkdtemp(prefix="pdlab-"))
        self.channels: dict[int, socket.socket] = {}
        self._workers: list[psutil.Process] = []
        self._agent: subprocess.Popen[bytes] | None = None
        try:
            self._start(time.monotonic() + start_timeout, start_timeout)
        except BaseException:
            self.close()
            raise

    # --- starting

    def _start(self, deadline: float, start_timeout: float) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(self.folder / "control"))
            listener.listen(self.size)
            listener.settimeout(0.2)
            self._agent = _torchrun(self.size, self.folder)
            arrived: list[socket.socket] = []
            while len(arrived) < self.size:
                try:
                    arrived.append(listener.accept()[0])
                except TimeoutError:
                    self._check(deadline, f"{len(arrived)} of {self.size} ranks connected", start_timeout)
        for channel in arrived:
            self._greet(channel, deadline, start_timeout)

    def _check(self, deadline: float, state: str, start_timeout: float) -> None:
        assert self._agent is not None
        if self._agent.poll() is not None:
            raise PoolError(f"the launcher ended with code {self._agent.returncode}; {state}{self._log()}")
        if time.monotonic() > deadline:
            remedy = "give start_timeout= more seconds, or close other programs"
            raise PoolError(f"{state} within {start_timeout:g} s; {remedy}{self._log()}")

    def _greet(self, channel: socket.socket, deadline: float, start_timeout: float) -> None:
        channel.settimeout(max(1.0, deadline - time.monotonic()))
        try:
            hello, _ = wire.receive(channel)
        except (OSError, TimeoutError):
            raise PoolError(f"a rank did not join the process group within {start_timeout:g} s{self._log()}") from None
        self.channels[hello["rank"]] = channel
        self._workers.append(psutil.Process(hello["pid"]))

    def _log(self) -> str:
        """The end of what the launcher and the workers have written, to be put behind a sentence."""
        log = self.folder / "log"
        text = log.read_text(errors="replace").strip() if log.exists() else ""
        return "\n" + "\n".join(text.splitlines()[-15:]) if text else ""

    # --- jobs

    def send(self, rank: int, message: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        try:
            wire.send(self.channels[rank], message, tensors)
        except OSError:
            raise PoolError(f"rank {rank} is gone: its process ended between two runs") from None

    def collect(self, patience: float, where: Callable[[int], str]) -> dict[int, Reply]:
        """One reply from every rank. `where` says for a rank what it was last seen doing.

        Raises `PoolError` for the error or the death that came first, or for a silence of `patience` seconds.
        """
        replies: dict[int, Reply] = {}
        bad: list[tuple[float, str]] = []
        deadline = time.monotonic() + patience
        with selectors.DefaultSelector() as selector:
            for rank, channel in self.channels.items():
                selector.register(channel, selectors.EVENT_READ, rank)
            while len(selector.get_map()):
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    break
                for key, _ in ready:
                    selector.unregister(key.fileobj)
                    trouble = self._read(key.data, replies, where)
                    if trouble:
                        bad.append(trouble)
                        deadline = min(deadline, time.monotonic() + ECHO_S)
        if bad:
            raise PoolError(min(bad)[1])
        silent = sorted(set(self.channels) - set(replies))
        if silent:
            seen = "; ".join(f"rank {rank} {where(rank)}" for rank in silent)
            raise PoolError(f"no answer within {patience:.0f} s: {seen}")
        return replies

    def _read(self, rank: int, replies: dict[int, Reply], where: Callable[[int], str]) -> tuple[float, str] | None:
        """Take a reply; for bad news, when it happened and what to say."""
        channel = self.channels[rank]
        channel.settimeout(PATIENCE_S)
        try:
            reply, tensors = wire.receive(channel)
        except OSError:
            return 0.0, f"rank {rank} died: its process ended {where(rank)}"
        finally:
            channel.settimeout(None)
        if "error" in reply:
            return reply["at"], f"{reply['error']}\n{reply['traceback']}"
        replies[rank] = reply, tensors
        return None

    # --- ending

    def close(self) -> None:
        """End every process and remove every file. Safe to call twice."""
        for channel in self.channels.values():
            channel.settimeout(PATIENCE_S)
            try:
                wire.send(channel, {"do": "stop"})
            except OSError:
                continue
        _, alive = psutil.wait_procs(self._workers, PATIENCE_S if self._workers else 0)
        for process in alive:
            process.kill()
        if self._agent is not None:
            try:
                self._agent.wait(PATIENCE_S if self._workers else 0)
            except subprocess.TimeoutExpired:
                _end_group(self._agent)
        for channel in self.channels.values():
            channel.close()
        self.channels = {}
        self._agent, self._workers = None, []
        shutil.rmtree(self.folder, ignore_errors=True)


def _end_group(agent: subprocess.Popen[bytes]) -> None:
    """End the launcher and whatever it has started (workers have process groups of their own)."""
    try:
        started = psutil.Process(agent.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        started = []
    os.killpg(agent.pid, signal.SIGKILL)
    for process in started:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    agent.wait()


def _torchrun(size: int, folder: Path) -> subprocess.Popen[bytes]:
    command = [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes", "1", "--nproc-per-node", str(size), "--max-restarts", "0", "--monitor-interval", "0.1"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", str(folder / "rendezvous"), "--rdzv-conf", "store_type=file"),
        *("--rdzv-id", "pdlab", "--local-addr", "127.0.0.1"),
        *("-m", "pdlab.worker", "--control", str(folder / "control"), "--store", str(folder / "store")),
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TMPDIR": str(folder),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]),
    }
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )
