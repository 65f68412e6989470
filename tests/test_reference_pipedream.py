"""Who watches PipeDream's oracle: fractions by hand, pipelines played with tokens, loops over whole models."""

from collections.abc import Iterator, Sequence
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
from pdlab.models.spec import Segment
from pdlab.reference.pipedream import engine, rules, variants
from pdlab.reference.pipedream.rules import StageRule

ROUNDS = {"pipedream_naive": rules.naive, "pipedream": rules.stashing, "pipedream_vertical_sync": rules.vertical_sync}
GROUPED = {"pipedream_2bw": rules.double_buffering, "pipedream_flush": rules.flush}
VERTICAL = "pipedream_vertical_sync"
MLP, TRANSFORMER = MODELS["mlp"], MODELS["transformer"]
WHOLE = [MLP, TRANSFORMER]
CUTS = {1: (4,), 2: (2, 2), 3: (2, 1, 1), 4: (1, 1, 1, 1)}
"""Four layers in so many stages; the MLP and the transformer of this file have four."""

Play = Iterator[tuple[str, int, int, int]]


# ---- Fractions by hand.

H = Fraction(1, 2)


def quarrel(stages: Sequence[StageRule]) -> engine.Trajectory:
    """Each stage s has one weight w_s and sums (w_s - c)^2 / 2 into the loss, where minibatch i wants c = 2i + 2.

    So the gradient of w_s is the met w_s less c. All start at 0, and the learning rate is 1/2.
    """

    def gradient(i: int, ahead: Any, back: Any) -> Any:
        return 0.0, {name: weight - (2 * i + 2) for name, weight in ahead.items()}

    names = {f"w{s}": s for s in range(len(stages))}
    start: Any = {name: Fraction(0) for name in names}
    lr: Any = H
    return engine.follow(stages, names, start, lr, gradient)


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
@pytest.mark.parametrize("name", ROUNDS)
def test_six_minibatches_by_hand(name: str, p: int) -> None:
    """Stage s of p is late by p - 1 - s; with vertical sync all are late by p - 1."""
    ran = quarrel(ROUNDS[name](6, [1] * p))
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


