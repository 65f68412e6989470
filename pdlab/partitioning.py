"""The command `pdlab partition`: from layer times, given or measured, to stages, and to the command that runs them."""

from argparse import ArgumentParser, Namespace
from math import inf
from pathlib import Path

from pdlab import data, lab, models
from pdlab.commands import PICTURE_SUFFIXES
from pdlab.files import make_folder
from pdlab.models import Model
from pdlab.named import colons
from pdlab.partition import By, Layer, Links, Partition, Sums, balanced, layers_of, pipedream, profile
from pdlab.strategies import Plan, build, get

SUMMARY = "Balance a model over stages and replicas, and say what limits it."
EXAMPLE = "pdlab partition --model nominal --times 6,1,1,1 --ranks 3 --bandwidth 1e6"

RANKS, DEPTH, SAMPLES = 4, 3, 2
"""Where nothing is said: ranks, depth of the model, and samples of a minibatch for each rank, the last two as `run` has
them."""

MINIBATCHES, STEPS = 8, 5
"""Minibatches of a measured step, and steps after one to warm up; the median step is profiled."""

LEAST_S = 1e-9
"""Less than that all layers together never take."""


def add_arguments(verb: ArgumentParser) -> None:
    """What the command takes."""
    kinds = ("transformer", "mlp", "nominal")
    verb.add_argument("--model", choices=kinds, default="transformer", help="default: transformer")
    verb.add_argument("--depth", type=int, help=f"the model has 2 depth + 2 layers (default: {DEPTH}, or enough)")
    verb.add_argument("--ranks", type=int, help=f"ranks that are to be used (default: {RANKS})")
    verb.add_argument("--by", choices=[by.value for by in By], help="equal shares of this on one rank each")
    verb.add_argument("--stages", type=int, help="with --by: how many stages (default: --ranks)")
    verb.add_argument(
        "--times", metavar="0.1,0.2,...", help="seconds of each layer for a minibatch (default: measured on one rank)"
    )
    verb.add_argument(
        "--minibatch", type=int, help=f"samples of a minibatch (default: {SAMPLES} for each rank; nominal: 1)"
    )
    verb.add_argument(
        "--bandwidth", type=float, default=inf, metavar="BYTES_PER_S", help="of a rank's link (default: inf, free)"
    )
    verb.add_argument("--latency", type=float, default=0.0, metavar="S", help="seconds per message (default: 0)")
    verb.add_argument(
        "--sums",
        choices=[sums.value for sums in Sums],
        default=Sums.MESSAGES.value,
        help="how replicas sum gradients: by messages, as pdlab's programs do, or in a ring (default: messages)",
    )
    verb.add_argument("--may-idle", action="store_true", help="take fewer ranks where that is no slower")
    verb.add_argument("--plot", type=Path, metavar="FILE", help="draw the partition (.png or .svg)")
    verb.set_defaults(command=partition)


def partition(given: Namespace) -> None:
    """Print the stages, the bottleneck and what to run next."""
    if given.plot and given.plot.suffix not in PICTURE_SUFFIXES:
        raise ValueError(f"cannot draw {given.plot.name}; end it in {' or '.join(PICTURE_SUFFIXES)}")
    links = Links(given.bandwidth, given.latency, Sums(given.sums))
    ranks = _ranks(given)
    times = _times(given.times)
    model = _model(given, ranks, len(times))
    rows = _usual_samples(given, ranks) if given.minibatch is None else given.minibatch
    layers, made = (layers_of(model, times, rows), "layer times given") if times else _measured(model, rows)
    if given.by and given.may_idle:
        raise ValueError("--may-idle with --by, which gives each stage its rank; leave one of them out")
    found = (
        balanced(layers, ranks, By(given.by), links)
        if given.by
        else pipedream(layers, ranks, links, may_idle=given.may_idle)
    )
    if not times:
        print(f"{made}\nlayers: --times {','.join(f'{layer.seconds:.3g}' for layer in layers)}")
    print(found)
    if links.bandwidth == inf and not given.by:
        print("links are free; give --bandwidth, since nothing beats replicas of the whole model that sum for nothing")
    print(f"next: {_next(found, given)}")
    print("(which has these stages, but the lab's teaching costs instead of these times and links)")
    if given.plot:
        _draw(found, given.plot, f"{made}, model {model.name}, minibatches of {rows}")


