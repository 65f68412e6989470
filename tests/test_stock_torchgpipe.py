"""torchgpipe beside `gpipe`: the same gradients, the same order on modelled clocks, and said where it cannot be had."""

import csv
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pdlab import models, own
from pdlab.cli import main
from pdlab.compare import ModelOf
from pdlab.costs import Costs, Link, Uniform
from pdlab.lab import lab_mlp, lab_transformer
from pdlab.models import Model
from pdlab.report import COLUMNS
from pdlab.simulate import simulate
from pdlab.stock import torchgpipe
from pdlab.stock.clocks import Clocks, durations
from pdlab.stock.torchgpipe import NAME, Pipe, balance, beside, lacks
from pdlab.strategies import Plan, build, get

needs_torchgpipe = pytest.mark.skipif(find_spec("torchgpipe") is None, reason="torchgpipe is not installed")

COSTS = Uniform(F=40, B=80, comm=8, step=5)


def layers() -> list[nn.Module]:
    """A model of the user's, with an entry that has no parameters."""
    return [nn.Linear(64, 16), nn.Tanh(), nn.Sequential(nn.Linear(16, 16), nn.ReLU()), nn.Linear(16, 10)]


def own_model(_: Plan, itemsize: int) -> Model:
    return own.model("tests.test_stock_torchgpipe:layers", itemsize=itemsize)


@needs_torchgpipe
@pytest.mark.parametrize("recompute", ["none", "except_last", "stage"])
@pytest.mark.parametrize("model_of", [lab_transformer, lab_mlp, own_model])
def test_gradients_are_those_of_one_process(model_of: ModelOf, recompute: str) -> None:
    plan = Plan(pp=3, microbatches=4, batch=8, recompute=recompute)
    assert 0 < beside(plan, model_of=model_of, timed=False).grad_max_rel_error < 1e-9


@needs_torchgpipe
@pytest.mark.parametrize(("pp", "microbatches", "batch"), [(1, 4, 8), (4, 2, 4), (3, 1, 5), (2, 4, 11)])
def test_gradients_of_hard_shapes(pp: int, microbatches: int, batch: int) -> None:
    plan = Plan(pp=pp, microbatches=microbatches, batch=batch, recompute="except_last")
    assert beside(plan, timed=False).grad_max_rel_error < 1e-9


def on_clocks(plan: Plan, costs: Costs) -> float:
    """The end of a step in which handing out takes no time."""
    model = lab_mlp(plan, 4)
    clocks = Clocks(plan.pp, durations(build(get("gpipe"), plan, model), costs), now=lambda: 0.0)
    Pipe(model, plan, 0, clocks).loss().backward()
    return clocks.finish()


def simulated(plan: Plan, costs: Costs) -> float:
    return simulate(build(get("gpipe"), plan, lab_mlp(plan, 4)), costs).makespan


@needs_torchgpipe
@pytest.mark.parametrize(("p", "m"), [(1, 4), (4, 2), (4, 8)])
def test_its_order_takes_as_long_as_gpipe(p: int, m: int) -> None:
    plan = Plan(pp=p, microbatches=m, batch=2 * m)
    found = on_clocks(plan, COSTS)
    assert found == pytest.approx((m + p - 1) * (40 + 80) + 2 * (p - 1) * 8 + 5)
    assert found == pytest.approx(simulated(plan, COSTS))


@needs_torchgpipe
@pytest.mark.parametrize(("recompute", "again"), [("stage", 8), ("except_last", 7)])
def test_forwards_run_again_where_the_mode_says(recompute: str, again: int) -> None:
    """Only those of the last stage are seen: other stages wait for their gradients meanwhile."""
    plan = Plan(pp=4, microbatches=8, batch=16, recompute=recompute)
    assert on_clocks(plan, COSTS) == pytest.approx((8 + 3) * (40 + 80) + 2 * 3 * 8 + 5 + again * 40)


@needs_torchgpipe
def test_nothing_begins_before_it_is_handed_out() -> None:
    plan, late = Plan(pp=1, microbatches=2, batch=2), iter([0.0, 50.0, 60.0, 500.0, 510.0, 520.0])
    model = lab_mlp(plan, 4)
    clocks = Clocks(1, durations(build(get("gpipe"), plan, model), COSTS), now=late.__next__)
    Pipe(model, plan, 0, clocks).loss().backward()
    assert clocks.finish() == pytest.approx(500 + 2 * 80 + 5)


def flat() -> list[nn.Module]:
    """The first stage of two has nothing to train, and no backward."""
    return [nn.Tanh(), nn.Linear(64, 10)]


@needs_torchgpipe
@pytest.mark.parametrize(("recompute", "again"), [("none", 0), ("stage", 40)])
def test_a_stage_without_weights_is_run_again_but_has_no_backward(recompute: str, again: int) -> None:
    plan = Plan(pp=2, microbatches=1, batch=2, recompute=recompute)
    model = own.model("tests.test_stock_torchgpipe:flat")
    clocks = Clocks(2, durations(build(get("gpipe"), plan, model), COSTS), now=lambda: 0.0)
    Pipe(model, plan, 0, clocks).loss().backward()
    assert clocks.finish() == 40 + 8 + 40 + again + 80 + 5
    assert clocks.free[0] == 40 + again


