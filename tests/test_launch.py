"""What a pool can be asked for besides runs: functions of one's own, progress, an end at any moment."""

import threading
import time
from collections.abc import Callable

import pytest
from cases import uneven_shards
from test_pool import PROGRAM, SLOW, family, gone

import pdlab
from pdlab.compare import digits_batch
from pdlab.costs import Analytic
from pdlab.errors import Cancelled, PoolError
from pdlab.execute.settings import Settings
from pdlab.launch import Ranks
from pdlab.optimizers import Adam
from pdlab.simulate import simulate

pytestmark = pytest.mark.processes


def test_a_function_runs_on_every_rank(capsys: pytest.CaptureFixture[str]) -> None:
    with pdlab.Ranks(2) as ranks:
        assert ranks.call("own_models:rank_sum", factor=3) == [{"rank": r, "sum": 3.0} for r in (0, 1)]
        assert capsys.readouterr().out == "rank 0: summing\nrank 1: summing\n"
        watched: list[float] = []
        ranks.run(PROGRAM, digits_batch(8), pace=SLOW, watch=watched.append)
        assert len(watched) > 3 and watched == sorted(watched) and watched[-1] == 1.0
        began = time.monotonic()
        ranks.run(PROGRAM, digits_batch(8))
        assert time.monotonic() - began < 2.0


def test_clocks_that_differ_are_set_to_that_of_rank_0(pool: Ranks) -> None:
    ahead = pool.call("own_models:ahead_of_a_shifted_clock", seconds=1000.0)
    assert ahead == pytest.approx([0.0, -1000.0, -2000.0, -3000.0], abs=0.05)


def test_a_paced_run_waits_longer_than_a_short_one_before_it() -> None:
    """The timeout of a run is its own, also where the process group is that of an earlier run."""
    case = uneven_shards()
    slow = Analytic(1e6 * simulate(case.programs[0], Analytic(1e6, 1e9)).makespan / 3, 1e9)
    with Ranks(2, timeout=1.0) as ranks:
        ranks.run(case.programs, case.batch)
        ranks.run(case.programs, case.batch, pace=slow)  # the rank with less to do waits for 2 seconds


def test_what_cannot_run_leaves_the_ranks_alone(pool: Ranks) -> None:
    crew = pool._crew
    with pytest.raises(ValueError, match="batch of 8 samples and was given 7"):
        pool.run(PROGRAM, digits_batch(7))
    with pytest.raises(ValueError, match=r"optimizer_bytes=16"):
        pool.run(PROGRAM, digits_batch(8), settings=Settings(Adam()))
    pool.cancel()
    assert pool._crew is crew
    assert pool.run(PROGRAM, digits_batch(8)).trace.makespan > 0


@pytest.mark.parametrize(
    ("function", "error", "said"),
    [
        (
            "own_models:fails_on_rank_1",
            PoolError,
            r"rank 1, .*, line \d+: KeyError: 'no such key'\nTraceback .*fails_on",
        ),
        ("own_models:returns_a_tensor", PoolError, r"returned a Tensor that JSON cannot hold"),
        ("own_models:dies", PoolError, r"rank \d died: its process ended in own_models:dies"),
        ("own_models:never_ends", PoolError, r"no answer within 1 s: rank 0 in own_models:never_ends"),
        ("own_models:nothing", ValueError, r"has no 'nothing'"),
    ],
)
def test_what_goes_wrong_in_a_function_is_told_once(function: str, error: type[Exception], said: str) -> None:
    with Ranks(2, timeout=1) as ranks:
        processes = family(ranks)
        with pytest.raises(error, match=f"(?s){said}") as raised:
            ranks.call(function)
        assert str(raised.value).count("rank 0 died") <= 1
        assert error is ValueError or gone(processes)


def cancelled(ranks: Ranks, work: Callable[[], object], after: float) -> float:
    """Cancel from another thread; how many seconds later the work had ended."""
    moment = [0.0]

    def strike() -> None:
        time.sleep(after)
        moment[0] = time.monotonic()
        ranks.cancel()

    thread = threading.Thread(target=strike)
    thread.start()
    with pytest.raises(Cancelled):
        work()
    thread.join()
    return time.monotonic() - moment[0]


def test_a_run_is_cancelled_at_once_and_the_next_one_works() -> None:
    with Ranks(2) as ranks:
        processes = family(ranks)
        assert cancelled(ranks, lambda: ranks.run(PROGRAM, digits_batch(8), pace=SLOW, steps=9), 0.5) < 2
        assert gone(processes)
        assert ranks.run(PROGRAM, digits_batch(8)).trace.makespan > 0


def test_a_start_is_cancelled_too() -> None:
    ups: list[int] = []
    ranks = Ranks(2, started=ups.append)
    assert cancelled(ranks, lambda: ranks.run(PROGRAM, digits_batch(8)), 0.3) < 2
    assert ups and ups[0] == 0
