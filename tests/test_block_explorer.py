"""The explorer of a transformer block: its picture, its controls, a run for real."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from pdlab import metrics, plots
from pdlab.launch import Ranks
from pdlab.ops import Kind
from pdlab.plots.numbers import Numbers
from pdlab.plots.units import three_digits
from pdlab.widgets import BlockExplorer, BlockScenario
from pdlab.widgets.block import SIZES, SPLITS, STEP_S
from pdlab.widgets.picture import png
from pdlab.widgets.redraw import DELAY_S

PNG = b"\x89PNG\r\n\x1a\n"


# --- the picture


def numbers(figure: Figure) -> set[str]:
    return {artist.text for axes in figure.axes for artist in axes.collections if isinstance(artist, Numbers)}


def tops(axes: Axes) -> list[float]:
    """How high the bars reach above each tick."""
    boxes = [
        path.get_extents() for bars in axes.collections if isinstance(bars, PolyCollection) for path in bars.get_paths()
    ]
    return [max(box.y1 for box in boxes if box.x0 < at < box.x1) for at in range(len(SIZES))]


@pytest.mark.parametrize("split", SPLITS)
def test_the_bars_say_what_was_simulated(split: str) -> None:
    found = BlockScenario(2).compared()
    times = [trace.makespan * 1e3 for trace in found[split]]
    kept = [metrics.held_for_backward_per_rank(trace)[0] / 1e6 for traces in found.values() for trace in traces]
    figure = plots.block(**found, tp=2, split=split)
    speedups = [f"{three_digits(time)} ({times[0] / time:.2f}x)" for time in times[1:]]
    assert numbers(figure) >= {three_digits(times[0]), *speedups, *map(three_digits, kept)}
    assert tops(figure.axes[1]) == pytest.approx(times)
    assert f"{split} parallel on 2 ranks: simulated {three_digits(times[1])} ms" in figure.texts[0].get_text()


def test_a_picture_of_what_is_not_there_is_refused() -> None:
    tensor, sequence = BlockScenario().compared().values()
    with pytest.raises(ValueError, match="no trace of tensor parallelism on 4 ranks; there are some on 1, 2"):
        plots.block(tensor[:2], sequence, tp=4, split="tensor")
    with pytest.raises(ValueError, match="split 'row'; choose one of tensor, sequence"):
        plots.block(tensor, sequence, tp=4, split="row")


@pytest.mark.parametrize(
    "scenario",
    [
        BlockScenario(),
        BlockScenario(8, "sequence", 512, 8192, 3, 22.4, True, "full"),
        BlockScenario(1, "tensor", 8192, 256, 1, 0.5, False, "partitioned"),
    ],
)
def test_the_python_that_is_shown_makes_the_same_picture(scenario: BlockScenario) -> None:
    names: dict[str, Any] = {}
    *statements, picture = scenario.python().splitlines()
    exec("\n".join(statements), names)
    assert png(eval(picture, names)) == png(scenario.draw()[0])


# --- the controls


@pytest.fixture
def explorer() -> Iterator[BlockExplorer]:
    explorer = BlockExplorer(2)
    yield explorer
    explorer.close()


CHANGES = [
    ("tp", 8),
    ("split", "sequence"),
    ("width", 1024),
    ("tokens", 512),
    ("samples", 4),
    ("link_gb_s", 33.3),
    ("overlap", True),
    ("recompute", "partitioned"),
]


@pytest.mark.parametrize(("name", "value"), CHANGES)
def test_code_draws_at_once(explorer: BlockExplorer, name: str, value: Any) -> None:
    before, line, python = explorer.picture.value, explorer.summary.value, explorer.python.value
    setattr(explorer, name, value)
    assert bytes(explorer.picture.value).startswith(PNG) and explorer.picture.value != before
    assert explorer.summary.value != line and explorer.python.value != python
    assert explorer.scenario == replace(BlockScenario(2), **{name: value})
    assert explorer.picture.value == png(explorer.scenario.draw()[0])


def test_the_page_sets_what_its_controls_offer(explorer: BlockExplorer) -> None:
    async def play() -> None:
        explorer.controls["tp"].set_state({"index": 2})
        explorer.controls["overlap"].set_state({"value": True})
        explorer.controls["link_gb_s"].set_state({"value": 22.387211385683404})
        await asyncio.sleep(5 * DELAY_S)

    before = explorer.picture.value
    asyncio.run(play())
    assert explorer.scenario == BlockScenario(4, overlap=True, link_gb_s=22.4)
    assert explorer.picture.value != before and explorer.trouble.error is None
    assert explorer.picture.value == png(explorer.scenario.draw()[0])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tp": 3}, "tp is 3; choose one of 1, 2, 4, 8"),
        ({"split": "row"}, "split is 'row'; choose one of tensor, sequence"),
        ({"width": 1000}, "width is 1000; choose one of 512, 1024, 2048, 4096, 8192"),
        ({"tokens": 100}, "tokens is 100; choose one of 256, 512"),
        ({"recompute": "all"}, "recompute is 'all'; choose one of none, full, partitioned"),
        ({"samples": 0}, "samples is 0; give a whole number of at least 1"),
        ({"samples": 1.5}, r"samples is 1\.5; give a whole number of at least 1"),
        ({"link_gb_s": 0.0}, "link_gb_s is 0; give a finite number of GB/s above 0"),
        ({"link_gb_s": float("inf")}, "link_gb_s is inf; give a finite number of GB/s above 0"),
    ],
)
def test_what_cannot_be_split_is_refused(given: dict[str, Any], said: str) -> None:
    for maker in (BlockScenario, BlockExplorer):
        with pytest.raises(ValueError, match=said):
            maker(**given)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("tp", 3, "tp is 3; choose one of 1, 2, 4, 8"),
        ("samples", 17, "samples is 17; the slider goes from 1 to 16"),
        ("link_gb_s", 2000, "link_gb_s is 2000; the slider goes from 1 to 1000"),
        ("overlap", "yes", "overlap is 'yes'; give True or False"),
    ],
)
def test_a_control_is_not_set_to_what_it_does_not_offer(
    explorer: BlockExplorer, name: str, value: Any, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        setattr(explorer, name, value)
    assert explorer.scenario == BlockScenario(2)


def test_torch_is_loaded_by_a_real_run_only() -> None:
    code = "import sys; from pdlab.widgets import BlockExplorer; BlockExplorer(); print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"


# --- a run for real


@pytest.mark.processes
@pytest.mark.parametrize(
    "scenario", [BlockScenario(1), BlockScenario(2), BlockScenario(2, "sequence", overlap=True, recompute="full")]
)
def test_a_block_runs_for_real(pool: Ranks, scenario: BlockScenario) -> None:
    how = {"split": scenario.split, "overlap": scenario.overlap, "recompute": scenario.recompute}
    explorer = BlockExplorer(scenario.tp, **how, pool=pool)
    found = explorer.run(steps=1)
    assert found.grad_max_rel_error < 1e-9
    assert found.measured.program.mesh.size == scenario.tp
    assert any(op.kind is Kind.RECOMPUTE for op in found.measured.program.ranks[0].ops) == (
        scenario.recompute != "none"
    )
    assert (
        found.predicted_s == pytest.approx(STEP_S) and found.measured_s is not None and found.measured_s > 0.9 * STEP_S
    )
    assert f"each op {three_digits(scenario.pace().factor)} times as long as predicted" in explorer.real.status.value
    assert bytes(explorer.real.picture.value).startswith(PNG)
    explorer.close()
