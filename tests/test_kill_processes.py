"""Every hard case on real gloo processes: exact, with the bytes that were predicted, in the order that was
predicted."""

import pytest
from cases import Case, kill_test

from pdlab.costs import Uniform
from pdlab.launch import Ranks
from pdlab.simulate import simulate
from pdlab.trace import Trace

CASES = kill_test()
pytestmark = pytest.mark.processes


@pytest.mark.parametrize("name", CASES)
def test_exact_on_processes(name: str, pool: Ranks) -> None:
    case: Case = CASES[name]
    result = pool.run(case.programs, case.batch, settings=case.settings)
    assert case.check(result) < 1e-9
    for program, measured in zip(case.programs, result.traces[0], strict=True):
        predicted = simulate(program, Uniform(), measured.facts)
        assert predicted.moved == measured.moved
        assert _orders(measured) == _orders(predicted)


def _orders(trace: Trace) -> dict[tuple[int, str], list[int]]:
    """For each rank and stream its rows by the time at which they ended; ties keep the order of the list."""
    orders: dict[tuple[int, str], list[int]] = {}
    for row, (rank, op) in enumerate(trace.rows()):
        orders.setdefault((rank, str(op.stream)), []).append(row)
    return {key: sorted(rows, key=lambda row: (trace.ends[row], row)) for key, rows in orders.items()}
