"""The explorer without a browser: code draws and raises, the page is answered soon and shown what went wrong."""

import asyncio
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import nbformat
import pytest
from matplotlib.figure import Figure
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from pdlab import plots, strategies
from pdlab.bubbles import PIPELINES
from pdlab.costs import Uniform
from pdlab.forms import to_json
from pdlab.launch import Ranks
from pdlab.trace import Trace
from pdlab.widgets import Scenario, ScheduleExplorer
from pdlab.widgets.controls import Choice
from pdlab.widgets.picture import png
from pdlab.widgets.redraw import DELAY_S

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def explorer() -> Iterator[ScheduleExplorer]:
    explorer = ScheduleExplorer("1f1b", pp=2, microbatches=3)
    yield explorer
    explorer.close()


def refuse(*_: Any, **__: Any) -> Figure:
    raise ValueError("this schedule has no 3 stages; take 2 or 4")


def break_(*_: Any, **__: Any) -> Figure:
    raise KeyError("<no such row>")


def on_the_page(explorer: ScheduleExplorer, *changes: tuple[str, Any]) -> None:
    """Changes as ipywidgets hands them on when they arrive from the page, then time for what is due."""

    async def play() -> None:
        for name, value in changes:
            control = explorer.controls[name]
            chosen = {"index": control.options.index(value)} if isinstance(control, Choice) else {"value": value}
            control.set_state(chosen)
        await asyncio.sleep(5 * DELAY_S)

    asyncio.run(play())


def shown(explorer: ScheduleExplorer) -> set[str]:
    return {part.layout.visibility for part in (explorer.picture, explorer.summary, explorer.python)}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Trace]:
    """What has been drawn since."""
    seen: list[Trace] = []
    schedule = plots.schedule

    def watched(trace: Trace) -> Figure:
        seen.append(trace)
        return schedule(trace)

    monkeypatch.setattr(plots, "schedule", watched)
    return seen


@pytest.mark.parametrize(
    ("name", "value"), [("strategy", "zb_h1"), ("pp", 3), ("microbatches", 5), ("F", 2.0), ("I", 2.0), ("comm", 0.4)]
)
def test_code_draws_at_once(explorer: ScheduleExplorer, name: str, value: Any) -> None:
    before, line, python = explorer.picture.value, explorer.summary.value, explorer.python.value
    setattr(explorer, name, value)
    assert bytes(explorer.picture.value).startswith(PNG) and explorer.picture.value != before
    assert explorer.summary.value != line and explorer.python.value != python
    assert getattr(explorer.scenario, name) == value


def test_the_picture_is_that_of_the_simulation(explorer: ScheduleExplorer) -> None:
    assert explorer.picture.value == png(plots.schedule(Scenario("1f1b", pp=2, microbatches=3).predict()))


@pytest.mark.parametrize("broken", [refuse, break_])
def test_what_code_makes_impossible_raises_in_code(
    explorer: ScheduleExplorer, monkeypatch: pytest.MonkeyPatch, broken: Callable[..., Figure]
) -> None:
    before = explorer.picture.value
    monkeypatch.setattr(plots, "schedule", broken)
    with pytest.raises((ValueError, KeyError), match=r"no 3 stages|no such row"):
        explorer.pp = 3
    with pytest.raises((ValueError, KeyError), match=r"no 3 stages|no such row"):
        explorer.controls["pp"].value = 4
    assert explorer.picture.value == before and explorer.trouble.error is not None


def test_the_page_is_drawn_for_soon_and_once(explorer: ScheduleExplorer, drawn: list[Trace]) -> None:
    before = explorer.picture.value
    on_the_page(explorer, *[("microbatches", m) for m in range(4, 10)])
    assert explorer.picture.value != before
    assert [trace.program.num_microbatches for trace in drawn] == [9]


def test_a_backlog_behind_a_slow_draw_costs_one_more_draw(explorer: ScheduleExplorer, drawn: list[Trace]) -> None:
    async def drag() -> None:
        explorer.controls["microbatches"].set_state({"value": 4})
        await asyncio.sleep(1.5 * DELAY_S)
        for m in range(5, 12):
            explorer.controls["microbatches"].set_state({"value": m})
        await asyncio.sleep(5 * DELAY_S)

    asyncio.run(drag())
    assert [trace.program.num_microbatches for trace in drawn] == [4, 11]


