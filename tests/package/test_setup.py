"""The installed package: cheap to import, every dependency pinned, one entry point per task."""

import ast
import importlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from conftest import LONGEST
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import probe

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENTS = [Requirement(line) for line in (*PROJECT["dependencies"], *EXTRAS["dev"])]
HEAVY = (
    "torch",
    "pandas",
    "altair",
    "transformers",
    "transformer_lens",
    "huggingface_hub",
    "scipy",
    "numpy",
    "rich",
)


@pytest.mark.slow
def test_importing_is_cheap_and_no_public_name_is_also_a_package() -> None:
    code = f"""import sys
heavy = lambda: [name for name in {HEAVY} if name in sys.modules]
import probe, probe.errors
dir(probe), probe.__all__, probe.__version__
assert heavy() == []
assert probe.load and "torch" in heavy()"""
    packages = {path.name for path in (ROOT / "probe").iterdir() if path.is_dir()}
    assert packages & stub().keys() == {"charts"}  # the only package with a public name
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr


def test_the_list_of_the_longest_test_files_is_valid() -> None:
    assert [name for name in LONGEST if not (ROOT / "tests" / name).is_file()] == []


def stub() -> dict[str, str]:
    """The public names in `__init__.pyi`, and the module of each."""
    tree = ast.parse((ROOT / "probe" / "__init__.pyi").read_text(encoding="utf-8"))
    return {
        alias.name: f"probe.{node.module}" if node.module else "probe"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_every_public_name_exists_once_in_its_module_and_in_a_star_import() -> None:
    names, namespace = stub(), {}
    assert sorted(probe.__all__) == sorted(names)
    exec("from probe import *", namespace)  # noqa: S102 (a star import is only valid at the top of a module)
    assert set(namespace) - {"__builtins__"} == set(names)
    for name, home in names.items():
        assert getattr(probe, name) is getattr(importlib.import_module(home), name)
    for module in (probe.decomposition, probe.cross, probe.lexicon):
        assert [
            name for name in module.__all__ if getattr(module, name).__module__ != module.__name__
        ] == []


def test_the_script_whose_types_are_checked_uses_every_public_name() -> None:
    script = (ROOT / "tests" / "package" / "every_name.py").read_text(encoding="utf-8")
    assert [name for name in probe.__all__ if not re.search(rf"\b{name}\b", script)] == []


def test_an_unknown_name_lists_the_public_ones() -> None:
    with pytest.raises(
        AttributeError,
        match=r"module 'probe' has no attribute 'lode'; its public names are .*\bload\b",
    ):
        probe.lode  # noqa: B018
    assert not hasattr(probe, "__wrapped__")


def required_by(requirement: Requirement) -> list[Requirement]:
    """The requirements of an installed package on this machine, with the requested extras."""
    try:
        requirements = [Requirement(line) for line in requires(requirement.name) or ()]
    except PackageNotFoundError:
        return []
    environments = [{"extra": extra} for extra in (*requirement.extras, "")]
    return [
        each
        for each in requirements
        if each.marker is None or any(each.marker.evaluate(e) for e in environments)
    ]


def test_constraints_pin_every_installed_package_at_a_version_that_the_project_allows() -> None:
    text = (ROOT / "constraints.txt").read_text()
    pins = dict(line.split("==") for line in text.splitlines() if not line.startswith("#"))
    for requirement in REQUIREMENTS:
        assert pins[canonicalize_name(requirement.name)] in requirement.specifier
    queue, visited = [*REQUIREMENTS], set()
    while queue:
        requirement = queue.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key not in visited:
            visited.add(key)
            queue += required_by(requirement)
    assert len(visited) > 80 and {name for name, _ in visited} <= set(pins)


def test_an_editable_install_is_a_plain_path_that_type_checkers_follow() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    # setuptools installs an import hook unless this is the whole layout.
    assert tools["setuptools"]["package-dir"] == {"": "."}
    assert (ROOT / "probe" / "py.typed").is_file()


def test_no_file_contains_the_address_of_an_index() -> None:
    for name in ("constraints.txt", "pyproject.toml", "Makefile", ".ci/run"):
        assert not re.search(
            r"https?:|file:|--(extra-)?index|find-links", (ROOT / name).read_text()
        )


@pytest.mark.campaign
def test_the_wheel_and_the_source_archive_contain_all_of_probe_and_nothing_else(
    tmp_path: Path,
) -> None:
    pytest.importorskip("build", reason="build is not installed")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("probe", "tests", "analyses"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, source]
    subprocess.run(command, check=True, capture_output=True)
    files = [file for file in (source / "probe").rglob("*") if file.is_file()]
    ours = {str(file.relative_to(source)) for file in files}
    assert {"probe/model/embedded/tiny-senses/model.safetensors", "probe/py.typed"} < ours
    with zipfile.ZipFile(next(tmp_path.glob("probe_heads-*.whl"))) as wheel:
        assert {name for name in wheel.namelist() if ".dist-info/" not in name} == ours
    with tarfile.open(next(tmp_path.glob("probe_heads-*.tar.gz"))) as archive:
        members = {each.name.partition("/")[2] for each in archive if each.isfile()}
    about = {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}
    egg_info = {name for name in members if name.startswith("probe_heads.egg-info/")}
    assert members - egg_info == ours | about


def test_the_version_is_read_from_the_installed_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert probe.__version__ == PROJECT["version"], "install the package again: make clean report"

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    assert probe.__version__ == "not installed"