@pytest.mark.parametrize("name", ROUNDS)
def test_replicas_by_hand(name: str) -> None:
    """Seven minibatches, two replicas of stage 0 and one of stage 1, so stage 0 warms up with (3 - 1) // 2 = 1 each.

    Rounds of stage 0 want 3, 7, 11 and, for minibatch 6 alone, 14, and are late by one:
        0 + (3 - 0)/2 = 3/2, 3/2 + (7 - 0)/2 = 5, 5 + (11 - 3/2)/2 = 39/4, 39/4 + (14 - 5)/2 = 57/4
    Stage 1 is never late and goes on after the table above with (321/32 + 14)/2 = 769/64.
    With vertical sync it meets what stage 0 meets, the start four times and then versions 1, 1 and 3:
        1, 3, 6, 10 as the sums of 2/2, 4/2, 6/2 and 8/2, 10 + (10 - 3)/2 = 27/2, 27/2 + (12 - 3)/2 = 18,
        18 + (14 - 10)/2 = 20
    """
    ran = quarrel(ROUNDS[name](7, (2, 1)))
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
    """The loss is x a b c with x = 1, 1, 1, 1, -1, 1; a, b, c start at 1, 1, 2; lr = 1. Of two stages 0 has a and b.

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
    ran = engine.follow(ROUNDS[name](6, [1] * p), stage_of, start, 1, gradient)
    numbers = [int(number) for number in CHAIN[name, p].replace("-", " -").split()]
    assert [ran.at(i)[letter] for i in range(6) for letter in "abc"] == numbers[:18]
    assert ran.losses == numbers[18:]
    assert ran.final == ran.at(5)


# ---- Pipelines played with tokens.


def played(replicas: Sequence[int], num: int, accumulate: int = 1) -> Play:
    """1F1B with round robin as it happens: ranks walk their lists and wait for each other. Yields each op, its stage,
    its minibatch and the newest version on its rank."""
    ranks = [(s, r) for s, k in enumerate(replicas) for r in range(k)]
    newest, done = dict.fromkeys(ranks, -1), set()
    lists = {rank: walk(replicas, *rank, num, accumulate) for rank in ranks}
    while any(lists.values()):
        able = [rank for rank, ops in lists.items() if ops and needs(replicas, num, rank[0], *ops[0]) <= done]
        assert able, f"all wait: {[ops[0] for ops in lists.values() if ops]}"
        for s, r in able:
            kind, i = lists[s, r].pop(0)
            yield kind, s, i, newest[s, r]
            done.add((kind, s, i))
            if kind == "STEP":
                newest[s, r] = min((i // replicas[s] + 1) * replicas[s], num) - 1


def walk(replicas: Sequence[int], s: int, r: int, num: int, accumulate: int) -> list[tuple[str, int]]:
    """The ops of one replica: its share of the forwards that fill the ranks behind it, then one of each in turn."""
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
def test_versions_are_those_of_the_pipeline_as_it_runs(replicas: tuple[int, ...]) -> None:
    """Naive meets the newest there is; stashing keeps that; neither can meet what its rank has not made."""
    for num in (1, 2, 5, 12, 13):
        naive, stashing = rules.naive(num, replicas), rules.stashing(num, replicas)
        for kind, s, i, newest in played(replicas, num):
            if kind == "F":
                assert naive[s].forward[i] == stashing[s].forward[i] == stashing[s].backward[i] == newest
            if kind == "B":
                assert naive[s].backward[i] == newest


@pytest.mark.parametrize("replicas", SHAPES, ids=str)
def test_vertical_sync_meets_the_newest_that_all_stages_have(replicas: tuple[int, ...]) -> None:
    for num in (6, 12, 13, 31):
        on_all = set.intersection(*({*range(k - 1, num, k), -1} for k in replicas))
        stages = rules.vertical_sync(num, replicas) if len(on_all) > 1 or len(set(replicas)) == 1 else []
        for kind, s, i, newest in played(replicas, num) if stages else ():
            met = stages[s].forward[i]
            assert met == stages[s].backward[i] == stages[0].forward[i]
            if kind == "F":
                assert met <= newest, "it does not exist yet"
                assert s or met == max(version for version in on_all if version <= newest)


@pytest.mark.parametrize(("p", "accumulate"), [(1, 1), (1, 3), (2, 2), (2, 5), (3, 3), (3, 4), (4, 4), (4, 7)])
def test_two_buffers_are_enough(p: int, accumulate: int) -> None:
    """The version before the last is there in time, and what is in flight meets that or the newest: two in all."""
    for num in (1, accumulate, 4 * accumulate, 4 * accumulate + 1):
        stages = rules.double_buffering(num, p, accumulate)
        flying: dict[int, set[int]] = {s: set() for s in range(p)}
        for kind, s, i, newest in played([1] * p, num, accumulate):
            assert kind == "STEP" or stages[s].forward[i] <= newest
            flying[s] = flying[s] | {i} if kind == "F" else flying[s] - {i}
            assert len({stages[s].forward[j] for j in flying[s]} | {newest}) <= 2


def test_vertical_sync_over_two_and_three_replicas() -> None:
    """Versions 5 and 11 are on both. Stage 0 is late by (5 - 1) // 2 = 2 rounds: minibatch 10 is the first after 5."""
    [first, second] = rules.vertical_sync(18, (2, 3))
    assert first.forward == first.backward == second.forward == second.backward
    assert first.forward == (*[-1] * 10, *[5] * 6, 11, 11)
    assert (first.every, second.every) == (2, 3)


# ---- Whole models.


def descended(model: Model, newest: ref.Parameters, met: ref.Parameters, *batches: ref.Batch) -> ref.Parameters:
    """A step from the newest weights, along the mean of the gradients that the batches have at those that were met."""
    found = [ref.gradients(model, met, *batch)[1] for batch in batches]
    return {name: w - LR / len(batches) * sum(grads[name] for grads in found) for name, w in newest.items()}


def joined(batches: Sequence[ref.Batch]) -> ref.Batch:
    x, target = zip(*batches, strict=True)
    return torch.cat(x), torch.cat(target)


def run(name: str, model: Model, p: int, batches: Sequence[ref.Batch], **choices: Any) -> ref.Trajectory:
    return ref.pipedream_trajectory(name, model, initial(model), batches, LR, layers=CUTS[p], **choices)


def every(ran: ref.Trajectory) -> list[ref.Parameters]:
    """All weights after each version, where all stages have made the same."""
    return [ran.at(version) for version in ran.versions["head.bias"] if version >= 0]


@pytest.mark.parametrize(("name", "model"), [*product(list(ROUNDS)[1:], WHOLE), ("pipedream_naive", MLP)])
def test_one_stage_is_sgd(name: str, model: Model) -> None:
    """And the losses are those of the weights before each step."""
    batches = batches_of(model, 5)
    ran, expected = run(name, model, 1, batches), ref.sgd(model, initial(model), batches, LR)
    assert worst(every(ran), expected) < 1e-12
    before = [initial(model), *expected[:-1]]
    losses = [ref.gradients(model, w, *batch)[0] for w, batch in zip(before, batches, strict=True)]
    assert ran.losses == pytest.approx(losses, rel=1e-12)