@needs_torchgpipe
@pytest.mark.parametrize("costs", [Uniform(F=1, B=2, scale=(1, 3, 2)), Uniform(F=1, B=2, comm=5)])
def test_uneven_stages_and_slow_links_take_as_long_as_simulated(costs: Uniform) -> None:
    plan = Plan(pp=3, microbatches=4, batch=4)
    assert on_clocks(plan, costs) == pytest.approx(simulated(plan, costs))


@needs_torchgpipe
def test_a_paced_row_takes_its_modelled_time_and_a_measured_one_does_not() -> None:
    plan, costs = Plan(pp=2, microbatches=2, batch=4), Uniform(F=0.1, B=0.2)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        paced, measured = (beside(plan, model_of=lab_mlp, costs=given, steps=1) for given in (costs, None))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert paced.seconds is not None and measured.seconds is not None
    assert paced.seconds >= 0.9 > 2 * 0.3 > measured.seconds > 0
    assert paced.bubble == pytest.approx(1 - 2 * 2 * 0.3 / (2 * paced.seconds)) and measured.bubble is None
    assert (paced.summary()["mode"], measured.summary()["mode"]) == ("paced, one process", "measured, one process")
    assert set(paced.summary()) == set(COLUMNS) and "as a GPU has a stream" in paced.note
    assert "one after the other" in measured.note


@needs_torchgpipe
def test_cpu_devices_share_one_thread_as_the_note_says() -> None:
    from torchgpipe import GPipe

    seen = set()

    class Layer(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.add(threading.get_ident())
            return super().forward(x)

    GPipe(nn.Sequential(Layer(4, 4), Layer(4, 4)), balance=[1, 1], devices=["cpu", "cpu"], chunks=2)(torch.ones(2, 4))
    assert len(seen) == 1


def test_relus_go_with_the_layer_that_they_lead_to() -> None:
    model = models.mlp(width=8, depth=5)
    network = torchgpipe.reference.build(model)
    assert isinstance(network, nn.Sequential)
    assert balance(network, model, 3) == [3, 4, 2]
    assert [name for name, _ in network.named_children()][2:4] == ["fc1", "relu2"]


@needs_torchgpipe
@pytest.mark.parametrize(
    ("plan", "model", "said"),
    [
        (Plan(pp=2, dp=2, microbatches=2), models.mlp(), "no other axis than pp"),
        (Plan(pp=2, virtual=2, microbatches=2), models.mlp(), "one stage on each of its devices"),
        (Plan(pp=2, microbatches=2, recompute="full"), models.mlp(), "not --recompute full"),
        (Plan(pp=2, microbatches=6, batch=9), models.mlp(), "cuts 9 samples into microbatches of"),
        (Plan(pp=2), models.transformer(width=16, depth=1, heads=2, dropout=0.1), "dropout"),
        (Plan(pp=2), models.transformer(width=16, depth=1, heads=2, tied=1), "wants a chain of layers"),
        (Plan(pp=2), models.mlp(width=8, depth=4, skip=2), "wants a chain of layers"),
    ],
)
def test_what_it_cannot_do_is_said(plan: Plan, model: Model, said: str) -> None:
    why = lacks(plan, model)
    assert why is not None and said in why and "\n" not in why
    with pytest.raises(ValueError, match="no stock row for gpipe"):
        beside(plan, model_of=lambda plan, itemsize: model)


@needs_torchgpipe
def test_uneven_microbatches_are_no_reason() -> None:
    assert lacks(Plan(pp=2, microbatches=5, batch=9), models.mlp()) is None


@needs_torchgpipe
def test_bad_numbers_are_refused() -> None:
    plan = Plan(pp=2, microbatches=2)
    with pytest.raises(ValueError, match="0 steps; give at least 1"):
        beside(plan, steps=0)
    with pytest.raises(ValueError, match=r"Link\.CHANNEL"):
        beside(plan, costs=Uniform(link=Link.INDEPENDENT))


COMPARE = ("compare", "gpipe", "1f1b", "--ranks", "2", "--microbatches", "2", "--mode", "local")


@needs_torchgpipe
def test_the_row_stands_beside_gpipe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main((*COMPARE, "--out", str(tmp_path))) == 0
    printed = capsys.readouterr().out
    assert [line.split("  ")[0] for line in printed.splitlines()[1:4]] == ["gpipe", NAME, "1f1b"]
    assert f"\n{NAME}: one process" in printed
    with (tmp_path / "summary.csv").open() as file:
        _, row, _ = csv.DictReader(file)
    assert row["strategy"] == NAME and row["simulated_s"] == "" and float(row["grad_max_rel_error"]) < 1e-9
    assert (tmp_path / "report.html").read_text().count(NAME) == 2


@needs_torchgpipe
def test_without_a_row_the_comparison_goes_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main((*COMPARE, "--recompute", "full", "--out", str(tmp_path))) == 0
    printed = capsys.readouterr().out
    assert "no stock row for gpipe: torchgpipe runs whole stages again" in printed and NAME not in printed


def test_its_absence_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torchgpipe, "find_spec", lambda name: None)
    assert main((*COMPARE, "--out", str(tmp_path))) == 0
    printed = capsys.readouterr().out
    line = "torchgpipe is not installed: no stock row for gpipe (pip install --no-deps torchgpipe)"
    assert printed.splitlines().count(line) == 1 and NAME not in printed
    with pytest.raises(ValueError, match="torchgpipe is not installed"):
        beside(Plan(pp=2))
