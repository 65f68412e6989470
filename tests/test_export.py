"""Traces as files for other programs: complete, in their words, and the same numbers."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pdlab import chrome, metrics
from pdlab.costs import Uniform
from pdlab.export import write_trace
from pdlab.ops import COMMUNICATION_KINDS, Kind
from pdlab.simulate import simulate
from pdlab.trace import Mode, Provenance, Trace
from tests.programs import build

COSTS = Uniform(F=0.01, B=0.02, comm=0.0013, step=0.001)


def trace_of(name: str, **choices: int) -> Trace:
    return simulate(build(name, ranks=4, microbatches=3, **choices), COSTS)


def loaded(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def spans(events: list[dict[str, Any]], **wanted: object) -> list[tuple[int, int]]:
    chosen = (e for e in events if e["ph"] == "X" and all(e.get(key) == value for key, value in wanted.items()))
    return [(event["ts"], event["ts"] + event["dur"]) for event in chosen]


@pytest.mark.parametrize("name", ["1f1b", "zero3"])
def test_chrome_events_cover_the_trace(name: str, tmp_path: Path) -> None:
    trace = trace_of(name)
    written = loaded(write_trace(trace, tmp_path / "deep" / "trace.json"))
    events = written["traceEvents"]
    assert written["otherData"]["provenance"] == str(trace.provenance)
    assert written["otherData"]["unit"].startswith("seconds")
    for rank in range(4):
        assert spans(events, pid=rank, name="ProfilerStep#0") == [(0, round(1e6 * trace.makespan))]
        expected = [(round(1e6 * trace.starts[row]), round(1e6 * trace.ends[row])) for row in trace.rows_of(rank)]
        categories = ("compute", "communication", "bookkeeping")
        assert sorted(x for cat in categories for x in spans(events, pid=rank, cat=cat)) == sorted(expected)


def test_events_of_a_thread_do_not_overlap() -> None:
    events = json.loads(chrome.to_chrome(trace_of("1f1b", tp=2)))["traceEvents"]
    threads = {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"}
    assert len(threads) > 4 * 8
    for rank, thread in threads:
        for (_, end), (start, _) in pairwise(sorted(spans(events, pid=rank, tid=thread))):
            assert end <= start


def test_an_arrow_leads_from_each_send_to_its_receive() -> None:
    trace = trace_of("1f1b")
    events = json.loads(chrome.to_chrome(trace))["traceEvents"]
    tails = {event["id"]: event for event in events if event["ph"] == "s"}
    heads = {event["id"]: event for event in events if event["ph"] == "f"}
    num_messages = sum(op.kind is Kind.SEND for _, op in trace.rows())
    assert len(tails) == len(heads) == num_messages > 0 and tails.keys() == heads.keys()
    for number, tail in tails.items():
        head = heads[number]
        ends = {place(events, tail), place(events, head)}
        [sent] = {name.removesuffix(f" to {head['pid']}") for name in ends if name.startswith("SEND")}
        assert ends == {f"{sent} to {head['pid']}", f"{sent.replace('SEND', 'RECV')} from {tail['pid']}"}
        assert tail["ts"] <= head["ts"]


def place(events: list[dict[str, Any]], arrow: dict[str, Any]) -> str:
    """The name of the one event that an end of an arrow lies in."""
    there = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (arrow["pid"], arrow["tid"])]
    [found] = [event["name"] for event in there if event["ts"] <= arrow["ts"] < event["ts"] + event["dur"]]
    return str(found)


def test_local_mode_counts_events() -> None:
    trace = replace(trace_of("ddp"), provenance=Provenance(Mode.LOCAL))
    assert json.loads(chrome.to_chrome(trace))["otherData"]["unit"].startswith("events")
    assert trace.clock == "events" and trace_of("ddp").clock == "seconds"


def test_files_per_rank_have_what_analysers_look_for(tmp_path: Path) -> None:
    trace, steps = trace_of("zero3"), 3
    paths = chrome.write_rank_traces([trace] * steps, tmp_path)
    assert [path.name for path in paths] == [f"rank-{rank}.json" for rank in range(4)]
    for rank, path in enumerate(paths):
        written = loaded(path)
        assert written["schemaVersion"] == 1 and written["distributedInfo"] == {"rank": rank, "world_size": 4}
        assert path.read_text().index('"rank": ') < path.read_text().index("traceEvents")
        events = written["traceEvents"]
        marks = [spans(events, name=f"ProfilerStep#{n}")[0] for n in range(steps)]
        assert marks == [(round(n * 1e6 * trace.makespan), round((n + 1) * 1e6 * trace.makespan)) for n in range(steps)]
        kernels = [event for event in events if event.get("cat") == "kernel"]
        assert all(event["args"]["stream"] == event["tid"] > 0 for event in kernels)
        assert all(event["dur"] > 0 for event in events if event["ph"] == "X"), "what takes no time is left out"
        kinds = {event["args"]["kind"] for event in kernels if event["name"].startswith("ncclDevKernel_")}
        assert kinds == {"ALL_GATHER", "REDUCE_SCATTER"} <= {kind.name for kind in COMMUNICATION_KINDS}
        busy = sum(event["dur"] for event in kernels if not event["name"].startswith("nccl"))
        assert busy == pytest.approx(steps * 1e6 * metrics.busy_per_rank(trace)[rank], abs=len(kernels))


def test_bookkeeping_is_no_kernel(tmp_path: Path) -> None:
    trace = trace_of("zero3")
    slow_adds = [e + 1e-3 * (op.kind is Kind.ADD) for e, (_, op) in zip(trace.ends, trace.rows(), strict=True)]
    [first, *_] = chrome.write_rank_traces([replace(trace, ends=slow_adds)], tmp_path)
    adds = [event for event in loaded(first)["traceEvents"] if event["name"].startswith("ADD")]
    assert adds and all(event["cat"] == "cpu_op" and "stream" not in event["args"] for event in adds)


def test_files_per_rank_need_steps_of_one_program(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="0 traces"):
        chrome.write_rank_traces([], tmp_path)
    other = simulate(build("ddp", ranks=2), COSTS)
    with pytest.raises(ValueError, match="4, 2 ranks"):
        chrome.write_rank_traces([trace_of("ddp"), other], tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore")
def test_holistic_trace_analysis_finds_our_busy_time(tmp_path: Path) -> None:
    analysis = pytest.importorskip("hta.trace_analysis")
    trace = trace_of("zero3")
    chrome.write_rank_traces([trace] * 3, tmp_path)
    found = analysis.TraceAnalysis(trace_dir=str(tmp_path), include_last_profiler_step=True)
    times = found.get_temporal_breakdown(visualize=False).sort_values("rank")
    assert list(times["compute_time(us)"] / 3e6) == pytest.approx(metrics.busy_per_rank(trace), abs=1e-4)


@pytest.mark.parametrize("name", ["1f1b", "ddp"])
def test_a_table_reads_back(name: str, tmp_path: Path) -> None:
    trace = trace_of(name)
    read = pd.read_csv(write_trace(trace, tmp_path / "trace.csv"))
    assert set(read.pop("provenance")) == {str(trace.provenance)} and set(read.pop("clock")) == {"seconds"}
    pd.testing.assert_frame_equal(read, trace.frame(), check_exact=True)
    assert read["op"].str.contains("#").any() == (name == "ddp"), "a # in a name must not end the line"


def test_a_name_without_a_suffix_is_a_folder_of_ranks(tmp_path: Path) -> None:
    folder = write_trace(trace_of("1f1b"), tmp_path / "traces")
    found = [json.loads(file.read_text())["distributedInfo"]["rank"] for file in sorted(folder.iterdir())]
    assert found == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["trace.txt", "trace.parquet", "trace.json.gz"])
def test_other_suffixes_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{name} what to write; end it in \.json or \.csv"):
        write_trace(trace_of("ddp"), tmp_path / name)
    assert list(tmp_path.iterdir()) == []
