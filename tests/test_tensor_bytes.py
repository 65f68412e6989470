"""What a tensor group moves, what it can hide and what recomputation costs, against the closed forms of the papers."""

import pytest
from groups import B, H, S, network, program_of

from pdlab import models
from pdlab.compare import digits_batch
from pdlab.costs import Analytic, Uniform, wire_factor
from pdlab.execute.local import run_local
from pdlab.execute.settings import Settings
from pdlab.mesh import Axis
from pdlab.metrics import peak_bytes_per_rank
from pdlab.models.spec import Exchange
from pdlab.ops import COLLECTIVE_KINDS, Kind, Op
from pdlab.passes import Recompute
from pdlab.program import Program
from pdlab.simulate import simulate
from pdlab.trace import Trace


def moved_elements(program: Program, layer: str = "") -> dict[Kind, float]:
    """Elements on the wire of one rank, of the activations of one layer (or all), by a ring."""
    trace = simulate(program, Uniform())
    found: dict[Kind, float] = {}
    for (rank, op), moved in zip(trace.rows(), trace.moved, strict=True):
        if rank == 0 and op.kind in COLLECTIVE_KINDS and op.microbatch >= 0 and of_layer(program, op, layer):
            itemsize = program.model.itemsize
            found[op.kind] = (
                found.get(op.kind, 0) + wire_factor(op.kind, program.mesh.degree(Axis.TP)) * moved / itemsize
            )
    return found


def of_layer(program: Program, op: Op, layer: str) -> bool:
    """Whether a collective is of a layer, or gathers what a layer is given."""
    exchanges = {
        t.name: item.name
        for items in program.model.layers
        for item in items
        if isinstance(item, Exchange)
        for t in (item.payload, item.result)
    }
    of = program.ranks[0].types[op.inputs[0]].of
    return exchanges.get(of, {"h0": "attn0."}.get(of, "")).startswith(layer)


BLOCK = ("attn0.", "ffn0.")


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize(
    ("split", "recompute", "times"),
    [
        ("tensor", Recompute.NONE, 8),  # Shoeybi et al. 2019, section 3: 4 all-reduces
        ("tensor", Recompute.FULL, 12),  # Rajbhandari et al. 2020 (ZeRO), section 8: 6 all-reduces
        ("tensor", Recompute.PARTITIONED, 13),  # the same, P_a: one all-gather more
        ("sequence", Recompute.NONE, 10),  # Korthikanti et al. 2022, section 4.2.2: as tensor, and 2 gathers again
        ("sequence", Recompute.FULL, 12),  # each all-reduce as a reduce-scatter and an all-gather
    ],
)
def test_bytes_of_a_layer(split: str, recompute: Recompute, times: int, tp: int) -> None:
    """Elements on the wire for each layer and microbatch: `times` b s h (t - 1) / t."""
    model = network(tp, split)
    program = program_of(model, tp, split, recompute=recompute)
    wire = sum(sum(moved_elements(program, layer).values()) for layer in BLOCK)
    assert wire == pytest.approx(times * B * S * H * (tp - 1) / tp, rel=1e-12)
    result = run_local([program], digits_batch(B), Settings())
    assert result.trace.moved == simulate(program, Uniform()).moved


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_bytes_of_single_linears(tp: int) -> None:
    """Wire elements of a hidden linear, b samples of width w: a ring moves 2 (t - 1) / t of what is summed, (t - 1) / t
    of what is gathered (nccl-tests, PERFORMANCE.md)."""
    width, share = 16, (tp - 1) / tp
    column, row, both = (
        moved_elements(program_of(models.mlp(width=width, depth=4, itemsize=8, tp=tp, split=name), tp, name), layer)
        for name, layer in (("column", "fc1"), ("row", "fc1"), ("tensor", ""))
    )
    unit = B * width * share
    assert column == {Kind.ALL_GATHER: pytest.approx(unit), Kind.ALL_REDUCE: pytest.approx(2 * unit)}
    assert row == {Kind.ALL_GATHER: pytest.approx(unit), Kind.ALL_REDUCE: pytest.approx(2 * unit)}
    classes = 2 * B * 10 * share
    assert both == {Kind.ALL_REDUCE: pytest.approx(2 * unit + 2 * unit + classes)}


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_the_logits_are_never_gathered(tp: int) -> None:
    """Three numbers of each rank for each sample, and nothing in the backward."""
    program = program_of(network(tp), tp, "tensor")
    assert moved_elements(program, "head.gather") == {Kind.ALL_GATHER: pytest.approx(B * 3 * (tp - 1))}
    assert moved_elements(program, "embed") == {Kind.ALL_REDUCE: pytest.approx(2 * B * S * H * (tp - 1) / tp)}


