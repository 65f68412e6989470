"""Numbers as people read them: converted once, here, at the edge."""

from collections.abc import Sequence
from typing import NamedTuple

from pdlab.trace import Mode, Trace


class Unit(NamedTuple):
    """A name and how many seconds (or bytes) one of it has."""

    name: str
    size: float

    def text(self, amount: float) -> str:
        """The amount, given in seconds or bytes, to three digits with the unit's name."""
        return f"{three_digits(amount / self.size)} {self.name}"


UNITS = Unit("units", 1.0)
"""What costs without a unit of their own are in."""

SECONDS = (Unit("s", 1.0), Unit("ms", 1e-3), Unit("µs", 1e-6))
BYTES = (Unit("GB", 1e9), Unit("MB", 1e6), Unit("kB", 1e3), Unit("bytes", 1.0))


SHORTEST_UNIT = 0.25
"""The longest op of a trace in plain units takes at least this much."""


def three_digits(number: float) -> str:
    """`12.3`, `1,230`, `0.0456`: three significant digits, fewer where the rest is zeros, more for large numbers."""
    if number == 0:
        return "0"
    size = abs(number)
    if size >= 100 or (size >= 1 and abs(number - round(number)) < 0.005):
        return f"{number:,.0f}"
    return f"{number:.1f}" if size >= 10 else f"{number:.2f}" if size >= 1 else f"{number:.3g}"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def suited(units: Sequence[Unit], largest: float) -> Unit:
    """The largest unit of which there is at least one; the smallest where there is none."""
    return next((unit for unit in units if abs(largest) >= unit.size), units[-1])


def time_unit(*traces: Trace) -> Unit:
    """Plain units for predictions from costs that have none, seconds or a part of them for everything else."""
    longest = max(trace.makespan for trace in traces)
    return UNITS if all(map(_unitless, traces)) else suited(SECONDS, longest)


def _unitless(trace: Trace) -> bool:
    """`Uniform` costs may be in any unit; an op that takes a second is none of a lab that runs on small models."""
    longest_op = max((end - start for start, end in zip(trace.starts, trace.ends, strict=True)), default=0.0)
    uniform = trace.provenance.mode is Mode.SIMULATED and trace.provenance.costs.startswith("costs ")
    return uniform and longest_op >= SHORTEST_UNIT
