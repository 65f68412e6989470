"""Fifty SIGKILLs at random moments on random ranks: what is said, how soon, and what is left over."""

import random
import threading
import time
from pathlib import Path
from statistics import median

import psutil

from pdlab import models
from pdlab.compare import digits_batch
from pdlab.costs import Uniform
from pdlab.errors import PoolError
from pdlab.launch import Ranks
from pdlab.strategies import STRATEGIES, Plan, Strategy, build

KILLS, RANKS, WITHIN_S = 50, 2, 5.0
COSTS = Uniform(F=0.05, B=0.1, comm=0.01)


def kills(count: int = KILLS, seed: int = 0) -> None:
    """Strategies in turn on two ranks, each run paced to take seconds, and one rank of it killed on the way."""
    chance, seconds, unclear = random.Random(seed), [], []
    candidates = [s for s in STRATEGIES if s.axis is not None]
    seen: set[psutil.Process] = set()
    folders: set[Path] = set()
    with Ranks(RANKS, timeout=10, started=lambda _: None) as ranks:
        for turn in range(count):
            victim, said, took = _kill_one(ranks, candidates[turn % len(candidates)], chance, seen, folders)
            seconds.append(took)
            if not (f"rank {victim} died" in said and ("at op" in said or "before its first op" in said)):
                unclear.append(f"rank {victim} was killed, and it said: {said}")
    time.sleep(0.5)
    left = [p for p in seen if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    late = sum(took > WITHIN_S for took in seconds)
    print(f"kills: {count} SIGKILLs of random ranks at random moments of paced runs")
    print(f"  {count - len(unclear)} errors that name the rank and what it was at; {late} later than {WITHIN_S:g} s")
    print(f"  error after {median(seconds):.2f} s (median), {max(seconds):.2f} s (largest)")
    print(
        f"  left over: {len(left)} of {len(seen)} processes, {sum(map(Path.exists, folders))} of {len(folders)} folders"
    )
    for said in unclear:
        print(f"  unclear: {said}")


def _kill_one(
    ranks: Ranks, strategy: Strategy, chance: random.Random, seen: set[psutil.Process], folders: set[Path]
) -> tuple[int, str, float]:
    """Who was killed, what the run says, and how many seconds after the kill."""
    plan = strategy.on(RANKS, Plan(microbatches=4, batch=16))
    program = build(strategy, plan, models.transformer(width=16, depth=1, heads=4, tp=plan.tp))
    ranks.run(program, digits_batch(16))
    victim, wait, moment = chance.randrange(RANKS), chance.uniform(0.05, 1.0), [0.0]
    seen.update(psutil.Process().children(recursive=True))
    folders.update(Path(_command(p)[_command(p).index("--control") + 1]).parent for p in _workers())
    process = next(p for p in _workers() if p.environ()["RANK"] == str(victim))

    def strike() -> None:
        time.sleep(wait)
        moment[0] = time.monotonic()
        process.kill()

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        ranks.run(program, digits_batch(16), pace=COSTS, steps=10)
        said = "nothing went wrong"
    except PoolError as error:
        said = str(error)
    took = time.monotonic() - moment[0]
    thread.join()
    return victim, said, took


def _workers() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [p for p in children if "pdlab.worker" in _command(p) and "torch.distributed.run" not in _command(p)]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
