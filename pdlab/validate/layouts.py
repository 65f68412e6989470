"""Every op gets what it takes and says what it makes: role, name in the model, and layout, where the silent bugs live.

A partial gradient in a step, a shard of the weights in a forward, a sum taken twice: each has the right number of
bytes, and trains, and is wrong. Collectives and messages are in `exchanges`.
"""

from typing import assert_never

from pdlab.depend import Graph, ProgramError
from pdlab.mesh import PARTIAL, REPLICATED, Axis, Layout, Spread
from pdlab.ops import Kind, Value, payload
from pdlab.program import Role, Type
from pdlab.validate.needs import Need, Needs


def check_layouts(graph: Graph, needs: Needs) -> None:
    """Every op that concerns one rank, and every guard."""
    for row, op in enumerate(graph.ops):
        match op.kind:
            case Kind.FORWARD | Kind.BACKWARD | Kind.BACKWARD_INPUT | Kind.BACKWARD_WEIGHT:
                _check_pass(graph, row, needs)
            case Kind.STEP:
                _check_step(graph, row, needs)
            case Kind.ADD:
                _check_add(graph, row)
            case Kind.FINITE:
                _check_finite(graph, row)
            case Kind.FREE | Kind.SEND | Kind.RECV:
                pass
            case Kind.ALL_REDUCE | Kind.ALL_GATHER | Kind.REDUCE_SCATTER | Kind.ALL_TO_ALL:
                pass
            case _:
                assert_never(op.kind)
        if op.guard is not None:
            _check_guard(graph, row, op.guard)


def fault(graph: Graph, row: int, text: str) -> ProgramError:
    return ProgramError(f"{graph.describe(row)} {text}", (graph.cell(row),))


def types_of(graph: Graph, row: int) -> dict[Value, Type]:
    return graph.program.ranks[graph.rank_of[row]].types


def _check_pass(graph: Graph, row: int, needs: Needs) -> None:
    op, types, program = graph.ops[row], types_of(graph, row), graph.program
    if needs.segment(op) is None:
        raise fault(graph, row, "names no segment of the program's stages; lower the schedule first (passes.lower)")
    if not 0 <= op.microbatch < program.num_microbatches:
        raise fault(graph, row, f"names a microbatch that is none of the {program.num_microbatches}")
    given, written = payload(op.inputs), payload(op.writes)
    pattern = needs.of(op, len(given))
    if pattern is None or len(written) != len(pattern[1]):
        raise _miscounted(graph, row, needs)
    num_rows = program.rows[program.mesh.data_shard(graph.rank_of[row])][op.microbatch]
    for value, need in zip((*given, *written), (*pattern[0], *pattern[1]), strict=True):
        t = types[value]
        if not need.met_by(t):
            raise _miswritten(graph, row, value, need) if value in written else _misgiven(graph, row, value, need)
        size = need.size(num_rows, op.microbatch)
        if t.size != size and size is not None:
            text = f"handles {value!r}, typed with {t.size} bytes; {num_rows} rows of {need.of} have {size}"
            raise fault(graph, row, f"{text}: correct its type")


def _miscounted(graph: Graph, row: int, needs: Needs) -> ProgramError:
    op, segment = graph.ops[row], needs.segment(graph.ops[row])
    assert segment is not None
    reads, writes = needs.patterns(op.kind, segment)[0]
    text = f"reads {len(payload(op.inputs))} values and writes {len(payload(op.writes))}; on segment {segment.name}"
    text += f" it reads {len(reads)} (beside gradients so far) and writes {len(writes)}, as pdlab.signature says"
    return fault(graph, row, text)


def _miswritten(graph: Graph, row: int, value: Value, need: Need) -> ProgramError:
    t = types_of(graph, row)[value]
    made, typed = _say(need.role, need.of, need.layout), _say(t.role, t.of, t.layout)
    return fault(graph, row, f"makes {made} and writes it as {value!r}, typed {typed}; correct its type, or the order")


def _misgiven(graph: Graph, row: int, value: Value, need: Need) -> ProgramError:
    t = types_of(graph, row)[value]
    if t.role is not need.role or t.of != need.of:
        text = f"is given {value!r} ({t.role.value} of {t.of or 'nothing'})"
        text += f" where it takes the {need.role.value} of {need.of}; operands follow the order of pdlab.signature"
        return fault(graph, row, text)
    text = f"is given {value!r}, which is {t.layout}, and takes it {need.layout}"
    return fault(graph, row, f"{text}: {_remedy(t.layout, need.layout)}")


def _remedy(given: Layout, needed: Layout) -> str:
    for axis, place in given.places:
        if place.spread is Spread.FLAT and needed.at(axis) is None:
            return f"gather it whole first (ALL_GATHER over {axis.value})"
        if place.spread is Spread.PARTIAL and needed.at(axis) is None:
            return f"sum it first (ALL_REDUCE over {axis.value})"
    return "bring it into that layout first, or correct its type"


