"""Code that the user has written, named by its import path: `package.module:name`.

Ranks are processes of their own, so what they are to run travels as a name and is imported there. An error in the
user's file is told once, with the line in that file; and a file that has changed since is read anew, for ranks and
notebooks live longer than the code that they try out.
"""

import importlib
import sys
import traceback
from collections.abc import Iterable
from contextlib import redirect_stdout
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

STAMP = "__pdlab_stamp__"


def locate(path: str) -> Any:
    """What an import path names. ValueError says what is wrong with the path, or where the user's file fails."""
    name, colon, attribute = path.partition(":")
    if not (name and colon and attribute):
        raise ValueError(f"{path!r} is not an import path; write package.module:name")
    module = _module(name, path)
    try:
        return attrgetter(attribute)(module)
    except AttributeError:
        known = ", ".join(key for key in vars(module) if not key.startswith("_")) or "nothing"
        raise ValueError(f"{path}: {module.__file__} has no {attribute!r}; it defines {known}") from None


def stamp(path: str) -> int:
    """Changes whenever the file behind an import path does."""
    return _stamp(_module(path.partition(":")[0], path))


def search_also(folders: Iterable[str]) -> None:
    """Search these folders too, after the ones that are searched already."""
    sys.path += [folder for folder in folders if folder not in sys.path]


def _module(name: str, path: str) -> ModuleType:
    importlib.invalidate_caches()
    try:
        with redirect_stdout(sys.stderr):  # what it prints is not what our caller prints
            return _fresh(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ValueError(
                f"{path}: there is no module {error.name!r} here; run where its file lies, or install its package"
            ) from None
        raise ValueError(f"{path}: {blame(error, name)}") from error
    except (Exception, SystemExit) as error:
        raise ValueError(f"{path}: {blame(error, name)}") from error


def _fresh(name: str) -> ModuleType:
    module = importlib.import_module(name)
    now = _stamp(module)
    if vars(module).setdefault(STAMP, now) != now:
        module = importlib.reload(module)
        vars(module)[STAMP] = now
    return module


def _stamp(module: ModuleType) -> int:
    file = getattr(module, "__file__", None)
    return Path(file).stat().st_mtime_ns if file and Path(file).exists() else 0


def blame(error: BaseException, module: str = "") -> str:
    """The error in one line, with the place in the user's code (not in a library) where it came from."""
    text = str(error).strip().partition("\n")[0]
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: SyntaxError: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_users(frame.filename)]
    where = f"{own[-1].filename}, line {own[-1].lineno}: " if own else f"{module}: " if module else ""
    return f"{where}{type(error).__name__}: {text}"


def _is_users(file: str) -> bool:
    path, not_theirs = Path(file), {Path(__file__).parent, Path(traceback.__file__).parent}
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return "<" not in file and not installed and not not_theirs & set(path.parents)
