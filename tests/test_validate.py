"""For each rule a program that breaks it, and what the sentence has to name; then mutations of every kind at once."""

from dataclasses import replace

import pytest
from programs import (
    build,
    edit,
    everything,
    find,
    finished,
    from_rows,
    half_precision,
    rejected,
    retyped,
    with_op,
    with_rank,
)

from pdlab import models
from pdlab.mesh import FLAT, LOCAL, PARTIAL, REPLICATED, Axis, Mesh
from pdlab.ops import STEP, B, F, Kind, Op
from pdlab.passes import all_reduce_gradients, assign_streams, lower
from pdlab.passes.streams import Channels
from pdlab.program import Program, RankProgram, Role, Sized, Type
from pdlab.strategies.zero_bubble import zb_h1
from pdlab.validate import describe, validate

EVERYTHING = everything()


@pytest.mark.parametrize("name", EVERYTHING)
def test_every_program_passes(name: str):
    validate(EVERYTHING[name])


# --- what waits for what


def two_ranks(first: list[Op], second: list[Op], channels: Channels) -> Program:
    """Two ranks that exchange `h1:0` and `d.h1:0`, of which each holds one."""
    model = models.nominal(2)
    t = {"h1:0": Type(Role.ACTIVATION, 10**6, of="h1"), "d.h1:0": Type(Role.ACTIVATION_GRADIENT, 10**6, of="h1")}
    both = frozenset(t)
    ranks = tuple(
        RankProgram(tuple(ops), t, frozenset({mine}), both) for ops, mine in ((first, "h1:0"), (second, "d.h1:0"))
    )
    return assign_streams(Program("facing", Mesh.of(pp=2), model, ranks, ((1,),), (("layer0",), ("layer1",))), channels)


def test_sends_that_face_each_other_in_one_list_never_meet():
    first = [Op(Kind.SEND, inputs=("h1:0",), peer=1), Op(Kind.RECV, writes=("d.h1:0",), peer=1)]
    second = [Op(Kind.SEND, inputs=("d.h1:0",), peer=0), Op(Kind.RECV, writes=("h1:0",), peer=0)]
    program = two_ranks(first, second, Channels.ONE_LIST)
    error = rejected(
        program,
        "deadlock",
        "rank 0 is blocked at op 0 (SEND h1:0 to 1): it waits for rank 1, op 1 (RECV h1:0 from 0)",
        "rank 1 is blocked at op 0 (SEND d.h1:0 to 0): it waits for rank 0, op 1 (RECV d.h1:0 from 1)",
    )
    assert describe(program, error).splitlines()[-2:] == [
        "rank 0 | [SEND h1:0 to 1]!",
        "rank 1 | [SEND d.h1:0 to 0]!",
    ]
    validate(two_ranks(first, second, Channels.PER_DIRECTION))


def test_textbook_1f1b_needs_a_channel_for_each_direction():
    rejected(build("1f1b", microbatches=2, channels=Channels.PER_PAIR), "deadlock", "rank 0 is blocked", "rank 1 is")
    validate(build("1f1b", microbatches=2, channels=Channels.PER_DIRECTION))


def test_a_forward_before_its_receive_is_marked_in_the_grid():
    program = build("1f1b", ranks=3, microbatches=2)
    receive, forward = find(program, 2, "RECV h3:0"), find(program, 2, "2.0F0")
    swapped = list(program.ranks[2].ops)
    swapped[receive], swapped[forward] = swapped[forward], swapped[receive]
    broken = with_rank(program, 2, ops=tuple(swapped))
    error = rejected(broken, f"rank 2, op {receive} (2.0F0) reads 'h3:0' before anything writes it", "earlier")
    assert describe(broken, error).splitlines()[1:] == [
        "rank 0 | 0F0    0F1 0B0 0B1 0STEP",
        "rank 1 | 1F0    1F1 1B0 1B1 1STEP",
        "rank 2 | [2F0]! 2B0 2F1 2B1 2STEP",
    ]


