"""The pictures of the README, each drawn from a prediction or a model, so that they can be drawn again."""

from collections.abc import Callable

from pdlab import bubbles, lab, models, plots, study
from pdlab.costs import Uniform
from pdlab.plots import Figure
from pdlab.simulate import simulate
from pdlab.strategies import Plan, build, get


def schedules() -> Figure:
    """Six schedules of one model."""
    traces = []
    for name in ("gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_v", "dualpipe"):
        plan = get(name).chosen(Plan(pp=4, microbatches=8))
        program = build(get(name), plan, lab.lab_nominal(plan.pp, plan.num_stages))
        traces.append(simulate(program, Uniform()))
    return plots.gallery(traces, title="Six pipelines of the same model: predicted, free messages")


def layout() -> Figure:
    """A transformer block over a tensor group."""
    return plots.layout(models.transformer(width=64, depth=1, heads=8, tp=4), [1, 2])


def tradeoff() -> Figure:
    """ZeRO-3 against tensor parallelism: four blocks of GPT-3's width on eight ranks, 80 GB each."""
    batches, links = [2**i for i in range(11)], (12.5e9, 50e9, 450e9)
    return plots.tradeoff(study.study(study.GPT3_BLOCKS, batches, links, 80e9))


def idle() -> Figure:
    """Every pipeline schedule: how much is idle and how much is held, over microbatches and over ranks."""
    return plots.bubbles(bubbles.sweep())


def versions() -> Figure:
    """PipeDream with weight stashing: which weights every minibatch meets, and how many versions that takes."""
    program = build(get("pipedream"), Plan(pp=4, microbatches=10), lab.lab_nominal(4, 4))
    return plots.versions(simulate(program, Uniform(F=1, B=2)))


def convergence() -> Figure:
    """The digits, at a learning rate that weight stashing, vertical sync and the naive form do not survive."""
    from pdlab.compare import TEACHING_COSTS
    from pdlab.convergence import converge

    curves = converge(p=4, lr=0.6, size=32)
    about = ["200 minibatches of 32 digits, learning rate 0.6, one start and one order; losses from local mode"]
    about.append(f"times simulated, {TEACHING_COSTS}")
    return plots.convergence(curves, title="PipeDream's variants on four stages of an MLP", small_print=about)


PICTURES: dict[str, Callable[[], Figure]] = {
    "schedules": schedules,
    "layout": layout,
    "tradeoff": tradeoff,
    "bubbles": idle,
    "versions": versions,
    "convergence": convergence,
}
