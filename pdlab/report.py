"""What a comparison leaves behind: a page for people, with a table and its pictures, and the same table for programs.

`report.html` needs nothing but itself: styles and pictures are inside, there are no scripts, and it reads on a phone,
on a projector and on paper. Both files appear complete or not at all, so a failed run spoils nothing of an earlier one.
"""

import csv
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from html import escape
from io import BytesIO, StringIO
from math import floor, isfinite, log10
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from matplotlib import rc_context
from matplotlib.figure import Figure

from pdlab.files import write_whole
from pdlab.plots.units import BYTES, SECONDS, Unit, suited, three_digits
from pdlab.published import Compared, comparisons


class SummaryRow(TypedDict):
    """One strategy, predicted and run. Times in seconds, bubbles as shares of 1, error in per cent; None: not known."""

    strategy: str
    ranks: int
    microbatches: int
    mode: str
    simulated_s: float | None
    measured_s: float | None
    error_pct: float | None
    bubble_simulated: float | None
    bubble_measured: float | None
    bytes_simulated: int | None
    bytes_measured: int | None
    peak_bytes_simulated: int | None
    peak_bytes_measured: int | None
    grad_max_rel_error: float | None


Row = Mapping[str, Any]

COLUMNS = tuple(SummaryRow.__annotations__)


class Group(NamedTuple):
    """Neighbouring columns of the printed table: a heading, (column, word) pairs, and the units to choose from."""

    heading: str
    columns: tuple[tuple[str, str], ...]
    units: tuple[Unit, ...] = ()
    sign: str = ""


GROUPS = (
    Group("strategy", (("strategy", ""),)),
    Group("ranks", (("ranks", ""),)),
    Group("micro\xadbatches", (("microbatches", ""),)),
    Group("mode", (("mode", ""),)),
    Group("step time", (("simulated_s", "predicted"), ("measured_s", "measured")), SECONDS),
    Group("error", (("error_pct", ""),), (Unit("%", 1.0),), "+"),
    Group("bubble", (("bubble_simulated", "predicted"), ("bubble_measured", "measured")), (Unit("%", 0.01),)),
    Group("bytes moved", (("bytes_simulated", "predicted"), ("bytes_measured", "measured")), BYTES),
    Group("peak memory", (("peak_bytes_simulated", "predicted"), ("peak_bytes_measured", "measured")), BYTES),
    Group("gradient error", (("grad_max_rel_error", ""),)),
)

LEGEND = (
    "Every rank is charged the same forward time for each of its microbatches, so rows do not compete in speed: what "
    "differs is what a strategy adds to it. "
    "Error: of the predicted step time, 100 (measured / predicted − 1). Bubble: the idle share of ranks × step time. "
    "Bytes moved: all ranks together, a message counted once, at its sender. Peak memory: of the rank that holds most. "
    "Gradient error: of the worst parameter, relative, in float64, against one process without any parallelism."
)

STYLE = """
:root { color-scheme: light; }
body { margin: 0 auto; padding: 1.2rem; max-width: 96rem; font: 1rem/1.45 system-ui, sans-serif; color: #1a1a1a;
  background: #fff; }
h1 { font-size: 1.5rem; margin: 0 0 .8rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .4rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
.small { font-size: .85rem; color: #444; max-width: 75ch; overflow-wrap: anywhere; white-space: pre-line; }
.wide { overflow-x: auto; margin: 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .45rem; text-align: right; vertical-align: bottom; border-bottom: 1px solid #ccc; }
td { white-space: nowrap; }
thead th { font-weight: 600; border-color: #444; }
thead tr:first-child th[colspan] { text-align: center; border-color: #ccc; }
th.first, td.first { padding-left: .7rem; }
th.text, td.text { text-align: left; }
a { color: #005a8f; }
img { display: block; width: 100%; height: auto; }
@media screen and (max-width: 60rem) {
  thead { display: none; }
  table, tbody, tr { display: block; font-size: 1rem; }
  tr { border: 1px solid #999; border-radius: .4rem; margin: 0 0 1rem; padding: .3rem .7rem; }
  td, td.text, td.first { display: flex; justify-content: space-between; gap: 1rem; padding: .2rem 0; border: 0; }
  td::before { content: attr(data-label); color: #444; }
  td:first-child { font-size: 1.15rem; font-weight: 600; }
  img { min-width: 52rem; }
}
@media print {
  body { padding: 0; font-size: 9pt; }
  th, td, th.first, td.first { padding: 2pt; font-size: 6.5pt; }
  .wide { overflow: visible; }
  section { break-inside: avoid; }
  img { width: auto; max-width: 100%; max-height: 23cm; }
}
"""


def write_summary(folder: Path | str, rows: Sequence[Row]) -> Path:
    """`summary.csv`: one line per row, exactly `COLUMNS`, plain numbers; what is not known is empty."""
    for row in rows:
        if set(row) != set(COLUMNS):
            odd = ", ".join(sorted(set(row) ^ set(COLUMNS)))
            raise ValueError(f"a summary row has other columns than {', '.join(COLUMNS)}: see {odd}")
    text = StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return write_whole(Path(folder) / "summary.csv", text.getvalue())