def test_written_twice_and_consumed_twice():
    program = build("single", microbatches=2)
    forward = program.ranks[0].ops[0]
    twice = with_op(program, 0, 0, forward._replace(consumes=frozenset()), forward)
    rejected(twice, "rank 0, op 1 (0.0F0) writes 'h1:0', which op 0 (0.0F0) has written", "another name")
    at = find(program, 0, "0.0B1")
    backward = program.ranks[0].ops[at]
    again = edit(program, 0, "0.0B1", inputs=tuple(v.replace(".saved:1", ".saved:0") for v in backward.inputs))
    again = edit(again, 0, "0.0B1", consumes=frozenset({"fc0.saved:0"}))
    end = find(program, 0, "0.0B0")
    rejected(again, f"rank 0, op {at} (0.0B1) consumes 'fc0.saved:0', which op {end} (0.0B0) has consumed")


def test_messages_and_collectives_without_partner():
    program = build("1f1b", microbatches=1)
    rejected(
        with_op(program, 1, find(program, 1, "SEND d.h2:0")), "rank 0", "RECV d.h2:0 from 1", "rank 1 has no match"
    )
    program = build("ddp_naive", microbatches=1)
    at = find(program, 1, "ALL_REDUCE head.w.g0#0")
    without = with_op(program, 1, at)
    step = find(without, 1, "0.3STEP")
    plain = without.ranks[1].ops[step]._replace(inputs=("head.w@0", "head.w.g0#0"), consumes=frozenset())
    rejected(with_op(without, 1, step, plain), "never joins it")


# --- the form of single ops


@pytest.mark.parametrize(
    ("shorthand", "changes", "sentence"),
    [
        ("SEND", {"peer": 0}, "names rank 0 as its peer; name another of the ranks 0 to 1"),
        ("SEND", {"peer": 2}, "names rank 2 as its peer"),
        ("SEND", {"writes": ("more",)}, "reads 1 values and writes 1; it reads 1 and writes 0"),
        ("0.0F0", {"inputs": ("x:0", "x:0")}, "names 'x:0' twice"),
        ("0.0F0", {"consumes": frozenset({"h1:7"})}, "consumes 'h1:7', which it does not read"),
        ("0.0F0", {"writes": ("~t", "h1:0", "fc0.saved:0")}, "has a value after a token"),
        ("0.0F0", {"inputs": ("x:0",)}, "reads 1 values and writes 2; on segment fc0 it reads 2 (beside gradients"),
        ("0.0F0", {"segment": 9}, "names no segment of the program's stages"),
        ("0.0F0", {"microbatch": 7}, "names a microbatch that is none of the 1"),
        ("0.0F0", {"kind": Kind.ALL_GATHER}, "reads 2 values and writes 2; it reads 1 and writes 1"),
        ("0.0STEP", {"kind": Kind.ALL_REDUCE}, "reads 2 values and writes 1; it writes one sum for each"),
    ],
)
def test_malformed_ops(shorthand: str, changes: dict[str, object], sentence: str):
    program = edit(build("1f1b", microbatches=1), 0, shorthand, **{"consumes": frozenset(), **changes})
    describe(program, rejected(program, "rank 0, op ", sentence))


def test_a_collective_needs_an_axis():
    program = edit(build("ddp_naive", microbatches=1), 0, "ALL_REDUCE", axis=None)
    error = rejected(program, "rank 0, op ", "names no mesh axis")
    assert "[ALL_REDUCE" in describe(program, error)


def test_values_without_a_type():
    program = build("single", microbatches=1)
    types = program.ranks[0].types
    without = {value: t for value, t in types.items() if value != "h1:0"}
    rejected(with_rank(program, 0, types=without), "rank 0, op 0 (0.0F0) names 'h1:0', which has no type")
    without = {value: t for value, t in types.items() if value != "x:0"}
    rejected(with_rank(program, 0, types=without), "rank 0 starts with 'x:0', which has no type")


# --- leftovers


