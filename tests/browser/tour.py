"""What a student does with the tour on the page, in the words of the page."""

import re
from pathlib import Path

from playwright.sync_api import Locator, Page, expect

SCREENS = Path(__file__).resolve().parents[2] / "out" / "screens"
CELLS_MS, RUN_MS, SOON_MS = 120_000, 60_000, 15_000

STOPWATCH = """image => {
  const watch = (window.watch = { pressed: 0, taken: [] });
  document.addEventListener("keydown", () => (watch.pressed = performance.now()), true);
  image.addEventListener("load", () => watch.taken.push(performance.now() - watch.pressed));
}"""


class Tour:
    """The notebook on a page, from opening to the explorer in it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        page.goto(url)
        expect(page.locator(".jp-Notebook .jp-CodeCell").first).to_be_visible(timeout=RUN_MS)

    def run_all(self) -> None:
        """Run > Run All Cells once the kernel is there, and wait until the last cell has run or one has failed."""
        expect(self.page.locator(".jp-StatusBar-Widget", has_text="| Idle")).to_be_visible(timeout=RUN_MS)
        self.page.locator(".jp-Notebook .jp-InputPrompt").first.click()  # so that the menu means this notebook
        self.page.locator(".lm-MenuBar-item", has_text="Run").click()
        self.page.locator(".lm-Menu-item", has_text="Run All Cells").first.click()
        failure = self.page.locator(".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.error']")
        end = self.page.locator(".jp-CodeCell .jp-InputPrompt").last.filter(has_text=re.compile(r"\d"))
        expect(end.or_(failure).first).to_be_visible(timeout=CELLS_MS)
        if failure.count():
            raise AssertionError(failure.first.inner_text())

    @property
    def picture(self) -> Locator:
        """What the explorer predicts."""
        return self.page.locator("img.widget-image").first

    @property
    def comparison(self) -> Locator:
        """The picture of the last real run."""
        return self.page.locator("img.widget-image").nth(1)

    @property
    def run_button(self) -> Locator:
        return self.page.locator(".widget-button", has_text="Run for real")

    @property
    def cancel_button(self) -> Locator:
        return self.page.locator(".widget-button", has_text="Cancel")

    def says(self, text: str, within_ms: int = RUN_MS) -> None:
        """Wait until the explorer says something."""
        expect(self.page.locator(".widget-html", has_text=text)).to_be_visible(timeout=within_ms)

    def handle(self, slider: str) -> Locator:
        return self.page.locator(".widget-slider", has_text=slider).locator(".noUi-handle")

    def choose(self, dropdown: str, option: str) -> None:
        self.page.locator(".widget-dropdown", has_text=dropdown).first.locator("select").select_option(option)

    def is_greyed(self, slider: str) -> bool:
        return self.page.locator(".widget-slider", has_text=slider).locator("[disabled]").count() > 0

    def reads(self, slider: str) -> str:
        """The number beside a slider."""
        return self.page.locator(".widget-slider", has_text=slider).locator(".widget-readout").inner_text()

    def press(self, slider: str, key: str) -> None:
        """An arrow key on a slider, and wait for the picture that follows."""
        before = self.picture.get_attribute("src")
        self.handle(slider).press(key)
        expect(self.picture).not_to_have_attribute("src", str(before), timeout=SOON_MS)

    def drag_to_end(self, slider: str) -> None:
        """With the mouse, in many small moves."""
        self.handle(slider).scroll_into_view_if_needed()
        grip = self.handle(slider).bounding_box()
        track = self.page.locator(".widget-slider", has_text=slider).locator(".noUi-target").bounding_box()
        assert grip and track
        height = grip["y"] + grip["height"] / 2
        self.page.mouse.move(grip["x"] + grip["width"] / 2, height)
        self.page.mouse.down()
        self.page.mouse.move(track["x"] + track["width"] + 5, height, steps=40)
        self.page.mouse.up()

    def latencies_ms(self, slider: str, times: int) -> list[float]:
        """From an arrow key on a slider to the new picture on the page, measured in the page."""
        self.picture.evaluate(STOPWATCH)
        for i in range(times):
            self.handle(slider).press("ArrowRight" if i % 2 == 0 else "ArrowLeft")
            self.page.wait_for_function("n => window.watch.taken.length > n", arg=i, timeout=SOON_MS)
        taken: list[float] = self.page.evaluate("window.watch.taken")
        return taken

    def shoot(self, name: str, at: Locator | None = None) -> None:
        """A screenshot of the page, with something at its top."""
        if at is not None:
            at.evaluate("node => node.scrollIntoView({ block: 'start' })")
        self.page.wait_for_timeout(300)
        SCREENS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENS / f"{name}.png")
