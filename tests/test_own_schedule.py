"""A schedule that somebody typed: completed, checked as an order and as a drawing in time, and shown with its fault."""

import pytest
from cases import synchronous
from programs import find, with_op
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from pdlab import forms, lab, models, own_schedule, strategies
from pdlab.costs import Uniform
from pdlab.execute.local import run_local
from pdlab.mesh import Axis
from pdlab.ops import STEP, B, F, Kind, Op
from pdlab.own_schedule import program_of_table, valid
from pdlab.simulate import simulate
from pdlab.strategies import Plan
from pdlab.validate import ProgramError

PIPELINES = [s.name for s in strategies.STRATEGIES if s.axis is Axis.PP and not s.stale]
OWN = """
    0F0,0F1,0B0,0F2,0B1,0B2
    1F0,1B0,1F1,1B1,1F2,1B2
"""


def planned(name: str, ranks: int, microbatches: int) -> Plan:
    if name == "dualpipe":
        ranks, microbatches = ranks + ranks % 2, max(microbatches + microbatches % 2, 2 * (ranks + ranks % 2))
    return strategies.get(name).on(ranks, Plan(microbatches=microbatches))


def schedule(name: str, ranks: int, microbatches: int) -> list[list[Op]]:
    return strategies.get(name).schedule(planned(name, ranks, microbatches))


def unpaired(rows: list[list[Op]]) -> list[list[Op]]:
    return [[op._replace(pair=-1) for op in row] for row in rows]


# --- what a table becomes


def test_a_table_is_completed_checked_and_drawn():
    program = program_of_table(OWN)
    assert str(program).splitlines() == [
        "rank 0 | 0F0 0F1 .   0B0 0F2 0B1 .   0B2   0STEP",
        "rank 1 | .   1F0 1B0 1F1 1B1 1F2 1B2 1STEP .",
    ]
    assert program.model == lab.lab_nominal(2, 2) and program.num_microbatches == 3
    assert simulate(program, Uniform.of(F=1, B=2)).makespan == 12


def test_what_a_table_does_not_say_comes_from_the_plan():
    model = models.mlp(depth=4, width=8, itemsize=8)
    program = program_of_table(OWN, model, Plan(dp=2, batch=12), name="mine")
    assert (program.name, program.mesh.size, program.batch, program.model) == ("mine", 4, 12, model)
    assert program_of_table(OWN, plan=Plan(pp=2, microbatches=3, tp=2)).model.tp == 2
    for plan, said in (
        (Plan(pp=3), "pp=3 for a table of 2"),
        (Plan(microbatches=2), "microbatches=2 for a table of 3"),
        (Plan(virtual=1), "virtual=1 for a table"),
        (Plan(limit=2.0), "limit=2.0 for a table"),
    ):
        with pytest.raises(ValueError, match=said):
            program_of_table(OWN, plan=plan)
    with pytest.raises(ValueError, match="3 stages are more than the 2 layers"):
        program_of_table("0F0,1F0,2F0,2B0,1B0,0B0", models.mlp(depth=2))


@pytest.mark.parametrize(
    "order", [OWN, "0F1,0F0,0I1,0B0,0W1\n1F0,1F1,1B1,1B0", "0F0,0F1,2F0,2F1,2B1,2B0,0B0,0B1\n1F1,1F0,1B0,1B1"]
)
def test_a_table_trains_as_one_process_does(order: str):
    program = program_of_table(order, models.mlp(depth=4, width=8, itemsize=8), Plan(batch=9))
    case = synchronous(program)
    assert case.check(run_local(case.programs, case.batch, case.settings)) < 1e-9


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", PIPELINES)
def test_every_schedule_survives_as_a_table(name: str, ranks: int):
    for microbatches in (1, 3, 4, 8):
        plan = planned(name, ranks, microbatches)
        program = strategies.build(strategies.get(name), plan, lab.lab_nominal(plan.pp, plan.num_stages))
        text = forms.schedule_csv(program)
        again, typed = schedule(name, ranks, microbatches), forms.parse_csv(text)
        assert unpaired(typed) == unpaired(again)
        if name != "dualpipe_v" or plan.microbatches >= plan.num_stages:  # fewer leave gaps in the numbers of pairs
            assert typed == again
            assert program_of_table(text).ranks == program.ranks
        assert "STEP" not in text and ",," not in text
        assert text == forms.schedule_csv(program_of_table(text))


def test_pairs_are_written_as_torch_writes_them():
    program = program_of_table("0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n")
    assert forms.schedule_csv(program) == "0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n"
    _, second = forms.parse_csv(forms.schedule_csv(program))
    assert second == [F(1, 0), F(1, 1)._replace(pair=0), B(1, 0)._replace(pair=0), B(1, 1), STEP(1)]


