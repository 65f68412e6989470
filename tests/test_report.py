"""The report and the summary: complete, self-contained, readable, and never half written."""

import csv
import os
from base64 import b64decode
from functools import cache, partial
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from pdlab import published
from pdlab.files import make_folder, write_whole
from pdlab.report import COLUMNS, SummaryRow, write_report, write_summary

written = partial(write_report, tables=cache(published.comparisons))
"""A report; the published tables are worked out once for all tests."""

ROW: SummaryRow = {
    "strategy": "1f1b",
    "ranks": 4,
    "microbatches": 8,
    "mode": "paced",
    "simulated_s": 0.348,
    "measured_s": 0.36398,
    "error_pct": 4.592,
    "bubble_simulated": 0.3046,
    "bubble_measured": 0.3111,
    "bytes_simulated": 48_000_000,
    "bytes_measured": 48_000_000,
    "peak_bytes_simulated": 11_000_016,
    "peak_bytes_measured": 11_500_000,
    "grad_max_rel_error": 2.31e-16,
}
SINGLE: SummaryRow = {
    **ROW,
    "strategy": "single",
    "error_pct": -1.25,
    "bubble_simulated": 0.0,
    "bytes_simulated": 0,
    "bytes_measured": None,
    "grad_max_rel_error": None,
}
VOID = {"meta", "img", "br", "link", "hr", "input"}


