"""Every op gets what it takes and says what it makes: role, name in the model, and layout, where the silent bugs live.

A partial gradient in a step, a shard of the weights in a forward, a sum taken twice: each has the right number of
bytes, and trains, and is wrong. Collectives and messages are in `exchanges`.
"""

from typing import assert_never

from pdlab.depend import Graph, ProgramError
from pdlab.mesh import PARTIAL, REPLICATED, Layout, Spread
from pdlab.ops import COMMUNICATION_KINDS, Kind, Value, payload
from pdlab.program import Role
from pdlab.validate.exchanges import check_collective, check_degrees, check_member, check_message
from pdlab.validate.faults import fault, say, types_of
from pdlab.validate.needs import Need, Needs, exchanges_of


def check_layouts(graph: Graph, events: list[int], needs: Needs) -> None:
    """In the order of `events`, so that who makes a wrong value is found before who reads it."""
    check_degrees(graph.program)
    allowed = exchanges_of(graph.program.model)
    for event in events:
        rows = graph.members[event]
        match graph.ops[rows[0]].kind:
            case Kind.FORWARD | Kind.RECOMPUTE | Kind.BACKWARD | Kind.BACKWARD_INPUT | Kind.BACKWARD_WEIGHT:
                _check_pass(graph, rows[0], needs)
            case Kind.STEP:
                _check_step(graph, rows[0], needs)
            case Kind.ADD:
                _check_add(graph, rows[0])
            case Kind.FINITE:
                _check_finite(graph, rows[0])
            case Kind.SPLIT:
                check_member(graph, rows[0], allowed)
            case Kind.FREE:
                pass
            case Kind.SEND | Kind.RECV:
                check_message(graph, *rows)
            case Kind.ALL_REDUCE | Kind.ALL_GATHER | Kind.REDUCE_SCATTER | Kind.ALL_TO_ALL:
                check_collective(graph, rows, allowed)
            case _:
                assert_never(graph.ops[rows[0]].kind)
        for row in rows:
            if graph.ops[row].guard is not None:
                _check_guard(graph, row)


def _check_pass(graph: Graph, row: int, needs: Needs) -> None:
    op, types, program = graph.ops[row], types_of(graph, row), graph.program
    if needs.segment(op) is None:
        raise fault(graph, row, "names no segment of the program's stages; lower the schedule first (passes.lower)")
    if not 0 <= op.microbatch < program.num_microbatches:
        raise fault(graph, row, f"names a microbatch that is none of the {program.num_microbatches}")
    given, written = payload(op.inputs), payload(op.writes)
    pattern = needs.of(op)
    if pattern is None:
        raise _miscounted(graph, row, needs)
    num_rows = needs.rows[graph.rank_of[row]][op.microbatch]
    for value, need in zip((*given, *written), (*pattern[0], *pattern[1]), strict=True):
        t = types[value]
        if not need.met_by(t):
            raise _miswritten(graph, row, value, need) if value in written else _misgiven(graph, row, value, need)
        size = need.size(num_rows, op.microbatch)
        if t.size != size and size is not None:
            whole = f"{num_rows} rows of {need.of} have" if need.kept and need.kept.per_row else f"{need.of} has"
            text = f"handles {value!r}, typed with {t.size} bytes; {whole} {size}: correct its type"
            raise fault(graph, row, f"{text}, or give it a value of microbatch {op.microbatch}")


def _miscounted(graph: Graph, row: int, needs: Needs) -> ProgramError:
    op, segment = graph.ops[row], needs.segment(graph.ops[row])
    assert segment is not None
    reads, writes = needs.patterns(op.kind, segment)[0]
    text = f"reads {len(payload(op.inputs))} values and writes {len(payload(op.writes))}; on segment {segment.name}"
    text += f" it reads {len(reads)} (beside gradients so far) and writes {len(writes)}, as pdlab.signature says"
    return fault(graph, row, text)


def _miswritten(graph: Graph, row: int, value: Value, need: Need) -> ProgramError:
    t = types_of(graph, row)[value]
    made = say(t._replace(role=need.role, of=need.of, layout=need.layout))
    return fault(graph, row, f"makes {made} and writes it as {value!r}, typed {say(t)}; correct its type, or the order")


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


