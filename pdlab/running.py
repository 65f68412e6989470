"""The commands that run strategies for real: `pdlab run` and `pdlab compare`."""

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from tqdm import tqdm

from pdlab import lab, optimizers, own, plots, report
from pdlab.compare import TEACHING_COSTS, Comparison, ProgramOf, compare
from pdlab.costs import Costs
from pdlab.execute.settings import Settings
from pdlab.files import make_folder
from pdlab.importing import search_also
from pdlab.launch import Ranks, Watch
from pdlab.models import Model
from pdlab.planning import file_of, program_of_arguments, times_of
from pdlab.print_table import table_text
from pdlab.program import Program
from pdlab.stock import torchgpipe
from pdlab.stock.torchgpipe import Stock
from pdlab.strategies import Plan, Strategy, build, get
from pdlab.trace import Mode
from pdlab.train import train
from pdlab.validate import validate

SAMPLES = 2
"""Samples of each microbatch and rank, where the user does not say."""


def lab_model(given: Namespace, plan: Plan, itemsize: int, stages: int, strategy: Strategy | None = None) -> Model:
    """The model that `--model` and `--depth` name, for a strategy (None: for a table); without a depth, deep enough for
    the stages."""
    own_layers = given.model is not None and ":" in given.model
    depth = given.depth if given.depth is not None or own_layers else usual_depth(given, plan, stages)
    if strategy and strategy.by_hand and given.model not in (None, "mlp"):
        raise ValueError(
            f"{strategy.name} with --model {given.model}; its rule is known for the mlp alone, so leave it out"
        )
    if given.model is None:
        return lab.suited(strategy)(plan, itemsize, depth, given.dropout)
    if ":" in given.model:
        if plan.tp > 1:
            raise ValueError(f"--tp {plan.tp} with --model {given.model}: modules of your own cannot be split")
        if given.dropout:
            raise ValueError(
                f"--dropout {given.dropout} with --model {given.model}: your modules say themselves what they do"
            )
        search_also([str(Path.cwd())])
        return own.model(given.model, itemsize=itemsize)
    if given.model not in lab.LAB_MODELS:
        raise ValueError(f"--model {given.model}; give transformer, mlp, or a file of yours as my_file:name")
    return lab.LAB_MODELS[given.model](plan, itemsize, depth, given.dropout)


def usual_depth(given: Namespace, plan: Plan, stages: int) -> int:
    """Deep enough for the stages; where `--layers` says how many there are, as deep as that."""
    if plan.num_layers is None:
        return max(given.usual_depth, lab.depth_for(stages))
    if plan.num_layers < 4 or plan.num_layers % 2:
        raise ValueError(
            f"--layers for {plan.num_layers} layers; the lab's models have 2 depth + 2, so let them add up to an even "
            "number of at least 4"
        )
    return lab.depth_for(plan.num_layers)


def program_to_run(given: Namespace, itemsize: int) -> Program:
    """The program that `pdlab run` names, a strategy's or a table's, on a model of the lab."""
    named = None if file_of(given) else get(given.strategy)

    def model_of(plan: Plan, stages: int | None) -> Model:
        return lab_model(given, plan, itemsize, stages or 1, named)

    def batch(plan: Plan) -> int:
        return default_batch(given.batch, plan.mesh.size, plan.microbatches)

    return program_of_arguments(given, model_of, batch, lambda: times_of(TEACHING_COSTS))


def default_batch(given: int | None, ranks: int, microbatches: int) -> int:
    return SAMPLES * ranks * microbatches if given is None else given


def run_one(program_of: ProgramOf, given: Namespace) -> Comparison:
    """One program, from a strategy or a file."""
    _check_steps(given.steps)
    program = program_of(4)
    with pool_of(given, program.mesh.size) as (pool, costs), _bar("running") as watch:
        return compare(program_of, pool, costs=costs, steps=given.steps, watch=watch)


