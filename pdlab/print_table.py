"""The lines of a comparison as a table for the screen: what the report shows in full, in the width of a terminal."""

from collections.abc import Sequence

HEADINGS = (
    *("strategy", "predicted ms", "measured ms", "error %", "bubble", "measured"),
    *("MB moved", "peak MB", "gradient error"),
)


def table_text(rows: Sequence[dict[str, object]]) -> str:
    """The comparison as a table for the screen."""
    lines = [HEADINGS, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    )


def _cells(row: dict[str, object]) -> tuple[str, ...]:
    def number(key: str, form: str, scale: float = 1.0) -> str:
        return "-" if row[key] is None else format(float(str(row[key])) * scale, form)

    return (
        str(row["strategy"]),
        number("simulated_s", ".1f", 1e3),
        number("measured_s", ".1f", 1e3),
        number("error_pct", "+.1f"),
        number("bubble_simulated", ".0%"),
        number("bubble_measured", ".0%"),
        number("bytes_measured", ".3f", 1e-6),
        number("peak_bytes_measured", ".3f", 1e-6),
        number("grad_max_rel_error", ".1e"),
    )
