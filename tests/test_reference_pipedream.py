"""Who watches PipeDream's oracle: fractions worked out by hand, pipelines played with tokens, loops over whole models."""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
import torch
from test_reference import LR, MODELS, batch_of, batches_of, initial, worst
from torch import Tensor
from torch.nn import functional

from pdlab import models
from pdlab import reference as ref
from pdlab.models.model import Model
from pdlab.reference.pipedream import engine, rules
from pdlab.reference.pipedream.rules import StageRule

STREAMS = {"pipedream_naive": rules.naive, "pipedream": rules.stashing, "pipedream_vertical_sync": rules.vertical_sync}
GROUPED = {"pipedream_2bw": rules.double_buffering, "pipedream_flush": rules.flush}
MLP, TRANSFORMER = MODELS["mlp"], MODELS["transformer"]
EQUAL = {1: (4,), 2: (2, 2), 3: (2, 1, 1), 4: (1, 1, 1, 1)}
"""Four layers in so many stages; the MLP and the transformer of this file have four."""

Play = Iterator[tuple[str, int, int, int, int]]


# ---- Fractions by hand.

H = Fraction(1, 2)


def quarrel(ledgers: Sequence[StageRule]) -> engine.Trajectory:
    """Each stage s has one weight w_s and sums (w_s - c)^2 / 2 into the loss, where minibatch i wants c = 2i + 2.

    So the gradient of w_s is the met w_s less c. All start at 0, and the learning rate is 1/2.
    """

    def gradient(i: int, ahead: Any, back: Any) -> Any:
        return 0.0, {name: weight - (2 * i + 2) for name, weight in ahead.items()}

    names = {f"w{s}": s for s in range(len(ledgers))}
    start: Any = {name: Fraction(0) for name in names}
    lr: Any = H
    return engine.follow(ledgers, names, start, lr, gradient)


LATE_BY = {
    0: [1, 5 * H, 17 * H / 2, 49 * H / 4, 129 * H / 8, 321 * H / 16],
    1: [1, 3, 11 * H, 8, 41 * H / 2, 49 * H / 2],
    2: [1, 3, 6, 19 * H, 13, 16],
}
"""The weight after each of six steps whose gradient is so many steps late: w <- w + (c - met) / 2, c = 2, 4, ... 12.

late by 0: (0 + 2)/2 = 1     (1 + 4)/2 = 5/2    (5/2 + 6)/2 = 17/4  (17/4 + 8)/2 = 49/8
           (49/8 + 10)/2 = 129/16               (129/16 + 12)/2 = 321/32
late by 1: 0 + (2 - 0)/2 = 1                    1 + (4 - 0)/2 = 3                   3 + (6 - 1)/2 = 11/2
           11/2 + (8 - 3)/2 = 8                 8 + (10 - 11/2)/2 = 41/4            41/4 + (12 - 8)/2 = 49/4
late by 2: 0 + (2 - 0)/2 = 1                    1 + (4 - 0)/2 = 3                   3 + (6 - 0)/2 = 6
           6 + (8 - 1)/2 = 19/2                 19/2 + (10 - 3)/2 = 13              13 + (12 - 6)/2 = 16
"""


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("name", STREAMS)
def test_six_minibatches_by_hand(name: str, p: int) -> None:
    """Stage s of p is late by p - 1 - s; with vertical sync all are late by p - 1."""
    ran = quarrel(STREAMS[name](6, [1] * p))
    for s in range(p):
        late = p - 1 if name == "pipedream_vertical_sync" else p - 1 - s
        assert ran.versions[f"w{s}"] == dict(enumerate([0, *LATE_BY[late]], -1))


