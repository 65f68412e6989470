"""A table in two runtimes: torch's reads it from a file and finds the gradients that ours finds."""

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch
from cases import synchronous
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.distributed.pipelining.stage import PipelineStage

from pdlab import forms, lab, models, reference, strategies
from pdlab.errors import PoolError
from pdlab.execute.local import run_local
from pdlab.launch import Ranks
from pdlab.models import Model
from pdlab.own_schedule import program_of_table
from pdlab.state import assemble, initial_parameters
from pdlab.stock import pipelining
from pdlab.strategies import Plan

MODEL = models.mlp(width=8, depth=5, itemsize=8)
BATCH = 8
OWN = {
    "by hand": "0F0,0F1,0I1,0B0,0W1\n1F0,1F1,1B1,1B0\n",
    "by hand, in time": "0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1\n",
    "by hand, first rank not in order": "0F1,0F0,0B1,0B0\n1F0,1F1,1B0,1B1\n",
    "by hand, three stages": "0F0,0F1,1F0,1F1,1B1,0I1,1B0,0B0,0W1,1STEP,0STEP\n2F0,2F1,2B1,2B0\n",
}


def table_of(name: str) -> str:
    """A strategy on two ranks with four microbatches, as `pdlab show --format csv` prints it."""
    plan = strategies.get(name).on(2, Plan(microbatches=4))
    program = strategies.build(strategies.get(name), plan, lab.lab_nominal(2, plan.num_stages))
    return forms.schedule_csv(program)


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    with Ranks(2) as ranks:
        yield ranks


def check(ranks: Ranks, table: str, model: Model = MODEL, batch: int = BATCH) -> None:
    """Torch's gradients by name against one process in plain PyTorch, and against our own run of the same table."""
    found = pipelining.run(ranks, table, model, batch, steps=1)
    program = program_of_table(table, model, Plan(batch=batch))
    case = synchronous(program)
    parameters = initial_parameters(model, 0, torch.float64)
    x, target = reference.inputs(model, case.batch.pixels, case.batch.labels, torch.float64)
    _, expected = reference.gradients(model, parameters, x, target)
    ours = assemble(program, run_local(case.programs, case.batch, case.settings).gradients)
    for other in (expected, ours):
        assert max(reference.relative_errors(found.gradients, other).values()) < 1e-9
    assert found.seconds > 0


@pytest.mark.processes
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_v", "dualpipe_v"])
def test_a_strategy_has_the_same_gradients_in_both_runtimes(name: str, two: Ranks) -> None:
    check(two, table_of(name))


@pytest.mark.processes
@pytest.mark.parametrize("name", OWN)
def test_a_table_by_hand_has_the_same_gradients_in_both_runtimes(name: str, two: Ranks) -> None:
    check(two, OWN[name])


@pytest.mark.processes
def test_a_transformer_on_some_of_the_ranks(pool: Ranks) -> None:
    check(pool, table_of("zb_v"), models.transformer(width=8, depth=1, heads=4, itemsize=8))


@pytest.mark.processes
def test_what_goes_wrong_in_torch_ends_the_ranks_with_its_sentence(two: Ranks) -> None:
    given = {"maker": "mlp", "arguments": {"width": 8, "depth": 4}, "batch": 8}
    with pytest.raises(PoolError, match="Stage 0 is assigned to both"):
        two.call("pdlab.stock.pipelining:step", table=table_of_dualpipe(), **given)


def table_of_dualpipe() -> str:
    return forms.rows_csv([row[:-2] for row in strategies.get("dualpipe").schedule(Plan(pp=2, microbatches=4))])