def train_one(program_of: Callable[[int], Program], given: Namespace) -> None:
    """One training, from the bytes of optimizer state per weight to a program."""
    rule = optimizers.named(given.optimizer, given.lr)
    program = program_of(rule.bytes_per_weight(4))
    settings = Settings(rule, seed=given.seed)
    if given.plot:
        make_folder(given.plot.parent)
    with pool_of(given, program.mesh.size) as (pool, costs):
        history = train(
            program,
            epochs=given.epochs,
            pool=pool,
            pace=costs,
            settings=settings,
            checkpoint=given.checkpoint,
            resume=given.resume,
        )
    if resumed := len(history.losses) - history.steps_now:
        print(f"{resumed} of {len(history.losses)} steps were in {given.checkpoint}")
    for epoch, accuracy in enumerate(history.accuracies):
        last = history.losses[epoch * history.steps_per_epoch : (epoch + 1) * history.steps_per_epoch]
        print(f"epoch {epoch + 1}: mean loss {sum(last) / len(last):.3f}, accuracy on held-out digits {accuracy:.1%}")
    if given.plot:
        about = [f"{rule}, batch {program.batch}, seed {given.seed}, model {program.model.name}"]
        figure = plots.loss_curves(
            {program.name: history.losses}, title=f"Training with {program.name}", small_print=about
        )
        figure.savefig(given.plot)
        print(f"wrote {given.plot}")


def compare_all(chosen: Sequence[Strategy], given: Namespace) -> None:
    """Several strategies on `--ranks` ranks each; the table on the screen, report and summary in the folder."""
    _check_steps(given.steps)
    suited = [strategy for strategy in chosen if _suits(strategy, given)]
    stages = max((_plan(strategy, given).num_stages for strategy in suited), default=1)
    made = {strategy.name: _program_of(strategy, given, stages) for strategy in suited}
    suited = [strategy for strategy in suited if _can_be_built(strategy.name, made, given)]
    make_folder(given.out)
    _say_other_models(made)
    stocked = [strategy for strategy in suited if _has_stock(strategy, given, stages)]
    done: list[Comparison | Stock] = []
    with pool_of(given, given.ranks) as (pool, costs):
        for strategy in (bar := tqdm(suited, unit="strategy", leave=False)):
            bar.set_description(strategy.name)
            done.append(compare(made[strategy.name], pool, costs=costs, steps=given.steps, watch=_share_on(bar)))
            if strategy in stocked:
                done.append(_stock(strategy, given, stages, costs, timed=pool is not None))
    _write(done, given.out)


def _suits(strategy: Strategy, given: Namespace) -> bool:
    """Whether the model that was asked for has a form for the strategy; if not, say so."""
    plan = strategy.on(given.ranks, Plan())
    if given.model is None or plan.tp == 1 or (given.model in lab.LAB_MODELS and lab.has_form(given.model, plan)):
        return True
    print(f"{strategy.name}: left out, model {given.model} cannot be split so", flush=True)
    return False


def _can_be_built(name: str, made: dict[str, ProgramOf], given: Namespace) -> bool:
    """Whether the strategy takes these ranks and microbatches. One that was asked for by name must."""
    try:
        validate(made[name](4))
    except ValueError as error:
        if given.strategies:
            raise ValueError(f"{name} on {given.ranks} ranks: {error}") from None
        print(f"{name}: left out, {error}", flush=True)
        del made[name]
        return False
    return True


def _say_other_models(made: dict[str, ProgramOf]) -> None:
    """Without `--model`, what a transformer has no form of, or no rule for, runs on another model."""
    others = [name for name, program_of in made.items() if program_of(4).model.recipe[0] == "mlp"]
    if others and len(others) < len(made):
        why = "since the transformer cannot be split so, or has no reference"
        print(f"{', '.join(others)}: on the mlp, {why}", flush=True)


def _has_stock(strategy: Strategy, given: Namespace, stages: int) -> bool:
    """Whether a stock pipeline can have a row beside the strategy; if not, say so."""
    if strategy.name != torchgpipe.BESIDE:
        return False
    placed = _plan(strategy, given)
    why = torchgpipe.lacks(placed, lab_model(given, placed, 4, stages))
    if why:
        print(why, flush=True)
    return not why


