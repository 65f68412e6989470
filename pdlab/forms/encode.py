"""A program as JSON: what travels to the processes that run it, and what a file keeps.

An op is a list in the order of `OP_FIELDS`, cut after its last entry that is not the default. Types and streams are
few: each stands in a table once and is named by its place there. A model travels as its recipe, never as code.
"""

import json
from typing import Any

from pdlab.forms.fault import FormError
from pdlab.forms.recipe import MAKERS, rebuild
from pdlab.mesh import Layout
from pdlab.ops import COMPUTE, Op, Stream
from pdlab.program import Program, RankProgram, Size, Type

VERSION = 1

OP_FIELDS = (
    *("kind", "stage", "segment", "microbatch", "inputs", "writes", "consumes"),
    *("stream", "axis", "peer", "guard", "version", "pair"),
)
OP_DEFAULTS: tuple[Any, ...] = (None, -1, -1, -1, [], [], [], -1, None, -1, None, -1, -1)
"""A stream of -1 is the compute stream."""


def to_json(program: Program) -> str:
    """The whole program on one line; `from_json` gives an equal one back."""
    maker, arguments = program.model.recipe
    if maker in MAKERS and rebuild(maker, dict(arguments)) != program.model:
        raise FormError(f"model {program.model.name} is not what its recipe makes; write the recipe's own model")
    types = {t: i for i, t in enumerate(dict.fromkeys(t for rank in program.ranks for t in rank.types.values()))}
    found = dict.fromkeys(op.stream for rank in program.ranks for op in rank.ops)
    streams = {stream: i for i, stream in enumerate(s for s in found if s != COMPUTE)}
    document = {
        "pdlab": VERSION,
        "name": program.name,
        "mesh": [[axis.value, degree] for axis, degree in program.mesh.degrees],
        "model": [maker, dict(arguments)],
        "rows": program.rows,
        "stages": program.stages,
        "types": [[t.role.value, _size(t.size), _layout(t.layout), t.of] for t in types],
        "streams": [[s.lane.value, s.axis.value if s.axis else None, s.peer] for s in streams],
        "ranks": [_rank(rank, types, streams) for rank in program.ranks],
    }
    return json.dumps(document, separators=(",", ":"))


def _rank(rank: RankProgram, types: dict[Type, int], streams: dict[Stream, int]) -> dict[str, Any]:
    return {
        "ops": [_op(op, streams) for op in rank.ops],
        "types": {value: types[t] for value, t in rank.types.items()},
        "live_in": sorted(rank.live_in),
        "live_out": sorted(rank.live_out),
    }


def _op(op: Op, streams: dict[Stream, int]) -> list[Any]:
    kind, axis = op.kind.value, op.axis.value if op.axis else None
    operands = [list(op.inputs), list(op.writes), sorted(op.consumes)]
    stream = streams.get(op.stream, -1)
    where = op.stage, op.segment, op.microbatch
    entries = [kind, *where, *operands, stream, axis, op.peer, op.guard, op.version, op.pair]
    while entries[-1] == OP_DEFAULTS[len(entries) - 1]:
        entries.pop()
    return entries


def _size(size: Size) -> int | list[Any]:
    return size if isinstance(size, int) else list(size)


def _layout(layout: Layout) -> list[list[Any]]:
    return [[axis.value, place.spread.value, place.dim] for axis, place in layout.places]
