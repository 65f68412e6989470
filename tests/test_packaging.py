"""The three lists of packages agree: pyproject.toml, environment.yml and constraints.txt."""

import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def direct_dependencies(*extras: str) -> set[str]:
    """What pyproject.toml asks for, some extras included, as it is written there."""
    return set(project()["dependencies"]).union(*(project()["optional-dependencies"][extra] for extra in extras))


def all_dependencies() -> set[str]:
    return direct_dependencies(*project()["optional-dependencies"])


def conda_dependencies() -> tuple[list[str], list[str]]:
    """The conda section and the pip section of environment.yml."""
    entries = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    [pip_section] = [entry["pip"] for entry in entries if isinstance(entry, dict)]
    return [entry for entry in entries if isinstance(entry, str)], pip_section


def pins() -> list[Requirement]:
    lines = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    return [Requirement(line) for line in lines if line]


def test_environment_lists_the_packages_of_pyproject():
    _, pip_section = conda_dependencies()
    packages = [entry for entry in pip_section if not entry.startswith("-")]
    assert sorted(packages) == sorted(direct_dependencies("dev"))


def test_environment_installs_pdlab_itself_and_heeds_the_pins():
    _, pip_section = conda_dependencies()
    assert [entry for entry in pip_section if entry.startswith("-")] == ["-c constraints.txt", "-e ."]


def test_environment_asks_for_the_python_of_pyproject():
    conda_section, _ = conda_dependencies()
    [python] = [entry for entry in conda_section if entry.startswith("python")]
    assert python == f"python{project()['requires-python']}"


def test_every_direct_dependency_is_pinned_once_and_nothing_else():
    names = [canonicalize_name(pin.name) for pin in pins()]
    assert sorted(names) == sorted(canonicalize_name(Requirement(line).name) for line in all_dependencies())


def test_every_pin_is_one_exact_version_that_pyproject_accepts():
    wanted = {canonicalize_name(r.name): r.specifier for r in map(Requirement, all_dependencies())}
    for pin in pins():
        [exact] = pin.specifier
        assert pin.url is None and exact.operator == "==" and not exact.version.endswith("*"), f"not exact: {pin}"
        assert exact.version in wanted[canonicalize_name(pin.name)], f"pyproject.toml does not accept {pin}"
