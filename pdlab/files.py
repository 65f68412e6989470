"""Writing files so that a failure leaves the earlier file as it was."""

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: str) -> None:
    """Write a text file by way of a temporary one beside it. OSError names the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
