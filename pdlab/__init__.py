"""A lab for a course on distributed training: predict, run, compare."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pdlab.launch import Ranks

__all__ = ["Ranks"]


def __getattr__(name: str) -> Any:
    """`pdlab.Ranks` is there without torch being loaded by those who only draw and predict."""
    if name == "Ranks":
        from pdlab.launch import Ranks

        return Ranks
    raise AttributeError(f"module 'pdlab' has no attribute {name!r}")