IN_TWOS = {
    "pipedream_flush": [3 * H, 17 * H / 2, 61 * H / 4, 181 * H / 8, 485 * H / 16, 1221 * H / 32, 2885 * H / 64],
    "pipedream_2bw": [3 * H, 5, 39 * H / 2, 59 * H / 2, 155 * H / 4, 47 * H, 429 * H / 8],
}
"""Updates of two microbatches, which on average want 3, 7, 11, 15, 19 and 23, and one of the last, which wants 26.

flush: (0 + 3)/2 = 3/2   (3/2 + 7)/2 = 17/4   (17/4 + 11)/2 = 61/8   (61/8 + 15)/2 = 181/16   (181/16 + 19)/2 = 485/32
       (485/32 + 23)/2 = 1221/64              (1221/64 + 26)/2 = 2885/128
2BW:   0 + (3 - 0)/2 = 3/2                    3/2 + (7 - 0)/2 = 5                      5 + (11 - 3/2)/2 = 39/4
       39/4 + (15 - 5)/2 = 59/4               59/4 + (19 - 39/4)/2 = 155/8             155/8 + (23 - 59/4)/2 = 47/2
       47/2 + (26 - 155/8)/2 = 429/16
"""

IN_THREES = {
    "pipedream_flush": [2, 6, 11, 33 * H, 89 * H / 2, 225 * H / 4, 529 * H / 8],
    "pipedream_2bw": [2, 7, 14, 43 * H, 57 * H, 139 * H / 2, 79 * H],
}
"""Three microbatches want 4, 10, 16, 22, 28 and 34 on average, the last one wants 38.

flush: (0 + 4)/2 = 2     (2 + 10)/2 = 6       (6 + 16)/2 = 11        (11 + 22)/2 = 33/2       (33/2 + 28)/2 = 89/4
       (89/4 + 34)/2 = 225/8                  (225/8 + 38)/2 = 529/16
2BW:   0 + (4 - 0)/2 = 2                      2 + (10 - 0)/2 = 7                       7 + (16 - 2)/2 = 14
       14 + (22 - 7)/2 = 43/2                 43/2 + (28 - 14)/2 = 57/2                57/2 + (34 - 43/2)/2 = 139/4
       139/4 + (38 - 57/2)/2 = 79/2
"""


@pytest.mark.parametrize(("p", "accumulate"), [(1, 2), (2, 2), (1, 3), (2, 3), (3, 3)])
@pytest.mark.parametrize("name", GROUPED)
def test_seven_updates_by_hand(name: str, p: int, accumulate: int) -> None:
    """Versions 1, 3, ... 11 and 12, or 2, 5, ... 17 and 18: the last update takes in one microbatch only."""
    ran = quarrel(GROUPED[name](6 * accumulate + 1, p, accumulate))
    ends = [accumulate * (g + 1) - 1 for g in range(6)] + [6 * accumulate]
    weights = (IN_TWOS if accumulate == 2 else IN_THREES)[name]
    for s in range(p):
        assert ran.versions[f"w{s}"] == {-1: 0, **dict(zip(ends, weights, strict=True))}


@pytest.mark.parametrize("name", STREAMS)
def test_replicas_by_hand(name: str) -> None:
    """Seven minibatches, two replicas of stage 0 and one of stage 1, so stage 0 warms up with (3 - 1) // 2 = 1 each.

    Rounds of stage 0 want 3, 7, 11 and, for minibatch 6 alone, 14, and are late by one:
        0 + (3 - 0)/2 = 3/2, 3/2 + (7 - 0)/2 = 5, 5 + (11 - 3/2)/2 = 39/4, 39/4 + (14 - 5)/2 = 57/4
    Stage 1 is never late and goes on after the table above with (321/32 + 14)/2 = 769/64.
    With vertical sync it meets what stage 0 meets, the start four times and then versions 1, 1 and 3:
        1, 3, 6, 10 as the sums of 2/2, 4/2, 6/2 and 8/2, 10 + (10 - 3)/2 = 27/2, 27/2 + (12 - 3)/2 = 18,
        18 + (14 - 10)/2 = 20
    """
    ran = quarrel(STREAMS[name](7, (2, 1)))
    assert ran.versions["w0"] == {-1: 0, 1: 3 * H, 3: 5, 5: 39 * H / 2, 6: 57 * H / 2}
    prompt = [*LATE_BY[0], 769 * H / 32]
    synced = [1, 3, 6, 10, 27 * H, 18, 20]
    wanted = synced if name == "pipedream_vertical_sync" else prompt
    assert ran.versions["w1"] == dict(enumerate([0, *wanted], -1))


