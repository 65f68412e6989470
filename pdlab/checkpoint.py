"""A training on disk: one file of arrays by name and a few numbers, readable by numpy without running any code.

It holds whole parameters, not shards, so a training may go on with another strategy or on another mesh.
"""

import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pdlab.execute.settings import Settings
from pdlab.files import write_whole_bytes
from pdlab.history import History
from pdlab.mesh import Axis
from pdlab.program import facts_as_list, facts_of_list
from pdlab.state import Start, full_names

VERSION = 1


def save(path: Path, history: History, settings: Settings) -> Path:
    """Write the file whole: an earlier one is replaced or left as it was."""
    assert history.end is not None
    about = {
        "pdlab": VERSION,
        **_same(history, settings),
        "steps": history.end.steps,
        "losses": history.losses,
        "seconds": history.seconds,
        "facts": [facts_as_list(step) for step in history.facts],
        "accuracies": history.accuracies,
    }
    arrays = {name: t.numpy() for name, t in history.end.tensors().items()}
    raw = BytesIO()
    np.savez(raw, about=np.array(json.dumps(about)), **arrays)  # type: ignore[arg-type]
    return write_whole_bytes(path, raw.getvalue())


def load(path: Path, history: History, settings: Settings) -> History:
    """The history so far. ValueError for a file that is none, or that is of another training."""
    about, arrays = _read(path)
    for what, value in _same(history, settings).items():
        if about.get(what) != value:
            there, here = _difference(about.get(what), value)
            raise ValueError(f"{path} has {what} {there}, this training {here}; resume with the same")
    try:
        return _continued(history, about, arrays)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({type(error).__name__}: {error}); train anew without resuming") from None


def _continued(history: History, about: dict[str, Any], arrays: dict[str, np.ndarray]) -> History:
    facts = [facts_of_list(step) for step in about["facts"]]
    end = Start.of({name: torch.from_numpy(array) for name, array in arrays.items()}, int(about["steps"]))
    shapes = {name: list(t.shape) for name, t in end.parameters.items()} if end else {}
    if shapes != about["weights"]:
        raise ValueError("its arrays are not those of its weights")
    losses, seconds, accuracies = ([float(x) for x in about[key]] for key in ("losses", "seconds", "accuracies"))
    return replace(history, losses=losses, seconds=seconds, accuracies=accuracies, facts=facts, end=end)


def _same(history: History, settings: Settings) -> dict[str, Any]:
    """What has to be the same for a training to go on. How it is spread over ranks is not among it."""
    model, copies = history.program.model, history.program.mesh.degree(Axis.EP)
    weights = {
        name: list(param.shape)
        for group in model.groups.values()
        for names in full_names(model, group, copies)
        for name, param in zip(names, group.params, strict=True)
    }
    how = {key: value for key, value in settings.to_message().items() if key != "record"}
    return {"itemsize": model.itemsize, "batch": history.program.batch, "settings": how, "weights": weights}


def _difference(there: Any, here: Any) -> tuple[Any, Any]:
    """Of two dicts only what they differ in."""
    if not (isinstance(there, dict) and isinstance(here, dict)):
        return there, here
    keys = [key for key in {**there, **here} if there.get(key) != here.get(key)][:3]
    return {key: there.get(key) for key in keys}, {key: here.get(key) for key in keys}


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about: dict[str, Any] = json.loads(str(arrays.pop("about")))
        if about["pdlab"] != VERSION:
            raise ValueError(f"version {about['pdlab']}")
    except FileNotFoundError:
        raise ValueError(f"there is no checkpoint {path}; train once without resuming") from None
    except Exception as error:
        raise ValueError(f"{path} is not a checkpoint of this version ({error}); train anew without resuming") from None
    return about, arrays