@pytest.mark.parametrize("p", [1, 3])
@pytest.mark.parametrize("model", WHOLE)
def test_a_flush_after_all_microbatches_is_sgd_on_the_batch(model: Model, p: int) -> None:
    batches = batches_of(model, 4)
    ran = run("pipedream_flush", model, p, batches, accumulate=4)
    assert worst(every(ran), ref.sgd(model, initial(model), [joined(batches)], LR)) < 1e-9


@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize("model", WHOLE)
def test_vertical_sync_is_its_formula(model: Model, p: int) -> None:
    """w(t+1) = w(t) - lr grad f(w(t-p+1)), and w(0) before there is such a thing."""
    batches, w = batches_of(model, 6), [initial(model)]
    for t, batch in enumerate(batches):
        w.append(descended(model, w[t], w[max(0, t - p + 1)], batch))
    assert worst(every(run("pipedream_vertical_sync", model, p, batches)), w[1:]) < 1e-9


@pytest.mark.parametrize(("p", "accumulate", "num"), [(1, 1, 5), (2, 2, 7), (2, 3, 9), (4, 4, 9)])
@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("model", WHOLE)
def test_grouped_updates_are_their_formulas(model: Model, name: str, p: int, accumulate: int, num: int) -> None:
    """w(t+1) = w(t) - lr grad f(w(t-1)) or f(w(t)); with 7 or 9 microbatches the last group is one of one."""
    batches, w = batches_of(model, num), [initial(model)]
    for t, start in enumerate(range(0, num, accumulate)):
        met = w[max(0, t - 1)] if name == "pipedream_2bw" else w[t]
        w.append(descended(model, w[t], met, *batches[start : start + accumulate]))
    ran = run(name, model, p, batches, accumulate=accumulate)
    assert worst(every(ran), w[1:]) < 1e-9
    assert worst([ran.final], w[-1:]) < 1e-9


class Mismatched(torch.autograd.Function):
    """A linear layer whose backward finds another weight in the place of the one it saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ahead: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(x, back)
        return x @ ahead.T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, back = ctx.saved_tensors
        return grads[0] @ back, grads[0].T @ x, None


DRAWN = [(0, 0, 0), (0, 0, 1), (0, 1, 2), (1, 2, 3), (2, 3, 4)]
"""The updates that each minibatch's forward comes after on stages 0, 1, 2, read off a drawn 1F1B without a flush."""


@pytest.mark.parametrize("name", ["pipedream", "pipedream_naive"])
def test_three_stages_of_one_layer_longhand(name: str) -> None:
    model, layers = models.mlp(width=6, depth=3), ("fc0", "fc1", "head")
    batches, versions, losses = batches_of(model, 5), [initial(model)], []
    mismatched: Any = Mismatched.apply
    for (x, target), drawn in zip(batches, DRAWN, strict=True):
        met = dict(zip(layers, drawn, strict=True))
        leaves = {n: versions[met[n.split(".")[0]]][n].clone().requires_grad_() for n in versions[0]}
        h = x
        for layer in layers:
            weight, bias = leaves[f"{layer}.weight"], leaves[f"{layer}.bias"]
            entered = h if layer == "fc0" else h.relu()
            back = weight if name == "pipedream" else versions[-1][f"{layer}.weight"]
            h = mismatched(entered, weight, back) + bias
        loss = functional.nll_loss(h.log_softmax(dim=1), target, reduction="sum") / 9
        losses.append(loss.item())
        grads = torch.autograd.grad(loss, list(leaves.values()))
        versions.append({n: w - LR * grad for (n, w), grad in zip(versions[-1].items(), grads, strict=True)})
    ran = ref.pipedream_trajectory(name, model, versions[0], batches, LR, layers=(1, 1, 1))
    assert worst(every(ran), versions[1:]) < 1e-12
    assert ran.losses == pytest.approx(losses, rel=1e-12)


def test_stashing_matters_from_the_second_minibatch_on() -> None:
    batches = batches_of(MLP, 3)
    stashed, naive, synced = (every(run(name, MLP, 4, batches)) for name in ("pipedream", "pipedream_naive", VERTICAL))
    assert worst(naive[:1], stashed[:1]) < 1e-12
    assert worst(naive[1:2], stashed[1:2]) > 1e-3
    assert worst(synced[1:2], stashed[1:2]) > 1e-3
    assert worst(stashed[1:2], ref.sgd(MLP, initial(MLP), batches, LR)[1:2]) > 1e-3