def test_what_is_left_over_and_what_never_comes():
    program = build("single", microbatches=1)
    kept = edit(program, 0, "0.0B0", consumes=frozenset({"d.h1:0", "x:0"}))
    at, last = find(program, 0, "0.0F0"), find(program, 0, "0.0B0")
    error = rejected(
        kept,
        "rank 0 is left with 'fc0.saved:0'",
        f"written by op {at} (0.0F0) and last read by op {last} (0.0B0)",
        "consume it (consume_last_uses), or name it in live_out",
    )
    assert "[0F0]!" in describe(kept, error) and "[0B0]!" in describe(kept, error)
    more = replace(program.ranks[0], live_out=program.ranks[0].live_out | {"y:0", "h1:0"})
    rejected(program.with_ranks([more]), "rank 0 ends without 'h1:0'", "(0.1F0) consumes it; only read it there")
    more = replace(program.ranks[0], live_out=program.ranks[0].live_out | {"y:0"})
    rejected(program.with_ranks([more]), "rank 0 ends without 'y:0'", "no op writes it; add the op")
    fewer = replace(program.ranks[0], live_out=program.ranks[0].live_out - {"loss:0"})
    rejected(program.with_ranks([fewer]), "rank 0 is left with 'loss:0'", "read by no op")


def test_a_program_before_its_values_are_freed():
    program = all_reduce_gradients(lower_one_rank([F(0, 0), B(0, 0), STEP(0)]))
    rejected(program, "is left with", "consume_last_uses")


def lower_one_rank(ops: list[Op], microbatches: int = 1, dp: int = 1) -> Program:
    rows = ((1,) * microbatches,) * dp
    return lower("typed", [ops], models.mlp(depth=4, width=8, itemsize=8), Mesh.of(dp=dp), rows, num_stages=1)


# --- layouts


def test_a_partial_gradient_at_a_step():
    program = finished(lower_one_rank([F(0, 0), B(0, 0), F(0, 1), B(0, 1), STEP(0)], microbatches=2, dp=2))
    error = rejected(
        program,
        "(0.0STEP) takes gradient 'fc0.w.g0#1', which is partial over dp: sum it first (ALL_REDUCE over dp), "
        "or the step uses only this rank's share",
    )
    assert "[0STEP]!" in describe(program, error)


def test_a_partial_gradient_for_sharded_weights():
    program = build("zero3", microbatches=1)
    whole = finished(edit(program, 0, "0.0STEP", inputs=("fc0.w@0", "fc0.w.g0#0/whole")))
    rejected(
        whole,
        "(0.0STEP) takes gradient 'fc0.w.g0#0/whole', which is partial over dp, for weights that are dp:flat: "
        "sum and scatter it first (REDUCE_SCATTER over dp)",
    )


def test_sharded_weights_in_a_forward():
    program = build("zero3", microbatches=1)
    forward = program.ranks[0].ops[find(program, 0, "0.0F0")]
    flat = edit(program, 0, "0.0F0", inputs=("x:0", "fc0.w@0"), consumes=forward.consumes - {"fc0.w@0/0"})
    rejected(flat, "(0.0F0) is given 'fc0.w@0', which is dp:flat, and takes it replicated: gather it whole first")


def test_a_sum_that_is_left_out_inside_a_layer():
    program = build("tensor", microbatches=1)
    rejected(
        retyped(program, "h0:0", layout=REPLICATED.put(Axis.TP, PARTIAL)),
        "(0.1F0) makes activation of h0, replicated and writes it as 'h0:0', typed activation of h0, tp:P",
    )
    for rank in (0, 1):
        program = with_op(program, rank, find(program, rank, "ALL_REDUCE attn0.part:0"))
        reader = program.ranks[rank].ops[find(program, rank, "0.4F0")]
        program = edit(program, rank, "0.4F0", inputs=tuple(v.replace("0.z:", "0.part:") for v in reader.inputs))
    program = finished(program)
    rejected(program, "(0.4F0) is given 'attn0.part:0' (activation of attn0.part) where it takes the activation of")
    named = retyped(program, "attn0.part:0", of="attn0.z")
    rejected(named, "(0.3F0) makes activation of attn0.part, tp:P and writes it as 'attn0.part:0', typed activation of")