def _stock(strategy: Strategy, given: Namespace, stages: int, costs: Costs | None, timed: bool) -> Stock:
    def model_of(plan: Plan, itemsize: int) -> Model:
        return lab_model(given, plan, itemsize, stages)

    placed = _plan(strategy, given)
    return torchgpipe.beside(placed, model_of=model_of, costs=costs, steps=given.steps, timed=timed)


def _write(done: Sequence[Comparison | Stock], folder: Path) -> None:
    rows = [one.summary() for one in done]
    ours = [one for one in done if isinstance(one, Comparison)]
    figures = [(comparison.predicted.program.name, figure(comparison)) for comparison in ours]
    moved = plots.bytes_by_collective([one.predicted for one in ours], [one.measured for one in ours])
    notes = [one.note for one in done if isinstance(one, Stock)]
    about = "\n".join((str(ours[0].measured.provenance), *notes))
    page = report.write_report(folder, rows, figures, about, moved)
    table = report.write_summary(folder, rows)
    print("\n\n".join((table_text(rows), *notes)))
    print(f"\nwrote {page} and {table}")


def figure(comparison: Comparison) -> plots.Figure:
    """Prediction over measurement; or the one of the two that there is."""
    if comparison.predicted_s is None:
        return plots.timeline(comparison.measured)
    if comparison.measured.provenance.mode is Mode.LOCAL:
        return plots.timeline(comparison.predicted)
    return plots.compare(comparison.predicted, comparison.measured)


def _plan(strategy: Strategy, given: Namespace) -> Plan:
    """The same number of samples for every strategy, and `--microbatches` microbatches on every data shard."""
    if given.ranks < 1:
        raise ValueError(f"--ranks {given.ranks}; give at least 1")
    batch = default_batch(given.batch, given.ranks, given.microbatches)
    details = {"recompute": given.recompute, "overlap": given.overlap, "times": times_of(TEACHING_COSTS)}
    return strategy.on(given.ranks, Plan(microbatches=given.microbatches, batch=batch, **details))


def _program_of(strategy: Strategy, given: Namespace, stages: int) -> ProgramOf:
    """On the model that all strategies of the comparison share, deep enough for the most stages."""
    placed = _plan(strategy, given)
    return lambda itemsize: build(strategy, placed, lab_model(given, placed, itemsize, stages, strategy))


def _check_steps(steps: int) -> None:
    if steps < 1:
        raise ValueError(f"--steps {steps}; give at least 1")


@contextmanager
def pool_of(given: Namespace, size: int) -> Iterator[tuple[Ranks | None, Costs | None]]:
    """The ranks that the command line asks for, and the costs to pace them by: no ranks in local mode, no costs for a
    measurement."""
    if given.mode == Mode.LOCAL.value:
        yield None, None
        return
    costs = TEACHING_COSTS if _mode(given, size) is Mode.PACED else None
    if given.crew is not None:
        yield given.crew, costs
        return
    with closing(Ranks(size)) as ranks:
        yield ranks, costs


def _mode(given: Namespace, size: int) -> Mode:
    """Measured where every rank has a core, unless the user says otherwise; more ranks than cores are spoken of."""
    cores = os.cpu_count() or 1
    if given.crew is not None or size <= cores:
        return Mode(given.mode or Mode.MEASURED)
    mode = Mode(given.mode or Mode.PACED)
    if mode is Mode.PACED:
        say = "paced, so order and overlap are real and speed is modelled"
    else:
        say = "oversubscribed, so what is measured is how they share cores, and no costs are fitted to it"
    print(f"{size} ranks on {cores} cores: {say}", file=sys.stderr, flush=True)
    return mode


def _share_on(bar: tqdm) -> Watch:
    """How much of what is under way is done, beside a bar that counts what is over."""
    return lambda share: bar.set_postfix_str(f"{share:.0%} of this one")


@contextmanager
def _bar(what: str) -> Iterator[Watch]:
    """A progress bar, moved by being told the share that is done."""
    form = "{desc} {percentage:3.0f} %|{bar}| {elapsed}"
    with tqdm(total=1.0, desc=what, bar_format=form, leave=False, disable=None) as bar:
        yield lambda share: (bar.update(share - bar.n), None)[1]
