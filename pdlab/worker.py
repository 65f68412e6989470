"""One rank: a process that connects to whoever gives it work, joins the process group, and serves until it is told to
stop.

A pool starts it with `--control`. Without, it is one of several that `torchrun` started on one or more machines, and
the rest of the command line says what rank 0 does with them all (`pdlab.cluster`):

    torchrun --nnodes 2 --nproc-per-node 2 ... -m pdlab.worker run 1f1b --pp 4

It leaves no trace behind: when the other end of the connection closes, for whatever reason, the worker exits at once.
"""

import argparse
import ctypes
import os
import shutil
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import psutil
import torch
import torch.distributed as dist

from pdlab import wire
from pdlab.duties import Duties, serve

TRIES = 5
PR_SET_PDEATHSIG = 1

SWITCH_S = 0.001
"""How soon a stream's thread may interrupt another one's Python code."""


def main() -> None:
    """Entry point of `python -m pdlab.worker`, started by torchrun with RANK and WORLD_SIZE set."""
    parser = argparse.ArgumentParser(prog="pdlab.worker", description=__doc__)
    parser.add_argument("--control", help="the socket of the pool")
    parser.add_argument("--store", help="the file through which the ranks find each other")
    parser.add_argument("job", nargs=argparse.REMAINDER, help="without a pool: a pdlab command, or package.module:name")
    arguments = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("RANK is not set; start it with torchrun, see the README")
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_S)
    if arguments.control:
        _serve_pool(arguments.control, arguments.store, rank, size)
    from pdlab import cluster

    sys.exit(cluster.join(rank, size, arguments.job))


def _serve_pool(control: str, store: str, rank: int, size: int) -> None:
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = Path(control).parent
    _die_with_launcher()
    try:
        channel.connect(control)
        wire.when_closed(channel, lambda: _leave_nothing(folder))
        dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
        wire.send(channel, {"rank": rank, "pid": os.getpid()})
        serve(channel, Duties(rank, size))
    except OSError:  # the pool is gone
        pass
    _leave_nothing(folder)


def _die_with_launcher() -> None:
    """Let the kernel end this process when its launcher ends, even if it is stopped or busy (Linux, prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _leave_nothing(folder: Path) -> NoReturn:
    """End without a trace of the pool: its folder, the launcher, and with it all ranks.

    The launcher is stopped first, for it would make files anew, and ended last, for this process ends with it.
    """
    launcher = _launcher(folder)
    if launcher:
        with suppress(psutil.Error):
            launcher.suspend()
    for _ in range(TRIES):  # other ranks do the same at the same time
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            break
        time.sleep(0.05)
    if launcher:
        with suppress(psutil.Error):
            launcher.kill()
    os._exit(0)


def _launcher(folder: Path) -> psutil.Process | None:
    """The parent, if it is still the one that was started for this folder."""
    with suppress(psutil.Error):
        parent = psutil.Process(os.getppid())
        if any(str(folder) in word for word in parent.cmdline()):
            return parent
    return None


if __name__ == "__main__":
    main()
