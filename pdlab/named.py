"""From what a user typed to a member of an enumeration."""

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
