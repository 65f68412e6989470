"""The tour in a real browser: JupyterLab in Chromium, sliders that are moved, a run for real, a run that is cancelled.

Run by `make test-browser`; needs a Chromium on the path. Screenshots go to out/screens.
"""

import shutil
from collections.abc import Iterator
from statistics import median

import psutil
import pytest

pytest.importorskip("playwright", reason="install the extra: pip install -e '.[browser]'")
from lab import Lab, running_lab
from playwright.sync_api import Page, expect, sync_playwright
from tour import SOON_MS, Tour

QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
SIZES = {"1280": {"width": 1280, "height": 800}, "1920": {"width": 1920, "height": 1080}}
CHANGES = 24


@pytest.fixture
def lab() -> Iterator[Lab]:
    with running_lab() as lab:
        yield lab


@pytest.fixture
def page() -> Iterator[Page]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert chromium, "no Chromium on the path"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(QUIET))
        yield browser.new_page(viewport=SIZES["1280"])
        browser.close()


@pytest.fixture
def complaints(page: Page) -> list[str]:
    """Errors on the console and uncaught ones, but for known noise."""
    heard: list[str] = []
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("console", lambda message: heard.append(message.text) if message.type == "error" else None)
    return heard


def processes_end(processes: list[psutil.Process], within: float = 10.0) -> bool:
    return not psutil.wait_procs(processes, within)[1]