def test_what_torch_says_of_messages_is_left_out():
    order = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
    torchs = (
        "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0RESHARD,0REDUCE_GRAD\n"
        "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD\n"
    )
    assert forms.parse_csv(torchs) == forms.parse_csv(order)


# --- what is wrong with an order


FAULTS = {
    "a backward without its forward": (
        "0F0,0F1,0B0,0B1\n1F0,1B0,1B1",
        "1B1 on rank 1, column 3 needs 1F1, which stands nowhere; add it to the row of rank 1",
        ["rank 0 | 0F0 0F1 0B0    0B1", "rank 1 | 1F0 1B0 [1B1]! ."],
    ),
    "a microbatch forgotten in the last stage": (
        "0F0,0F1,0B0,0B1\n1F0,1B0,1F1",
        "0B1 on rank 0, column 4 needs 1B1 (or 1I1), which stands nowhere; add it to the row of rank 1",
        ["rank 0 | 0F0 0F1 0B0 [0B1]!", "rank 1 | 1F0 1B0 1F1 ."],
    ),
    "a microbatch forgotten everywhere": (
        "0F0,0F1,0B0\n1F0,1B0",
        "0F1 on rank 0, column 2 is never taken back: the gradient of stage 0 would lack microbatch 1, for there is no "
        "0B1 (nor 0I1 and 0W1); add it to the row of rank 0",
        ["rank 0 | 0F0 [0F1]! 0B0", "rank 1 | 1F0 1B0    ."],
    ),
    "a forward without that of the stage before": (
        "0F0,0B0\n1F0,1F1,1B0,1B1",
        "1F1 on rank 1, column 2 needs 0F1, which stands nowhere; add it to the row of rank 0",
        ["rank 0 | 0F0 0B0    .   .", "rank 1 | 1F0 [1F1]! 1B0 1B1"],
    ),
    "a backward twice": (
        "0F0,0B0,0B0\n1F0,1B0",
        "0B0 on rank 0, column 3 repeats 0B0 on rank 0, column 2; every stage takes each microbatch once forward and "
        "once back, so take one of them out",
        ["rank 0 | 0F0 [0B0]! [0B0]!", "rank 1 | 1F0 1B0    ."],
    ),
    "a weight gradient of a full backward": (
        "0F0,0B0,0W0",
        "0W0 on rank 0, column 3 repeats 0B0 on rank 0, column 2; every stage",
        ["rank 0 | 0F0 [0B0]! [0W0]!"],
    ),
    "a forward on two ranks": (
        "0F0,0B0\n0F0",
        "0F0 on rank 1, column 1 repeats 0F0 on rank 0, column 1; every stage",
        ["rank 0 | [0F0]! 0B0", "rank 1 | [0F0]! ."],
    ),
    "no weight gradient": (
        "0F0,0I0",
        "0I0 on rank 0, column 2 puts its weight gradient off until 0W0, which stands nowhere; add it to the row of "
        "rank 0, or write 0B0 for both",
        ["rank 0 | 0F0 [0I0]!"],
    ),
    "a weight gradient without an input gradient": (
        "0F0,0W0",
        "0W0 on rank 0, column 2 needs 0I0, which stands nowhere; add it to the row of rank 0",
        ["rank 0 | 0F0 [0W0]!"],
    ),
    "another rank": (
        "0F0,1B0,0B0\n1F0",
        "1B0 stands on rank 0, and what 1F0 keeps for it stays on rank 1; move it to the row of rank 1",
        ["rank 0 | 0F0 [1B0]! 0B0", "rank 1 | 1F0 .      ."],
    ),
    "a weight gradient on another rank": (
        "0F0,1W0,0B0\n1F0,1I0",
        "1W0 stands on rank 0, and what 1I0 keeps for it stays on rank 1; move it to the row of rank 1",
        ["rank 0 | 0F0 [1W0]! 0B0", "rank 1 | 1F0 1I0    ."],
    ),
    "the wrong way round": (
        "0F0,0B0\n1B0,1F0",
        "1B0 in column 1 of rank 1 needs 1F0, which follows in column 2; exchange them",
        ["rank 0 | 0F0    0B0", "rank 1 | [1B0]! 1F0"],
    ),
    "a pair that waits for itself": (
        "0F0,0B0\n(1F0;1B0)OVERLAP_F_B",
        "1B0 needs 1F0, which runs beside it; give each a cell",
        ["rank 0 | 0F0                     0B0", "rank 1 | [(1F0;1B0)OVERLAP_F_B]! ."],
    ),
    "ranks that wait for each other": (
        "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1",
        "deadlock: 0B0 on rank 0 waits for 1B0 on rank 1, which stands behind 1F1; 1F1 on rank 1 waits for 0F1 on rank "
        "0, which stands behind 0B0; change the order on one of these ranks",
        ["rank 0 | 0F0 [0B0]! 0F1 0B1", "rank 1 | 1F0 [1F1]! 1B0 1B1"],
    ),
    "a step too early": (
        "0F0,0F1,0B0,0STEP,0B1",
        "0STEP in column 4 of rank 0 stands before 0B1 in column 5, whose gradient it would lack; move it behind",
        ["rank 0 | 0F0 0F1 0B0 [0STEP]! 0B1"],
    ),
    "a step of another rank": (
        "0F0,0B0\n1F0,1B0,0STEP",
        "0STEP on rank 1, column 3 has no gradient to step with: rank 1 has no 0B0; take it out, or move it to the "
        "rank of its stage",
        ["rank 0 | 0F0 0B0 .", "rank 1 | 1F0 1B0 [0STEP]!"],
    ),
    "a step twice": (
        "0F0,0B0,0STEP,0STEP",
        "0STEP on rank 0, column 3 and 0STEP in column 4 step on the same gradient; take one of them out",
        ["rank 0 | 0F0 0B0 [0STEP]! [0STEP]!"],
    ),
    "a step with the gradient of another microbatch": (
        "0F0,0F1,0B0,0B1,0STEP0,0STEP1",
        "0STEP0 in column 5 of rank 0 is for microbatches up to 0, and 0B1 in column 4 would be part of it; move that "
        "behind",
        ["rank 0 | 0F0 0F1 0B0 [0B1]! [0STEP0]! 0STEP1"],
    ),
    "a microbatch without a step": (
        "0F0,0B0,0STEP0,0F1,0B1",
        "0B1 on rank 0, column 5 is in no step, for the last step of stage 0 is 0STEP0; add 0STEP1 behind it",
        ["rank 0 | 0F0 0B0 0STEP0 0F1 [0B1]!"],
    ),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_faulty_order_is_shown_as_typed(what: str):
    text, sentence, rows = FAULTS[what]
    with pytest.raises(forms.FormError) as caught:
        program_of_table(text)
    first, header, *table = str(caught.value).splitlines()
    assert first.startswith(sentence) and header.startswith("column | 1") and table == rows


def test_what_only_the_program_shows_is_shown_in_its_grid():
    program = program_of_table(OWN)
    with pytest.raises(ProgramError, match="reads 'h1:0' before anything writes it") as caught:
        valid(with_op(program, 1, find(program, 1, "RECV")))
    assert "\nrank 0 | 0F0 " in str(caught.value) and "]!" in str(caught.value)
    assert valid(program) is program


# --- columns as time


def drawing(name: str, ranks: int, microbatches: int) -> str:
    """The grid of a schedule, which is drawn from the program's own graph, as a table with blanks."""
    plan = planned(name, ranks, microbatches)
    model = lab.lab_nominal(plan.pp, plan.num_stages)
    program = strategies.lower_schedule("drawn", unpaired(schedule(name, ranks, microbatches)), plan, model)
    lines = [line.split("|")[1].split() for line in forms.grid(program).splitlines()]
    return "\n".join(",".join("" if cell == "." or "STEP" in cell else cell for cell in line) for line in lines)


@pytest.mark.parametrize("name", PIPELINES)
def test_the_grid_of_a_schedule_is_a_time_table_of_the_fewest_columns(name: str):
    for ranks, microbatches in ((2, 3), (4, 8), (3, 5)):
        drawn = drawing(name, ranks, microbatches)
        table = forms.read_table(drawn)
        assert table.timed == any(",," in line.rstrip(",") or line[0] == "," for line in drawn.splitlines())
        assert forms.fewest_columns(table) == max(len(row) for row in table.rows)
        assert unpaired(table.schedule) == unpaired(schedule(name, ranks, microbatches))


def passes(name: str, ranks: int, microbatches: int) -> list[list[Op]]:
    return [[op for op in row if op.kind is not Kind.STEP] for row in schedule(name, ranks, microbatches)]


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_fewest_columns_are_the_closed_form(name: str):
    for p, m in ((1, 1), (2, 5), (4, 4), (8, 32), (4, 2)):
        table = forms.read_table(forms.rows_csv(schedule(name, p, m)))
        steps = forms.read_table(forms.rows_csv(passes(name, p, m)))
        assert forms.fewest_columns(steps) == 2 * (m + p - 1)
        assert forms.fewest_columns(table) == 2 * (m + p - 1) + 1
        assert not table.timed


def test_blanks_say_nothing_where_the_time_is_right():
    timed = "0F0,0F1,,0B0,0F2,0B1,,0B2,,\n,1F0,1B0,1F1,1B1,1F2,1B2\n"
    assert forms.read_table(timed).timed and not forms.read_table(OWN).timed
    assert program_of_table(timed).ranks == program_of_table(OWN).ranks
    assert not forms.read_table("0F0,0B0,,,\n1F0,1B0,,\n").timed


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0F0,,,0B0\n1F0,,1B0", "1F0 in column 1 needs 0F0, which stands in column 1; move it to column 2 or later"),
        ("0F0,,0B0\n,1F0,1B0", "0B0 in column 3 needs 1B0, which stands in column 3; move it to column 4 or later"),
        ("0F0,,0I0,0W0\n,1F0,1I0,1W0", "0I0 in column 3 needs 1I0, which stands in column 3; move it to column 4"),
        (
            ",0F0,,,,0B0\n1F0,,,,1B0",
            "1F0 in column 1 needs 0F0, which stands in column 2; move it to column 3 or later",
        ),
        ("0F0,0F1,,,,0B0,0B1\n,1F0,(1F1;1B0)OVERLAP_F_B,1B1\n,,,", None),
        ("0F0,0F1,0B0,,0B1\n,1F0,(1F1;1B0)OVERLAP_F_B,1B1", "0B0 in column 3 needs 1B0, which stands in column 3"),
    ],
)
def test_what_stands_too_early(text: str, sentence: str | None):
    if sentence is None:
        assert forms.read_table(text).timed
        return
    with pytest.raises(forms.FormError) as caught:
        forms.read_table(text)
    cell = f"[{sentence.split()[0]}]!"
    assert str(caught.value).startswith(sentence) and (cell in str(caught.value) or "OVERLAP" in text)
    order = "\n".join(",".join(cell for cell in line.split(",") if cell) for line in text.splitlines())
    assert not forms.read_table(order).timed  # without blanks it is an order only, and a good one