SIGNS = (1, 1, 1, 1, -1, 1)
CHAIN = {
    ("pipedream", 2): "-1-1 1  -2-2 0  -2-2-1  -4-4-5   6 6-1   2 2-17    2 1 0 -4 20 -16",
    ("pipedream", 3): "-1-1 1  -2-2 0  -2-2 1   0-1-1   2 1 3   5 7 1     2 1 0  2  4   6",
    ("pipedream_naive", 2): "-1-1 1   0-2 0   0-2-1  -2-2-1   0-2-1  -2-4-5     2 1 0  0  0  -4",
    ("pipedream_naive", 3): "-1-1 1   0-2 0   0-2 1   2-1-1   3-1-1   2-1-1     2 1 0  2  0   0",
    ("pipedream_vertical_sync", 2): "-1-1 1  -3-3 0  -2-2-1  -2-2-10  0 0-6  -20-20-10  2 2 1  0  4 -40",
    ("pipedream_vertical_sync", 3): "-1-1 1  -3-3 0  -5-5-1  -4-4-2  -4-4 7  -9-9-18    2 2 2  1  0 -25",
}
"""Weights a, b and c after each of six minibatches, then the six losses; see the test."""


@pytest.mark.parametrize(("name", "p"), CHAIN)
def test_a_chain_of_three_weights_by_hand(name: str, p: int) -> None:
    """The loss is x a b c with x = 1, 1, 1, 1, -1, 1; a, b, c start at 1, 1, 2; lr = 1. On two stages a has b beside it.

    The weight gradients are x B C, x a C, x a b: small letters are activations and so of the forward's weights, large
    ones are met on the way back. For instance naive on three stages, where a lags by 2, b by 1 and c by 0:

        i   x   forward: a, b, c from   a  b  c   backward: B  C   x B C  x a C  x a b   then a  b  c   loss
        0   1     -1, -1, -1            1  1  2             1  2     2      2      1         -1 -1  1     2
        1   1     -1, -1,  0            1  1  1            -1  1    -1      1      1          0 -2  0     1
        2   1     -1,  0,  1            1 -1  0            -2  0     0      0     -1          0 -2  1     0
        3   1      0,  1,  2           -1 -2  1            -2  1    -2     -1      2          2 -1 -1     2
        4  -1      1,  2,  3            0 -2 -1            -1 -1    -1      0      0          3 -1 -1     0
        5   1      2,  3,  4            0 -1 -1            -1 -1     1      0      0          2 -1 -1     0
    """

    def gradient(i: int, ahead: Any, back: Any) -> Any:
        x, (a, b, c) = SIGNS[i], ahead.values()
        return x * a * b * c, {"a": x * back["b"] * back["c"], "b": x * a * back["c"], "c": x * a * b}

    start: Any = {"a": 1, "b": 1, "c": 2}
    stage_of = {"a": 0, "b": p - 2, "c": p - 1}
    ran = engine.follow(STREAMS[name](6, [1] * p), stage_of, start, 1, gradient)
    numbers = [int(number) for number in CHAIN[name, p].replace("-", " -").split()]
    assert [ran.at(i)[letter] for i in range(6) for letter in "abc"] == numbers[:18]
    assert ran.losses == numbers[18:]
    assert ran.final == ran.at(5)


# ---- Pipelines played with tokens.