def test_an_operand_of_another_microbatch_segment_or_size():
    program = build("gpipe", microbatches=2)
    swapped = edit(program, 0, "0.0F0", inputs=("fc0.w@0", "x:0"))
    rejected(swapped, "(0.0F0) is given 'fc0.w@0' (weight of fc0.w) where it takes the feed of x")
    sized = retyped(program, "h1:0", size=8)
    rejected(sized, "(0.0F0) handles 'h1:0', typed with 8 bytes; 2 rows of h1 have 128: correct its type")
    elsewhere = edit(program, 0, "0.0STEP", segment=1)
    rejected(elsewhere, "(0.1STEP) steps on 'fc0.w@0', which segment 1 of stage 0 has not")
    for first, second in (("h1:0", "h1:1"), ("fc1.saved:0", "fc1.saved:1")):
        crossed = crossing(build("gpipe", microbatches=2, batch=4), first, second)
        rejected(
            crossed, "works on microbatch 0 and is given", second, "which is made of microbatch 1; give it its own"
        )


def crossing(program: Program, first: str, second: str) -> Program:
    """Whoever reads one of two values on rank 0 now reads the other, and does so after both are there."""
    other = {first: second, second: first}
    ops = [op._replace(inputs=tuple(other.get(v, v) for v in op.inputs)) for op in program.ranks[0].ops]
    late = [op for op in ops if op.kind is not Kind.FORWARD or op.segment > 0]
    return finished(with_rank(program, 0, ops=(*(op for op in ops if op not in late), *late)))


def test_both_sides_of_a_message_give_it_one_type():
    program = build("1f1b", microbatches=1)
    types = program.ranks[1].types
    other = with_rank(program, 1, types={**types, "h2:0": types["h2:0"]._replace(size=3)})
    rejected(
        other, "sends 'h2:0' as activation of h2, replicated, 128 bytes", "rank 1, op 0 (RECV h2:0 from 0)", "3 bytes"
    )


def test_what_stays_on_a_rank_and_what_crosses_an_axis():
    send, recv = Op(Kind.SEND, inputs=("h1:0",), peer=1), Op(Kind.RECV, writes=("h1:0",), peer=0)
    give, take = Op(Kind.SEND, inputs=("d.h1:0",), peer=0), Op(Kind.RECV, writes=("d.h1:0",), peer=1)
    program = two_ranks([send, take], [give, recv], Channels.PER_DIRECTION)
    rejected(retyped(program, "h1:0", role=Role.SAVED), "(SEND h1:0 to 1) sends 'h1:0'", "stays on its rank")
    across = replace(retyped(program, "h1:0", layout=REPLICATED.put(Axis.DP, LOCAL)), mesh=Mesh.of(dp=2))
    across = replace(across, rows=((1,), (1,)))
    rejected(across, "sends 'h1:0', which is dp:L, across dp to rank 1")


@pytest.mark.parametrize(
    ("name", "value", "changes", "sentence"),
    [
        ("ddp_naive", "fc0.w.g0#0.dp", {"layout": REPLICATED.put(Axis.DP, PARTIAL)}, "over dp it makes replicated"),
        ("ddp_naive", "fc0.w.g0#0.dp", {"of": "fc1.w"}, "makes 'fc0.w.g0#0.dp' (weight gradient of fc1.w"),
        ("ddp_naive", "fc0.w.g0#0.dp", {"size": 8}, "makes 'fc0.w.g0#0.dp' with 8 bytes of 'fc0.w.g0#0' with"),
        ("zero3", "fc0.w@0", {"layout": REPLICATED}, "takes 'fc0.w@0', which is replicated, and over dp it takes flat"),
        ("zero3", "fc0.w.g0#0", {"layout": REPLICATED}, "writes 'fc0.w.g0#0' as replicated, and over dp it makes flat"),
        ("zero3", "fc0.w@0", {"size": 16}, "makes 'fc0.w@0/0' with 4160 bytes of 'fc0.w@0' with 16 bytes on 2 ranks"),
        ("tensor", "attn0.z:0", {"layout": REPLICATED.put(Axis.PP, FLAT)}, "it changes the layout over tp only"),
        ("moe", "received:0", {"of": "done"}, "(ALL_TO_ALL sent:0) turns activation of sent, ep:S0"),
        ("moe", "counts:0", {"layout": REPLICATED}, "takes 'counts:0', which is replicated, and over ep it takes"),
    ],
)
def test_collectives_turn_one_layout_into_another(name: str, value: str, changes: dict[str, object], sentence: str):
    rejected(retyped(build(name, microbatches=1), value, **changes), "rank 0, op ", sentence)


