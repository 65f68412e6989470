"""A pool of worker processes, one per rank, started once and used for many runs.

`torchrun` starts and watches the workers; programs, batches and results travel over a Unix socket in a private
folder. The ranks find each other through a file in it, and gloo is bound to the loopback device, so nothing of a pool
listens to the network.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pdlab import wire
from pdlab.costs import Costs
from pdlab.errors import PoolError
from pdlab.execute.board import Board
from pdlab.execute.result import Result, Shards
from pdlab.execute.settings import Settings
from pdlab.forms import to_json
from pdlab.program import Facts, Program
from pdlab.simulate import start_plan
from pdlab.state import Batch
from pdlab.trace import Mode, Provenance, Trace
from pdlab.validate import validate


class Ranks:
    """A pool: `with Ranks(4) as ranks: result = ranks.run([program], batch)`.

    `timeout` (seconds) bounds every wait inside a run; `start_timeout` how long the processes may take to come up.
    """

    def __init__(self, size: int, *, timeout: float = 30.0, start_timeout: float = 60.0) -> None:
        if size < 1:
            raise ValueError(f"a pool of {size} ranks; give at least 1")
        self.size = size
        self.timeout = timeout
        self.start_timeout = start_timeout
        self._folder: Path | None = None
        self._agent: subprocess.Popen[bytes] | None = None
        self._channels: dict[int, socket.socket] = {}

    def __enter__(self) -> "Ranks":
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- starting and ending

    def _start(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="pdlab-"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(self._folder / "control"))
            listener.listen(self.size)
            self._agent = _torchrun(self.size, self._folder)
            self._accept(listener)

    def _accept(self, listener: socket.socket) -> None:
        deadline = time.monotonic() + self.start_timeout
        listener.settimeout(0.2)
        arrived: list[socket.socket] = []
        while len(arrived) < self.size:
            try:
                arrived.append(listener.accept()[0])
            except TimeoutError:
                self._check_agent(f"{len(arrived)} of {self.size} ranks had connected")
                if time.monotonic() > deadline:
                    raise PoolError(
                        f"only {len(arrived)} of {self.size} ranks connected within {self.start_timeout:g} s; "
                        "give start_timeout= more seconds or close other programs"
                    ) from None
        for channel in arrived:
            channel.settimeout(max(1.0, deadline - time.monotonic()))
            try:
                hello, _ = wire.receive(channel)
            except (wire.Closed, TimeoutError):
                raise PoolError(
                    f"a rank did not join the process group within {self.start_timeout:g} s{self._log()}"
                ) from None
            channel.settimeout(None)
            self._channels[hello["rank"]] = channel

    def _check_agent(self, when: str) -> None:
        if self._agent is not None and self._agent.poll() is not None:
            raise PoolError(f"the launcher ended with code {self._agent.returncode} when {when}{self._log()}")

    def _log(self) -> str:
        """The end of what the launcher and the workers have written, to be put behind a sentence."""
        log = self._folder / "log" if self._folder else None
        text = log.read_text(errors="replace").strip() if log and log.exists() else ""
        return "\n" + "\n".join(text.splitlines()[-15:]) if text else ""

    def close(self) -> None:
        """Stop the workers, wait for them, remove every file. Safe to call twice."""
        for channel in self._channels.values():
            try:
                wire.send(channel, {"do": "stop"})
            except OSError:
                continue
        if self._agent is not None:
            _end(self._agent, patience=5.0 if self._channels else 0.0)
        for channel in self._channels.values():
            channel.close()
        self._channels, self._agent = {}, None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    # --- running

    def run(
        self,
        programs: Sequence[Program],
        batch: Batch,
        *,
        pace: Costs | None = None,
        steps: int = 1,
        settings: Settings | None = None,
    ) -> Result:
        """Run programs one after the other, `steps` times from the same start; `pace` holds each op for its modelled
        time."""
        settings = settings or Settings()
        for program in programs:
            validate(program)
            if program.mesh.size > self.size:
                raise ValueError(f"the program needs {program.mesh.size} ranks and the pool has {self.size}")
        paces = [self._pace(i, program, pace) for i, program in enumerate(programs)] if pace else []
        job = {
            "do": "run",
            "programs": [to_json(program) for program in programs],
            "timeout_s": self.timeout,
            "steps": steps,
            "settings": settings.to_message(),
        }
        tensors = {"pixels": torch.from_numpy(batch.pixels), "labels": torch.from_numpy(batch.labels)}
        for rank, channel in self._channels.items():
            mine = [(durations[rank], board) for durations, board in paces if rank < len(durations)]
            wire.send(channel, job | {"pace": mine}, tensors)
        length = sum(max(map(sum, durations)) for durations, _ in paces)
        replies = self._collect(self.timeout + 3 * steps * length)
        return _result(programs, replies, steps, _provenance(pace, settings.seed))

    def _pace(self, i: int, program: Program, costs: Costs) -> tuple[list[list[float]], str]:
        """For each rank how long each of its ops is to take, and the board where ranks meet."""
        assert self._folder is not None
        plan = start_plan(program, costs)
        by_row = [plan.durations[event] for event in plan.graph.event_of]
        ends = [*plan.graph.first_row[1:], len(by_row)]
        board = self._folder / f"board{i}"
        Board.create(board, program.mesh.size, len(plan.durations))
        return [by_row[start:end] for start, end in zip(plan.graph.first_row, ends, strict=True)], str(board)

    def _collect(self, patience: float) -> dict[int, tuple[dict[str, Any], dict[str, Tensor]]]:
        """One reply from every rank; the first error, or a silence longer than `patience` seconds, breaks the pool."""
        replies: dict[int, tuple[dict[str, Any], dict[str, Tensor]]] = {}
        deadline = time.monotonic() + patience
        with selectors.DefaultSelector() as selector:
            for rank, channel in self._channels.items():
                selector.register(channel, selectors.EVENT_READ, rank)
            while len(replies) < self.size:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    silent = sorted(set(self._channels) - set(replies))
                    self._broken(f"ranks {silent} did not answer within {patience:.0f} s")
                for key, _ in ready:
                    try:
                        reply, tensors = wire.receive(self._channels[key.data])
                    except (wire.Closed, ConnectionError):
                        self._broken(f"rank {key.data} died while running")
                    if "error" in reply:
                        self._broken(f"{reply['error']}\n{reply['traceback']}")
                    replies[key.data] = reply, tensors
                    selector.unregister(self._channels[key.data])
        return replies

    def _broken(self, message: str) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels = {}
        self.close()
        raise PoolError(message)


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
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]),
    }
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )


def _end(agent: subprocess.Popen[bytes], patience: float) -> None:
    """Let the launcher end by itself, then end its process group."""
    try:
        agent.wait(patience)
    except subprocess.TimeoutExpired:
        os.killpg(agent.pid, signal.SIGKILL)
        agent.wait()


def _provenance(pace: Costs | None, seed: int) -> Provenance:
    cores = os.cpu_count()
    mode = Mode.PACED if pace else Mode.MEASURED
    return Provenance(mode, str(pace) if pace else "", f"{cores} cores, gloo", f"torch {torch.__version__}", seed)


def _result(
    programs: Sequence[Program],
    replies: dict[int, tuple[dict[str, Any], dict[str, Tensor]]],
    steps: int,
    provenance: Provenance,
) -> Result:
    traces = [
        [
            _trace(program, [replies[rank][0]["steps"][step][i] for rank in range(program.mesh.size)], provenance)
            for i, program in enumerate(programs)
        ]
        for step in range(steps)
    ]
    parts: dict[str, Shards] = {"gradients": {}, "weights": {}, "losses": {}}
    for rank, (_, tensors) in replies.items():
        for name, t in tensors.items():
            what, value = name.split(" ", 1)
            parts[what][rank, value] = t
    return Result(traces, **parts)


def _trace(program: Program, lines: list[dict[str, Any]], provenance: Provenance) -> Trace:
    def joined(key: str) -> list[Any]:
        return [x for line in lines for x in line[key]]

    facts: Facts = {(rank, value): tuple(numbers) for line in lines for rank, value, numbers in line["facts"]}
    before = [line["live_before"] for line in lines]
    return Trace(program, joined("starts"), joined("ends"), joined("moved"), joined("live"), before, provenance, facts)
