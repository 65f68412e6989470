"""A pool of processes comes up on the loopback device only, says what broke, and leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pdlab import models
from pdlab.compare import digits_batch
from pdlab.costs import Uniform
from pdlab.errors import PoolError
from pdlab.launch import Ranks
from pdlab.strategies import Plan, build, get

pytestmark = pytest.mark.processes

PROGRAM = build(get("1f1b"), Plan(pp=2, microbatches=4, batch=8), models.mlp(itemsize=8))
SLOW = Uniform(F=0.2, B=0.4, comm=0.01)
SOON_S = 5.0


def gone(processes: list[psutil.Process], within: float = SOON_S) -> bool:
    _, alive = psutil.wait_procs(processes, within)
    return not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def family(ranks: Ranks) -> list[psutil.Process]:
    assert ranks._crew is not None and ranks._crew._agent is not None
    agent = psutil.Process(ranks._crew._agent.pid)
    return [agent, *agent.children(recursive=True)]


def workers(ranks: Ranks) -> dict[int, psutil.Process]:
    assert ranks._crew is not None
    return {int(p.environ()["RANK"]): p for p in ranks._crew._workers}


def broken_by(ranks: Ranks, harm: Callable[[], None], after: float = 0.5) -> tuple[str, float]:
    """What a slow paced run says when something happens to it, and how many seconds later."""
    moment = [0.0]

    def strike() -> None:
        time.sleep(after)
        moment[0] = time.monotonic()
        harm()

    thread = threading.Thread(target=strike)
    thread.start()
    with pytest.raises(PoolError) as raised:
        ranks.run(PROGRAM, digits_batch(8), pace=SLOW, steps=4)
    assert raised.value.__notes__ == ["The ranks have ended; the next run starts new ones."]
    thread.join()
    return str(raised.value), time.monotonic() - moment[0]


def test_nothing_listens_beyond_loopback_and_nothing_is_left() -> None:
    with Ranks(2) as ranks:
        processes = family(ranks)
        assert ranks._crew is not None
        folder = ranks._crew.folder
        ranks.run(PROGRAM, digits_batch(8))
        listening = [c for p in processes for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        assert all(c.laddr.ip.startswith("127.") or c.laddr.ip == "::1" for c in listening)
        with Ranks(2) as other:
            assert other.run(PROGRAM, digits_batch(8)).trace.makespan > 0
    assert gone(processes)
    assert not folder.exists()


def test_a_killed_rank_is_named_with_its_op_and_the_next_run_works() -> None:
    with Ranks(2, timeout=10) as ranks:
        processes = family(ranks)
        assert ranks._crew is not None
        folder = ranks._crew.folder
        said, seconds = broken_by(ranks, lambda: workers(ranks)[1].kill())
        assert "rank 1 died" in said and "at op" in said and ":" in said
        assert seconds < SOON_S
        assert gone(processes) and not folder.exists()
        assert ranks.run(PROGRAM, digits_batch(8)).trace.makespan > 0


def test_a_rank_that_stops_ends_in_a_sentence_about_the_op_that_waits() -> None:
    with Ranks(2, timeout=1.5) as ranks:
        processes = family(ranks)
        said, _ = broken_by(ranks, lambda: workers(ranks)[1].suspend())
        assert re.match(r"rank \d, op \d+ \(\S+.*; \S+:\d.*\): \w+Error: .*[Ww]ait", said), said
        assert gone(processes)


def test_a_rank_that_never_starts_is_said_in_time() -> None:
    began = time.monotonic()
    with pytest.raises(PoolError, match=r"within 0.3 s; give start_timeout="), Ranks(2, start_timeout=0.3):
        pass
    assert time.monotonic() - began < 0.3 + SOON_S


def test_an_interrupt_ends_the_run_and_the_processes() -> None:
    with Ranks(2) as ranks:
        processes = family(ranks)
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            ranks.run(PROGRAM, digits_batch(8), pace=SLOW, steps=4)
        assert gone(processes)


PARENT = """
import sys, time
sys.path.insert(0, {tests!r})
from test_pool import PROGRAM, SLOW
from pdlab.compare import digits_batch
from pdlab.launch import Ranks
ranks = Ranks(2).__enter__()
print(ranks._crew.folder, ranks._crew._agent.pid, *(p.pid for p in ranks._crew._workers), flush=True)
ranks.run(PROGRAM, digits_batch(8), pace=SLOW, steps=20)
"""


@pytest.mark.parametrize("stopped", [False, True], ids=["", "while a rank is stopped"])
def test_a_killed_parent_leaves_nothing(stopped: bool) -> None:
    code = PARENT.format(tests=str(Path(__file__).parent))
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        folder, *pids = parent.stdout.readline().split()
    processes = [psutil.Process(int(pid)) for pid in pids]
    time.sleep(0.5)
    if stopped:
        processes[-1].suspend()
    parent.kill()
    parent.wait()
    assert gone(processes)
    deadline = time.monotonic() + SOON_S
    while Path(folder).exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("size", "timeout", "said"), [(0, 1.0, "at least 1"), (2, 0.0, "more than 0"), (-3, 1.0, "at least 1")]
)
def test_sizes_and_times_that_make_no_sense(size: int, timeout: float, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Ranks(size, timeout=timeout)


def test_what_cannot_run_never_reaches_a_process() -> None:
    ranks = Ranks(1)
    with pytest.raises(ValueError, match="needs 2 ranks and the pool has 1"):
        ranks.run(PROGRAM, digits_batch(8))
    with pytest.raises(ValueError, match="begins with"):
        Ranks(2).run([PROGRAM, PROGRAM], digits_batch(8))
    assert ranks._crew is None
