"""The same worker under plain torchrun: two nodes of two processes each, started in either order."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def node(port: int, *job: str) -> "subprocess.Popen[str]":
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "test"),
        *("--local-addr", "127.0.0.1", "-m", "pdlab.worker", *job),
    ]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )


def said(*job: str) -> tuple[list[int], str]:
    """Exit codes and output of two nodes, the second started later."""
    port = free_port()
    nodes = [node(port, *job)]
    time.sleep(1)
    nodes.append(node(port, *job))
    texts = [process.communicate(timeout=90)[0] for process in nodes]
    return [process.returncode for process in nodes], "".join(texts)


def test_a_command_on_two_nodes() -> None:
    codes, text = said("run", "1f1b", "--pp", "4", "--microbatches", "4", "--json")
    assert codes == [0, 0], text
    assert '"mode": "measured"' in text and '"ranks": 4' in text
    error = float(text.split('"grad_max_rel_error": ')[1].split("\n")[0])
    assert error < 1e-9


def test_a_function_of_ones_own_on_two_nodes() -> None:
    codes, text = said("own_models:drive", "--with", "this")
    assert codes == [0, 0], text
    assert "[6.0, 6.0, 6.0, 6.0] ['--with', 'this']" in text


def test_an_error_of_rank_0_is_one_line_and_everything_ends() -> None:
    codes, text = said("run", "1f1b", "--pp", "8")
    assert 0 not in codes
    assert text.count("pdlab: error: the program needs 8 ranks and the pool has 4") == 1


def test_without_torchrun_it_says_how() -> None:
    found = subprocess.run([sys.executable, "-m", "pdlab.worker", "run"], capture_output=True, text=True, timeout=60)
    assert found.returncode == 2 and "start it with torchrun" in found.stderr