def test_what_torch_cannot_run_is_said_with_the_reason() -> None:
    own = OWN["by hand"]
    for table, model, batch, said in (
        (table_of_dualpipe(), MODEL, 8, "stage 0 stands on ranks 0 and 1, and in torch's runtime it has one"),
        ("0F0,0B0,0STEP0,0F1,0B1,0STEP1\n", MODEL, 8, "rank 0 has 0STEP0 before 0F1, and torch's runtime leaves the"),
        ("0F1,0F0,0B0,0B1\n1F1,1F0,1B0,1B1\n", MODEL, 8, "runs 1F1 where 1F0 is due, and torch's runtime would take"),
        (own, MODEL, 9, "a batch of 9 for 2 microbatches: torch's runtime receives into buffers of one size"),
        (own, models.mlp(width=8, depth=5, skip=3), 8, "give an mlp or a transformer that is not split"),
        (own, models.transformer(width=8, depth=1, heads=4, dropout=0.1), 8, "with width, depth and heads alone"),
        (own, models.mlp(width=8, depth=5, tp=2), 8, "that is not split"),
        (own, models.cnn(), 8, "cnn"),
        ("0F0,1F0,2F0,2B0,1B0,0B0", models.mlp(depth=2), 8, "3 stages are more than the 2 layers"),
        ("0F0,0B0\n1F0,1B0\n2F0,2B0\n", MODEL, 8, "a table of 3 ranks on 2; start Ranks(3)"),
    ):
        with pytest.raises(ValueError, match=said.replace("(", r"\(").replace(")", r"\)")):
            pipelining.run(Ranks(2), table, model, batch)
    with pytest.raises(ValueError, match="0 steps; give at least 1"):
        pipelining.run(Ranks(2), own, MODEL, 8, steps=0)


@pytest.mark.parametrize("num_stages", [1, 2, 3, 5])
def test_stages_are_cut_where_ours_are(num_stages: int) -> None:
    cut = pipelining.stage_modules(MODEL, num_stages, initial_parameters(MODEL, 0, torch.float64))
    ours = [
        {f"{item.name}.{p.name}" for item in stage for p in item.groups[0].params}  # type: ignore[union-attr]
        for stage in MODEL.stages(num_stages)
    ]
    assert [{name for name, _ in module.named_parameters()} for module in cut] == ours


# --- the files that torch writes


def dumped(schedule: str, ranks: int, microbatches: int, stages: int, form: str, folder: Path) -> str:
    """What torch's `_dump_csv` writes of a schedule with some stages on each rank."""
    stage = mock.create_autospec(PipelineStage, instance=True)
    stage.group_rank, stage.group_size, stage.submod, stage.num_stages = 0, ranks, None, stages * ranks
    made = get_schedule_class(schedule)([stage] * stages, microbatches)
    made._prepare_schedule_with_comms(made.pipeline_order)
    made._dump_csv(str(folder / "torch.csv"), form)
    return (folder / "torch.csv").read_text()


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (3, 9)])
@pytest.mark.parametrize(
    ("schedule", "stages"),
    [("LoopedBFS", 2), ("Interleaved1F1B", 3), ("InterleavedZeroBubble", 2), ("ZBVZeroBubble", 2), ("DualPipeV", 2)],
)
def test_files_that_torch_wrote_are_read(
    schedule: str, stages: int, ranks: int, microbatches: int, tmp_path: Path
) -> None:
    plain, whole = (
        dumped(schedule, ranks, microbatches, stages, form, tmp_path) for form in ("compute_only", "compute_comms")
    )
    assert "SEND_F" in whole and "SEND_F" not in plain
    program = program_of_table(plain)
    assert forms.parse_csv(plain) == forms.parse_csv(whole)
    assert program.mesh.size == ranks and len(program.stages) == stages * ranks
    assert forms.read_table(plain).timed == (schedule != "DualPipeV")
    assert ("OVERLAP_F_B" in plain) == ("OVERLAP_F_B" in forms.schedule_csv(program)) == (schedule == "DualPipeV")


@pytest.mark.processes
@pytest.mark.parametrize("schedule", ["InterleavedZeroBubble", "DualPipeV"])
def test_a_table_of_torchs_own_has_the_same_gradients_in_both_runtimes(
    schedule: str, two: Ranks, tmp_path: Path
) -> None:
    check(two, dumped(schedule, 2, 4, 2, "compute_comms", tmp_path))
