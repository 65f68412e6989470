"""One rank: a process that connects to whoever gives it work, joins the process group, and serves until it is told to
stop.

A pool starts it with `--control`. Without, it is one of several that `torchrun` started on one or more machines, and
the rest of the command line says what rank 0 does with them all (`pdlab.cluster`):

    torchrun --nnodes 2 --nproc-per-node 2 ... -m pdlab.worker run 1f1b --pp 4

It leaves no trace behind: when the other end of the connection closes, for whatever reason, the worker exits at once.
"""

import argparse
import os
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from pdlab import wire
from pdlab.duties import Duties, serve

TRIES = 5

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
        os._exit(0)
    from pdlab import cluster

    sys.exit(cluster.join(rank, size, arguments.job))


def _serve_pool(control: str, store: str, rank: int, size: int) -> None:
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder, launcher = Path(control).parent, os.getppid()
    try:
        channel.connect(control)
    except OSError:
        _leave_nothing(folder, launcher)
    wire.when_closed(channel, lambda: _leave_nothing(folder, launcher))
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
    try:
        wire.send(channel, {"rank": rank, "pid": os.getpid()})
        serve(channel, Duties(rank, size))
    except OSError:
        _leave_nothing(folder, launcher)


def _leave_nothing(folder: Path, launcher: int) -> NoReturn:
    """End without a trace of the pool: neither the launcher, which would make its files anew, nor its folder, nor this
    process."""
    if os.getppid() == launcher:
        os.kill(launcher, signal.SIGKILL)
    for _ in range(TRIES):  # other ranks do the same at the same time
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            break
        time.sleep(0.05)
    os._exit(1)


if __name__ == "__main__":
    main()
