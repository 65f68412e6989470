"""The error of text that is no program: one sentence with the place, what stands there and what may stand there."""


class FormError(ValueError):
    """Text that cannot be read as a program."""


def short(given: object, limit: int = 40) -> str:
    """How a message quotes what it was given, cut where it is long."""
    text = repr(given[: limit + 1] if isinstance(given, str | list) else given)
    return text if len(text) <= limit else f"{text[:limit]}..."
