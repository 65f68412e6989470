"""The house rules that a machine can hold: who may import what, no hidden state, small files, clean notebooks.

A rule is a function that takes one module and yields a sentence for each place that breaks it. Each is run over all of
pdlab, and once over a planted offence, so that a rule that sees nothing is noticed.
"""

import ast
import json
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# From the ground up: a module imports from its own layer and from those below it. A new module gets a place here.
LAYERS = (
    "mesh errors files collector named",
    "ops",
    "models",
    "program signature depend order forms",
    "passes validate costs",
    "strategies lab own_schedule",
    "trace",
    "simulate metrics chrome theme",
    "critical export calibrate study bubbles published partition ledger curve steady",
    "plots report print_table",
    "data noise batch importing tape layers modules segments optimizers state own execute reference",
    "wire crew pool replies duties launch cluster worker",
    "history checkpoint",
    "trajectory compare train stock study_run convergence",
    "running planning pictures commands partitioning",
    "cli widgets __main__ __init__",
)
RANK_OF_MODULE = {name: rank for rank, layer in enumerate(LAYERS) for name in layer.split()}

# The running half. Everything else draws, checks and simulates on a machine without torch.
TORCH_ALLOWED = (
    *("tape", "layers", "modules", "segments", "optimizers", "state", "own", "execute", "reference"),
    *("wire", "crew", "replies", "duties", "launch", "pool", "cluster", "worker"),
    *("stock", "history", "checkpoint", "train", "trajectory", "compare", "running"),
)

# Starting a process means handing it an environment; nobody else looks at one.
ENVIRONMENT_ALLOWED = ("pool", "worker", "cluster")

MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 40


