"""How the layers of a model are split over a tensor group, and what cannot be."""

from enum import Enum


class Split(Enum):
    """What is split over the ranks of a tensor group."""

    TENSOR = "tensor"
    SEQUENCE = "sequence"
    COLUMN = "column"
    ROW = "row"


def check_divides(what: str, size: int, tp: int) -> None:
    """ValueError with the numbers where a tensor group cannot share something evenly."""
    if size % tp:
        raise ValueError(f"{what} {size} with tp {tp}: tp must divide it; take another of the two")


def check_degree(tp: int) -> None:
    if not 1 <= tp <= MOST:
        raise ValueError(f"tp {tp}; a tensor group has 1 to {MOST} ranks")


MOST = 8
"""Ranks of a tensor group: those that share one fast link in a usual machine."""