@pytest.mark.parametrize(
    ("broken", "said", "unsaid"),
    [
        (refuse, "this schedule has no 3 stages; take 2 or 4", "traceback"),
        (break_, "KeyError: &#x27;&lt;no such row&gt;&#x27;", "<no such row>"),
    ],
)
def test_what_the_page_makes_impossible_is_shown_on_the_page(
    explorer: ScheduleExplorer, broken: Callable[..., Figure], said: str, unsaid: str
) -> None:
    before = explorer.picture.value
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plots, "schedule", broken)
        on_the_page(explorer, ("pp", 3))
    assert said in explorer.trouble.value and unsaid not in explorer.trouble.value
    assert ("test_explorer.py" in explorer.trouble.value) is (broken is break_)
    assert explorer.trouble.layout.display == "block" and explorer.picture.value == before
    assert shown(explorer) == {"hidden"}, "the picture of something else"
    on_the_page(explorer, ("pp", 4))
    assert explorer.trouble.value == "" and explorer.trouble.layout.display == "none"
    assert explorer.picture.value != before and shown(explorer) == {"visible"}


SCENARIOS = [
    *(Scenario(name, pp=4, microbatches=8, I=0.7) for name in PIPELINES),
    Scenario("interleaved_1f1b", pp=3, microbatches=5, virtual=3),
    Scenario("zb_h1", pp=2, microbatches=5, virtual=4, W=0.3),
    Scenario("zb_auto", pp=4, microbatches=8, limit=2.5, F=1.3, I=0.4, W=2.1, comm=0.7),
    Scenario("dualpipe_v", pp=3, microbatches=5, beside=0.7, comm=0.3),
]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_python_that_is_shown_makes_the_same_program_and_picture(scenario: Scenario) -> None:
    names: dict[str, Any] = {}
    *statements, picture = scenario.python().splitlines()
    exec("\n".join(statements), names)
    assert to_json(names["program"]) == to_json(scenario.program())
    assert png(eval(picture, names)) == png(plots.schedule(scenario.predict()))


def test_a_static_picture_stays_for_those_without_a_kernel(explorer: ScheduleExplorer) -> None:
    bundle = explorer._repr_mimebundle_()
    assert b64decode(bundle["image/png"]) == explorer.picture.value
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == explorer.page.model_id
    assert "1f1b" in bundle["text/plain"]
    with mock.patch("pdlab.widgets.explorer.display") as display:
        explorer._ipython_display_()
    live, static = (call.args[0] for call in display.call_args_list)
    assert live.keys() == bundle.keys()
    assert bundle["image/png"] in static.data


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"strategy": "ddp"}, "'ddp' is not a pipeline schedule; choose one of naive, gpipe, 1f1b, "),
        ({"pp": 9}, "pp is 9; the slider goes from 1 to 8"),
        ({"comm": -1.0}, "comm is -1; the slider goes from 0 to 2"),
        ({"virtual": 2}, "virtual is 2 with 1f1b; only interleaved_1f1b, zb_h1 can be told, so leave it out"),
        ({"limit": 4.0}, "limit is 4 with 1f1b; only zb_auto can be told, so leave it out"),
        ({"beside": 0.8}, "beside is 0.8 with 1f1b; only dualpipe, dualpipe_v can be told, so leave it out"),
        ({"strategy": "zb_v", "virtual": 3}, "virtual is 3 with zb_v"),
        ({"strategy": "zb_auto", "limit": 17.0}, "limit is 17; the slider goes from 1 to 16"),
    ],
)
def test_what_no_control_offers_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ScheduleExplorer(**given)


def test_a_slider_is_not_set_beyond_its_end(explorer: ScheduleExplorer) -> None:
    with pytest.raises(ValueError, match="microbatches is 17; the slider goes from 1 to 16"):
        explorer.microbatches = 17
    with pytest.raises(ValueError, match="strategy is 'ddp'; choose one of naive, gpipe"):
        explorer.strategy = "ddp"
    assert explorer.scenario == Scenario("1f1b", pp=2, microbatches=3)


# --- controls that not every schedule takes

IDLE = ("virtual", "limit", "beside")


def acting(explorer: ScheduleExplorer) -> set[str]:
    return {name for name in IDLE if not explorer.controls[name].disabled}


@pytest.mark.parametrize(
    ("name", "acts", "stages"),
    [
        ("naive", set(), 1),
        ("interleaved_1f1b", {"virtual"}, 2),
        ("zb_h1", {"virtual"}, 1),
        ("zb_v", set(), 2),
        ("zb_auto", {"limit"}, 1),
        ("dualpipe", {"beside"}, 1),
        ("dualpipe_v", {"beside"}, 2),
    ],
)
def test_a_control_acts_where_the_schedule_takes_it(
    explorer: ScheduleExplorer, name: str, acts: set[str], stages: int
) -> None:
    explorer.pp, explorer.microbatches = 4, 8
    explorer.strategy = name
    assert acting(explorer) == acts
    assert explorer.virtual == stages == strategies.get(name).virtual
    assert explorer.scenario == Scenario(name, pp=4, microbatches=8)
    other = ScheduleExplorer(name, pp=4, microbatches=8)
    assert acting(other) == acts and other.virtual == stages and other.scenario == explorer.scenario
    other.close()


