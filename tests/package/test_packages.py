"""The packages: a module imports only from its own package and from earlier ones, with any form of
import, and no imports are circular."""

import ast
from functools import cache
from pathlib import Path

import pytest

from probe.model.architectures import FAMILIES

PROBE = Path(__file__).parents[2] / "probe"
PACKAGES = (
    "errors",
    "progress",
    "renamed",
    "provenance",
    "display",
    "tidy",
    "text",
    "stats",
    "model",
    "patching",
    "experiments",
    "inference",
    "results",
    "charts",
    "studies",
    "walkthrough",
    "pages",
    "explorer",
    "cli",
    "__main__",
)
FILES = {
    ".".join(path.relative_to(PROBE).with_suffix("").parts): path for path in PROBE.rglob("*.py")
}
MODULES = {
    name.removesuffix(".__init__"): path for name, path in FILES.items() if name != "__init__"
}
HEAVY = {"charts": ("torch", "transformers", "transformer_lens"), "text": ("torch",)}


def imports_of(path: Path) -> set[str]:
    """Every import anywhere in the file, including those inside functions and for types only, as
    dotted names."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def own(names: set[str]) -> set[str]:
    """The modules of the project among imported names."""
    found = set()
    for name in names:
        parts = name.split(".")[1:] if name.startswith("probe.") else []
        found |= {
            ".".join(parts[:size])
            for size in (len(parts), len(parts) - 1)
            if ".".join(parts[:size]) in MODULES
        }
    return found


def named_in_strings(path: Path) -> set[str]:
    """Every string of the file that is the dotted name of a module of the project, as
    `import_module` would take it."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    strings = {node.value for node in nodes if isinstance(node, ast.Constant)}
    dotted = {text for text in strings if isinstance(text, str) and text.startswith("probe.")}
    return {text for text in dotted if text.removeprefix("probe.") in MODULES}


@cache  # not while every worker collects: it reads every file
def graph() -> dict[str, set[str]]:
    """The modules of the project that each module imports."""
    return {
        name: own(imports_of(path) | named_in_strings(path)) - {name}
        for name, path in MODULES.items()
    }


def package_of(name: str) -> str:
    return name.partition(".")[0]


def test_every_file_stands_in_a_package() -> None:
    assert {package_of(name) for name in MODULES} == set(PACKAGES)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_point_to_packages_before(name: str) -> None:
    later = PACKAGES[PACKAGES.index(package_of(name)) + 1 :]
    upwards = sorted(other for other in graph()[name] if package_of(other) in later)
    assert upwards == [], f"{name} imports from a later package"


def test_a_module_named_in_a_string_counts_as_imported(tmp_path: Path) -> None:
    file = tmp_path / "lower.py"
    file.write_text(
        'import_module("probe.pages.report")\n"""See `probe.pages.report`."""\nUSED = "probe.nothing"\n'
    )
    assert named_in_strings(file) == {"probe.pages.report"}


def circle_from(name: str, graph: dict[str, set[str]]) -> list[str]:
    """A chain of imports from the module back to itself; empty without one."""
    chains = [[name]]
    seen = set()
    while chains:
        chain = chains.pop()
        for other in graph[chain[-1]]:
            if other == name:
                return [*chain, name]
            if other not in seen:
                seen.add(other)
                chains.append([*chain, other])
    return []


def test_no_files_import_each_other_in_a_circle_and_one_would_be_found() -> None:
    assert [circle for name in sorted(MODULES) if (circle := circle_from(name, graph()))] == []
    assert circle_from("a", {"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]


@pytest.mark.parametrize(("package", "libraries"), HEAVY.items(), ids=HEAVY)
def test_what_a_package_never_imports(package: str, libraries: tuple[str, ...]) -> None:
    for name, path in MODULES.items():
        if package_of(name) == package:
            heavy = sorted(other for other in imports_of(path) if other.split(".")[0] in libraries)
            assert heavy == [], f"{name} imports {heavy}"


def test_no_code_outside_the_table_asks_for_a_family_by_name() -> None:
    names = {*FAMILIES, *(family.name for family in FAMILIES.values())}
    asked = [
        (name, part.value)
        for name, path in MODULES.items()
        if not name.startswith("model.architectures")
        for compared in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(compared, ast.Compare | ast.MatchValue)
        for part in ast.walk(compared)
        if isinstance(part, ast.Constant) and part.value in names
    ]
    assert asked == [("model.load", "gpt2")]  # there it is a kind of tokenizer
