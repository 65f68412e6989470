"""Pictures of traces, and of models: every plot is a pure function to a figure."""

from matplotlib.figure import Figure

from pdlab.plots.block import block
from pdlab.plots.bubbles import bubbles
from pdlab.plots.bytes_moved import bytes_by_collective
from pdlab.plots.compare import compare
from pdlab.plots.convergence import convergence
from pdlab.plots.critical_path import critical_path
from pdlab.plots.gallery import gallery
from pdlab.plots.layout import layout
from pdlab.plots.memory import live_bytes
from pdlab.plots.partition import partition
from pdlab.plots.schedule import schedule
from pdlab.plots.timeline import timeline
from pdlab.plots.tradeoff import tradeoff
from pdlab.plots.training import loss_curves
from pdlab.plots.versions import versions

__all__ = [
    "Figure",
    "block",
    "bubbles",
    "bytes_by_collective",
    "compare",
    "convergence",
    "critical_path",
    "gallery",
    "layout",
    "live_bytes",
    "loss_curves",
    "partition",
    "schedule",
    "timeline",
    "tradeoff",
    "versions",
]
