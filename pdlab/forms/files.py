"""Text from a file that may be anything: a schedule, a video, a device without end."""

import os
from pathlib import Path
from stat import S_ISFIFO

from pdlab.forms.fault import FormError

MEGABYTE = 10**6
LIMIT_BYTES = 64 * MEGABYTE
"""Ten times what 32 ranks with 256 microbatches take as JSON."""


def read_text(path: Path | str, limit_bytes: int = LIMIT_BYTES) -> str:
    """The text of a file. Never reads more than the limit, whatever the file says of its size."""
    try:
        if S_ISFIFO(os.stat(path).st_mode) and not str(path).startswith("/dev/"):
            raise ValueError("it is a pipe, for which one could wait for ever")
        with open(path, "rb") as file:
            data = file.read(limit_bytes + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise FormError(
            f"{path} cannot be read ({reason}); name a file with a program, as pdlab show prints it"
        ) from None
    if len(data) > limit_bytes:
        raise FormError(
            f"{path} is longer than {limit_bytes / MEGABYTE:g} MB; a program is a CSV or JSON text below that"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormError(
            f"{path} is not text (byte {error.start} is no UTF-8); a program is a CSV or JSON text"
        ) from None