def test_1f1b_in_71_columns_is_refused_with_its_bound():
    """Eight ranks whose rows each begin one column later and have no bubble: the last one ends in column 71."""
    rows = passes("1f1b", 8, 32)
    squeezed = "\n".join("," * rank + ",".join(map(str, row)) for rank, row in enumerate(rows))
    with pytest.raises(forms.FormError) as caught:
        forms.read_table(squeezed)
    first, bound, _, *table = str(caught.value).splitlines()
    assert first.startswith("0B0 in column 9 needs 1B0, which stands in column 9; move it to column 10 or later")
    assert bound == "the table has 71 columns; the dependencies of this order need at least 78"
    assert len(table) == 8 and table[0].startswith("rank 0 | 0F0 0F1 0F2 0F3 0F4 0F5 0F6 0F7 [0B0]! 0F8")
    assert "".join(table).count("!") == 1


def test_a_table_that_is_long_enough_has_no_bound_beside_its_fault():
    with pytest.raises(forms.FormError) as caught:
        forms.read_table("0F0,,,,,0B0\n1F0,,,,1B0")
    assert "the dependencies" not in str(caught.value)


def test_the_1f1b_that_torch_draws_lacks_a_forward():
    """Torch 2.13 counts the forwards of the last rank from 1 (`Schedule1F1B._get_pipeline_order`)."""
    rows = get_schedule_ops("1F1B", 8, 32)
    if str(rows[7][0]) == "7F0":
        pytest.skip("this torch has mended it")
    with pytest.raises(forms.FormError, match="7B0 on rank 7, column 2 needs 7F0, which stands nowhere"):
        program_of_table("\n".join(",".join(map(str, row)) for row in rows))


def test_a_stream_with_stashing_survives_as_a_table() -> None:
    """Steps along the way are in the table, and so are replicas; versions are not, but these are the usual ones."""
    for choices in ({"pp": 3}, {"pp": 4, "replicas": (3, 1)}, {"pp": 3, "replicas": (2, 1)}):
        plan = Plan(microbatches=7, **choices)
        model = lab.lab_nominal(plan.pp, plan.num_stages)
        program = strategies.build(strategies.get("pipedream"), plan, model)
        table = forms.read_table(forms.schedule_csv(program))
        again = own_schedule.lower_table(table, own_schedule.plan_of_table(table, Plan()), model, "typed")
        assert again.ranks == program.ranks
