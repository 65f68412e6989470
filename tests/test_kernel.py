"""A pool lives in a notebook's kernel: interrupts and restarts end it, threads and second notebooks do not disturb
it."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

pytestmark = pytest.mark.processes

SETUP = """
import sys
sys.path.insert(0, {tests!r})
from test_pool import PROGRAM, SLOW
from pdlab import Ranks
from pdlab.compare import digits_batch
"""
SOON_S = 5.0


@contextmanager
def kernel() -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        did(client, SETUP.format(tests=str(Path(__file__).parent)))
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def did(client: BlockingKernelClient, code: str) -> dict[str, Any]:
    """The reply to a cell; a cell that fails is an error here."""
    reply = client.execute_interactive(code, timeout=60, output_hook=lambda _: None)["content"]
    assert reply["status"] == "ok", "\n".join(reply.get("traceback", ()))
    return dict(reply)


def workers_of(manager: KernelManager) -> list[psutil.Process]:
    return [
        process
        for process in psutil.Process(manager.provisioner.pid).children(recursive=True)  # type: ignore[union-attr]
        if "pdlab.worker" in " ".join(process.cmdline())
    ]


def folders(processes: list[psutil.Process]) -> set[Path]:
    command = (process.cmdline() for process in processes)
    return {Path(line[line.index("--control") + 1]).parent for line in command if "--control" in line}


def answer(client: BlockingKernelClient, sent: str) -> dict[str, Any]:
    """The reply to a cell that was sent before."""
    while (reply := client.get_shell_msg(timeout=60))["parent_header"]["msg_id"] != sent:
        pass
    return dict(reply["content"])


def begin_slow_run(manager: KernelManager, client: BlockingKernelClient) -> tuple[str, list[psutil.Process], set[Path]]:
    """A run that would take a minute, once its ranks are there: its message, processes and folder."""
    did(client, "ranks = Ranks(2); ranks.run(PROGRAM, digits_batch(8))")
    sent = client.execute("ranks.run(PROGRAM, digits_batch(8), pace=SLOW, steps=20)")
    time.sleep(1)
    processes = workers_of(manager)
    assert len(processes) >= 3  # the launcher and two ranks
    return sent, processes, folders(processes)


def all_gone(processes: list[psutil.Process], places: set[Path]) -> bool:
    _, alive = psutil.wait_procs(processes, SOON_S)
    deadline = time.monotonic() + SOON_S
    while any(place.exists() for place in places) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not alive and not any(place.exists() for place in places)


def test_an_interrupt_of_the_kernel_ends_the_run_and_the_same_cell_runs_again() -> None:
    with kernel() as (manager, client):
        sent, processes, places = begin_slow_run(manager, client)
        manager.interrupt_kernel()
        assert answer(client, sent)["ename"] == "KeyboardInterrupt"
        assert all_gone(processes, places)
        for _ in range(2):
            did(client, "assert ranks.run(PROGRAM, digits_batch(8)).trace.makespan > 0")
        did(client, "ranks.close()")


def test_a_restart_of_the_kernel_while_a_run_is_on_leaves_nothing() -> None:
    with kernel() as (manager, client):
        _, processes, places = begin_slow_run(manager, client)
        manager.restart_kernel(now=True)
        assert all_gone(processes, places)


THREADS = """
import torch
torch.set_num_threads(2)
a = torch.rand(600, 600, requires_grad=True)
(a @ a).sum().backward()
"""


def test_two_notebooks_at_once_after_torch_has_started_threads() -> None:
    with kernel() as (_, one), kernel() as (_, other):
        for client in (one, other):
            did(client, THREADS)
            did(client, "ranks = Ranks(2)")
        ids = [client.execute("ranks.run(PROGRAM, digits_batch(8))") for client in (one, other)]
        for client, sent in zip((one, other), ids, strict=True):
            assert answer(client, sent)["status"] == "ok"
            did(client, "ranks.close()")


STRANGE = """
import socket, sys
from pdlab import Ranks
try:
    socket.gethostbyname(socket.gethostname())
    sys.exit("the name resolves")
except OSError:
    with Ranks(2) as ranks:
        print("started", ranks.size)
"""


def test_a_hostname_that_does_not_resolve() -> None:
    tried = subprocess.run(["unshare", "--uts", "hostname", "no-such-host.invalid"], capture_output=True)
    if os.geteuid() != 0 or tried.returncode != 0:
        pytest.skip("only root may give itself another hostname")
    line = f"hostname no-such-host.invalid; exec \"{sys.executable}\" -c '{STRANGE}'"
    found = subprocess.run(["unshare", "--uts", "sh", "-c", line], capture_output=True, text=True, timeout=60)
    assert "started 2" in found.stdout, found.stderr
