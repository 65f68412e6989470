"""The command line as a user meets it: what it prints, and one line with exit code 2 for whatever is wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pdlab import strategies
from pdlab.cli import main
from pdlab.mesh import Axis

LISTED = (
    *("single", "ddp_naive", "ddp", "zero3", "column", "row", "tensor", "sequence"),
    *("naive", "gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_h2", "zb_v", "zb_auto", "dualpipe", "dualpipe_v"),
    *("pipedream_naive", "pipedream", "pipedream_vertical_sync", "pipedream_2bw", "pipedream_flush"),
)

NO_TABLE = ("pipedream_naive", "pipedream_vertical_sync", "pipedream_2bw")
"""What meets weights that a table of ops cannot name."""


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def test_list_has_a_line_for_each_strategy_with_its_name_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert tuple(line.split()[0] for line in said(capsys, "list").splitlines()) == LISTED


@pytest.mark.parametrize("verb", ["list", "show", "simulate", "run", "train", "compare", "partition", "picture"])
def test_every_subcommand_has_help_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    assert f"example: pdlab {verb}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--microbatches", "7"), "--microbatches 7 for a table of 2; leave it out"),
        (("--pp", "3"), "--pp 3 for a table of 2; leave it out"),
        (("--virtual", "2"), "--virtual 2 for a table, which says all that; leave it out"),
    ],
)
def test_options_that_a_table_contradicts(
    words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own.csv"
    file.write_text("0F0,0F1,0B0,0B1,0STEP\n1F0,1B0,1F1,1B1,1STEP\n")
    assert main(["simulate", str(file), *words]) == 2
    assert said in capsys.readouterr().err
    assert main(["simulate", str(file), "--pp", "2", "--microbatches", "2", "--dp", "2"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "tensor", "--tp", "2", "--overlap", "--format", "csv"), "a CSV is the order of a schedule alone"),
        (("simulate", "row", "--tp", "2", "--split", "column"), "--split column with the strategy row"),
        (("run", "tensor", "--tp", "3", "--mode", "local"), "width 16, 8 heads, tp 3"),
        (("run", "sequence", "--tp", "16", "--mode", "local"), "tp 16; a tensor group has 1 to 8 ranks"),
        (("run", "row", "--tp", "2", "--model", "transformer", "--mode", "local"), "a transformer has no split 'row'"),
        (("run", "sequence", "--tp", "2", "--model", "mlp", "--mode", "local"), "an mlp has no split 'sequence'"),
        (("run", "row", "--tp", "2", "--dropout", "0.1", "--mode", "local"), "dropout 0.1 with an mlp"),
    ],
)
def test_choices_inside_the_layer_that_do_not_fit(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_a_prediction_of_what_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--tp", "2", "--model", "transformer", "--microbatches", "1")
    assert "ALL_REDUCE attn0.part:0" in said(capsys, "show", "tensor", *words, "--format", "ops")
    assert "ALL_GATHER attn0.u:0" in said(capsys, "show", "sequence", *words, "--format", "ops")
    peaks = [
        json.loads(said(capsys, "simulate", name, *words, "--json"))["peak_bytes_per_rank"][0]
        for name in ("tensor", "sequence")
    ]
    assert peaks[1] < peaks[0]
    assert main(["simulate", "row", *words]) == 2
    assert "a transformer has no split 'row'" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--split", "row"), ("--recompute", "partitioned"), ("--overlap",)])
def test_what_acts_on_tensor_groups_alone_is_refused_without_one(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "1f1b", "--pp", "2", *words]) == 2
    assert "without a tensor group, on which alone it acts" in capsys.readouterr().err


def test_files_and_choices_inside_the_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("show", "sequence", "--tp", "2", "--microbatches", "1", "--recompute", "full", "--overlap")
    program = tmp_path / "program.json"
    program.write_text(said(capsys, *words, "--format", "json"))
    assert main(["simulate", str(program)]) == 0
    assert main(["simulate", str(program), "--recompute", "full"]) == 2
    assert "for a program that is complete; leave it out" in capsys.readouterr().err
    table = tmp_path / "schedule.csv"
    table.write_text("0F0,0B0\n")
    chosen = ("--tp", "2", "--split", "sequence", "--recompute", "partitioned", "--mode", "local", "--json")
    assert json.loads(said(capsys, "run", str(table), *chosen))["grad_max_rel_error"] < 1e-9
    table.write_text("0F0,0R0,0B0\n")
    assert main(["simulate", str(table)]) == 2
    assert "0R0: a schedule has F, B, I, W and STEP" in capsys.readouterr().err


def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "Predict and run several strategies" in capsys.readouterr().out


def test_simulate_gives_the_closed_form_and_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("simulate", "1f1b", "--pp", "4", "--microbatches", "8", "--costs", "F=1,B=2", "--json")
    found = json.loads(said(capsys, *words))
    assert found["makespan"] == 3 * (8 + 4 - 1)
    assert found["busy_per_rank"] == [24.0] * 4
    assert found["bubble_fraction"] == pytest.approx(3 / 11)
    assert found["peak_activations_per_rank"] == [4, 3, 2, 1]
    assert set(found) == {
        "makespan",
        "largest_rank_span",
        "busy_per_rank",
        "bubble_fraction",
        "peak_activations_per_rank",
        "peak_bytes_per_rank",
        "bytes_by_collective",
        "num_ops",
        "ops_per_second",
        "build_s",
    }


def test_every_op_is_listed_with_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "show", "zero3", "--dp", "2", "--microbatches", "1", "--format", "ops").splitlines()
    assert [line for line in lines if not line.startswith(" ")] == ["rank 0", "rank 1"]
    gather = next(line.split() for line in lines if "ALL_GATHER" in line)
    assert gather == ["0", "dp", "group", "ALL_GATHER", "layer0.w@0", "layer0.w@0", "->", "layer0.w@0/0"]
    first = next(line for line in lines if "0.0F0" in line)
    assert first.endswith("frees h0:0, layer0.w@0/0")


def test_b_is_i_plus_w_where_it_is_not_given(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("simulate", "gpipe", "--pp", "2", "--microbatches", "3", "--json", "--costs")
    assert json.loads(said(capsys, *words, "F=1,I=2,W=3"))["makespan"] == (3 + 1) * 6


@pytest.mark.parametrize("name", LISTED)
def test_every_strategy_shows_in_every_format_and_json_reads_back(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    axes = {None: "--pp=1", Axis.TP: "--tp=4", Axis.DP: "--dp=4", Axis.PP: "--pp=4"}
    axis = axes[strategies.get(name).axis]
    words = (name, axis, "--microbatches", "8")
    assert "rank 0" in said(capsys, "show", *words)
    numbers = json.loads(said(capsys, "simulate", *words, "--json"))
    for form in ("json", "csv"):
        file = tmp_path / f"program.{form}"
        if form == "csv" and name in NO_TABLE:
            assert main(["show", *words, "--format", form]) == 2
            assert "names no versions; write the program as JSON" in capsys.readouterr().err
            continue
        file.write_text(said(capsys, "show", *words, "--format", form))
        if form == "csv" and not axis.startswith("--pp"):
            continue
        again = json.loads(said(capsys, "simulate", str(file), "--json"))
        assert again["makespan"] == numbers["makespan"]


def test_the_trace_is_chrome_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "deep" / "trace.json"
    said(capsys, "simulate", "1f1b", "--pp", "4", "--trace", str(file))
    events = json.loads(file.read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "s", "f"}
    assert {event["pid"] for event in events} == {0, 1, 2, 3}


BAD = {
    "unknown strategy": (["simulate", "1f2b"], "1f2b", "1f1b"),
    "more forwards than can be built": (
        ["simulate", "1f1b", "--pp", "2", "--microbatches", "1000000000"],
        "1000000000 microbatches",
        "at most 1000000",
    ),
    "negative cost": (["simulate", "1f1b", "--costs", "F=-1"], "F=-1", "from 0 to"),
    "cost that is no number": (["simulate", "1f1b", "--costs", "F=fast"], "F=fast", "NAME=NUMBER"),
    "cost that is not finite": (["simulate", "1f1b", "--costs", "F=inf"], "F=inf", "from 0 to 1e+15"),
    "negative activation units": (["simulate", "1f1b", "--costs", "MB=-1"], "MB=-1", "at least 0"),
    "unknown cost": (["simulate", "1f1b", "--costs", "G=1"], "'G'", "F, B, I, W"),
    "no microbatches": (["simulate", "1f1b", "--microbatches", "0"], "0", "at least 1"),
    "negative degree": (["simulate", "1f1b", "--pp", "-2"], "-2", "at least 1"),
    "degree that is no number": (["simulate", "1f1b", "--pp", "two"], "two", "int"),
    "virtual stages": (["simulate", "1f1b", "--virtual", "2"], "--virtual 2", "leave it out"),
    "pipeline of a whole model": (["simulate", "ddp", "--pp", "2"], "--pp 2", "1f1b"),
    "more stages than segments": (["run", "1f1b", "--pp", "9", "--depth", "1"], "9 stages", "at most"),
    "more stages than segments in compare": (
        ["compare", "1f1b", "--ranks", "9", "--depth", "1"],
        "9 stages",
        "at most",
    ),
    "heads that do not divide": (["run", "tensor", "--tp", "3"], "tp 3", "divide"),
    "no steps": (["run", "1f1b", "--pp", "2", "--steps", "0"], "--steps 0", "at least 1"),
    "batch too small": (["run", "1f1b", "--pp", "2", "--batch", "3"], "3", "at least 8"),
    "file that is not there": (["simulate", "nowhere.csv"], "nowhere.csv", "No such file"),
    "no table there": (["run", "--schedule", "nowhere.txt"], "nowhere.txt", "No such file"),
    "no schedule": (["run", "--steps", "1"], "no schedule", "--schedule FILE"),
    "two schedules": (["show", "1f1b", "--schedule", "own.csv"], "1f1b and --schedule own.csv", "give one of them"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_line_and_exit_code_2(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, given, remedy = BAD[what]
    try:
        code: object = main(words)
    except SystemExit as ended:
        code = ended.code
    line = capsys.readouterr().err
    assert code == 2
    assert line.count("\n") == 1 and line.startswith("pdlab")
    assert given in line and remedy in line


@pytest.mark.parametrize("name", ["damaged.csv", "damaged.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"0F0,0X1\n", b"\xff\xfe\x00", b'{"mesh": 3}', b"[1, 2]"])
def test_a_damaged_program_is_one_line_and_below_it_the_table(
    name: str, content: bytes, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    assert main(["simulate", str(file)]) == 2
    first, *table = capsys.readouterr().err.splitlines()
    assert first.startswith("pdlab: error: ") and name in first
    assert bool(table) == (name == "damaged.csv" and content[:1] not in (b"", b"\xff"))
    assert not table or "]!" in table[1]


def test_a_table_of_your_own_is_drawn_predicted_and_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "own.txt"
    file.write_text("0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1\n")
    given = ("--schedule", str(file))
    assert (
        said(capsys, "show", *given)
        == "rank 0 | 0F0 0F1 .   0B0 .   0B1   0STEP\nrank 1 | .   1F0 1B0 1F1 1B1 1STEP .\n"
    )
    assert said(capsys, "show", *given, "--format", "csv") == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
    assert json.loads(said(capsys, "simulate", *given, "--costs", "F=1,B=1", "--json"))["makespan"] == 6
    assert json.loads(said(capsys, "run", *given, "--mode", "local", "--json"))["grad_max_rel_error"] < 1e-9


def test_what_is_too_early_in_a_table_is_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text("0F0,0F1,,0B0,0B1\n,1F0,1B0,1F1,1B1\n")
    for verb in ("show", "simulate", "run"):
        assert main([verb, "--schedule", str(file)]) == 2
        assert capsys.readouterr().err.splitlines() == [
            f"pdlab: error: {file}: 0B1 in column 5 needs 1B1, which stands in column 5; move it to column 6 or later "
            "(or take all blank cells out: then rows say an order and no times)",
            "the table has 5 columns; the dependencies of this order need at least 6",
            "column | 1   2   3   4   5",
            "rank 0 | 0F0 0F1 .   0B0 [0B1]!",
            "rank 1 | .   1F0 1B0 1F1 1B1",
        ]


def test_a_folder_that_cannot_be_written_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert main(["compare", "single", "--mode", "local", "--out", str(tmp_path / "file" / "out")]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and str(tmp_path) in line


def test_local_run_and_comparison(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = json.loads(said(capsys, "run", "zb_h1", "--pp", "4", "--mode", "local", "--json"))
    assert found["grad_max_rel_error"] < 1e-9 and found["bytes_measured"] == found["bytes_simulated"]
    out = said(capsys, "compare", "ddp", "1f1b", "--ranks", "2", "--mode", "local", "--out", str(tmp_path))
    assert "ddp" in out and (tmp_path / "report.html").exists()
    header = (tmp_path / "summary.csv").read_text().splitlines()[0]
    assert header == (
        "strategy,ranks,microbatches,mode,simulated_s,measured_s,error_pct,bubble_simulated,bubble_measured,"
        "bytes_simulated,bytes_measured,peak_bytes_simulated,peak_bytes_measured,grad_max_rel_error"
    )


def test_the_package_runs_as_a_module() -> None:
    words = [sys.executable, "-m", "pdlab", "list"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[0].startswith("single")


def test_listing_and_simulating_do_not_load_torch() -> None:
    code = (
        "import sys; from pdlab.cli import main; main(['simulate', '1f1b', '--pp', '2']); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip().endswith("False")


def test_a_pipe_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    assert main(["show", "--schedule", str(tmp_path / "pipe.csv")]) == 2
    assert "it is a pipe" in capsys.readouterr().err


def test_compare_leaves_out_what_refuses_unless_it_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--ranks", "3", "--microbatches", "2", "--mode", "local", "--out", str(tmp_path)]
    assert main(["compare", "dualpipe", "1f1b", *words]) == 2
    assert "dualpipe on 3 ranks: " in capsys.readouterr().err
    assert main(["compare", *words]) == 0
    said = capsys.readouterr().out
    assert "dualpipe: left out, dualpipe with 3 ranks" in said and "\n1f1b " in said