class Module:
    """One source file of pdlab, read and parsed once."""

    def __init__(self, path: str, source: str) -> None:
        self.path = path  # from the root of the repository: pdlab/passes/buckets.py
        self.parts = Path(path).with_suffix("").parts  # ("pdlab", "passes", "buckets")
        self.name = self.parts[1]  # its place in RANK_OF_MODULE: passes
        self.source = source

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source, self.path)

    @cached_property
    def imports(self) -> list[tuple[int, str]]:
        """Line and full dotted name of everything imported, at module level or inside a function."""
        found = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found += [(node.lineno, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                relative_to = self.parts[: len(self.parts) - node.level] if node.level else ()
                base = ".".join([*relative_to, *filter(None, [node.module])])
                found += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
        return found


def layer_of_each_module_is_known(module: Module) -> Iterator[str]:
    if module.name not in RANK_OF_MODULE:
        yield f"{module.path}: module {module.name} has no layer: add it to the map in tests/test_architecture.py"


def imports_point_down(module: Module) -> Iterator[str]:
    own_rank = RANK_OF_MODULE.get(module.name, len(LAYERS))
    for line, imported in module.imports:
        package, _, rest = imported.partition(".")
        rank = RANK_OF_MODULE.get(rest.partition(".")[0], 0) if package == "pdlab" else 0
        if rank > own_rank:
            yield (
                f"{module.path}:{line} imports {imported}, which points up: {module.name} is in layer {own_rank}, "
                f"{rest.partition('.')[0]} in layer {rank}"
            )


def only_the_running_half_imports_torch(module: Module) -> Iterator[str]:
    for line, imported in module.imports:
        if imported.partition(".")[0] == "torch" and module.name not in TORCH_ALLOWED:
            yield f"{module.path}:{line} imports {imported}, but only {', '.join(TORCH_ALLOWED)} may import torch"


def no_state_at_module_level(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Global):
            yield f"{module.path}:{node.lineno} says global {', '.join(node.names)}: pass it as an argument"
    for node in module.tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and is_to_be_filled(node.value):
            yield f"{module.path}:{node.lineno} keeps state at module level: {ast.unparse(node)}"


def is_to_be_filled(value: ast.expr) -> bool:
    """An empty container or a counter: at module level it can only be there to be changed later."""
    match value:
        case ast.List(elts=[]) | ast.Dict(keys=[]):
            return True
        case ast.Call(func=ast.Name(id="list" | "dict" | "set" | "deque" | "Counter"), args=[], keywords=[]):
            return True
        case ast.Call(func=ast.Name(id="defaultdict" | "count") | ast.Attribute(attr="defaultdict" | "count")):
            return True
    return False


def no_environment_variables(module: Module) -> Iterator[str]:
    names = ("environ", "environb", "getenv", "putenv")
    uses = [(node.lineno, node.attr) for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)]
    uses += [(line, imported.removeprefix("os.")) for line, imported in module.imports if imported.startswith("os.")]
    for line, name in uses:
        if name in names and module.name not in ENVIRONMENT_ALLOWED:
            yield f"{module.path}:{line} uses os.{name}, which only {' and '.join(ENVIRONMENT_ALLOWED)} may"


def files_are_short(module: Module) -> Iterator[str]:
    num_lines = len(module.source.splitlines())
    if num_lines > MAX_FILE_LINES:
        yield f"{module.path} has {num_lines} lines, more than {MAX_FILE_LINES}: it holds more than one idea"


def functions_are_short(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if num_lines > MAX_FUNCTION_LINES:
                yield f"{module.path}:{node.lineno} {node.name} has {num_lines} lines, more than {MAX_FUNCTION_LINES}"


def modules_say_why_they_exist(module: Module) -> Iterator[str]:
    if not ast.get_docstring(module.tree):
        yield f"{module.path} has no docstring: say in a line why it exists"


def no_utils(module: Module) -> Iterator[str]:
    if "utils" in module.parts:
        yield f"{module.path}: utils is not an idea of the course, name the file after what it holds"


Rule = Callable[[Module], Iterator[str]]

# Each rule with an offence against it: the file it is planted in, its text, and what the sentence has to name.
OFFENCES: list[tuple[Rule, str, str, str]] = [
    (layer_of_each_module_is_known, "novel.py", "", "novel has no layer: add it to the map"),
    (imports_point_down, "ops.py", "from pdlab.simulate import run", "pdlab/ops.py:1 imports pdlab.simulate.run"),
    (imports_point_down, "mesh.py", "def f():\n    import pdlab.cli", "pdlab/mesh.py:2 imports pdlab.cli"),
    (imports_point_down, "passes/zero.py", "from ..trace import Trace", "imports pdlab.trace.Trace"),
    (imports_point_down, "passes/__init__.py", "from pdlab import plots", "imports pdlab.plots"),
    (only_the_running_half_imports_torch, "costs.py", "import torch.nn as nn", "pdlab/costs.py:1 imports torch.nn"),
    (only_the_running_half_imports_torch, "plots.py", "def f():\n    from torch import ones", "imports torch.ones"),
    (no_state_at_module_level, "costs.py", "def f():\n    global seen", "pdlab/costs.py:2 says global seen"),
    (no_state_at_module_level, "costs.py", "CACHE: dict[str, int] = {}", "CACHE: dict[str, int] = {}"),
    (no_environment_variables, "plots.py", "import os\nos.environ['A']", "pdlab/plots.py:2 uses os.environ"),
    (no_environment_variables, "plots.py", "from os import getenv", "pdlab/plots.py:1 uses os.getenv"),
    (files_are_short, "ops.py", "x = 1\n" * 301, "pdlab/ops.py has 301 lines"),
    (functions_are_short, "ops.py", "def f():\n" + "    x = 1\n" * 40, "pdlab/ops.py:1 f has 41 lines"),
    (modules_say_why_they_exist, "ops.py", "x = 1", "pdlab/ops.py has no docstring"),
    (no_utils, "passes/utils.py", "", "pdlab/passes/utils.py"),
]
RULES = list(dict.fromkeys(rule for rule, *_ in OFFENCES))


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    paths = sorted((ROOT / "pdlab").rglob("*.py"))
    return [Module(path.relative_to(ROOT).as_posix(), path.read_text()) for path in paths]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_house_rule(rule: Rule, modules: list[Module]):
    broken = [sentence for module in modules for sentence in rule(module)]
    assert not broken, "\n" + "\n".join(broken)


@pytest.mark.parametrize(("rule", "file", "source", "sentence"), OFFENCES)
def test_a_planted_offence_is_named(rule: Rule, file: str, source: str, sentence: str):
    [found] = rule(Module(f"pdlab/{file}", source))
    assert sentence in found


def test_notebooks_are_stored_without_outputs():
    for path in sorted((ROOT / "notebooks").rglob("*.ipynb")):
        if ".ipynb_checkpoints" in path.parts:
            continue
        for number, cell in enumerate(json.loads(path.read_text())["cells"]):
            stale = cell.get("outputs") or cell.get("execution_count")
            assert not stale, f"{path.relative_to(ROOT)}: cell {number} has outputs: run nbstripout on it"