@pytest.mark.parametrize("model", WHOLE)
def test_stashing_mixes_versions_into_one_set_of_weights(model: Model) -> None:
    """Two stages: the second meets the newest weights, the first those of one update before."""
    batches, w, second = batches_of(model, 4), [initial(model)], ("ffn0.", "fc2.", "head.")
    for t, batch in enumerate(batches):
        met = {name: w[t if name.startswith(second) else max(0, t - 1)][name] for name in w[0]}
        w.append(descended(model, w[t], met, batch))
    assert worst(every(run("pipedream", model, 2, batches)), w[1:]) < 1e-9


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize(("name", "model"), [*product(list(ROUNDS)[1:], WHOLE), ("pipedream_naive", MLP)])
def test_replicas_of_one_stage_are_sgd_on_joined_minibatches(name: str, model: Model, k: int) -> None:
    """Seven minibatches: the last round is one of one."""
    batches = batches_of(model, 7)
    rounds = [joined(batches[start : start + k]) for start in range(0, 7, k)]
    ran = run(name, model, 1, batches, replicas=(k,))
    assert list(ran.versions["head.bias"]) == [-1, *range(k - 1, 7, k), 6]
    assert worst(every(ran), ref.sgd(model, initial(model), rounds, LR)) < 1e-9


@pytest.mark.parametrize("model", WHOLE)
def test_two_stages_of_which_one_is_replicated_longhand(model: Model) -> None:
    """Stage 0 on two ranks steps after 1, 3 and 4, one round late; stage 1 after each."""
    batches, second = batches_of(model, 5), ("ffn0.", "fc2.", "head.")
    made = {name: {-1: weight} for name, weight in initial(model).items()}
    grads = []
    for i, met in enumerate((-1, -1, -1, -1, 1)):
        mixed = {name: versions[i - 1 if name.startswith(second) else met] for name, versions in made.items()}
        grads.append(ref.gradients(model, mixed, *batches[i])[1])
        for name, versions in made.items():
            if name.startswith(second):
                versions[i] = versions[i - 1] - LR * grads[i][name]
            elif i in (1, 3):
                versions[i] = versions[i - 2] - LR * (grads[i - 1][name] + grads[i][name]) / 2
            elif i == 4:
                versions[4] = versions[3] - LR * grads[4][name]
    ran = run("pipedream", model, 2, batches, replicas=(2, 1))
    assert {name: list(versions) for name, versions in ran.versions.items()} == {n: list(v) for n, v in made.items()}
    for name, versions in made.items():
        torch.testing.assert_close(ran.versions[name], versions, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["pipedream", "pipedream_naive", "pipedream_flush"])
def test_a_round_averages_minibatches_however_many_samples_they_have(name: str) -> None:
    batches = [batch_of(MLP, 3), batch_of(MLP, 12, 1)]
    choices: dict[str, Any] = {"accumulate": 2} if name == "pipedream_flush" else {"replicas": (2,)}
    expected = descended(MLP, initial(MLP), initial(MLP), *batches)
    assert worst([run(name, MLP, 1, batches, **choices).final], [expected]) < 1e-12


@pytest.mark.parametrize("name", ref.RULES)
def test_one_minibatch_is_one_step(name: str) -> None:
    [batch] = batches_of(MLP, 1)
    ran = run(name, MLP, 3, [batch], **({"accumulate": 3} if name in GROUPED else {}))
    assert worst(every(ran), [descended(MLP, initial(MLP), initial(MLP), batch)]) < 1e-12
    assert len(ran.losses) == len(ran.stages[0].forward) == 1


def test_fewer_minibatches_than_stages() -> None:
    """Three on four: only stages 2 and 3 are ever ahead of the start; with vertical sync none."""
    batches = batches_of(MLP, 3)
    ran = run("pipedream", MLP, 4, batches)
    assert [stage.forward for stage in ran.stages] == [(-1, -1, -1), (-1, -1, -1), (-1, -1, 0), (-1, 0, 1)]
    synced = run("pipedream_vertical_sync", MLP, 4, batches)
    assert {stage.forward for stage in synced.stages} == {(-1, -1, -1)}
    w = [initial(MLP)]
    for batch in batches:
        w.append(descended(MLP, w[-1], w[0], batch))
    assert worst(every(synced), w[1:]) < 1e-12