def test_a_value_that_is_summed_a_second_time():
    program = build("ddp_naive", microbatches=1)
    for rank in (0, 1):
        at = find(program, rank, "ALL_REDUCE fc0.w.g0#0")
        first = program.ranks[rank].ops[at]
        again = first._replace(inputs=first.writes, writes=("twice",), consumes=frozenset(first.writes))
        program = with_op(program, rank, at, first, again)
        step = program.ranks[rank].ops[find(program, rank, "0.0STEP")]
        consumes = frozenset({"fc0.w@0", "twice"})
        program = edit(program, rank, "0.0STEP", inputs=(step.inputs[0], "twice"), consumes=consumes)
        types = program.ranks[rank].types
        program = with_rank(program, rank, types={**types, "twice": types["fc0.w.g0#0.dp"]})
    rejected(program, "(ALL_REDUCE fc0.w.g0#0.dp) takes 'fc0.w.g0#0.dp', which is replicated", "remove the op")


def test_members_of_a_collective_handle_the_same_values():
    program = build("ddp_naive", microbatches=1)
    one, two = find(program, 1, "ALL_REDUCE fc1.w"), find(program, 1, "ALL_REDUCE fc2.w")
    ops = list(program.ranks[1].ops)
    ops[one], ops[two] = ops[two], ops[one]
    at = min(one, two)
    mine, theirs = program.ranks[0].ops[at], ops[at]
    swapped = with_rank(program, 1, ops=tuple(ops))
    rejected(
        swapped, f"rank 0, op {at} ({mine}) joins weight grad", f"and rank 1, op {at} ({theirs}) joins weight grad"
    )


def test_a_model_that_is_split_for_another_mesh():
    model = models.transformer(width=8, depth=1, heads=4, itemsize=8, tp=2)
    rejected(build("single", model=model), "is split for tp 2, and the mesh has tp 1; make the model for the mesh")
    model = models.experts(width=4, ep=3, itemsize=8)
    rejected(build("moe", model=model), "is split for ep 3, and the mesh has ep 2")


def test_terms_of_a_sum_have_one_type():
    program = build("zero3", microbatches=2)
    sentence = "(ADD fc0.w.g0#0) adds 'fc0.w.g0#0' (weight gradient of fc0.w, dp:flat, 2080 bytes), and "
    sized = retyped(program, "fc0.w.g0#1", size=2088)
    rejected(sized, sentence, "'fc0.w.g0#1' is weight gradient of fc0.w, dp:flat, 2088 bytes")
    other = edit(program, 0, "ADD fc0.w.g0#0", inputs=("fc0.w.g0#0", "fc1.w@0"), consumes=frozenset())
    rejected(other, sentence, "'fc1.w@0' is weight of fc1.w, dp:flat, 288 bytes; the terms and their sum have one type")
    first = edit(program, 0, "ADD fc0.w.g0#0", inputs=("fc1.w@0", "fc0.w.g0#0"), consumes=frozenset())
    rejected(first, "adds 'fc1.w@0' (weight of fc1.w, dp:flat); what is added is a gradient")


def test_flags_and_guards():
    program = half_precision(dp=2)
    own = finished(edit(program, 0, "0.0STEP", guard="finite"))
    rejected(
        own, "(0.0STEP) is guarded by 'finite', which is dp:P: ranks may decide differently; and it over every axis"
    )
    rejected(retyped(program, "finite", layout=REPLICATED), "(FINITE", "writes 'finite', which must be a flag, dp:P")
    check = program.ranks[0].ops[find(program, 0, "FINITE")]
    parts = tuple(value.removesuffix(".dp") for value in check.inputs)
    rejected(finished(edit(program, 0, "FINITE", inputs=parts)), "(FINITE", "which is partial over dp: sum it first")
    step = program.ranks[0].ops[find(program, 0, "0.0STEP")]
    scaled = finished(edit(program, 0, "0.0STEP", guard="loss_scale", inputs=step.inputs[:3]))
    rejected(scaled, "(0.0STEP) is guarded by 'loss_scale', no flag but loss scale; name what a FINITE has written")


