"""A trace as Chrome trace events: one file for Perfetto and similar viewers, or one per rank for trace analysers.

A process per rank, a thread per stream, a marker over each step, an arrow from each message's send to its receive. The
files per rank are laid out as torch's profiler writes those of a GPU job (`schemaVersion`, `distributedInfo`,
`ProfilerStep#0`, kernels with a stream), so that what reads those, such as Holistic Trace Analysis, reads ours: ops
that keep a rank busy are kernels, communications are kernels named as NCCL's, and bookkeeping is work of the host. (Its
compute time is then our busy time; unless told otherwise it leaves out the last of several steps.)
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pdlab.depend import build
from pdlab.files import write_whole
from pdlab.metrics import COMPUTE_KINDS
from pdlab.ops import COMMUNICATION_KINDS, P2P_KINDS, Kind, Op, label
from pdlab.trace import Trace

MICROSECONDS = 1e6

MARKERS = 0
"""The thread of the step markers; those of the streams follow."""

Event = dict[str, Any]


def to_chrome(trace: Trace) -> str:
    """JSON text. Times are microseconds; a simulation in abstract units, or a count of events, shows one as a
    second."""
    threads = [_threads([trace], rank) for rank in range(trace.program.mesh.size)]
    events: list[Event] = []
    for rank, of_rank in enumerate(threads):
        events += [*_names(rank, of_rank), *_step(trace, rank, 0, 0.0, of_rank)]
    events += _arrows(trace, threads)
    return json.dumps({"traceEvents": events, "otherData": _other_data(trace)})


def write_rank_traces(traces: Sequence[Trace], folder: Path) -> list[Path]:
    """`rank-0.json`, `rank-1.json`, ...: the steps of one program one after another, as trace analysers want them."""
    if not traces:
        raise ValueError("0 traces to write; give at least 1, one for each step")
    size = traces[0].program.mesh.size
    if any(trace.program.mesh.size != size for trace in traces):
        found = ", ".join(str(trace.program.mesh.size) for trace in traces)
        raise ValueError(f"traces of {found} ranks; give steps of one program")
    return [write_whole(Path(folder) / f"rank-{rank}.json", _rank_file(traces, rank)) for rank in range(size)]


def _rank_file(traces: Sequence[Trace], rank: int) -> str:
    threads, began = _threads(traces, rank), 0.0
    events = list(_names(rank, threads))
    for number, trace in enumerate(traces):
        events += map(_for_analysers, _step(trace, rank, number, began, threads))
        began += trace.makespan
    about = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": rank, "world_size": traces[0].program.mesh.size},
        "otherData": _other_data(traces[0]),
    }
    return json.dumps({**about, "traceEvents": [event for event in events if event.get("dur") != 0]})


def _other_data(trace: Trace) -> dict[str, str]:
    return {"provenance": str(trace.provenance), "unit": f"{trace.clock}, one of them as 1,000,000 microseconds"}


def _threads(traces: Sequence[Trace], rank: int) -> dict[str, int]:
    streams = dict.fromkeys(str(op.stream) for trace in traces for op in trace.program.ranks[rank].ops)
    return {"steps": MARKERS} | {stream: number for number, stream in enumerate(streams, MARKERS + 1)}


def _names(rank: int, threads: Mapping[str, int]) -> Iterator[Event]:
    yield {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}}
    yield {"name": "process_sort_index", "ph": "M", "pid": rank, "args": {"sort_index": rank}}
    for stream, thread in threads.items():
        yield {"name": "thread_name", "ph": "M", "pid": rank, "tid": thread, "args": {"name": stream}}
        yield {"name": "thread_sort_index", "ph": "M", "pid": rank, "tid": thread, "args": {"sort_index": thread}}


def _step(trace: Trace, rank: int, number: int, began: float, threads: Mapping[str, int]) -> Iterator[Event]:
    """One step of one rank, which begins at `began` seconds."""
    marker = {"name": f"ProfilerStep#{number}", "cat": "user_annotation", "pid": rank, "tid": MARKERS}
    yield marker | _span(began, began + trace.makespan)
    for row, op in zip(trace.rows_of(rank), trace.program.ranks[rank].ops, strict=True):
        yield {
            "name": label(op),
            "cat": _category(op),
            "pid": rank,
            "tid": threads[str(op.stream)],
            **_span(began + trace.starts[row], began + trace.ends[row]),
            "args": {"kind": op.kind.name, "bytes moved": trace.moved[row], "bytes live": trace.live[row]},
        }


def _span(start: float, end: float) -> Event:
    """Whole microseconds, rounded at both ends, so that what follows without a gap still does."""
    first, last = round(start * MICROSECONDS), round(end * MICROSECONDS)
    return {"ph": "X", "ts": first, "dur": last - first}


def _category(op: Op) -> str:
    if op.kind in COMMUNICATION_KINDS:
        return "communication"
    return "compute" if op.kind in COMPUTE_KINDS else "bookkeeping"


def _arrows(trace: Trace, threads: Sequence[Mapping[str, int]]) -> Iterator[Event]:
    """From the start of each send into the middle of what it shares with the receive: an arrow ends inside an event."""
    graph = build(trace.program)
    for number, rows in enumerate(graph.members):
        if graph.ops[rows[0]].kind not in P2P_KINDS:
            continue
        send, receive = sorted(rows, key=lambda row: graph.ops[row].kind is Kind.RECV)
        start = trace.starts[send]
        middle = (max(start, trace.starts[receive]) + trace.ends[receive]) / 2
        for row, phase, at in ((send, "s", start), (receive, "f", middle)):
            rank = graph.rank_of[row]
            binding = {"bp": "e"} if phase == "f" else {}
            place = {"pid": rank, "tid": threads[rank][str(graph.ops[row].stream)], "ts": round(at * MICROSECONDS)}
            yield {"name": "message", "cat": "message", "ph": phase, "id": number, **place, **binding}


def _for_analysers(event: Event) -> Event:
    """Kernels by their kinds, so that they add up by name; bookkeeping on the host, which has no stream."""
    match event.get("cat"):
        case "compute":
            return _kernel(event, event["args"]["kind"])
        case "communication":
            return _kernel(event, f"ncclDevKernel_{event['args']['kind']}")
        case "bookkeeping":
            return event | {"cat": "cpu_op"}
    return event


def _kernel(event: Event, name: str) -> Event:
    arguments = {**event["args"], "op": event["name"], "stream": event["tid"], "device": event["pid"]}
    return event | {"name": name, "cat": "kernel", "args": arguments}
