"""The explorer of weight versions: its picture, what the ledger says, its controls, a run for real."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from html import escape
from typing import Any

import pytest

from pdlab import plots
from pdlab.forms import to_json
from pdlab.launch import Ranks
from pdlab.ledger import Ledger
from pdlab.plots.version_lanes import Versions
from pdlab.steady import seconds_per_minibatch
from pdlab.widgets import VersionExplorer, VersionScenario
from pdlab.widgets.picture import png
from pdlab.widgets.redraw import DELAY_S
from pdlab.widgets.version_scenario import VARIANTS, takers

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def explorer() -> Iterator[VersionExplorer]:
    explorer = VersionExplorer("pipedream", pp=3, minibatches=6)
    yield explorer
    explorer.close()


SCENARIOS = [
    *(VersionScenario(name, pp=4, minibatches=8) for name in VARIANTS),
    VersionScenario("pipedream", pp=4, minibatches=9, first=3, F=1.3, B=0.7, comm=0.4),
    VersionScenario("pipedream_vertical_sync", pp=5, minibatches=6, first=2),
    VersionScenario("pipedream_2bw", pp=3, minibatches=12, accumulate=5),
    VersionScenario("pipedream_flush", pp=3, minibatches=12, accumulate=2),
    VersionScenario("pipedream", pp=2, minibatches=3, first=2),
]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_python_that_is_shown_makes_the_same_program_and_picture(scenario: VersionScenario) -> None:
    names: dict[str, Any] = {}
    *statements, picture = scenario.python().splitlines()
    exec("\n".join(statements), names)
    assert to_json(names["program"]) == to_json(scenario.program())
    assert png(eval(picture, names)) == png(scenario.draw()[0]) == png(plots.versions(scenario.predict()))


CHANGES = [
    *(("strategy", "pipedream_naive"), ("pp", 4), ("minibatches", 8), ("first", 2)),
    *(("F", 2.0), ("B", 3.0), ("comm", 0.4)),
]


@pytest.mark.parametrize(("name", "value"), CHANGES)
def test_code_draws_at_once(explorer: VersionExplorer, name: str, value: Any) -> None:
    before, python = explorer.picture.value, explorer.python.value
    setattr(explorer, name, value)
    assert bytes(explorer.picture.value).startswith(PNG) and explorer.picture.value != before
    assert explorer.python.value != python and getattr(explorer.scenario, name) == value
    assert explorer.picture.value == png(plots.versions(explorer.scenario.predict()))


@pytest.mark.parametrize("name", VARIANTS)
def test_what_the_ledger_says_stands_in_a_line_each(explorer: VersionExplorer, name: str) -> None:
    explorer.strategy = name
    said = Ledger.of(explorer.scenario.program()).verdicts()
    assert explorer.summary.value.split("<br>") == [escape(line) for line in said]
    assert explorer.summary.value.startswith("INCONSISTENT") is (name == "pipedream_naive")


def test_a_change_on_the_page_is_drawn_for(explorer: VersionExplorer) -> None:
    before = explorer.picture.value

    async def play() -> None:
        explorer.controls["minibatches"].set_state({"value": 9})
        await asyncio.sleep(5 * DELAY_S)

    asyncio.run(play())
    assert explorer.scenario.minibatches == 9 and explorer.picture.value != before


@pytest.mark.parametrize("name", VARIANTS)
def test_a_control_acts_where_the_variant_takes_it(explorer: VersionExplorer, name: str) -> None:
    explorer.strategy = name
    acts = {field for field in ("first", "accumulate") if not explorer.controls[field].disabled}
    assert acts == ({"accumulate"} if name in ("pipedream_2bw", "pipedream_flush") else {"first"})
    assert acts == {field for field in ("first", "accumulate") if name in takers(field)}
    assert explorer.scenario == VersionScenario(name, pp=3, minibatches=6)
    for field in {"first", "accumulate"} - acts:
        with pytest.raises(
            ValueError, match=f"{field} cannot be set here; only {', '.join(takers(field))} can be told"
        ):
            setattr(explorer, field, 2)


def test_replicas_stay_with_another_variant_and_updates_follow_the_ranks(explorer: VersionExplorer) -> None:
    explorer.first = 3
    explorer.strategy = "pipedream_naive"
    assert explorer.scenario == VersionScenario("pipedream_naive", 3, 6, first=3)
    explorer.pp = 2
    assert explorer.scenario.replicas == (2,)
    explorer.strategy = "pipedream_2bw"
    explorer.accumulate = 5
    explorer.pp = 4
    assert explorer.scenario == VersionScenario("pipedream_2bw", 4, 6, accumulate=4)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"strategy": "1f1b"}, "'1f1b' is no variant of PipeDream; choose one of pipedream_naive, pipedream, "),
        ({"pp": 9}, "pp is 9; the slider goes from 1 to 8"),
        ({"minibatches": 31}, "minibatches is 31; the slider goes from 1 to 30"),
        ({"pp": 3, "first": 4}, "the first stage is on 4 of 3 ranks; give 1 to 3"),
        (
            {"accumulate": 4},
            "accumulate is 4 with pipedream; only pipedream_2bw, pipedream_flush can be told, so leave",
        ),
        ({"strategy": "pipedream_2bw", "first": 2}, "first is 2 with pipedream_2bw; only pipedream_naive, pipedream, "),
        ({"strategy": "pipedream_2bw", "accumulate": 3}, "an update of 3 microbatches on 4 ranks"),
        ({"strategy": "pipedream_vertical_sync", "first": 3, "minibatches": 2}, "in common after every 3 minibatches"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        VersionExplorer(**given)


def test_a_refusal_on_the_page_is_shown_in_place_of_the_picture(explorer: VersionExplorer) -> None:
    async def play() -> None:
        explorer.controls["first"].set_state({"value": 5})
        await asyncio.sleep(5 * DELAY_S)

    asyncio.run(play())
    assert "the first stage is on 5 of 3 ranks; give 1 to 3" in explorer.trouble.value
    assert explorer.picture.layout.visibility == "hidden"
    explorer.first = 2
    assert explorer.trouble.value == "" and explorer.picture.layout.visibility == "visible"


@pytest.mark.parametrize(("pp", "first"), [(4, 1), (4, 3), (3, 3)])
def test_all_ranks_are_equally_busy(pp: int, first: int) -> None:
    """So a minibatch takes F + B of a full pipeline whose messages are free, however many ranks share a stage."""
    trace = VersionScenario("pipedream", pp, 30, first=first, F=1, B=2, comm=0).predict()
    assert seconds_per_minibatch(trace) == pytest.approx(3.0)


@pytest.mark.processes
@pytest.mark.parametrize(
    "scenario",
    [
        *(VersionScenario(name, 3, 5, F=0.2, B=0.2, comm=0) for name in VARIANTS),
        VersionScenario("pipedream_naive", 3, 5, first=2, F=0.2, B=0.2, comm=0),
    ],
)
def test_every_variant_runs_for_real(pool: Ranks, scenario: VersionScenario) -> None:
    """And its own trace is drawn with the same versions as its prediction."""
    given = {name: value for name, value in vars(scenario).items() if value is not None}
    explorer = VersionExplorer(**given, pool=pool)
    found = explorer.run(steps=1)
    assert found.measured.program.name == scenario.strategy and found.grad_max_rel_error < 1e-9
    assert bytes(explorer.real.picture.value).startswith(PNG)
    assert Versions(found.measured.program).made == Versions(scenario.program()).made
    assert "paced" in plots.versions(found.measured).texts[0].get_text()
    explorer.close()


def test_torch_is_loaded_by_a_real_run_only() -> None:
    code = "import sys; from pdlab.widgets import VersionExplorer; VersionExplorer(); print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"