class Page(HTMLParser):
    """What is on a page: its elements, the cells of its tables by label, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[dict[str, str]] = []
        self.label: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.cells.append({})
        if tag == "td":
            self.label = dict(attrs)["data-label"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.label = None if tag == "td" else self.label

    def handle_data(self, data: str) -> None:
        if self.label is not None:
            self.cells[-1][self.label] = data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def figure() -> Figure:
    figure = Figure(figsize=(3, 2))
    figure.add_subplot().plot([0, 1], [1, 0])
    return figure


def page(path: Path) -> Page:
    found = Page(path.read_text(encoding="utf-8"))
    assert found.open == []
    return found


def test_the_report_needs_nothing_but_itself(tmp_path: Path, figure: Figure) -> None:
    path = written(tmp_path / "new" / "out", [ROW], [("1f1b", figure)], "paced, 2 cores")
    assert path == tmp_path / "new" / "out" / "report.html"
    found = page(path)
    assert not found.all("script") and not found.all("link")
    [picture] = found.all("img")
    kind, _, content = str(picture["src"]).partition(";base64,")
    assert kind == "data:image/svg+xml" and picture["alt"]
    assert ElementTree.fromstring(b64decode(content)).tag.endswith("svg")
    assert "http" not in path.read_text().replace(content, "")
    assert "paced, 2 cores" in path.read_text()


def test_the_table_is_in_words_and_units(tmp_path: Path) -> None:
    first, second = page(written(tmp_path, [ROW, SINGLE], [], "")).cells[2:4]
    assert first == {
        "strategy": "1f1b",
        "ranks": "4",
        "micro\xadbatches": "8",
        "mode": "paced",
        "step time predicted (ms)": "348",
        "step time measured (ms)": "364",
        "error (%)": "+4.59",
        "bubble predicted (%)": "30.5",
        "bubble measured (%)": "31.1",
        "bytes moved predicted (MB)": "48",
        "bytes moved measured (MB)": "48",
        "peak memory predicted (MB)": "11",
        "peak memory measured (MB)": "11.5",
        "gradient error": "2.3 × 10⁻¹⁶",
    }
    assert (second["error (%)"], second["bubble predicted (%)"]) == ("−1.25", "0")
    assert (second["bytes moved measured (MB)"], second["gradient error"]) == ("–", "–")


def test_a_strategy_leads_to_its_picture(tmp_path: Path, figure: Figure) -> None:
    found = page(written(tmp_path, [SINGLE, ROW], [("zero3", figure), ("1f1b", figure)], ""))
    [link] = found.all("a")
    assert str(link["href"]).removeprefix("#") == [section["id"] for section in found.all("section")][1] == "s1"


def test_bytes_and_published_tables_have_their_sections(tmp_path: Path, figure: Figure) -> None:
    path = written(tmp_path, [ROW], [("1f1b", figure)], "", figure)
    assert [section["id"] for section in page(path).all("section")] == ["s0", "bytes", "published"]
    assert [section["id"] for section in page(written(tmp_path, [ROW], [], "")).all("section")] == ["published"]


def test_published_numbers_stand_beside_ours(tmp_path: Path) -> None:
    """The zero-bubble paper's to the printed digits but for 1F1B-I; GPipe's below its bound."""
    cells = page(written(tmp_path, [], [], "")).cells
    lines = [line for line in cells if "ZB-H1 (%) printed" in line]
    of_paper = {(line.model, str(line.m)): line for line in published.profiles()}
    assert {(line["model"], line["m"]) for line in lines} == {
        key for key, line in of_paper.items() if line.p * line.m <= 1024
    }
    for line in lines:
        for column, rate in of_paper[line["model"], line["m"]].printed.items():
            printed, ours = (line[f"{column} (%) {word}"] for word in ("printed", "ours"))
            assert printed == f"{100 * rate:.2f}"
            off = f"+{float(ours) - float(printed):.2f}" if column == "1F1B-I" else "0"
            assert line[f"{column} (%) diff."] == off
    assert lines[0]["1F1B-I (%) ours"] == "10.90" and lines[0]["1F1B-I (%) diff."] == "+0.35"
    of_gpipe = [line for line in cells if "K = 8 bound" in line]
    assert [line["model"] for line in of_gpipe][1] == "Transformer-48" and len(of_gpipe) == 4
    assert (of_gpipe[1]["K = 8 printed"], of_gpipe[1]["K = 8 bound"]) == ("6.30", "6.56")


def test_what_the_report_says_of_published_tables_is_so(tmp_path: Path) -> None:
    """Its other sentences are those of `test_published`."""
    text = written(tmp_path, [], [], "").read_text()
    every = published.profiles()
    shown = sum(line.p * line.m <= published.LARGEST for line in every)
    assert f"Shown are {shown} of the {len(every)} lines, those with p × m up to {published.LARGEST}" in text
    assert "At M = 4 K it is 11 %, 16 %, 18 % of the time for K = 2, 4, 8" in text
    for name in ("test_published.py", "test_automatic.py"):
        assert f"tests/{name}" in text and (Path(__file__).parent / name).is_file()


def test_a_report_without_published_numbers_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "FOLDER", tmp_path)
    path = write_report(tmp_path, [ROW], [], "")
    assert [section["id"] for section in page(path).all("section")] == ["published"]
    assert "which is missing; restore it with git checkout" in path.read_text()


def test_names_are_text_not_markup(tmp_path: Path, figure: Figure) -> None:
    odd = '<b>&"mine"'
    path = written(tmp_path, [{**ROW, "strategy": odd}], [(odd, figure)], "<i>")
    assert not page(path).all("b") and not page(path).all("i")


def test_the_same_results_give_the_same_file(tmp_path: Path, figure: Figure) -> None:
    first = written(tmp_path / "a", [ROW], [("1f1b", figure)], "").read_bytes()
    assert written(tmp_path / "b", [ROW], [("1f1b", figure)], "").read_bytes() == first


def test_the_summary_reads_back(tmp_path: Path) -> None:
    path = write_summary(tmp_path, [ROW, SINGLE])
    assert path == tmp_path / "summary.csv"
    assert path.read_text().splitlines()[0] == (
        "strategy,ranks,microbatches,mode,simulated_s,measured_s,error_pct,bubble_simulated,bubble_measured,"
        "bytes_simulated,bytes_measured,peak_bytes_simulated,peak_bytes_measured,grad_max_rel_error"
    )
    with path.open(newline="") as file:
        first, second = csv.DictReader(file)
    assert first == {column: str(value) for column, value in ROW.items()}
    assert second["grad_max_rel_error"] == ""


def test_columns_come_in_their_order_however_a_row_is_built(tmp_path: Path) -> None:
    expected = write_summary(tmp_path, [ROW]).read_text()
    assert write_summary(tmp_path, [dict(reversed(ROW.items()))]).read_text() == expected


def test_a_row_with_other_columns_is_refused(tmp_path: Path) -> None:
    lacking = {column: value for column, value in ROW.items() if column != "mode"}
    with pytest.raises(ValueError, match="mode, speed"):
        write_summary(tmp_path, [{**lacking, "speed": 1}])
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_earlier_files(tmp_path: Path, figure: Figure, monkeypatch: pytest.MonkeyPatch) -> None:
    report, summary = written(tmp_path, [ROW], [], ""), write_summary(tmp_path, [ROW])
    before = {path: path.read_bytes() for path in (report, summary)}

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ValueError, match=r"cannot write .*report.html \(No space left on device\)"):
        written(tmp_path, [SINGLE], [], "")
    with pytest.raises(ValueError, match=r"summary.csv"):
        write_summary(tmp_path, [SINGLE])
    monkeypatch.setattr(figure, "savefig", full)
    with pytest.raises(OSError, match="No space"):
        written(tmp_path, [SINGLE], [("single", figure)], "")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match=r"pipe\.csv, which is no ordinary file"):
        write_whole(pipe, "text")
    assert pipe.is_fifo()


def test_a_folder_that_cannot_be_written_is_known_beforehand(tmp_path: Path) -> None:
    in_the_way = tmp_path / "out"
    in_the_way.write_text("a file")
    with pytest.raises(ValueError, match=r"cannot write .*out.*choose a folder"):
        make_folder(in_the_way)
    with pytest.raises(ValueError, match="cannot write"):
        write_summary(in_the_way / "deeper", [ROW])
    assert list(make_folder(tmp_path / "fine" / "out").iterdir()) == []


def test_the_columns_are_those_of_a_row() -> None:
    assert tuple(ROW) == COLUMNS