def test_a_choice_starts_with_its_own_numbers_and_is_drawn_once(explorer: ScheduleExplorer, drawn: list[Trace]) -> None:
    explorer.strategy = "interleaved_1f1b"
    explorer.virtual = 4
    explorer.pp = 3
    assert explorer.scenario == Scenario("interleaved_1f1b", pp=3, microbatches=3, virtual=4)
    explorer.strategy = "zb_auto"
    assert explorer.scenario == Scenario("zb_auto", pp=3, microbatches=3, limit=3.0)
    explorer.limit = 1.5
    explorer.pp = 2
    assert explorer.scenario.limit == 1.5
    assert len(drawn) == 6
    on_the_page(explorer, ("strategy", "interleaved_1f1b"))
    assert explorer.virtual == 2 and len(drawn) == 7


def test_what_the_schedule_does_not_take_cannot_be_set(explorer: ScheduleExplorer) -> None:
    with pytest.raises(ValueError, match="limit cannot be set here; only zb_auto can be told"):
        explorer.limit = 3.0
    with pytest.raises(ValueError, match="virtual cannot be set here; only interleaved_1f1b, zb_h1 can be told"):
        explorer.virtual = 2


def test_shapes_that_a_schedule_refuses_are_shown_as_its_sentence(explorer: ScheduleExplorer) -> None:
    """dualpipe takes an even number of ranks, and twice as many microbatches."""
    sentence = "dualpipe with 3 ranks and 8 microbatches; both must be even"
    explorer.pp, explorer.microbatches = 3, 8
    on_the_page(explorer, ("strategy", "dualpipe"))
    assert sentence in explorer.trouble.value and shown(explorer) == {"hidden"}
    with pytest.raises(ValueError, match=sentence):
        explorer.F = 2.0
    explorer.pp = 4
    assert explorer.trouble.value == "" and shown(explorer) == {"visible"}


def test_the_summary_counts_bubbles_both_ways(explorer: ScheduleExplorer) -> None:
    explorer.comm = 0.0
    explorer.microbatches, explorer.strategy = 8, "zb_h2"
    words = explorer.summary.value
    assert (
        "makespan 25 units · bubble 4.0 %, between a rank&#x27;s first and last op 0.0 %" in words
    )  # (p - 1) / (3 m + p - 1)
    assert "peaks 3, 3 M_B" in words


def test_a_pair_takes_a_share_of_what_its_ops_take() -> None:
    scenario = Scenario("dualpipe", F=1, I=2, W=3, beside=0.75)
    assert scenario.costs() == Uniform(F=1, I=2, W=3, FB=4.5, comm=0.1)
    assert scenario.costs(0.5).FB == 2.25
    assert Scenario("dualpipe", F=1, I=2, W=3).costs().FB is None


@pytest.mark.processes
@pytest.mark.parametrize("name", PIPELINES)
def test_every_schedule_runs_for_real(pool: Ranks, name: str) -> None:
    explorer = ScheduleExplorer(name, pp=2, microbatches=4, F=0.2, I=0.2, W=0.2, comm=0.0, pool=pool)
    found = explorer.run(steps=1)
    assert found.measured.program.name == name and found.grad_max_rel_error < 1e-9
    assert bytes(explorer.real.picture.value).startswith(PNG)
    explorer.close()


def test_torch_is_loaded_by_a_real_run_only() -> None:
    code = "import sys; from pdlab.widgets import ScheduleExplorer; ScheduleExplorer(); print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"


NOTEBOOK = """
from pdlab import plots
from pdlab.widgets import ScheduleExplorer
explorer = ScheduleExplorer("1f1b", pp=2, microbatches=2)
{breaking}
explorer.controls["pp"].value = 3
"""


def execute(breaking: str) -> None:
    cells = [nbformat.v4.new_code_cell(NOTEBOOK.format(breaking=breaking))]
    NotebookClient(nbformat.v4.new_notebook(cells=cells), timeout=60, kernel_name="python3").execute()


@pytest.mark.filterwarnings("ignore")  # those of the machinery that starts kernels
def test_a_notebook_fails_where_a_callback_raises() -> None:
    execute("pass")
    with pytest.raises(CellExecutionError, match="'NoneType' object is not callable"):
        execute("plots.schedule = None")
