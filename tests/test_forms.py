"""Text, CSV and JSON of programs: what is written is what is read, and damage is named where it is."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import NAMES, build, everything, find, from_rows, small_model, with_op

from pdlab import forms, models
from pdlab.forms.recipe import rebuild
from pdlab.ops import STEP, B, F, I, Kind, W, parse
from pdlab.program import Program

EVERYTHING = everything()


# --- the grid


def test_a_cell_stands_one_column_after_what_it_waits_for():
    assert str(build("1f1b", ranks=3, microbatches=4)).splitlines() == [
        "rank 0 | 0F0 0F1 0F2 .   .   0B0 0F3 0B1 .   0B2 .     0B3   0STEP",
        "rank 1 | .   1F0 1F1 .   1B0 1F2 1B1 1F3 1B2 .   1B3   1STEP .",
        "rank 2 | .   .   2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3 2STEP .     .",
    ]


def test_segments_exchanges_and_buckets_disappear_in_cells():
    assert str(build("tensor", microbatches=1)) == "rank 0 | 0F0 0B0 0STEP\nrank 1 | 0F0 0B0 0STEP"
    assert str(build("zero3", microbatches=1)) == "rank 0 | 0F0 0B0 0STEP\nrank 1 | 0F0 0B0 0STEP"


def test_ranks_and_microbatches_with_two_digits_stay_aligned():
    lines = str(build("gpipe", ranks=12, microbatches=16, model=models.nominal(12))).splitlines()
    assert lines[0].startswith("rank  0 | 0F0 0F1 ") and lines[11].startswith("rank 11 | .   .   ")
    assert lines[4].index("4F9 ") == lines[3].index("3F10 ") == lines[2].index("2F11 ")
    assert lines[5].index("5B9 ") == lines[4].index("4B8 ")


def test_marked_passes_and_messages_stand_out():
    program = build("1f1b", microbatches=1)
    backward, receive = find(program, 1, "1.0B0"), find(program, 1, "RECV h2:0")
    assert forms.grid(program, [(1, backward)]).splitlines()[1] == "rank 1 | .   1F0 [1B0]! 1STEP ."
    assert "[RECV h2:0 from 0]!" in forms.grid(program, [(1, receive)])
    assert "!" not in forms.grid(program)


def test_what_cannot_run_is_drawn_in_list_order():
    program = build("gpipe", microbatches=2)
    broken = with_op(program, 1, find(program, 1, "RECV h2:0"))
    assert forms.grid(broken).splitlines() == [
        "rank 0 | 0F0 0F1 0B0 0B1 0STEP",
        "rank 1 | 1F0 1F1 1B0 1B1 1STEP",
    ]


def test_ops_without_operands_are_drawn_too():
    rows = from_rows([[F(0, 0), F(0, 1), B(0, 0), B(0, 1)]])
    again = with_op(rows, 0, 4, *rows.ranks[0].ops[:4], *rows.ranks[0].ops[:5])
    assert str(again) == "rank 0 | 0F0 0F0 0F0 0F1 0B0 0B1"


# --- CSV


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("pipedream")])
def test_csv_gives_the_order_back(name: str):
    text = forms.schedule_csv(build(name, microbatches=2))
    rows = forms.parse_csv(text)
    assert "STEP" not in text and all(row[-1].kind is Kind.STEP for row in rows)
    assert forms.rows_csv([[op for op in row if op.kind is not Kind.STEP] for row in rows]) == text


def test_a_table_lowers_to_the_program_that_printed_it():
    program = build("zb_h1", ranks=2, microbatches=3)
    again = from_rows(forms.parse_csv(forms.schedule_csv(program)), batch=4)
    assert again.ranks == program.ranks


def test_a_row_for_each_rank_of_the_first_pipeline():
    whole = forms.schedule_csv(build("1f1b", ranks=3))
    assert len(whole.splitlines()) == 3
    assert forms.schedule_csv(build("1f1b", ranks=3, dp=2, tp=2)) == whole
    assert len(forms.schedule_csv(build("zero3", ranks=4)).splitlines()) == 1


def test_steps_that_are_not_the_last_are_written():
    for text in ("0F0,0B0,0STEP0,0F1,0B1,0STEP1\n", "0F0,1F0,1B0,1STEP,0B0,0STEP\n"):
        rows = forms.parse_csv(text)
        model = small_model(stages=2)
        assert forms.schedule_csv(from_rows(rows, model)) == text


def test_steps_come_at_the_end_where_a_row_has_none():
    first, second = forms.parse_csv("\ufeff0F0, 1F0 ,3F0,3B0,1I0,1W0,0B0\r\n\n  2F0,2B0,2STEP,,\n")
    assert first == [F(0, 0), F(1, 0), F(3, 0), B(3, 0), I(1, 0), W(1, 0), B(0, 0), STEP(0), STEP(1), STEP(3)]
    assert second == [F(2, 0), B(2, 0), STEP(2)]


@pytest.mark.parametrize(
    ("text", "sentence", "shown"),
    [
        ("0F0,0B0\n1F0,1X0", "rank 1, column 2: '1X0' is not an op; write stage, kind, microbatch", "1F0 [1X0]!"),
        ("0F0,0F,0B0", "rank 0, column 2: '0F' is not an op", "0F0 [0F]! 0B0"),
        ("0F0\n\n\n 0.1F0", "rank 1, column 1: '0.1F0' names a segment, and a schedule orders whole", "[0.1F0]!"),
        ("0F0,-1F0", "rank 0, column 2: '-1F0' is not an op", "0F0 [-1F0]!"),
        ("0F" + "9" * 5000, "rank 0, column 1: '0F999", "['0F9999"),
        ("0F0,\u0661F0", "rank 0, column 2: '\u0661F0' is not an op", "0F0 [\u0661F0]!"),
        ("0F0,0F99999999999", "rank 0, column 2 names microbatch 99999999999, and no cell names microbatch 1", "0F0 ["),
        ("0F0\n7F0", "rank 1, column 1 names stage 7, and no cell names stage 1", "[7F0]!"),
        ("0F0,0R0,0B0", "rank 0, column 2: 0R0: a schedule has F, B, I, W and STEP", "0F0 [0R0]! 0B0"),
        ("(0F0;0W1)OVERLAP_F_B", "overlaps 0F0 with 0W1; a pair is a forward and a full backward", "[(0F0;0W1)"),
        ("(0F0)OVERLAP_F_B", "'(0F0)OVERLAP_F_B' is not an op", "[(0F0)OVERLAP_F_B]!"),
        ("0F0,0B0\n0RECV_B0", "rank 1 has no ops; write what it does, or leave its row out", "0RECV_B0 ."),
        ("0F0\x00,0B0", "rank 0, column 1: '0F0\\x00' is not an op", "['0F0\\x00']! 0B0"),
    ],
)
def test_damaged_tables_are_shown_with_their_cell(text: str, sentence: str, shown: str):
    with pytest.raises(forms.FormError) as caught:
        forms.parse_csv(text)
    first, *table = str(caught.value).splitlines()
    assert sentence in first and len(first) < 250
    assert table[0].startswith("column | 1") and shown in "\n".join(table) and len(table) == 1 + len(text.split())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the table has no ops; write one row per pipeline rank"),
        (" ,\n,,", "the table has no ops"),
        ("x" * 200_000, "row 1 is not CSV (field larger than field limit"),
    ],
)
def test_what_is_no_table_is_one_sentence(text: str, sentence: str):
    with pytest.raises(forms.FormError) as caught:
        forms.parse_csv(text)
    assert sentence in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 250


def test_of_a_huge_table_the_neighbourhood_is_shown():
    row = ["0F0"] * 30_000 + ["0X0"]
    with pytest.raises(forms.FormError) as caught:
        forms.parse_csv("0F0\n" + ",".join(row))
    text = str(caught.value)
    assert "rank 1, column 30001: '0X0'" in text and "[0X0]!" in text and len(text) < 1000


# --- files


def test_files_that_are_no_text_end_in_one_sentence(tmp_path: Path):
    binary, long = tmp_path / "binary.csv", tmp_path / "long.csv"
    binary.write_bytes(b"0F0,\xff\xfe\x00")
    long.write_text("0F0," * 100)
    for path, limit, sentence in (
        (tmp_path / "absent.csv", 100, "absent.csv cannot be read (No such file"),
        (tmp_path, 100, "cannot be read (Is a directory)"),
        ("a\0b", 100, "cannot be read (embedded null byte)"),
        (binary, 100, "binary.csv is not text (byte 4 is no UTF-8)"),
        (long, 100, "long.csv is longer than 0.0001 MB"),
        ("/dev/zero", 100, "/dev/zero is longer than"),
    ):
        with pytest.raises(ValueError) as caught:
            forms.read_text(path, limit)
        assert sentence in str(caught.value)
    assert forms.read_text(long) == "0F0," * 100


# --- JSON


@pytest.mark.parametrize("name", EVERYTHING)
def test_json_gives_an_equal_program_back(name: str):
    program = EVERYTHING[name]
    again = forms.from_json(forms.to_json(program))
    assert again == program and str(again) == str(program)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.sampled_from(NAMES), st.integers(1, 4), st.integers(1, 5), st.integers(0, 2), st.sampled_from([0, 4]))
def test_json_round_trip_over_plans(name: str, ranks: int, microbatches: int, prefetch: int, optimizer_bytes: int):
    ranks = 2 if name in ("tensor", "sequence", "column", "row") and ranks == 3 else ranks
    choices = {"prefetch": prefetch, "optimizer_bytes": optimizer_bytes}
    program = build(name, ranks=ranks, microbatches=microbatches, **choices)
    assert forms.from_json(forms.to_json(program)) == program


def test_json_is_small():
    program = build("1f1b", ranks=4, microbatches=64, model=models.mlp(depth=8, width=8))
    assert program.num_ops > 1000
    assert len(forms.to_json(program)) < 120 * program.num_ops


def document() -> dict[str, Any]:
    return json.loads(forms.to_json(build("ddp", microbatches=1)))


def edited(*path: Any, to: Any) -> str:
    """The JSON of a program with one entry changed."""
    whole = node = document()
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = to
    return json.dumps(whole)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the text is not JSON (line 1, column 1"),
        ("0F0,0B0", "the text is not JSON"),
        ("[" * 100_000, "nests too deep"),
        ("9" * 5000, "a number too long"),
        ("[NaN]", "'NaN' stands where there must be finite numbers"),
        ("[]", "the program: [] stands where there must be an object"),
        ('{"pdlab": 1}', "the program lacks 'name'"),
        (edited("pdlab", to=2), "pdlab: 2 stands where there must be the version of this form, 1"),
        (edited("name", to=[]), "name: [] stands where there must be a text"),
        (
            edited("mesh", to=[["dp", 2]]),
            "mesh: [['dp', 2]] stands where there must be each of the axes dp, ep, pp, tp",
        ),
        (edited("mesh", 0, to=["dp", 0]), "mesh: --dp is 0"),
        (edited("mesh", 0, to=["dp", 3]), "ranks lists 2 ranks, and the mesh (dp 3) has 3"),
        (edited("mesh", 0, to=["xp", 2]), "mesh[0]: 'xp' stands where there must be one of dp, ep, pp, tp"),
        (edited("model", 0, to="__import__"), "model '__import__' is not known; models are cnn, experts, mlp"),
        (edited("model", 0, to="spec"), "model 'spec' is not known"),
        (edited("model", 1, "depth", to=10**12), "model mlp, depth is 1000000000000; at most 10000 layers"),
        (edited("model", 1, "width", to="8"), "model mlp, width is '8'; give a whole number of at least 1"),
        (edited("model", 1, "width", to=True), "model mlp, width is True"),
        (edited("model", 1, "height", to=3), "model mlp has no argument 'height'; it takes width, depth, itemsize"),
        (edited("model", 1, "depth", to=1), "model mlp cannot be made: depth 1"),
        (edited("model", 1, "depth", to=3), "stages: 'fc2' stands where there must be segments of the model"),
        (edited("rows", to=[[1]]), "rows: [[1]] stands where there must be for each of the 2 data shards"),
        (edited("rows", to=[[], []]), "rows: [[], []] stands where"),
        (edited("rows", 0, 0, to=0), "counts of at least 1 sample"),
        (edited("rows", 0, 0, to=1.5), "rows[0]: 1.5 stands where there must be a whole number"),
        (edited("types", 3, 0, to="wheight"), "types[3]: 'wheight' stands where there must be one of feed, activation"),
        (edited("types", 3, 1, to=True), "types[3], its size: True stands where there must be a whole number"),
        (edited("types", 3, 2, to=[["dp", "S"]]), "types[3]: ['dp', 'S'] stands where there must be an axis, a spread"),
        (edited("streams", 0, 0, to="lane"), "streams[0]: 'lane' stands where there must be one of compute, group"),
        (edited("ranks", 1, "ops", 2, 0, to="FF"), "ranks[1].ops[2]: 'FF' stands where there must be one of F, B, I"),
        (edited("ranks", 1, "ops", 2, to=[]), "ranks[1].ops[2]: [] stands where there must be 1 to 13 entries: kind"),
        (edited("ranks", 1, "ops", 2, 3, to=-2), "ranks[1].ops[2], its microbatch: -2 stands where"),
        (edited("ranks", 1, "ops", 2, 4, to="x:0"), "ranks[1].ops[2]: 'x:0' stands where there must be a list"),
        (edited("ranks", 1, "ops", 0, 4, 0, to=7), "ranks[1].ops[0]: 7 stands where there must be a text"),
        (edited("ranks", 0, "types", "x:0", to=99), "ranks[0].types.x:0: 99 stands where there must be a place in a"),
        (edited("ranks", 0, "live_in", to={}), "ranks[0].live_in: {} stands where there must be a list"),
        (edited("ranks", 0, to={"ops": []}), "ranks[0] lacks 'types'; it has ops, types, live_in, live_out"),
    ],
)
def test_damaged_json_is_told_with_its_place(text: str, sentence: str):
    with pytest.raises(ValueError) as caught:
        forms.from_json(text)
    assert sentence in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 300


JUNK = st.sampled_from([None, True, -1, 0, 1, 2**70, 1.5, "", "F", "dp", [], [[]], {}, {"ops": []}])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data())
def test_any_damage_is_a_program_or_one_sentence(data: st.DataObject):
    whole = node = document()
    while True:
        keys = sorted(node) if isinstance(node, dict) else range(len(node))
        key = data.draw(st.sampled_from(keys))
        inner = node[key]
        if not (isinstance(inner, list | dict) and inner) or data.draw(st.integers(0, 4)) == 0:
            break
        node = inner
    if data.draw(st.booleans()):
        del node[key]
    else:
        node[key] = data.draw(JUNK)
    try:
        assert isinstance(forms.from_json(json.dumps(whole)), Program)
    except forms.FormError as error:
        assert "\n" not in str(error) and len(str(error)) < 400


def test_a_model_with_a_false_recipe_is_not_written():
    model = models.mlp(depth=4, width=8)
    liar = type(model)(("mlp", (("depth", 5), ("width", 8))), model.layers, model.feeds, model.itemsize)
    with pytest.raises(ValueError, match=r"mlp\(depth=5, width=8\) is not what its recipe makes"):
        forms.to_json(build("single", model=liar))


def test_every_model_is_rebuilt_from_its_recipe():
    for model in (models.mlp(), models.cnn(), models.transformer(tp=2), models.experts(), models.nominal(3, M_B=2)):
        maker, arguments = model.recipe
        assert rebuild(maker, dict(arguments)) == model


def test_shorthand_of_a_pass_parses_back():
    for op in (F(2, 0), B(0, 11), I(1, 3), W(1, 3), STEP(4), STEP(4, 2)):
        assert parse(str(op)) == op