def test_a_step_writes_what_it_reads():
    program = build("single", microbatches=1, optimizer_bytes=4)
    rejected(
        retyped(program, "fc0.w@1", size=8), "(0.0STEP) must write weight of fc0.w, replicated and optimizer state"
    )
    step = program.ranks[0].ops[find(program, 0, "0.0STEP")]
    rejected(edit(program, 0, "0.0STEP", writes=step.writes[::-1]), "(0.0STEP) must write weight of fc0.w")
    given = (step.inputs[1], step.inputs[0], step.inputs[2])
    rejected(edit(program, 0, "0.0STEP", inputs=given), "it takes weights, then the gradient of the same weights")
    other = edit(program, 0, "0.0STEP", inputs=(*step.inputs[:2], "fc1.w.state@0"))
    rejected(
        finished(other), "(0.0STEP) is given 'fc1.w.state@0'; after the gradient come the weights' optimizer state"
    )


# --- coverage


def test_a_microbatch_that_is_missing():
    program = finished(lower_one_rank([F(0, 0), B(0, 0), F(0, 1), STEP(0)], microbatches=2))
    error = rejected(
        program, "rank 0, op ", "(0.0STEP) takes gradient 'fc0.w.g0#0', which lacks microbatch 1; run that"
    )
    assert "[0STEP]!" in describe(program, error)


def test_a_shard_that_is_missing_is_named():
    rows = [F(0, 0), B(0, 0), F(0, 1), B(0, 1), STEP(0)]
    program = finished(all_reduce_gradients(lower_one_rank(rows, microbatches=3, dp=2)))
    rejected(program, "which lacks microbatch 2 of data shard 0 and microbatch 2 of data shard 1")


def test_a_microbatch_that_counts_twice():
    program = build("zero3", microbatches=2)
    for rank in (0, 1):
        at = find(program, rank, "ADD fc0.w.g0#0")
        add = program.ranks[rank].ops[at]
        more = add._replace(inputs=(*add.writes, add.inputs[0]), writes=("more",), consumes=frozenset())
        types = program.ranks[rank].types
        program = with_op(program, rank, at, add._replace(consumes=frozenset()), more)
        program = with_rank(program, rank, types={**types, "more": types["fc0.w.g0#1"]})
    rejected(program, "adds microbatch 0 of data shard 0 and microbatch 0 of data shard 1 into 'more' a second time")


def test_a_step_for_one_microbatch_takes_that_one_only():
    ops = [F(0, 0), F(0, 1), B(0, 0), B(0, 1), STEP(0, 0), F(0, 2), B(0, 2), STEP(0, 2)]
    program = finished(lower_one_rank(ops, microbatches=3))
    rejected(
        program, "(0.0STEP0) takes gradient 'fc0.w.g0#1', which also holds microbatch 1; this step is for microbatch 0"
    )


def test_a_step_takes_the_mean_of_as_many_as_it_says():
    """Of both microbatches since none was taken; with the divisor gone it would be a step on the second alone."""
    program = finished(lower_one_rank([F(0, 0), F(0, 1), B(0, 0), B(0, 1), STEP(0, 1)], microbatches=2))
    validate(program)
    at = find(program, 0, "0.0STEP1")
    step = program.ranks[0].ops[at]
    alone = with_op(program, 0, at, step._replace(inputs=step.inputs[:2], consumes=step.consumes & {*step.inputs[:2]}))
    rejected(alone, "(0.0STEP1) takes gradient 'fc0.w.g0#1', which also holds microbatch 0")


def test_a_gradient_is_stepped_on_once():
    program = build("single", microbatches=1)
    at = find(program, 0, "0.0STEP")
    step = program.ranks[0].ops[at]
    again = step._replace(inputs=("fc0.w@1", step.inputs[1]), writes=("fc0.w@2",))
    types = program.ranks[0].types
    program = with_rank(program, 0, types={**types, "fc0.w@2": types["fc0.w@1"]})
    twice = finished(with_op(program, 0, at, step, again))
    rejected(twice, f"rank 0, op {at + 1} (0.0STEP) steps on gradient 'fc0.w.g0#0' a second time; one step for each")


