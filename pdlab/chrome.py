"""A trace as Chrome trace events, for Perfetto and similar viewers: a process per rank, a thread per stream."""

import json
from typing import Any

from pdlab.ops import COMMUNICATION_KINDS, label
from pdlab.trace import Trace

MICROSECONDS = 1e6


def to_chrome(trace: Trace) -> str:
    """JSON text. Times are microseconds; a simulation in abstract units shows one unit as a second."""
    events: list[dict[str, Any]] = []
    for rank in range(trace.program.mesh.size):
        events.append({"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}})
        events.append({"name": "process_sort_index", "ph": "M", "pid": rank, "args": {"sort_index": rank}})
        streams: dict[str, int] = {}
        for row, op in zip(trace.rows_of(rank), trace.program.ranks[rank].ops, strict=True):
            thread = streams.setdefault(str(op.stream), len(streams))
            events.append(
                {
                    "name": label(op),
                    "cat": "communication" if op.kind in COMMUNICATION_KINDS else "compute",
                    "ph": "X",
                    "ts": trace.starts[row] * MICROSECONDS,
                    "dur": (trace.ends[row] - trace.starts[row]) * MICROSECONDS,
                    "pid": rank,
                    "tid": thread,
                    "args": {"bytes moved": trace.moved[row], "bytes live": trace.live[row]},
                }
            )
        for stream, thread in streams.items():
            events.append({"name": "thread_name", "ph": "M", "pid": rank, "tid": thread, "args": {"name": stream}})
    return json.dumps({"traceEvents": events, "otherData": {"provenance": str(trace.provenance)}})
