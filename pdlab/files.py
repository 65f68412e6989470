"""Writing files: a failure leaves the earlier file as it was, and a bad folder is known before the long work."""

import errno
import os
from pathlib import Path


def make_folder(folder: Path | str) -> Path:
    """The folder for results, made if need be and tried, so that a long run does not end in an error about it."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trial = folder / f".{os.getpid()}.try"
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise _not_written(folder, error) from error
    return folder


def write_whole(path: Path, text: str) -> Path:
    """`write_whole_bytes` for a text."""
    return write_whole_bytes(path, text.encode())


def write_whole_bytes(path: Path, content: bytes) -> Path:
    """Write beside the file, then put it in its place: there is always a complete one. ValueError if that fails."""
    if path.exists() and not path.is_file():
        raise ValueError(f"cannot write {path}, which is no ordinary file; name another one")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        raise _not_written(path, error) from error
    finally:
        _remove(temporary)
    return path


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        return


def _not_written(path: Path, error: OSError) -> ValueError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    remedy = "make room there, or choose another disk" if full else "choose a folder that you may write to"
    return ValueError(f"cannot write {path} ({error.strerror}); {remedy}")