@pytest.mark.parametrize("name", ref.RULES)
def test_nothing_is_changed_in_place(name: str) -> None:
    weights, before, choices = initial(MLP), initial(MLP), {"accumulate": 3} if name in GROUPED else {}
    ref.pipedream_trajectory(name, MLP, weights, batches_of(MLP, 4), LR, layers=(2, 1, 1), **choices)
    assert worst([weights], [before]) == 0.0
    assert not any(weight.requires_grad for weight in weights.values())


def test_shared_weights_need_one_version() -> None:
    """The matrix of a tied transformer is in its first stage and in its last."""
    model = models.transformer(width=8, depth=1, heads=2, tied=1)
    batches = batches_of(model, 4)
    with pytest.raises(ValueError, match=r"embed and head share weights, but stages \[0, 1\] meet different"):
        run("pipedream", model, 2, batches)
    w = [initial(model)]
    for t, batch in enumerate(batches):
        w.append(descended(model, w[t], w[max(0, t - 1)], batch))
    assert worst(every(run("pipedream_vertical_sync", model, 2, batches)), w[1:]) < 1e-9


@pytest.mark.parametrize("model", [*MODELS.values(), models.mlp(width=8, depth=4, tp=2)], ids=lambda m: m.name)
def test_parameters_are_on_the_stages_of_the_spec(model: Model) -> None:
    num = len(model.layers)
    for p in range(1, num + 1):
        stage_of = variants._stage_of(model, [num // p + (s < num % p) for s in range(p)])
        for s, items in enumerate(model.stages(p)):
            prefixes = {item.layer or item.name for item in items if isinstance(item, Segment)}
            assert {stage_of[prefix] for prefix in prefixes} == {s}
        assert {name.partition(".")[0] for name in initial(model)} <= stage_of.keys()


@pytest.mark.parametrize("model", [TRANSFORMER, MODELS["cnn"], MODELS["experts"], models.mlp(width=8, depth=4, tp=2)])
def test_naive_is_for_an_mlp(model: Model) -> None:
    with pytest.raises(ValueError, match="only a whole MLP"):
        ref.pipedream_naive(model, {}, [], LR, (2, 2))


@pytest.mark.parametrize(
    ("name", "choices", "words"),
    [
        ("pipedream", {"layers": (3, 2)}, r"stages of \(3, 2\) layers for the 4 layers .* at least 1, and 4 together"),
        ("pipedream", {"layers": (4, 0)}, r"stages of \(4, 0\) layers"),
        ("pipedream", {"layers": ()}, r"replicas \(\) for 0 stages"),
        ("pipedream_flush", {"layers": (5,), "accumulate": 1}, r"stages of \(5,\) layers"),
        ("pipedream", {"replicas": (2,)}, r"replicas \(2,\) for 2 stages"),
        ("pipedream_naive", {"replicas": (2, 0)}, r"replicas \(2, 0\) for 2 stages"),
        (VERTICAL, {"replicas": (2, 3)}, r"5 minibatches with replicas \(2, 3\): .* every 6 .* at least 6"),
        (VERTICAL, {"replicas": (6, 1)}, r"5 minibatches with replicas \(6, 1\)"),
        ("pipedream_2bw", {"accumulate": 1}, "accumulate 1 on 2 stages: .* accumulate 2 or more"),
        ("pipedream_flush", {"accumulate": 0}, "accumulate 0: an update takes in at least 1"),
        ("pipedream_2bw", {}, "pipedream_2bw needs accumulate"),
        ("pipedream_flush", {"accumulate": 2, "replicas": (2, 1)}, r"replicas \(2, 1\) for pipedream_flush"),
        ("pipedream", {"accumulate": 2}, "accumulate 2 for pipedream, .* leave it out"),
        ("pipedream_3bw", {}, "'pipedream_3bw' is no variant of PipeDream; choose among pipedream_naive, pipedream, "),
    ],
)
def test_an_impossible_choice_is_refused(name: str, choices: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ref.pipedream_trajectory(name, MLP, initial(MLP), batches_of(MLP, 5), LR, **{"layers": (2, 2), **choices})


@pytest.mark.parametrize(("replicas", "num"), [((1, 1), 1), ((3, 3), 2), ((2, 1), 2), ((2, 3), 6)])
def test_vertical_sync_is_not_refused_without_need(replicas: tuple[int, int], num: int) -> None:
    assert len(run(VERTICAL, MLP, 2, batches_of(MLP, num), replicas=replicas).losses) == num