def played(replicas: Sequence[int], num: int, accumulate: int = 1) -> Play:
    """1F1B with round robin as it happens: ranks walk their lists and wait for each other; yields op, stage, minibatch,
    the newest version on the rank and the newest on all ranks of all stages."""
    ranks = [(s, r) for s, k in enumerate(replicas) for r in range(k)]
    newest, done = dict.fromkeys(ranks, -1), set()
    lists = {rank: walk(replicas, *rank, num, accumulate) for rank in ranks}
    while any(lists.values()):
        able = [rank for rank, ops in lists.items() if ops and needs(replicas, num, rank[0], *ops[0]) <= done]
        assert able, f"all wait: {[ops[0] for ops in lists.values() if ops]}"
        for s, r in able:
            kind, i = lists[s, r].pop(0)
            yield kind, s, i, newest[s, r], min(newest.values())
            done.add((kind, s, i))
            if kind == "STEP":
                newest[s, r] = min(max(i // replicas[s] * replicas[s] + replicas[s], i + 1), num) - 1


def walk(replicas: Sequence[int], s: int, r: int, num: int, accumulate: int) -> list[tuple[str, int]]:
    """The ops of one replica: as many forwards as ranks follow per replica of this stage, then one of each in turn."""
    own, ahead = list(range(r, num, replicas[s])), (sum(replicas[s:]) - 1) // replicas[s]
    ops = [("F", i) for i in own[:ahead]]
    for i, coming in zip(own, [*own[ahead:], *[None] * ahead], strict=False):
        ops += [] if coming is None else [("F", coming)]
        ops += [("B", i)]
        ops += [("STEP", i)] if (i + 1) % accumulate == 0 or i + 1 == num else []
    return ops


def needs(replicas: Sequence[int], num: int, s: int, kind: str, i: int) -> set[tuple[str, int, int]]:
    """What other ranks must have done before."""
    if kind == "STEP":
        start = i // replicas[s] * replicas[s]
        return {("B", s, other) for other in range(start, min(start + replicas[s], num))}
    if kind == "F":
        return {("F", s - 1, i)} if s else set()
    return {("B", s + 1, i)} if s + 1 < len(replicas) else set()


SHAPES = [shape for p in (1, 2, 3) for shape in product((1, 2, 3), repeat=p)] + [(1, 1, 1, 1), (4, 1, 2, 1)]


@pytest.mark.parametrize("replicas", SHAPES, ids=str)
def test_ledgers_are_those_of_the_pipeline_as_it_runs(replicas: tuple[int, ...]) -> None:
    """Naive meets the newest there is; stashing keeps that; neither can meet what its rank has not made."""
    for num in (1, 2, 5, 12, 13):
        naive, stashing = rules.naive(num, replicas), rules.stashing(num, replicas)
        for kind, s, i, newest, _ in played(replicas, num):
            if kind == "F":
                assert naive[s].forward[i] == stashing[s].forward[i] == stashing[s].backward[i] == newest
            if kind == "B":
                assert naive[s].backward[i] == newest


@pytest.mark.parametrize("replicas", SHAPES, ids=str)
def test_vertical_sync_meets_the_newest_that_all_stages_have(replicas: tuple[int, ...]) -> None:
    for num in (6, 12, 13, 31):
        on_all = set.intersection(*({*range(k - 1, num, k), -1} for k in replicas))
        ledgers = rules.vertical_sync(num, replicas) if len(on_all) > 1 or len(set(replicas)) == 1 else []
        for kind, s, i, newest, _ in played(replicas, num) if ledgers else ():
            met = ledgers[s].forward[i]
            assert met == ledgers[s].backward[i] == ledgers[0].forward[i]
            if kind == "F":
                assert met <= newest, "it does not exist yet"
                assert s or met == max(version for version in on_all if version <= newest)


@pytest.mark.parametrize(("p", "accumulate"), [(1, 1), (1, 3), (2, 2), (2, 5), (3, 3), (3, 4), (4, 4), (4, 7)])
def test_two_buffers_are_enough(p: int, accumulate: int) -> None:
    """The version before the last is there in time, and what is in flight meets that or the newest: two in all."""
    for num in (1, accumulate, 4 * accumulate, 4 * accumulate + 1):
        ledgers = rules.double_buffering(num, p, accumulate)
        flying: dict[int, set[int]] = {s: set() for s in range(p)}
        for kind, s, i, newest, _ in played([1] * p, num, accumulate):
            assert kind == "STEP" or ledgers[s].forward[i] <= newest
            flying[s] = flying[s] | {i} if kind == "F" else flying[s] - {i}
            assert len({ledgers[s].forward[j] for j in flying[s]} | {newest}) <= 2


def test_vertical_sync_over_two_and_three_replicas() -> None:
    """Versions 5 and 11 are on both. Stage 0 is late by (5 - 1) // 2 = 2 rounds: minibatch 10 is the first after 5."""
    [first, second] = rules.vertical_sync(18, (2, 3))
    assert first.forward == first.backward == second.forward == second.backward
    assert first.forward == (*[-1] * 10, *[5] * 6, 11, 11)
    assert (first.every, second.every) == (2, 3)
