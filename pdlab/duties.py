"""What a rank does with a job: run programs, train, or call a function of the user's."""

import json
import socket
import traceback
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import lru_cache
from io import StringIO
from typing import Any

from torch import Tensor

from pdlab import own, wire
from pdlab.batch import Batch
from pdlab.depend import Graph, build
from pdlab.execute.board import Board, Progress
from pdlab.execute.clock import Clock
from pdlab.execute.fold import following, losses, newest, taken
from pdlab.execute.gloo import Gloo
from pdlab.execute.process import Pace, RankError, Runner, Timeline
from pdlab.execute.result import recorded
from pdlab.execute.settings import Settings, new_store
from pdlab.execute.store import Store
from pdlab.forms import from_json
from pdlab.importing import blame, locate, search_also
from pdlab.mesh import Mesh
from pdlab.program import facts_as_list
from pdlab.state import Start

LEAD_S = 0.005
"""How long after the last rank has arrived at the start of a step the step begins, so that all begin together."""

Message = dict[str, Any]
Answer = tuple[Message, dict[str, Tensor]]


@dataclass
class Duties:
    """One rank's side of every kind of job. Transports are made once for each mesh and kept."""

    rank: int
    pool_size: int
    clock: Clock = field(default_factory=Clock)
    transports: dict[Mesh, Gloo] = field(default_factory=dict)

    def do(self, job: Message, tensors: Mapping[str, Tensor]) -> Answer:
        """The answer to a job; raises what went wrong with a sentence that names the rank."""
        search_also(job["paths"])
        match job["do"]:
            case "run":
                return self._run(job, tensors)
            case "fold":
                return self._fold(job, tensors)
            case "call":
                return self._call(job["function"], job["arguments"]), {}
        raise AssertionError(f"a job {job['do']!r} is not known")

    def _run(self, job: Message, tensors: Mapping[str, Tensor]) -> Answer:
        """Run the programs of a job, one after the other from the values the last one left, as often as it says."""
        graphs = [_graph(text) for text in job["programs"]]
        if self._is_idle(graphs[0], job):
            return {"steps": []}, {}
        [batch], settings = _batches(tensors, 1), Settings.from_message(job["settings"])
        steps = []
        for step in range(job["steps"]):
            store = new_store(graphs[0].program, self.rank, batch, settings)
            lines = [self._once(graph, store, job, step, i) for i, graph in enumerate(graphs)]
            steps.append([_as_message(line, start) for line, start in lines])
        kept = {f"{what} {value}": t for what, found in recorded(store).items() for value, t in found.items()}
        return {"steps": steps}, kept

    def _fold(self, job: Message, tensors: Mapping[str, Tensor]) -> Answer:
        """Train for a step on each batch, from the given parameters or from the seed."""
        graph = _graph(job["programs"][0])
        if self._is_idle(graph, job):
            return {"steps": []}, {}
        settings, start = Settings.from_message(job["settings"]), Start.of(tensors, job["taken"])
        batches = _batches(tensors, job["steps"])
        store = new_store(graph.program, self.rank, batches[0], settings, start)
        steps: list[Message] = []
        for i, batch in enumerate(batches):
            store = following(store, batch, settings) if i else store
            line, began = self._once(graph, store, job, i, 0)
            seconds = max(line.ends, default=began) - began
            steps.append({"losses": losses(store), "seconds": seconds, "facts": facts_as_list(line.facts)})
        return {"steps": steps, "taken": taken(store)}, newest(store)

    def _call(self, function: str, arguments: Message) -> Message:
        printed = StringIO()
        try:
            with redirect_stdout(printed):
                answer = locate(function)(**arguments)
        except Exception as error:
            raise RankError(f"rank {self.rank}, {function}: {blame(error)}") from error
        try:
            json.dumps(answer)
        except (TypeError, ValueError) as error:
            raise RankError(
                f"rank {self.rank}: {function} returned a {type(answer).__name__} that JSON cannot hold ({error}); "
                "return numbers, texts, lists and dicts"
            ) from None
        return {"answer": answer, "printed": printed.getvalue()}

    def _is_idle(self, graph: Graph, job: Message) -> bool:
        """Whether the mesh leaves this rank out. Making the groups of a mesh is collective, so all ranks take part."""
        mesh = graph.program.mesh
        if mesh not in self.transports:
            self.transports[mesh] = Gloo(mesh, self.rank, self.clock)
        self.transports[mesh].timeout = timedelta(seconds=job["timeout_s"])
        return self.rank >= mesh.size

    def _once(self, graph: Graph, store: Store, job: Message, step: int, i: int) -> tuple[Timeline, float]:
        """One program once: what was measured, and when it began (on this process's clock)."""
        mesh = graph.program.mesh
        transport = self.transports[mesh]
        pace = None
        if job["pace"]:
            durations, board = job["pace"][i]
            pace = Pace(durations[self.rank], Board(board, mesh.size, len(graph.members), self.rank))
        progress = Progress(job["progress"], self.pool_size) if job["progress"] else None

        def enter(at: int) -> None:
            if progress:
                progress.enter(self.rank, step, i, at)

        runner = Runner(graph, store, transport, pace, job["timeout_s"], enter)
        try:
            start = transport.agree(LEAD_S)
        except RuntimeError as error:
            raise RankError(f"rank {self.rank} waited for the others to begin a step: {error}") from error
        return runner.run(start), start


@lru_cache(maxsize=16)
def _graph(text: str) -> Graph:
    """A program as it travelled, compiled."""
    return build(from_json(text, own.MAKERS))


def _batches(tensors: Mapping[str, Tensor], num_steps: int) -> list[Batch]:
    """The samples of each step, which travel in one piece."""
    sent = {of.name: tensors[of.name].chunk(num_steps) for of in fields(Batch) if of.name in tensors}
    return [Batch(**{name: parts[i].numpy() for name, parts in sent.items()}) for i in range(num_steps)]


def _as_message(line: Timeline, start: float) -> Message:
    return {
        "starts": [t - start for t in line.starts],
        "ends": [t - start for t in line.ends],
        "moved": line.moved,
        "live": line.live,
        "live_before": line.live_before,
        "peak_weights": line.peak_weights,
        "facts": facts_as_list(line.facts),
    }


def serve(channel: socket.socket, duties: Duties) -> None:
    """Answer jobs until told to stop. A job that fails is answered with its error; only the end of the connection is
    an error here."""
    while True:
        job, tensors = wire.receive(channel)
        if job["do"] == "stop":
            return
        try:
            reply, results = duties.do(job, tensors)
        except BaseException as error:
            reply, results = _report(error, duties), {}
        wire.send(channel, reply, results)


def _report(error: BaseException, duties: Duties) -> Message:
    cause = error.__cause__ or error
    text = "" if isinstance(cause, TimeoutError) else "".join(traceback.format_exception(cause))
    said = str(error) if isinstance(error, RankError) else f"rank {duties.rank}: {type(error).__name__}: {error}"
    return {"error": said, "traceback": text, "at": duties.clock.now()}
