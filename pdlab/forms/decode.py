"""A program back from JSON, checked entry by entry: damage is told with its place and with what may stand there.

What is checked here is the form. Whether the program can run is for `pdlab.validate`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NoReturn, TypeVar

from pdlab.forms.encode import OP_DEFAULTS, OP_FIELDS, VERSION
from pdlab.forms.fault import FormError, short
from pdlab.forms.recipe import MAKERS, rebuild
from pdlab.mesh import Axis, Layout, Mesh, Placement, Spread
from pdlab.models.model import Model
from pdlab.ops import COMPUTE, Kind, Lane, Op, Stream
from pdlab.program import Program, RankProgram, Role, Size, Sized, Type

T = TypeVar("T")
E = TypeVar("E", bound=Enum)

KEYS = ("pdlab", "name", "mesh", "model", "rows", "stages", "types", "streams", "ranks")
RANK_KEYS = ("ops", "types", "live_in", "live_out")
NAMES: Mapping[type, str] = {int: "a whole number", str: "a text", list: "a list", dict: "an object"}


def from_json(text: str, makers: Mapping[str, Callable[..., Model]] = MAKERS) -> Program:
    """The program that `to_json` wrote. Raises `FormError`, a `ValueError`, for any other text.

    `makers` are the functions that may make its model; those of the lab run no code but its own.
    """
    top = _record(_load(text), "the program", KEYS)
    if top["pdlab"] != VERSION:
        _fail("pdlab", top["pdlab"], f"the version of this form, {VERSION}")
    mesh = _mesh(top["mesh"])
    maker, arguments = _entries(top["model"], "model", "a name and its arguments", str, dict)
    model = rebuild(maker, arguments, makers)
    types = [_type(entry, f"types[{i}]") for i, entry in enumerate(_as(list, top["types"], "types"))]
    streams = [_stream(entry, f"streams[{i}]") for i, entry in enumerate(_as(list, top["streams"], "streams"))]
    ranks = _as(list, top["ranks"], "ranks")
    if len(ranks) != mesh.size:
        raise FormError(f"ranks lists {len(ranks)} ranks, and the mesh ({mesh}) has {mesh.size}; list each rank once")
    return Program(
        name=_as(str, top["name"], "name"),
        mesh=mesh,
        model=model,
        ranks=tuple(_rank(rank, f"ranks[{r}]", types, streams) for r, rank in enumerate(ranks)),
        rows=_rows(top["rows"], mesh),
        stages=_stages(top["stages"], model.segments),
    )


def _load(text: str) -> object:
    try:
        return json.loads(text, parse_constant=lambda name: _fail("the program", name, "finite numbers"))
    except json.JSONDecodeError as error:
        raise FormError(
            f"the text is not JSON (line {error.lineno}, column {error.colno}: {error.msg}); give what to_json wrote"
        ) from None
    except (RecursionError, ValueError) as error:
        if isinstance(error, FormError):
            raise
        raise FormError("the text nests too deep or holds a number too long; give what to_json wrote") from None


# --- the parts


def _mesh(entry: object) -> Mesh:
    degrees = []
    for i, pair in enumerate(_as(list, entry, "mesh")):
        axis, degree = _entries(pair, f"mesh[{i}]", "an axis and its degree", str, int)
        degrees.append((_member(Axis, axis, f"mesh[{i}]"), degree))
    if {axis for axis, _ in degrees} != set(Axis) or len(degrees) != len(Axis):
        _fail("mesh", entry, f"each of the axes {', '.join(axis.value for axis in Axis)} once")
    try:
        return Mesh(tuple(degrees))
    except ValueError as error:
        raise FormError(f"mesh: {error}") from None


def _rows(entry: object, mesh: Mesh) -> tuple[tuple[int, ...], ...]:
    rows = tuple(tuple(_list_of(int, shard, f"rows[{i}]")) for i, shard in enumerate(_as(list, entry, "rows")))
    even = len(rows) == mesh.num_data_shards and len({len(shard) for shard in rows}) == 1 and rows[0] != ()
    if not even or min(map(min, rows)) < 1:
        _fail("rows", entry, f"for each of the {mesh.num_data_shards} data shards as many counts of at least 1 sample")
    return rows


def _stages(entry: object, segments: Mapping[str, object]) -> tuple[tuple[str, ...], ...]:
    stages = tuple(tuple(_list_of(str, stage, f"stages[{i}]")) for i, stage in enumerate(_as(list, entry, "stages")))
    for name in (name for stage in stages for name in stage):
        if name not in segments:
            _fail("stages", name, f"segments of the model: {', '.join(segments)}")
    return stages


def _type(entry: object, where: str) -> Type:
    role, size, places, of = _entries(entry, where, "a role, size, layout and name", str, None, list, str)
    return Type(_member(Role, role, where), _size(size, where), _layout(places, where), of)


def _size(entry: object, where: str) -> Size:
    if isinstance(entry, list):
        return Sized(*_entries(entry, where, "a fact, bytes each and fixed bytes", str, int, int))
    return _as(int, entry, f"{where}, its size")


def _layout(entry: list[object], where: str) -> Layout:
    places = []
    for place in entry:
        axis, spread, dim = _entries(place, where, "an axis, a spread and a dim", str, str, int)
        places.append((_member(Axis, axis, where), Placement(_member(Spread, spread, where), dim)))
    return Layout(tuple(places))


def _stream(entry: object, where: str) -> Stream:
    lane, axis, peer = _entries(entry, where, "a lane, an axis and a peer", str, None, int)
    return Stream(_member(Lane, lane, where), None if axis is None else _member(Axis, axis, where), peer)


def _rank(entry: object, where: str, types: Sequence[Type], streams: Sequence[Stream]) -> RankProgram:
    record = _record(entry, where, RANK_KEYS)
    ops = [_op(op, f"{where}.ops[{i}]", streams) for i, op in enumerate(_as(list, record["ops"], f"{where}.ops"))]
    named = _as(dict, record["types"], f"{where}.types")
    return RankProgram(
        tuple(ops),
        {value: _at(types, i, f"{where}.types.{value}") for value, i in named.items()},
        frozenset(_list_of(str, record["live_in"], f"{where}.live_in")),
        frozenset(_list_of(str, record["live_out"], f"{where}.live_out")),
    )


def _op(entry: object, where: str, streams: Sequence[Stream]) -> Op:
    given = _as(list, entry, where)
    if not 1 <= len(given) <= len(OP_FIELDS):
        _fail(where, given, f"1 to {len(OP_FIELDS)} entries: {', '.join(OP_FIELDS)}")
    full = (*given, *OP_DEFAULTS[len(given) :])
    kind, stage, segment, microbatch, inputs, writes, consumes, stream, axis, peer, guard, version, pair = full
    numbers = {"stage": stage, "segment": segment, "microbatch": microbatch, "peer": peer, "pair": pair}
    for name, number in numbers.items():
        if type(number) is not int or number < -1:
            _fail(f"{where}, its {name}", number, "a whole number of at least -1")
    return Op(
        kind=_member(Kind, kind, where),
        stage=stage,
        segment=segment,
        microbatch=microbatch,
        inputs=tuple(_list_of(str, inputs, where)),
        writes=tuple(_list_of(str, writes, where)),
        consumes=frozenset(_list_of(str, consumes, where)),
        axis=None if axis is None else _member(Axis, axis, where),
        peer=peer,
        guard=None if guard is None else _as(str, guard, f"{where}, its guard"),
        stream=COMPUTE if stream == -1 else _at(streams, stream, f"{where}, its stream"),
        version=_as(int, version, f"{where}, its version"),
        pair=pair,
    )


# --- the smallest pieces


def _fail(where: str, given: object, allowed: str) -> NoReturn:
    raise FormError(f"{where}: {short(given)} stands where there must be {allowed}")


def _as(kind: type[T], given: object, where: str) -> T:
    """The entry as the kind that it must have; a boolean is no number."""
    if type(given) is not kind:
        _fail(where, given, NAMES[kind])
    return given


def _list_of(kind: type[T], given: object, where: str) -> list[T]:
    entries = _as(list, given, where)
    for entry in entries:
        if type(entry) is not kind:
            _fail(where, entry, NAMES[kind])
    return entries


def _entries(given: object, where: str, what: str, *kinds: type | None) -> list[Any]:
    entries = _as(list, given, where)
    if len(entries) != len(kinds):
        _fail(where, entries, what)
    return [entry if kind is None else _as(kind, entry, where) for entry, kind in zip(entries, kinds, strict=True)]


def _record(given: object, where: str, keys: Sequence[str]) -> dict[str, Any]:
    record = _as(dict, given, where)
    for key in keys:
        if key not in record:
            raise FormError(f"{where} lacks {key!r}; it has {', '.join(keys)}")
    return record


def _member(kind: type[E], given: object, where: str) -> E:
    try:
        return kind(given)
    except ValueError:
        _fail(where, given, f"one of {', '.join(str(member.value) for member in kind)}")


def _at(table: Sequence[T], given: object, where: str) -> T:
    if type(given) is not int or not 0 <= given < len(table):
        _fail(where, given, f"a place in a table of {len(table)}")
    return table[given]
