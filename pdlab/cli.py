"""The command line: list, show, simulate, run and compare strategies. Everything it does is a call of the package.

Bad input is answered in one line on stderr with what was given and what to do, and exit code 2.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pdlab import commands, partitioning, strategies
from pdlab.errors import PoolError
from pdlab.models.split import Split
from pdlab.passes import Recompute
from pdlab.strategies.plan import MOST_RANKS

if TYPE_CHECKING:
    from pdlab.launch import Ranks


def drive(ranks: "Ranks", arguments: Sequence[str]) -> int:
    """Run one command on ranks that are there already, as those that torchrun has started on several machines."""
    return main(arguments, ranks)


def main(arguments: Sequence[str] | None = None, crew: "Ranks | None" = None) -> int:
    """Run one command; returns the exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.command is None:
        parser.print_help()
        return 2
    given.crew = crew
    try:
        for name in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(name, signal.default_int_handler)
        given.command(given)
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except KeyboardInterrupt:
        print("pdlab: interrupted", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        print(f"pdlab: error: {_one_line(error)}", file=sys.stderr)
        return 2
    except PoolError as error:
        print(f"pdlab: error: {error}", file=sys.stderr)
        return 1
    return 0


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; choose another place or mend its permissions"
    return str(error)


class _Parser(argparse.ArgumentParser):
    """Errors in one line, without the usage text."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(2, f"{self.prog}: error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="pdlab", description="Predict, run and compare strategies of distributed training.")
    parser.add_argument("--version", action="version", version="pdlab 0.1.0")
    verbs = parser.add_subparsers(metavar="COMMAND", parser_class=_Parser)
    parser.set_defaults(command=None)
    for add in (_list, _show, _simulate, _run, _train, _compare, _picture):
        add(verbs)
    partitioning.add_arguments(_verb(verbs, "partition", partitioning.SUMMARY, partitioning.EXAMPLE))
    return parser


Verbs: TypeAlias = "argparse._SubParsersAction[_Parser]"


def _verb(verbs: Verbs, name: str, summary: str, example: str) -> argparse.ArgumentParser:
    return verbs.add_parser(
        name,
        help=summary,
        description=summary,
        epilog=f"example: {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _list(verbs: Verbs) -> None:
    verb = _verb(verbs, "list", "List the strategies, one a line.", "pdlab list")
    verb.set_defaults(command=commands.list_strategies)


def _show(verbs: Verbs) -> None:
    example = "pdlab show 1f1b --pp 4 --microbatches 8"
    verb = _verb(verbs, "show", "Print the program of a strategy: what every rank does, in order.", example)
    _add_plan(verb, ".csv or .json")
    _add_predicted_model(verb)
    verb.add_argument(
        "--format",
        choices=("grid", "ops", "csv", "json", "versions"),
        default="grid",
        help="grid: what computes; ops: every op with its values; csv: the order; json: everything; versions: which "
        "weights every minibatch meets (default: grid)",
    )
    verb.set_defaults(command=commands.show)


def _simulate(verbs: Verbs) -> None:
    example = "pdlab simulate 1f1b --pp 4 --microbatches 8 --costs F=1,B=2,comm=0.1 --json"
    verb = _verb(verbs, "simulate", "Predict the time, bubble, memory and bytes of a strategy.", example)
    _add_plan(verb, ".csv or .json")
    _add_predicted_model(verb)
    _add_costs(verb, "F=1,B=2")
    _add_output(verb)
    verb.set_defaults(command=commands.simulate_strategy)


def _run(verbs: Verbs) -> None:
    example = "pdlab run 1f1b --pp 4 --microbatches 8 --mode paced --trace out/1f1b.json"
    verb = _verb(verbs, "run", "Run a strategy for real and say how well it was predicted.", example)
    _add_plan(verb, ".csv")
    _add_mode(verb, depth=3)
    _add_steps(verb)
    _add_output(verb)
    verb.set_defaults(command=commands.run_strategy)


def _train(verbs: Verbs) -> None:
    example = "pdlab train zero3 --dp 2 --epochs 5 --optimizer adam --checkpoint out/run.npz --resume"
    verb = _verb(verbs, "train", "Train on the digits with a strategy: loss, accuracy, checkpoints.", example)
    _add_plan(verb)
    _add_mode(verb, depth=1)
    verb.add_argument("--batch", type=int, default=60, help="samples of a step (default: 60)")
    verb.add_argument("--epochs", type=int, default=3, help="passes over the training digits (default: 3)")
    verb.add_argument("--optimizer", choices=("sgd", "momentum", "adam"), default="adam", help="default: adam")
    verb.add_argument("--lr", type=float, help="learning rate (default: the optimizer's)")
    verb.add_argument("--seed", type=int, default=0, help="of weights and order of samples (default: 0)")
    verb.add_argument("--checkpoint", type=Path, metavar="FILE", help="keep the training in this .npz file")
    verb.add_argument("--resume", action="store_true", help="go on from the checkpoint, with any strategy")
    verb.add_argument("--plot", type=Path, metavar="FILE", help="draw the loss curve (.png or .svg)")
    verb.set_defaults(command=commands.train_strategy)


def _compare(verbs: Verbs) -> None:
    example = "pdlab compare ddp zero3 1f1b --ranks 4 --microbatches 8 --mode paced --out out"
    verb = _verb(verbs, "compare", "Predict and run several strategies, write a table and a report.", example)
    verb.add_argument("strategies", nargs="*", metavar="STRATEGY", help="default: all of them")
    verb.add_argument("--ranks", type=int, default=4, help="ranks on each strategy's own axis (default: 4)")
    verb.add_argument("--microbatches", type=int, default=8, help="microbatches of each data shard (default: 8)")
    _add_inside_layers(verb)
    _add_mode(verb, depth=1)
    _add_steps(verb)
    verb.add_argument(
        "--out", type=Path, default=Path("out"), metavar="DIR", help="folder of the report (default: out)"
    )
    verb.set_defaults(command=commands.compare_strategies)


def _picture(verbs: Verbs) -> None:
    verb = _verb(verbs, "picture", "Draw a picture of the README.", "pdlab picture layout --out docs/layout.png")
    known = ("schedules", "layout", "tradeoff", "bubbles", "versions", "convergence")
    verb.add_argument("what", nargs="?", choices=known, default="schedules", help="default: schedules")
    verb.add_argument("--out", type=Path, required=True, metavar="FILE", help="a PNG or SVG file")
    verb.set_defaults(command=commands.picture)


def _add_plan(verb: argparse.ArgumentParser, files: str = "") -> None:
    known = ", ".join(strategies.names())
    also = f"; or a {files} file that `show` wrote" if files else ""
    how_many: dict[str, str] = {"nargs": "?"} if files else {}
    verb.add_argument("strategy", metavar="STRATEGY", help=f"one of {known}{also}", **how_many)  # type: ignore[arg-type]
    if files:
        verb.add_argument(
            "--schedule",
            type=Path,
            metavar="FILE",
            help="instead of STRATEGY a table of your own: a row per pipeline rank, as in 0F0,0F1,0B0,0B1; with blank "
            "cells a column is a unit of time",
        )
    for name, help_text in (
        ("pp", "pipeline ranks (default: 1)"),
        ("virtual", "stages on each pipeline rank (default: the strategy's own)"),
        ("dp", "data-parallel ranks (default: 1)"),
        ("tp", "tensor-parallel ranks (default: 1)"),
    ):
        usual = None if name in ("pp", "virtual") else 1
        verb.add_argument(f"--{name}", type=int, default=usual, help=help_text)
    for name, metavar, help_text in (
        ("layers", "5:3", "layers of the model in each stage (default: as many in each)"),
        ("replicas", "3:1", "pipeline ranks of each stage, for pipedream (default: one each)"),
    ):
        verb.add_argument(f"--{name}", type=numbers, metavar=metavar, help=help_text)
    verb.add_argument(
        "--accumulate",
        type=int,
        metavar="M",
        help="microbatches of an update, for pipedream_2bw (default: --pp) and pipedream_flush (default: all)",
    )
    verb.add_argument("--limit", type=float, metavar="M_B", help="most that a rank of zb_auto may hold (default: --pp)")
    verb.add_argument("--microbatches", type=int, help="microbatches of each data shard (default: 8)")
    _add_inside_layers(verb)
    verb.add_argument(
        "--split",
        choices=[split.value for split in Split],
        help="what --tp ranks split of a layer (default: the strategy's own, or tensor)",
    )


def numbers(text: str) -> tuple[int, ...]:
    """`3:1` as the numbers of each stage."""
    parts = text.split(":")
    if not all(part.isdecimal() and part.isascii() and 1 <= int(part) <= MOST_RANKS for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r}; give a number from 1 to {MOST_RANKS} for each stage, as in 3:1")
    return tuple(map(int, parts))


def _add_inside_layers(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--recompute",
        choices=[how.value for how in Recompute],
        default=Recompute.NONE.value,
        help="run forwards again before their backward: of each block (full; partitioned: its input spread over the "
        "tensor group), of each stage, or of each stage but for the last microbatch (except_last)",
    )
    verb.add_argument(
        "--overlap",
        action="store_true",
        help="run weight gradients under the collective of their input gradient",
    )


def _add_costs(verb: argparse.ArgumentParser, default: str) -> None:
    verb.add_argument(
        "--costs",
        default=default,
        metavar="F=1,B=2,...",
        help="F, B (full), I, W: time of a rank's stages; FB: of an F beside a B; comm: of a message; step; "
        "MB, MW: M_B and M_W, the units that are kept (default: %(default)s)",
    )
    verb.add_argument(
        "--scale", metavar="1,2,1,1", help="how much longer each of the pp x virtual stages takes (default: the same)"
    )
    verb.add_argument("--link", choices=("independent", "channel"), default="channel", help="default: channel")


def _add_output(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--json", action="store_true", help="print a JSON object instead of lines")
    verb.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write the timeline: .json for Perfetto, .csv for a table, no suffix for a folder with a file per rank",
    )


def _add_mode(verb: argparse.ArgumentParser, depth: int) -> None:
    verb.add_argument(
        "--mode",
        choices=("measured", "paced", "local"),
        help="measured: processes, as fast as they go; paced: each op held for its modelled time; local: one process, "
        "no times (default: measured where every rank has a core, otherwise paced)",
    )
    _add_model(verb)
    verb.set_defaults(usual_depth=depth)
    verb.add_argument(
        "--depth", type=int, help=f"the model has 2 depth + 2 layers (default: {depth}, or enough for the stages)"
    )


def _add_steps(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--batch", type=int, default=None, help="samples of a step (default: 2 per rank and microbatch)")
    verb.add_argument("--steps", type=int, default=5, help="timed steps after one to warm up (default: 5)")


def _add_predicted_model(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--model",
        choices=("nominal", "transformer", "mlp"),
        default="nominal",
        help="nominal: equal layers of a megabyte; or what `run` takes (default: nominal)",
    )
    verb.add_argument("--depth", type=int, help="of a transformer or mlp: 2 depth + 2 layers (default: for the stages)")


def _add_model(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--model",
        help="transformer, mlp, or modules of your own as my_file:name, a list or a function of it "
        "(default: transformer, or mlp for what a transformer has no form of)",
    )
    verb.add_argument("--dropout", type=float, default=0.0, help="of the transformer (default: 0)")


if __name__ == "__main__":
    sys.exit(main())
