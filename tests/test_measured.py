"""Measured mode: the default where every rank has a core; with more ranks than cores it says so and fits nothing."""

import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from pdlab import data, running
from pdlab.cli import main
from pdlab.compare import Comparison, compare_strategy
from pdlab.launch import Ranks
from pdlab.strategies import Plan
from pdlab.trace import Mode

pytestmark = pytest.mark.processes
RUN = ("run", "1f1b", "--pp", "2", "--microbatches", "2", "--steps", "2", "--json")


def texts(figure: Figure) -> str:
    axes = [ax.get_title(loc="left") for ax in figure.axes]
    return "\n".join([*(text.get_text() for text in figure.texts), *axes])


@pytest.mark.parametrize(
    ("cores", "words", "mode", "warning"),
    [
        (16, (), "measured", ""),
        (1, (), "paced", "2 ranks on 1 cores: paced"),
        (1, ("--mode", "measured"), "measured", "2 ranks on 1 cores: oversubscribed"),
    ],
)
def test_the_mode_follows_the_cores(
    cores: int,
    words: tuple[str, ...],
    mode: str,
    warning: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    table = tmp_path / "trace.csv"
    assert main([*RUN, *words, "--trace", str(table)]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["mode"] == mode and found["grad_max_rel_error"] < 1e-9
    assert warning in err
    if "oversubscribed" in warning:
        assert found["simulated_s"] is None and found["error_pct"] is None
        assert "oversubscribed" in table.read_text()
    else:
        assert found["simulated_s"] > 0 and isinstance(found["error_pct"], float)


@pytest.fixture(scope="module")
def crowded(pool: Ranks) -> Comparison:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.cpu_count", lambda: 1)
        return compare_strategy("1f1b", Plan(pp=2, microbatches=2, batch=8), pool, costs=None, steps=2)


def test_the_plot_says_oversubscribed(crowded: Comparison) -> None:
    assert crowded.measured.provenance.mode is Mode.MEASURED
    assert "measured, oversubscribed" in texts(running.figure(crowded))
    assert crowded.predicted.provenance.costs.startswith("costs F=")
    row = crowded.summary()
    assert row["simulated_s"] is None and row["bubble_simulated"] is None and row["measured_s"] is not None


def test_held_out_digits_are_never_trained_on() -> None:
    orders = [data.epoch_order(0, epoch) for epoch in range(3)]
    assert all(not set(order) & set(data.held_out()) and len(set(order)) == data.num_train() for order in orders)
    assert list(orders[0]) != list(orders[1])
