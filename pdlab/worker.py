"""One rank of a pool: connects to its pool, joins the process group, then runs what it is sent until it is told to
stop.

It leaves no trace behind: when the pool's end of the connection closes, for whatever reason, the worker exits at once.
"""

import argparse
import os
import select
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist

from pdlab import wire
from pdlab.depend import Graph, build
from pdlab.execute.board import Board, Progress
from pdlab.execute.gloo import Gloo
from pdlab.execute.process import Pace, RankError, Runner, Timeline
from pdlab.execute.result import recorded
from pdlab.execute.settings import Settings, new_store
from pdlab.execute.store import Store
from pdlab.forms import from_json
from pdlab.mesh import Mesh
from pdlab.state import Batch

LEAD_S = 0.005
"""How long after the last rank has arrived at the start of a step the step begins, so that all begin together."""

SWITCH_S = 0.001
"""How soon a stream's thread may interrupt another one's Python code."""


def main() -> None:
    """Entry point of `python -m pdlab.worker`, started by torchrun with RANK and WORLD_SIZE set."""
    parser = argparse.ArgumentParser(prog="pdlab.worker", description=__doc__)
    parser.add_argument("--control", required=True, help="the socket of the pool")
    parser.add_argument("--store", required=True, help="the file through which the ranks find each other")
    arguments = parser.parse_args()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_S)
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = Path(arguments.control).parent
    try:
        channel.connect(arguments.control)
    except OSError:
        _leave_nothing(folder)
    threading.Thread(target=_exit_with_pool, args=(channel, folder), daemon=True).start()
    dist.init_process_group("gloo", store=dist.FileStore(arguments.store, size), rank=rank, world_size=size)
    wire.send(channel, {"rank": rank, "pid": os.getpid()})
    Worker(channel, rank, size).serve()


def _leave_nothing(folder: Path) -> NoReturn:
    """End without a trace of the pool: neither its folder, nor the launcher, nor this process."""
    shutil.rmtree(folder, ignore_errors=True)
    if os.getppid() > 1:
        os.kill(os.getppid(), signal.SIGKILL)
    os._exit(1)


def _exit_with_pool(channel: socket.socket, folder: Path) -> None:
    """When the pool is gone, so is this."""
    while True:
        select.select([channel], [], [])
        try:
            gone = channel.recv(1, socket.MSG_PEEK) == b""
        except OSError:
            gone = True
        if gone:
            _leave_nothing(folder)
        time.sleep(0.1)


@dataclass
class Worker:
    channel: socket.socket
    rank: int
    pool_size: int
    transports: dict[Mesh, Gloo] = field(default_factory=dict)

    def serve(self) -> None:
        while True:
            job, tensors = wire.receive(self.channel)
            if job["do"] == "stop":
                os._exit(0)
            try:
                reply, results = self._run(job, tensors)
            except BaseException as error:
                cause = error.__cause__ or error
                text = "".join(traceback.format_exception(cause))
                report = {"error": str(error), "traceback": text, "at": time.monotonic(), "rank": self.rank}
                wire.send(self.channel, report)
                continue
            wire.send(self.channel, reply, results)

    def _run(
        self, job: dict[str, Any], tensors: dict[str, torch.Tensor]
    ) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Run the programs of a job, one after the other from the values the last one left, as often as it says."""
        programs = [from_json(text) for text in job["programs"]]
        mesh = programs[0].mesh
        if mesh not in self.transports:
            self.transports[mesh] = Gloo(mesh, self.rank, job["timeout_s"])
        if self.rank >= mesh.size:
            return {"steps": []}, {}
        batch = Batch(tensors["pixels"].numpy(), tensors["labels"].numpy().astype(np.int64))
        settings = Settings.from_message(job["settings"])
        steps = []
        graphs = [build(program) for program in programs]
        for _ in range(job["steps"]):
            store = new_store(programs[0], self.rank, batch, settings)
            steps.append([self._once(graph, store, job, i) for i, graph in enumerate(graphs)])
        kept = {f"{what} {value}": t for what, tensors in recorded(store).items() for value, t in tensors.items()}
        return {"steps": steps}, kept

    def _once(self, graph: Graph, store: Store, job: dict[str, Any], i: int) -> dict[str, Any]:
        mesh = graph.program.mesh
        transport = self.transports[mesh]
        pace = None
        if job["pace"]:
            durations, board = job["pace"][i]
            pace = Pace(durations, Board(board, mesh.size, len(graph.members), self.rank))
        progress = Progress(job["progress"], self.pool_size)
        runner = Runner(graph, store, transport, pace, job["timeout_s"], lambda at: progress.enter(self.rank, i, at))
        try:
            start = transport.agree(time.monotonic() + LEAD_S)
        except RuntimeError as error:
            raise RankError(f"rank {self.rank} waited for the others to begin a step: {error}") from error
        return _as_message(runner.run(start), start)


def _as_message(line: Timeline, start: float) -> dict[str, Any]:
    return {
        "starts": [t - start for t in line.starts],
        "ends": [t - start for t in line.ends],
        "moved": line.moved,
        "live": line.live,
        "live_before": line.live_before,
        "facts": [[rank, value, list(numbers)] for (rank, value), numbers in line.facts.items()],
    }


if __name__ == "__main__":
    main()
