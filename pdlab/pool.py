"""Worker processes, one per rank: brought up, given jobs, and ended without a trace.

`torchrun` starts the workers. They connect to a Unix socket in a private folder, and find each other through a file
in it; gloo is bound to the loopback device. So nothing of a pool listens to the network, and removing the folder
removes everything. Whoever dies is noticed by the end of its connection: a worker that loses its pool exits, a pool
that loses a worker is broken.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from pdlab import wire
from pdlab.crew import PATIENCE_S, Crew
from pdlab.errors import PoolError

LONGEST_SOCKET_NAME = 100

Started = Callable[[int], None]
"""Told how many ranks are up while a pool starts; may raise to give up."""


class Pool(Crew):
    """`size` running workers. Raises `PoolError` if they do not come up within `start_timeout` seconds."""

    def __init__(self, size: int, start_timeout: float, told: Started) -> None:
        super().__init__()
        self.size = size
        self.machine = f"{os.cpu_count()} cores"
        self.folder: Path = _make_folder()
        self._told = told
        self._workers: list[psutil.Process] = []
        self._agent: subprocess.Popen[bytes] | None = None
        try:
            self._start(time.monotonic() + start_timeout, start_timeout)
        except BaseException:
            self.end()
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
                self._told(len(arrived))
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

    # --- ending

    def crowded(self, size: int) -> bool:
        return size > (os.cpu_count() or 1)

    def close(self) -> None:
        self._remove_files()
        self.say_stop()
        _wait(self._workers)
        self.end()

    def kill(self) -> None:
        for process in self._workers:
            _kill(process)

    def end(self) -> None:
        """End every process and remove every file without asking anybody. Safe to call twice."""
        self._remove_files()
        self.kill()
        if self._agent is not None:
            _end_group(self._agent)
        _wait(self._workers)
        for channel in self.channels.values():
            channel.close()
        self.channels, self._workers, self._agent = {}, [], None
        self._remove_files()

    def _remove_files(self) -> None:
        """Before the processes end, since they remove the files if this process is killed in between; and once more
        after them, since they may make some."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _make_folder() -> Path:
    """A private folder, where its name leaves room for that of a socket in it."""
    folder = Path(tempfile.mkdtemp(prefix="pdlab-"))
    if len(bytes(folder / "control")) <= LONGEST_SOCKET_NAME:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix="pdlab-", dir="/tmp"))


def _end_group(agent: subprocess.Popen[bytes]) -> None:
    """End the launcher and whatever it has started (workers have process groups of their own)."""
    if agent.poll() is not None:
        return
    try:
        started = psutil.Process(agent.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        started = []
    os.killpg(agent.pid, signal.SIGKILL)
    for process in started:
        _kill(process)
    agent.wait()


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


def _wait(processes: Sequence[psutil.Process]) -> None:
    """Until all have ended, or for `PATIENCE_S`. One that has ended may be listed until its parent takes note."""
    deadline = time.monotonic() + PATIENCE_S
    while any(map(_runs, processes)) and time.monotonic() < deadline:
        time.sleep(0.01)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


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
