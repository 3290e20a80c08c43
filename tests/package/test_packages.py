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
    "provenance",
    "display",
    "tidy",
    "text",
    "stats",
    "model",
    "patching",
    "experiments",
    "claims",
    "verdicts",
    "results",
    "charts",
    "studies",
    "pages",
    "walks",
    "cli",
    "__main__",
)
# The tests and verdicts of a question stand next to its measurement: one layer.
TOGETHER = ("experiments", "claims", "verdicts")
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


def project_modules(names: set[str]) -> set[str]:
    """The modules of the project among imported names."""
    modules = set()
    for name in names:
        parts = name.split(".")[1:] if name.startswith("probe.") else []
        modules |= {
            ".".join(parts[:size])
            for size in (len(parts), len(parts) - 1)
            if ".".join(parts[:size]) in MODULES
        }
    return modules


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
        name: project_modules(imports_of(path) | named_in_strings(path)) - {name}
        for name, path in MODULES.items()
    }


def package_of(name: str) -> str:
    return name.partition(".")[0]


def test_every_file_belongs_to_a_package() -> None:
    assert {package_of(name) for name in MODULES} == set(PACKAGES)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_package_imports_only_earlier_packages(name: str) -> None:
    package = package_of(name)
    later = PACKAGES[PACKAGES.index(TOGETHER[-1] if package in TOGETHER else package) + 1 :]
    upwards = sorted(module for module in graph()[name] if package_of(module) in later)
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
    visited = set()
    while chains:
        chain = chains.pop()
        for module in graph[chain[-1]]:
            if module == name:
                return [*chain, name]
            if module not in visited:
                visited.add(module)
                chains.append([*chain, module])
    return []


def test_there_are_no_circular_imports_and_one_would_be_noticed() -> None:
    assert [circle for name in sorted(MODULES) if (circle := circle_from(name, graph()))] == []
    assert circle_from("a", {"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]


@pytest.mark.parametrize(("package", "libraries"), HEAVY.items(), ids=HEAVY)
def test_light_packages_import_no_heavy_library(package: str, libraries: tuple[str, ...]) -> None:
    for name, path in MODULES.items():
        if package_of(name) == package:
            heavy = sorted(
                module for module in imports_of(path) if module.split(".")[0] in libraries
            )
            assert heavy == [], f"{name} imports {heavy}"


def test_no_code_outside_the_table_checks_the_name_of_a_family() -> None:
    names = {*FAMILIES, *(family.name for family in FAMILIES.values())}
    comparisons = [
        (name, part.value)
        for name, path in MODULES.items()
        if not name.startswith("model.architectures")
        for compared in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(compared, ast.Compare | ast.MatchValue)
        for part in ast.walk(compared)
        if isinstance(part, ast.Constant) and part.value in names
    ]
    assert {*comparisons} == {("model.gguf_tokenizer", "gpt2")}  # there it is a kind of tokenizer