def test_parts_of_a_gradient_are_of_the_same_microbatches():
    program = build("sequence", microbatches=2)
    earlier = {"attn0.norm.w.g0#1": "attn0.norm.w.g0#0"}
    ops = [
        op._replace(inputs=tuple(earlier.get(v, v) for v in op.inputs)) if op.kind is Kind.ALL_REDUCE else op
        for op in program.ranks[1].ops
    ]
    rejected(
        finished(with_rank(program, 1, ops=tuple(ops))),
        "joins 'attn0.norm.w.g0#1', made of microbatch 0 and microbatch 1, with that of rank 1, op ",
        "made of microbatch 0; all members must have seen the same microbatches by then",
    )


def test_a_weight_gradient_that_is_never_run():
    rows = [list(zb_h1(stage, 2, 3)) for stage in range(2)]
    rows[1] = [op for op in rows[1] if op.kind is not Kind.BACKWARD_WEIGHT or op.microbatch != 2]
    rejected(from_rows(rows), "rank 1, op ", "STEP) takes gradient", "lacks microbatch 2")


def test_a_gradient_that_was_begun_before_the_program_is_not_counted():
    program = build("single", microbatches=2)
    ops, begun = program.ranks[0].ops, "fc0.w.g0#0"
    start = find(program, 0, "0.0F1")
    held = program.ranks[0].live_in
    later = {value for op in ops[start:] for value in op.operands} - {v for op in ops[start:] for v in op.writes}
    rest = RankProgram(ops[start:], program.ranks[0].types, frozenset(later), program.ranks[0].live_out - {"loss:0"})
    assert begun in rest.live_in and begun not in held
    validate(program.with_ranks([rest]))


def test_what_is_in_flight_says_its_microbatch():
    program = EVERYTHING["pipedream True from 3"]
    inside = sorted(value for value in program.ranks[0].live_in if value.startswith("fc0.saved"))
    assert inside

    def renamed(value: str) -> str:
        return "fc0.saved" if value == inside[0] else value

    rank = program.ranks[0]
    ops = tuple(
        op._replace(inputs=tuple(map(renamed, op.inputs)), consumes=frozenset(map(renamed, op.consumes)))
        for op in rank.ops
    )
    types = {renamed(value): t for value, t in rank.types.items()}
    changed = with_rank(program, 0, ops=ops, types=types, live_in=frozenset(map(renamed, rank.live_in)))
    rejected(changed, "rank 0 starts with 'fc0.saved', whose name ends in none of the 6 microbatches")


def test_rows_of_experts_come_home():
    """The expert of a rank has seen both shards, its router only its own: neither may be taken for the other."""
    program = build("moe", microbatches=2)
    unsummed = retyped(program, "router.w.g0#1", layout=REPLICATED)
    rejected(unsummed, "(0.1B1) makes weight gradient of router.w, ep:P and writes it as 'router.w.g0#1', typed")
    summed = retyped(program, "expert.w.g0#1", layout=REPLICATED.put(Axis.EP, PARTIAL))
    rejected(summed, "(0.2B1) makes weight gradient of expert.w, ep:L and writes it as 'expert.w.g0#1', typed")
    stays = with_rank(program, 0, types=swapped_rows(program.ranks[0].types))
    rejected(stays, "rank 0, op ")


def swapped_rows(types: dict[str, Type]) -> dict[str, Type]:
    sent, received = types["sent:0"], types["received:0"]
    return {**types, "sent:0": sent._replace(size=received.size), "received:0": received._replace(size=sent.size)}


def test_counts_of_another_microbatch():
    program = build("moe", microbatches=2)
    for rank in (0, 1):
        program = edit(program, rank, "ALL_TO_ALL sent:1", inputs=("sent:1", "counts:0", "arrivals:0"))
    rejected(finished(program), "(ALL_TO_ALL sent:1) joins microbatch 0", "different microbatches do not belong")
    program = build("moe", microbatches=2)
    back = edit(program, 0, "ALL_TO_ALL sent:0", inputs=("sent:0", "arrivals:0", "counts:0"))
    rejected(back, "(ALL_TO_ALL sent:0) turns", "split by arrivals, split by counts; the model has no such exchange")
    sized = retyped(program, "received:0", size=Sized("arrivals:1", 32))
    rejected(sized, "handles 'received:0', typed with", "arrivals:1", "arrivals:0")