def _say(role: Role, of: str, layout: Layout) -> str:
    return f"{role.value} of {of or 'nothing'}, {layout}"


def _check_step(graph: Graph, row: int, needs: Needs) -> None:
    op, types = graph.ops[row], types_of(graph, row)
    weight, gradient, *rest = payload(op.inputs)
    w, g = types[weight], types[gradient]
    segment = needs.segment(op)
    if segment is None or w.of not in {group.name for group in segment.groups}:
        raise fault(
            graph, row, f"steps on {weight!r}, which segment {op.segment} of stage {op.stage} has not; correct it"
        )
    if w.role is not Role.WEIGHT or g.role is not Role.GRADIENT or w.of != g.of:
        given = f"{weight!r} ({w.role.value} of {w.of}) and {gradient!r} ({g.role.value} of {g.of})"
        raise fault(graph, row, f"is given {given}; it takes weights, then the gradient of the same weights")
    if g.layout != w.layout:
        raise fault(graph, row, _unlike(gradient, g.layout, w.layout))
    states = [v for v in rest if types[v].role is Role.OPTIMIZER]
    others = [v for v in rest if types[v].role not in (Role.OPTIMIZER, Role.SCALE)]
    if others or len(states) > 1 or any((types[v].of, types[v].layout) != (w.of, w.layout) for v in states):
        wrong = (others or states)[-1]
        raise fault(
            graph, row, f"is given {wrong!r}; after weights and gradient come their optimizer state and a scale"
        )
    makes, writes = [w, *(types[v] for v in states)], [types[v] for v in payload(op.writes)]
    if writes != makes or g.size != w.size:
        wanted = ", ".join(_say(t.role, t.of, t.layout) for t in makes)
        raise fault(graph, row, f"must write {wanted}, of the size of what it reads; correct its writes or their types")


def _unlike(gradient: Value, given: Layout, weight: Layout) -> str:
    for axis in given.partial_axes():
        if weight.at(axis) is None:
            remedy = f"sum it first (ALL_REDUCE over {axis.value}), or the step uses only this rank's share"
            return f"takes gradient {gradient!r}, which is partial over {axis.value}: {remedy}"
        if weight.at(axis) != PARTIAL:
            text = f"takes gradient {gradient!r}, which is partial over {axis.value}, for weights that are {weight}"
            return f"{text}: sum and scatter it first (REDUCE_SCATTER over {axis.value})"
    return f"takes gradient {gradient!r}, which is {given}, for weights that are {weight}; both must be laid out alike"


def _check_add(graph: Graph, row: int) -> None:
    op, types = graph.ops[row], types_of(graph, row)
    first, second, total = (types[value] for value in (*payload(op.inputs), *payload(op.writes)))
    if first.role not in (Role.GRADIENT, Role.ACTIVATION, Role.ACTIVATION_GRADIENT):
        raise fault(graph, row, f"adds {_say(first.role, first.of, first.layout)}; it adds activations or gradients")
    if not first == second == total:
        said = " and ".join(f"{_say(t.role, t.of, t.layout)} ({t.size} bytes)" for t in (first, second, total))
        raise fault(graph, row, f"has {said}; the two terms and the sum of an ADD have one type")


def _check_finite(graph: Graph, row: int) -> None:
    """A sum may overflow where its parts do not, so the parts prove nothing; and one rank's flag is not all ranks'."""
    op, types = graph.ops[row], types_of(graph, row)
    for value in payload(op.inputs):
        for axis in types[value].layout.partial_axes():
            raise fault(graph, row, f"checks {value!r}, which is partial over {axis.value}: sum it first (ALL_REDUCE)")
    layout = REPLICATED
    for axis in _split_axes(graph):
        layout = layout.put(axis, PARTIAL)
    for value in op.writes:
        if (types[value].role, types[value].layout) != (Role.FLAG, layout):
            raise fault(graph, row, f"writes {value!r}, which must be a flag, {layout}: a rank knows its own part only")


def _check_guard(graph: Graph, row: int, guard: Value) -> None:
    t = types_of(graph, row)[guard]
    if t.role is not Role.FLAG:
        raise fault(graph, row, f"is guarded by {guard!r}, no flag but {t.role.value}; name what a FINITE has written")
    if t.layout != REPLICATED:
        text = f"is guarded by {guard!r}, which is {t.layout}: ranks may decide differently"
        raise fault(graph, row, f"{text}; and it over every axis first (ALL_REDUCE)")


def _split_axes(graph: Graph) -> list[Axis]:
    return [axis for axis, degree in graph.program.mesh.degrees if degree > 1]
