"""Real runs from the explorer: shown, cancelled, failed, and never leaving a process behind."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from pdlab.errors import Cancelled, PoolError
from pdlab.widgets import Scenario, ScheduleExplorer
from pdlab.widgets.background import in_thread
from pdlab.widgets.realrun import RealRun
from pdlab.widgets.stage import Stage
from pdlab.widgets.warm import WarmPool

PNG = b"\x89PNG\r\n\x1a\n"
SMALL = Scenario("1f1b", pp=2, microbatches=2, F=0.25, I=0.25, W=0.25, comm=0.0)
SOON_S = 10.0


@pytest.fixture
def explorer() -> Iterator[ScheduleExplorer]:
    explorer = ScheduleExplorer("1f1b", pp=2, microbatches=3)
    yield explorer
    explorer.close()


def test_the_steps_of_a_run_are_told_after_one_to_warm_up() -> None:
    told = [str(Stage("running", steps=3, share=share)) for share in (0.0, 0.3, 0.99, 1.0)]
    assert told == ["running: warming up", "running: step 1 of 3", "running: step 3 of 3", "running: step 3 of 3"]
    assert str(Stage("checking gradients")) == "checking gradients"


def descendants() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def all_gone(processes: set[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(list(processes), SOON_S)
    return not alive


@pytest.mark.processes
def test_a_real_run_in_code_shows_its_comparison_and_close_ends_the_processes() -> None:
    before = descendants()
    explorer = ScheduleExplorer("1f1b", pp=2, microbatches=2, F=0.25, I=0.25, W=0.25, comm=0.0)
    found = explorer.run(steps=1)
    assert found.grad_max_rel_error < 1e-9 and found.measured.program.mesh.size == 2
    assert bytes(explorer.real.picture.value).startswith(PNG)
    started = descendants() - before
    assert started
    explorer.strategy = "zb_h1"
    assert explorer.run(steps=1).predicted.program.name == "zb_h1"
    assert descendants() - before == started, "the second run had the processes of the first"
    explorer.close()
    assert all_gone(started)


@pytest.mark.processes
def test_cancel_on_the_page_ends_the_processes_and_the_next_run_works() -> None:
    before = descendants()
    explorer = ScheduleExplorer("1f1b", pp=2, microbatches=8, F=2.0)

    async def press_and_cancel() -> set[psutil.Process]:
        explorer.real.run_button.click()
        running = explorer.real.follower
        assert running is not None and explorer.real.run_button.disabled
        while not explorer.real.status.value.startswith("running: step 1"):
            assert not running.done(), explorer.real.trouble.value
            await asyncio.sleep(0.02)
        started = descendants() - before
        explorer.real.cancel_button.click()
        await asyncio.wait_for(running, SOON_S)
        return started

    started = asyncio.run(press_and_cancel())
    assert started and all_gone(started)
    assert "cancelled" in explorer.real.status.value and explorer.real.trouble.error is None
    assert not explorer.real.run_button.disabled and explorer.real.cancel_button.disabled
    explorer.F = 0.25
    assert explorer.run(steps=1).grad_max_rel_error < 1e-9
    explorer.close()


@pytest.mark.processes
def test_cancel_while_the_processes_start() -> None:
    before = descendants()
    pool = WarmPool()
    run = RealRun(SMALL, pool, steps=1)
    asyncio.run(_cancel_soon(run))
    pool.close()
    assert all_gone(descendants() - before)


async def _cancel_soon(run: RealRun) -> None:
    work = in_thread(run.run)
    while not run.stage.doing.startswith("waiting for 2"):
        await asyncio.sleep(0.01)
    run.cancel()
    with pytest.raises(Cancelled):
        await work


class Stuck:
    """Ranks whose run ends by being cancelled only."""

    size, timeout, start_timeout = 2, 30.0, 60.0

    def __init__(self) -> None:
        self.running, self.cancelled = threading.Event(), threading.Event()

    def run(self, *_: Any, **__: Any) -> None:
        self.running.set()
        self.cancelled.wait(SOON_S)
        raise PoolError("the ranks are gone")

    def cancel(self) -> None:
        self.cancelled.set()


def test_cancel_reaches_ranks_that_tell_nothing() -> None:
    stuck = Stuck()
    run = RealRun(SMALL, SimpleNamespace(at_least=lambda size: stuck), steps=1)

    async def cancel() -> None:
        work = in_thread(run.run)
        assert await asyncio.to_thread(stuck.running.wait, SOON_S)
        run.cancel()
        with pytest.raises(Cancelled):
            await work

    asyncio.run(cancel())
    assert stuck.cancelled.is_set()


def test_a_failed_real_run_is_shown_on_the_page_and_raised_in_code(explorer: ScheduleExplorer) -> None:
    def no_pool(size: int) -> None:
        raise RuntimeError(f"no room for {size}")

    explorer.real._pool.at_least = no_pool

    async def press() -> None:
        explorer.real.run_button.click()
        assert explorer.real.follower is not None
        await explorer.real.follower

    asyncio.run(press())
    assert "RuntimeError: no room for 2" in explorer.real.trouble.value
    assert explorer.real.status.value == "failed"
    with pytest.raises(RuntimeError, match="no room for 2"):
        explorer.run()


def test_one_run_at_a_time(explorer: ScheduleExplorer) -> None:
    explorer.real._running = RealRun(SMALL, WarmPool(), steps=1)
    with pytest.raises(ValueError, match="a run is going on; wait for it, or cancel it"):
        explorer.run()
    with pytest.raises(ValueError, match="a run of 0 steps; give at least 1"):
        RealRun(SMALL, WarmPool(), steps=0)


@pytest.mark.processes
def test_a_program_that_ends_during_a_run_leaves_no_process() -> None:
    code = """
import asyncio
from pdlab.widgets import ScheduleExplorer

async def end_early(panel):
    panel.start()
    while "step 1" not in panel.status.value:
        await asyncio.sleep(0.05)

asyncio.run(end_early(ScheduleExplorer(pp=2, F=4.0).real))
"""
    child = psutil.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    family: set[psutil.Process] = set()
    while child.poll() is None:
        family |= set(child.children(recursive=True))
        time.sleep(0.1)
    assert family and all_gone(family)