def _ranks(given: Namespace) -> int:
    """Ranks that are used; with --by one for each stage."""
    for name in ("ranks", "stages", "minibatch"):
        value = getattr(given, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} {value}; give at least 1")
    ranks: int = given.ranks or given.stages or RANKS
    if given.stages is None:
        return ranks
    if not given.by:
        raise ValueError(f"--stages {given.stages} without --by: the search finds the stages itself; leave it out")
    if given.stages > ranks:
        raise ValueError(f"--stages {given.stages} on {ranks} ranks; give at most as many stages as ranks")
    return int(given.stages)


def _usual_samples(given: Namespace, ranks: int) -> int:
    """Of a minibatch where nothing is said: one of a model of numbers, of which a sample has a megabyte."""
    return 1 if given.model == "nominal" else SAMPLES * ranks


def _times(text: str | None) -> list[float]:
    try:
        times = [float(piece) for piece in text.split(",")] if text is not None else []
    except ValueError:
        raise ValueError(f"--times {text!r}; give seconds for each layer with commas between: 0.1,0.2,0.1") from None
    if times and sum(times) < LEAST_S:
        raise ValueError(f"--times {text}, which is nothing to balance; give at least {LEAST_S:g} s together")
    return times


def _model(given: Namespace, ranks: int, num_times: int) -> Model:
    if given.model == "nominal":
        if not num_times:
            raise ValueError("--model nominal has no times and cannot be run; give --times, or take the transformer")
        if given.depth is not None:
            raise ValueError(f"--depth {given.depth} with --model nominal, which has a layer for each of --times")
        return models.nominal(num_times)
    return lab.LAB_MODELS[given.model](Plan(), 4, _depth(given, ranks), 0.0)


def _depth(given: Namespace, ranks: int) -> int:
    return max(DEPTH, lab.depth_for(ranks)) if given.depth is None else given.depth


def _measured(model: Model, rows: int) -> tuple[tuple[Layer, ...], str]:
    """The layers as one rank of this machine runs them, and how that was found."""
    from pdlab.compare import digits_batch, median_trace
    from pdlab.launch import Ranks

    if rows > (most := data.NUM_SAMPLES // MINIBATCHES):
        raise ValueError(
            f"minibatches of {rows} samples, {MINIBATCHES} of which are measured at a time, and there are "
            f"{data.NUM_SAMPLES} digits; give --minibatch {most} or less"
        )
    program = build(get("single"), Plan(microbatches=MINIBATCHES, batch=MINIBATCHES * rows), model)
    with Ranks(1) as one:
        result = one.run(program, digits_batch(program.batch), steps=1 + STEPS)
    trace = median_trace([step[-1] for step in result.traces[1:]])
    return profile(trace), f"layer times {trace.provenance}: the median of {MINIBATCHES} minibatches of {rows} samples"


def _next(found: Partition, given: Namespace) -> str:
    """The command that tries it: a run, or, for a model of numbers, a simulation with stages that take as long."""
    strategy = "1f1b" if given.by else "pipedream"
    words = [strategy, f"--pp {found.num_ranks}", f"--layers {colons(found.layers)}"]
    if max(found.replicas) > 1:
        words.append(f"--replicas {colons(found.replicas)}")
    if given.model == "nominal":
        mean = sum(layer.seconds for layer in found.chain) / found.num_stages or 1.0
        shares = [sum(layer.seconds for layer in stage) / mean for stage in found.stages]
        return " ".join(["pdlab simulate", *words, f"--scale {','.join(f'{share:.3g}' for share in shares)}"])
    words += [f"--model {given.model}", f"--depth {(len(found.chain) - 2) // 2}"]
    if given.minibatch is not None:
        words.append(f"--microbatches {MINIBATCHES} --batch {MINIBATCHES * given.minibatch}")
    return " ".join(["pdlab run", *words])


def _draw(found: Partition, file: Path, made: str) -> None:
    from pdlab import plots

    make_folder(file.parent)
    plots.partition(found, made=made).savefig(file, dpi=160)
    print(f"wrote {file}")
