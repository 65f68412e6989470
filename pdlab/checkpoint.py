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
from pdlab.state import Start

VERSION = 1


def save(path: Path, history: History, settings: Settings) -> Path:
    """Write the file whole: an earlier one is replaced or left as it was."""
    assert history.end is not None
    about = {
        "pdlab": VERSION,
        "model": history.program.model.name,
        "batch": history.program.batch,
        "settings": settings.to_message(),
        "steps": history.end.steps,
        "losses": history.losses,
        "seconds": history.seconds,
        "facts": [[[rank, value, list(held)] for (rank, value), held in step.items()] for step in history.facts],
        "accuracies": history.accuracies,
    }
    arrays = {f"parameter {name}": t.numpy() for name, t in history.end.parameters.items()}
    arrays |= {f"state {name}": t.numpy() for name, t in history.end.states.items()}
    raw = BytesIO()
    np.savez(raw, about=np.array(json.dumps(about)), **arrays)  # type: ignore[arg-type]
    return write_whole_bytes(path, raw.getvalue())


def load(path: Path, history: History, settings: Settings) -> History:
    """The history so far. ValueError for a file that is none, or that is of another training."""
    about, arrays = _read(path)
    now = {"model": history.program.model.name, "batch": history.program.batch, "settings": settings.to_message()}
    for what, value in now.items():
        if about[what] != value:
            raise ValueError(f"{path} has {what} {about[what]}, this training {value}; resume with the same one")
    parts = {
        what: {
            name.removeprefix(f"{what} "): torch.from_numpy(a) for name, a in arrays.items() if name.startswith(what)
        }
        for what in ("parameter", "state")
    }
    facts = [{(rank, value): tuple(held) for rank, value, held in step} for step in about["facts"]]
    end = Start(parts["parameter"], parts["state"], about["steps"])
    kept = {key: about[key] for key in ("losses", "seconds", "accuracies")}
    return replace(history, **kept, facts=facts, end=end)


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