def write_report(
    folder: Path | str,
    rows: Sequence[Row],
    figures: Sequence[tuple[str, Figure]],
    provenance: str,
    bytes_moved: Figure | None = None,
    tables: Callable[[], Sequence[Compared]] = comparisons,
) -> Path:
    """`report.html`: the table, then for each named figure a section; a strategy in the table leads to its own.

    What all strategies sent follows if there is a figure of it, and the published tables, which take some seconds.
    """
    names = [name for name, _ in figures]
    parts = [
        _section(f"s{number}", name, _picture(f"{name}: the timelines", fig))
        for number, (name, fig) in enumerate(figures)
    ]
    if bytes_moved:
        parts.append(_section("bytes", "Bytes by collective", _picture("bytes by collective", bytes_moved)))
    parts.append(_section("published", "Published tables", _published(tables)))
    sections = "\n".join(parts)
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>pdlab: predicted and measured</title>
<style>{STYLE}</style>
</head>
<body>
<h1>Predicted and measured</h1>
<div class="wide">{_table(rows, names)}</div>
<p class="small">{escape(LEGEND)}</p>
<p class="small">{escape(provenance)}</p>
{sections}
</body>
</html>
"""
    return write_whole(Path(folder) / "report.html", page)


def _section(identity: str, heading: str, content: str) -> str:
    return f'<section id="{identity}">\n<h2>{escape(heading)}</h2>\n{content}\n</section>'


def _published(tables: Callable[[], Sequence[Compared]]) -> str:
    """What papers printed; a report is worth having without it."""
    try:
        return "\n".join(map(_compared, tables()))
    except ValueError as missing:
        return f'<p class="small">{escape(str(missing))}</p>'


def _compared(table: Compared) -> str:
    """A heading with no words below it stands over text; the others over numbers, a little apart from each other."""
    top = "".join(
        f'<th colspan="{len(words)}" class="first">{escape(heading)}</th>'
        if words[0]
        else f'<th rowspan="2" class="text">{escape(heading)}</th>'
        for heading, words in table.groups
    )
    columns = [(heading, word, i) for heading, words in table.groups for i, word in enumerate(words)]
    looks = [' class="text"' if not word else ' class="first"' if i == 0 else "" for _, word, i in columns]
    labels = [escape(f"{heading} {word}".strip()) for heading, word, _ in columns]
    second = "".join(f"<th{look}>{word}</th>" for look, (_, word, _) in zip(looks, columns, strict=True) if word)
    lines = "\n".join(
        "<tr>" + "".join(map('<td{} data-label="{}">{}</td>'.format, looks, labels, map(escape, line))) + "</tr>"
        for line in table.lines
    )
    return (
        f'<h3>{escape(table.title)}</h3>\n<div class="wide"><table>\n<thead><tr>{top}</tr>\n<tr>{second}</tr></thead>\n'
        f'<tbody>\n{lines}\n</tbody>\n</table></div>\n<p class="small">{escape(table.notes)}</p>'
    )


def _picture(what: str, figure: Figure) -> str:
    svg = BytesIO()
    with rc_context({"svg.hashsalt": "pdlab"}):
        figure.savefig(svg, format="svg", metadata={"Date": None})
    source = f"data:image/svg+xml;base64,{b64encode(svg.getvalue()).decode()}"
    return f'<figure class="wide"><img src="{source}" alt="{escape(what)}, as numbers in the table above"></figure>'


def _table(rows: Sequence[Row], names: Sequence[str]) -> str:
    units = {group: _unit(group, rows) for group in GROUPS}
    top = "".join(_heading(group, units[group]) for group in GROUPS)
    words = "".join(f"<th>{word}</th>" for group in GROUPS for _, word in group.columns if word)
    body = "\n".join(f"<tr>{''.join(_cells(group, units[group], row, names) for group in GROUPS)}</tr>" for row in rows)
    return f"<table>\n<thead><tr>{top}</tr>\n<tr>{words}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _heading(group: Group, unit: Unit | None) -> str:
    span = f'colspan="{len(group.columns)}"' if group.columns[0][1] else 'rowspan="2"'
    look = ' class="text"' if group.heading in TEXTS else ""
    return f"<th {span}{look}>{escape(_with_unit(group.heading, unit))}</th>"


TEXTS = ("strategy", "mode")


def _cells(group: Group, unit: Unit | None, row: Row, names: Sequence[str]) -> str:
    cells = []
    for column, word in group.columns:
        label = escape(_with_unit(f"{group.heading} {word}".strip(), unit))
        text = escape(_human(row.get(column), unit, group.sign))
        if column == "strategy" and row.get(column) in names:
            text = f'<a href="#s{names.index(row[column])}">{text}</a>'
        look = ' class="text"' if column in TEXTS else ""
        cells.append(f'<td{look} data-label="{label}">{text}</td>')
    return "".join(cells)


def _unit(group: Group, rows: Sequence[Row]) -> Unit | None:
    """One unit for all numbers of a group, so that they compare at a glance; none of them gets below 1 for it."""
    if not group.units:
        return None
    known = [abs(row[column]) for row in rows for column, _ in group.columns if row.get(column)]
    return suited(group.units, min(known, default=0.0))


def _with_unit(text: str, unit: Unit | None) -> str:
    return f"{text} ({unit.name})" if unit else text


def _human(value: object, unit: Unit | None, sign: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, int | float) or not isfinite(value):
        return "–"
    number = value / unit.size if unit else value
    text = three_digits(number) if number == 0 or abs(number) >= 1e-4 else _power_of_ten(number)
    return f"{sign if number > 0 else ''}{text}".replace("-", "−")


def _power_of_ten(number: float) -> str:
    exponent = floor(log10(abs(number)))
    raised = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{number / 10.0**exponent:.1f} × 10{raised}"
