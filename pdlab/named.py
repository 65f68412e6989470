"""From what a user types to what is meant, and back: members of enumerations, numbers of stages."""

from collections.abc import Iterable
from enum import Enum
from typing import TypeVar

E = TypeVar("E", bound=Enum)


def named(kind: type[E], name: object) -> E:
    """The member of that name (or the member itself); ValueError lists the names."""
    known = {member.value: member for member in kind}
    found = known.get(name.value if isinstance(name, kind) else name)
    if found is None:
        raise ValueError(f"{kind.__name__.lower()} {name!r}; choose one of {', '.join(known)}")
    return found


def colons(numbers: Iterable[int]) -> str:
    """`3:1`, as the command line takes the layers and replicas of stages."""
    return ":".join(map(str, numbers))