def _check_step(graph: Graph, row: int, needs: Needs) -> None:
    op, types = graph.ops[row], types_of(graph, row)
    weight, gradient, *rest = payload(op.inputs)
    w, g = types[weight], types[gradient]
    if w.role is not Role.WEIGHT or g.role is not Role.GRADIENT or w.of != g.of:
        given = f"{weight!r} ({w.role.value} of {w.of}) and {gradient!r} ({g.role.value} of {g.of})"
        raise fault(graph, row, f"is given {given}; it takes weights, then the gradient of the same weights")
    segment = needs.segment(op)
    if segment is None or w.of not in {group.name for group in segment.groups}:
        where = f"segment {op.segment} of stage {op.stage}"
        raise fault(graph, row, f"steps on {weight!r}, which {where} has not; give the op the numbers of {w.of}")
    if g.layout != w.layout:
        raise fault(graph, row, _unlike(gradient, g.layout, w.layout))
    states = [v for v in rest if types[v].role is Role.OPTIMIZER]
    others = [v for v in rest if types[v].role not in (Role.OPTIMIZER, Role.SCALE)]
    if others or len(states) > 1 or any((types[v].of, types[v].layout) != (w.of, w.layout) for v in states):
        wrong = (others or states)[-1]
        raise fault(graph, row, f"is given {wrong!r}; after the gradient come the weights' optimizer state and a scale")
    makes, writes = [w, *(types[v] for v in states)], [types[v] for v in payload(op.writes)]
    if writes != makes or g.size != w.size:
        text = f"must write {' and '.join(map(say, makes))}, of the sizes that it reads"
        raise fault(graph, row, f"{text}; correct its writes or their types")


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
    values = (*payload(op.inputs), *payload(op.writes))
    first = types[values[0]]
    if first.role not in (Role.GRADIENT, Role.ACTIVATION_GRADIENT):
        raise fault(graph, row, f"adds {values[0]!r} ({say(first)}); what is added is a gradient")
    for value in values[1:]:
        t = types[value]
        if t != first:
            text = f"adds {values[0]!r} ({say(first)}, {first.size} bytes), and {value!r} is {say(t)}, {t.size} bytes"
            raise fault(graph, row, f"{text}; the terms and their sum have one type")


def _check_finite(graph: Graph, row: int) -> None:
    """A sum may overflow where its parts do not, so the parts prove nothing; and one rank's flag is not all ranks'."""
    op, types = graph.ops[row], types_of(graph, row)
    for value in payload(op.inputs):
        for axis in types[value].layout.partial_axes():
            raise fault(graph, row, f"checks {value!r}, which is partial over {axis.value}: sum it first (ALL_REDUCE)")
    layout = REPLICATED
    for axis, degree in graph.program.mesh.degrees:
        layout = layout.put(axis, PARTIAL) if degree > 1 else layout
    for value in payload(op.writes):
        if (types[value].role, types[value].layout) != (Role.FLAG, layout):
            raise fault(graph, row, f"writes {value!r}, which must be a flag, {layout}: a rank knows its own part only")


def _check_guard(graph: Graph, row: int) -> None:
    op, types = graph.ops[row], types_of(graph, row)
    guard = op.guard
    assert guard is not None
    given = [types[value] for value in op.inputs]
    if op.kind in COMMUNICATION_KINDS or any(given.count(types[value]) != 1 for value in payload(op.writes)):
        text = (
            "is guarded, and an op that may not run hands on its inputs: for each value it writes one of the same type"
        )
        raise fault(graph, row, f"{text}; guard steps only")
    t = types_of(graph, row)[guard]
    if t.role is not Role.FLAG:
        raise fault(graph, row, f"is guarded by {guard!r}, no flag but {t.role.value}; name what a FINITE has written")
    if t.layout != REPLICATED:
        text = f"is guarded by {guard!r}, which is {t.layout}: ranks may decide differently"
        raise fault(graph, row, f"{text}; and it over every axis first (ALL_REDUCE)")