def test_the_backward_of_a_row_parallel_linear_needs_no_all_gather() -> None:
    """The gather that is said to belong to it is that of an input that was whole and had to be split first."""

    def kinds(name: str) -> set[Kind]:
        program = program_of(models.mlp(width=16, depth=4, itemsize=8, tp=4, split=name), 4, name)
        return {op.kind for op in program.ranks[0].ops}

    assert {Kind.SPLIT, Kind.ALL_GATHER} <= kinds("row")
    assert not {Kind.SPLIT, Kind.ALL_GATHER} & kinds("tensor")
    alone = models.mlp(width=16, depth=2, itemsize=8, tp=4, split="row")
    first = [item for item in alone.layers[0] if isinstance(item, Exchange)]
    assert [(e.forward, e.backward) for e in first] == [(Kind.ALL_REDUCE, None)]


# --- overlap, recompute


SLOW_LINK = Analytic(flops_per_second=1e9, bandwidth=1e8)


@pytest.mark.parametrize("split", ["tensor", "sequence"])
def test_weight_gradients_run_under_the_collective(split: str) -> None:
    """Split into I and W, the backward of the heads computes while the gradient of its input is summed."""
    model = network(4, split, depth=2)
    plain, overlapped = (simulate(program_of(model, 4, split, overlap=overlap), SLOW_LINK) for overlap in (False, True))
    assert overlapped.makespan < plain.makespan
    ops = overlapped.program.ranks[0].ops
    collective = next(i for i, op in enumerate(ops) if op.kind in COLLECTIVE_KINDS and "d.attn0.u.in:0" in op.inputs)
    weights = next(i for i, op in enumerate(ops) if op.kind is Kind.BACKWARD_WEIGHT and "attn0.heads" in op.inputs[0])
    assert overlapped.starts[collective] <= overlapped.starts[weights] < overlapped.ends[collective]


@pytest.mark.parametrize("split", ["tensor", "sequence"])
def test_recomputation_trades_time_for_memory(split: str) -> None:
    model = network(4, split, depth=4)
    traces = {how: simulate(program_of(model, 4, split, recompute=how), SLOW_LINK) for how in Recompute}
    peaks = {how: peak_bytes_per_rank(trace)[0] for how, trace in traces.items()}
    held = {how: held_before_the_last_block_goes_back(trace) for how, trace in traces.items()}
    assert traces[Recompute.NONE].makespan < traces[Recompute.FULL].makespan
    assert peaks[Recompute.FULL] < peaks[Recompute.NONE]
    checkpoints = 3 * B * S * H * model.itemsize
    assert held[Recompute.FULL] - held[Recompute.PARTITIONED] == (checkpoints * 3 / 4 if split == "tensor" else 0)


def held_before_the_last_block_goes_back(trace: Trace) -> int:
    """Bytes of a rank when its first backward of a block ends: the blocks before have left their checkpoints only."""
    name = trace.program.stages[0].index("ffn3.add")
    row = next(i for i, op in enumerate(trace.program.ranks[0].ops) if str(op) == f"0.{name}B0")
    return trace.live[row]
