"""Where the numbers of the layers come from: a model and given times, or the trace of a run on one rank."""

from collections.abc import Sequence
from statistics import median

from pdlab.models.model import Model
from pdlab.models.spec import Item, Segment, Tensor
from pdlab.ops import PASS_KINDS
from pdlab.partition.layer import Layer
from pdlab.trace import Mode, Trace


def layers_of(model: Model, seconds: Sequence[float], rows: int = 1) -> tuple[Layer, ...]:
    """The layers of a model with their times given, for minibatches of `rows` samples.

    Weights that two layers share (tied embeddings) count in both: stages that part them hold them twice.
    """
    if len(seconds) != len(model.layers):
        raise ValueError(
            f"{len(seconds)} times for the {len(model.layers)} layers of model {model.name}; give a number for each of "
            f"them ({len(model.layers)})"
        )
    if type(rows) is not int or rows < 1:
        raise ValueError(f"{rows!r} rows; give the samples of a minibatch, at least 1")
    handed_on = [sum(t.row_bytes * (rows if t.per_row else 1) for t in crossing(model, i)) for i in range(len(seconds))]
    return tuple(
        Layer(_name(items), time, size, _held(items))
        for items, time, size in zip(model.layers, seconds, handed_on, strict=True)
    )


def profile(trace: Trace) -> tuple[Layer, ...]:
    """The layers of the model that one rank ran, or was simulated to run: PipeDream's profiler (arXiv:1806.03377,
    section 3.2).

    A layer takes what all of its forwards and backwards (split ones, and second forwards) of one microbatch take
    together, and of that the median over the microbatches. Bytes are those of the largest microbatch. ValueError for a
    trace of several ranks, and for one without times.
    """
    program = trace.program
    if len(program.ranks) > 1:
        raise ValueError(
            f"{program.name} has {len(program.ranks)} ranks; profile a run of the whole model on one, by the strategy "
            "single"
        )
    if trace.provenance.mode is Mode.LOCAL:
        raise ValueError("a run in local mode measures no time; profile a measured or simulated one")
    model = program.model
    spent: list[dict[int, float]] = [{} for _ in model.layers]
    for row, op in enumerate(program.ranks[0].ops):
        if op.kind in PASS_KINDS:
            of = spent[model.layer_of[program.stages[op.stage][op.segment]]]
            of[op.microbatch] = of.get(op.microbatch, 0.0) + trace.ends[row] - trace.starts[row]
    return layers_of(model, [median(of.values()) for of in spent], max(program.rows[0]))


def crossing(model: Model, layer: int) -> list[Tensor]:
    """The tensors that pass from a layer or one before it to a later one, skip connections among them: what goes
    between two stages that are cut after it. What is fed from outside is fed to every stage."""
    later = {t.name for items in model.layers[layer + 1 :] for item in items for t in _taken(item)}
    return [model.tensors[name] for name, made in model.made_in.items() if made <= layer and name in later]


def _taken(item: Item) -> tuple[Tensor, ...]:
    return item.inputs if isinstance(item, Segment) else (item.payload,)


def _segments(items: Sequence[Item]) -> list[Segment]:
    return [item for item in items if isinstance(item, Segment)]


def _name(items: Sequence[Item]) -> str:
    first = _segments(items)[0]
    return first.layer or first.name


def _held(items: Sequence[Item]) -> int:
    return sum({group.name: group.bytes for segment in _segments(items) for group in segment.groups}.values())
