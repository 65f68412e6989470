"""A trace as a file for other programs: Chrome events to look at, or a table to compute with."""

from collections.abc import Callable
from pathlib import Path

from pdlab.chrome import to_chrome, write_rank_traces
from pdlab.files import write_whole
from pdlab.trace import Trace


def write_trace(trace: Trace, path: Path | str) -> Path:
    """`.json` for Perfetto, `.csv` for pandas, no suffix for a folder with a file for each rank, as trace analysers
    expect it; ValueError for any other suffix."""
    path = check_suffix(Path(path))
    if not path.suffix:
        write_rank_traces([trace], path)
        return path
    return write_whole(path, FORMS[path.suffix](trace))


def check_suffix(path: Path) -> Path:
    """The path, if a trace can be written there; to be asked before a long run."""
    if path.suffix not in ("", *FORMS):
        raise ValueError(
            f"cannot tell from {path.name} what to write; end it in {' or '.join(FORMS)} (Chrome trace events, table), "
            "or in nothing for a folder with a file for each rank"
        )
    return path


def to_csv(trace: Trace) -> str:
    """`Trace.frame()`, and in two last columns what its times count and where they come from.

    Columns, not a comment above the table: `pd.read_csv` reads it as it is, and there is a `#` in the names of values.
    """
    frame = trace.frame().assign(clock=trace.clock, provenance=str(trace.provenance))
    return frame.to_csv(index=False, lineterminator="\n")


FORMS: dict[str, Callable[[Trace], str]] = {".json": to_chrome, ".csv": to_csv}
