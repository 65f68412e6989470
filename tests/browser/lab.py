"""A JupyterLab of its own for a test: loopback, a copy of the notebooks, settings and temporary files in one folder."""

import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import psutil

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
STARTS_S, ENDS_S = 60.0, 30.0

QUIET = {"fetchNews": "false", "checkForUpdates": False}
"""Ask nobody on the network, and show no dialog about it."""


KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}


class Lab:
    """A running server. `processes()` are those that it has started, kernels and their workers included."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = _made(folder / "tmp")
        self._notebooks = shutil.copytree(NOTEBOOKS, folder / "notebooks", ignore=shutil.ignore_patterns(".*"))
        self._token = secrets.token_hex(16)
        self._port = _free_port()
        self._process = psutil.Popen(self._command(), env=self._environment(), stdout=self._log(), stderr=self._log())

    def add(self, notebook: str, *cells: str) -> None:
        """A notebook of one's own beside those that were copied."""
        made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata=KERNEL)
        nbformat.write(made, self._notebooks / notebook)

    def url(self, notebook: str) -> str:
        return f"http://127.0.0.1:{self._port}/lab/tree/{notebook}?token={self._token}"

    def processes(self, doing: str = "") -> list[psutil.Process]:
        """Those whose command line contains `doing`."""
        found: list[psutil.Process] = []
        if self._process.poll() is not None:
            return found
        for process in self._process.children(recursive=True):
            try:
                if doing in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found

    def wait_until_up(self) -> None:
        deadline = time.monotonic() + STARTS_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api?token={self._token}", timeout=5).close()
                return
            except (urllib.error.URLError, TimeoutError):
                time.sleep(0.2)
        raise RuntimeError(f"JupyterLab did not come up:\n{(self.folder / 'log').read_text()[-3000:]}")

    def close(self) -> list[psutil.Process]:
        """End the server as a terminal does that is closed; what of its processes is left a while later."""
        if self._process.poll() is not None:
            return []
        family = self.processes()
        self._process.terminate()
        _, alive = psutil.wait_procs([self._process, *family], ENDS_S)
        for process in alive:
            process.kill()
        return alive

    def _command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1"),
            *(f"--port={self._port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={self._token}"),
            f"--ServerApp.root_dir={self._notebooks}",
        ]

    def _environment(self) -> dict[str, str]:
        settings = _made(self.folder / "settings")
        quiet = _made(settings / "@jupyterlab/apputils-extension") / "notification.jupyterlab-settings"
        quiet.write_text(json.dumps(QUIET))
        own = (
            "JUPYTER_CONFIG_DIR",
            "JUPYTER_DATA_DIR",
            "JUPYTER_RUNTIME_DIR",
            "JUPYTERLAB_WORKSPACES_DIR",
            "IPYTHONDIR",
        )
        folders = {name: str(_made(self.folder / name.lower())) for name in own}
        return os.environ | folders | {"JUPYTERLAB_SETTINGS_DIR": str(settings), "TMPDIR": str(self.temporary)}

    def _log(self) -> int:
        return os.open(self.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


@contextmanager
def running_lab() -> Iterator[Lab]:
    """A lab that is up; its folder goes with it."""
    with tempfile.TemporaryDirectory(prefix="lab-") as folder:
        lab = Lab(Path(folder))
        try:
            lab.wait_until_up()
            yield lab
        finally:
            lab.close()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
