"""Every synchronous pipeline schedule on 1 to 8 ranks with 1 to 16 microbatches, stages equal and uneven: what the
tests check of a sample, for all of them. Minutes.

.venv/bin/python benchmarks/sweep.py
"""

import sys
import time
from pathlib import Path

import torch
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from test_schedules import EXACT, Case, check, every_case, is_refused

MOST_SHOWN = 20


def main() -> int:
    """0 where all is well; 1, with the cases, where it is not."""
    torch.set_num_threads(1)
    cases, worst, failed = every_case(), 0.0, list[str]()
    began = time.perf_counter()
    for case in (bar := tqdm(cases, unit="case", leave=False, disable=None)):
        bar.set_description(f"{case.family}, p {case.p}")
        found, said = _checked(case)
        worst = max(worst, found)
        if said:
            failed.append(said)
    refused = sum(map(is_refused, cases))
    print(
        f"sweep: {len(cases)} cases, {len(cases) - refused} to simulate and run and {refused} to refuse; {len(failed)} "
        f"failed; worst gradient error {worst:.1e}; {time.perf_counter() - began:.0f} s"
    )
    for said in failed[:MOST_SHOWN]:
        print(f"  {said}")
    return 1 if failed else 0


def _checked(case: Case) -> tuple[float, str]:
    """The error of a case, and what is wrong with it."""
    try:
        error = check(case)
    except Exception as broken:  # one case must not end the sweep
        return 0.0, f"{case}: {type(broken).__name__}: {broken}"
    return error, "" if error < EXACT else f"{case}: gradient error {error:.1e}"


if __name__ == "__main__":
    sys.exit(main())