@pytest.mark.timeout(400)
def test_the_tour_on_the_page(lab: Lab, page: Page, complaints: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    tour = Tour(page, lab.url("00_tour.ipynb"))
    tour.run_all()
    expect(tour.picture).to_be_visible()
    expect(page.locator(".pdlab-static").first).to_be_hidden()  # it is for pages without a kernel

    taken = tour.latencies_ms("F: forward", CHANGES)
    with capsys.disabled():
        print(f"\nslider to picture: median {median(taken):.0f} ms, worst {max(taken):.0f} ms of {len(taken)}")

    explore_and_look(tour)
    run_for_real(tour)
    workers = lab.processes("pdlab.worker")
    for name, size in SIZES.items():
        page.set_viewport_size(size)
        tour.shoot(f"measured-{name}", tour.run_button)
    cancel_a_run(tour)
    assert workers and processes_end(workers) and not lab.processes("pdlab.worker")
    run_for_real(tour)
    assert lab.processes("pdlab.worker"), "warm processes, which closing has to end"

    tour.drag_to_end("microbatches m")
    tour.says("microbatches=16", SOON_MS)
    tour.shoot("dragged", tour.page.locator(".widget-dropdown").first)
    assert not complaints
    page.close()
    assert not lab.close()
    assert not list(lab.temporary.glob("pdlab-*"))


BREAK = """
from pdlab import plots
from pdlab.widgets import ScheduleExplorer
explorer = ScheduleExplorer()
def refuse(trace):
    raise ValueError(f"no picture of {trace.program.num_microbatches} microbatches; take 8")
plots.schedule = refuse
explorer
"""


@pytest.mark.timeout(200)
def test_what_goes_wrong_after_a_slider_is_shown_on_the_page(lab: Lab, page: Page, complaints: list[str]) -> None:
    lab.add("broken.ipynb", BREAK)
    tour = Tour(page, lab.url("broken.ipynb"))
    tour.run_all()
    before = tour.picture.get_attribute("src")
    tour.handle("microbatches m").press("ArrowRight")
    tour.says("no picture of 9 microbatches; take 8", SOON_MS)
    assert tour.picture.get_attribute("src") == before
    expect(tour.picture).to_be_hidden()  # it is that of 8 microbatches
    tour.shoot("refused")
    assert not complaints


SCHEDULES = """
from pdlab.widgets import ScheduleExplorer
explorer = ScheduleExplorer(steps=1)
explorer
"""


@pytest.mark.timeout(200)
def test_schedules_are_chosen_on_the_page(lab: Lab, page: Page, complaints: list[str]) -> None:
    """Controls that a schedule does not take are greyed out; shapes that it refuses are answered by its sentence."""
    lab.add("schedules.ipynb", SCHEDULES)
    tour = Tour(page, lab.url("schedules.ipynb"))
    tour.run_all()
    for name, stages, takes in (("interleaved_1f1b", "2", ["stages of a rank v"]), ("zb_auto", "1", ["limit"])):
        tour.choose("schedule", name)
        tour.says(f"get('{name}')", SOON_MS)
        for slider in ("stages of a rank v", "limit", "F beside B"):
            expect(tour.handle(slider)).to_be_visible()
            assert tour.is_greyed(slider) is (slider not in takes), slider
        assert tour.reads("stages of a rank v") == stages
        tour.shoot(f"schedule-{name}", page.locator(".widget-dropdown").first)
    tour.choose("schedule", "dualpipe")
    tour.says("get('dualpipe')", SOON_MS)
    tour.shoot("schedule-dualpipe", page.locator(".widget-dropdown").first)
    tour.handle("ranks p").press("ArrowRight")
    tour.says("dualpipe with 5 ranks and 8 microbatches; both must be even", SOON_MS)
    expect(tour.picture).to_be_hidden()
    tour.shoot("schedule-refused", page.locator(".widget-dropdown").first)
    tour.choose("schedule", "dualpipe_v")
    expect(tour.picture).to_be_visible()
    for name, size in SIZES.items():
        page.set_viewport_size(size)
        tour.shoot(f"schedule-dualpipe_v-{name}", page.locator(".widget-dropdown").first)
    assert not complaints


BLOCK = """
from pdlab.widgets import BlockExplorer
explorer = BlockExplorer(tp=2, steps=1)
explorer
"""


@pytest.mark.timeout(200)
def test_the_explorer_of_a_block_on_the_page(
    lab: Lab, page: Page, complaints: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    lab.add("block.ipynb", BLOCK)
    tour = Tour(page, lab.url("block.ipynb"))
    tour.run_all()
    taken = tour.latencies_ms("link speed", CHANGES)
    with capsys.disabled():
        print(f"\nslider to picture: median {median(taken):.0f} ms, worst {max(taken):.0f} ms of {len(taken)}")
    page.locator(".widget-dropdown", has_text="split").first.locator("select").select_option("sequence")
    tour.says("'sequence'", SOON_MS)
    for name, size in SIZES.items():
        page.set_viewport_size(size)
        tour.shoot(f"block-{name}", page.locator(".widget-dropdown").first)
    run_for_real(tour)
    tour.shoot("block-measured", tour.run_button)
    assert not complaints


VERSIONS = """
from pdlab.widgets import VersionExplorer
explorer = VersionExplorer(minibatches=8, steps=1)
explorer
"""


@pytest.mark.timeout(200)
def test_weight_versions_on_the_page(
    lab: Lab, page: Page, complaints: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    lab.add("versions.ipynb", VERSIONS)
    tour = Tour(page, lab.url("versions.ipynb"))
    tour.run_all()
    taken = tour.latencies_ms("F: forward", CHANGES)
    with capsys.disabled():
        print(f"\nslider to picture: median {median(taken):.0f} ms, worst {max(taken):.0f} ms of {len(taken)}")
    tour.choose("variant", "pipedream_naive")
    tour.says("INCONSISTENT", SOON_MS)
    assert tour.is_greyed("microbatches/update") and not tour.is_greyed("ranks of stage 0")
    tour.handle("ranks of stage 0").press("End")
    tour.says("the first stage is on 8 of 4 ranks; give 1 to 4", SOON_MS)
    expect(tour.picture).to_be_hidden()
    tour.choose("variant", "pipedream_2bw")
    expect(tour.picture).to_be_visible()
    for name, size in SIZES.items():
        page.set_viewport_size(size)
        tour.shoot(f"versions-{name}", page.locator(".widget-dropdown").first)
    run_for_real(tour)
    tour.shoot("versions-measured", tour.run_button)
    assert not complaints


def explore_and_look(tour: Tour) -> None:
    top = tour.page.locator(".widget-dropdown").first
    tour.press("ranks p", "End")
    tour.press("comm", "ArrowRight")
    for name, size in SIZES.items():
        tour.page.set_viewport_size(size)
        tour.shoot(f"explorer-{name}", top)


def run_for_real(tour: Tour) -> None:
    before = tour.comparison.get_attribute("src")
    tour.run_button.click()
    tour.says("running")
    tour.says("time error")
    expect(tour.comparison).not_to_have_attribute("src", str(before), timeout=SOON_MS)
    expect(tour.comparison).to_be_visible()


def cancel_a_run(tour: Tour) -> None:
    tour.run_button.click()
    tour.says("step 1 of")
    tour.shoot("running", tour.run_button)
    tour.cancel_button.click()
    tour.says("cancelled", SOON_MS)
    tour.shoot("cancelled", tour.run_button)
    expect(tour.run_button).to_be_enabled()
