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

from pdlab import plots
from pdlab.forms import to_json
from pdlab.trace import Trace
from pdlab.widgets import Scenario, ScheduleExplorer, pipeline_schedules
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
            explorer.controls[name].set_state({"value": value})
        await asyncio.sleep(5 * DELAY_S)

    asyncio.run(play())


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Trace]:
    """What has been drawn since."""
    seen: list[Trace] = []
    timeline = plots.timeline

    def watched(trace: Trace) -> Figure:
        seen.append(trace)
        return timeline(trace)

    monkeypatch.setattr(plots, "timeline", watched)
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


def test_the_picture_is_the_timeline_of_the_simulation(explorer: ScheduleExplorer) -> None:
    assert explorer.picture.value == png(plots.timeline(Scenario("1f1b", pp=2, microbatches=3).predict()))


@pytest.mark.parametrize("broken", [refuse, break_])
def test_what_code_makes_impossible_raises_in_code(
    explorer: ScheduleExplorer, monkeypatch: pytest.MonkeyPatch, broken: Callable[..., Figure]
) -> None:
    before = explorer.picture.value
    monkeypatch.setattr(plots, "timeline", broken)
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
        patched.setattr(plots, "timeline", broken)
        on_the_page(explorer, ("pp", 3))
    assert said in explorer.trouble.value and unsaid not in explorer.trouble.value
    assert ("test_explorer.py" in explorer.trouble.value) is (broken is break_)
    assert explorer.trouble.layout.display == "block" and explorer.picture.value == before
    on_the_page(explorer, ("pp", 4))
    assert explorer.trouble.value == "" and explorer.trouble.layout.display == "none"
    assert explorer.picture.value != before


@pytest.mark.parametrize("scenario", [Scenario(name, pp=3, microbatches=4, I=0.7) for name in pipeline_schedules()])
def test_the_python_that_is_shown_makes_the_same_program_and_picture(scenario: Scenario) -> None:
    names: dict[str, Any] = {}
    *statements, picture = scenario.python().splitlines()
    exec("\n".join(statements), names)
    assert to_json(names["program"]) == to_json(scenario.program())
    assert png(eval(picture, names)) == png(plots.timeline(scenario.predict()))


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
        execute("plots.timeline = None")
