"""The packages: a module imports only from its own package and from earlier ones, with any form of
import, and charts and texts need no model."""

import ast
from pathlib import Path

import pytest
from inside import PACKAGES, TOGETHER

PROBE = Path(__file__).parents[2] / "probe"
HEAVY = {"charts": {"torch", "transformers", "transformer_lens"}, "text": {"torch"}}


def imports_of(source: str) -> set[str]:
    """Every import anywhere in a module, including those inside functions and for types only, and
    every string that names a module of the project, as `import_module` would take it."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {node.value} if node.value.startswith("probe.") else set()
    return names


def later_packages(package: str) -> set[str]:
    last = TOGETHER[-1] if package in TOGETHER else package
    return {*PACKAGES[PACKAGES.index(last) + 1 :]}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_earlier_packages(package: str) -> None:
    files = [*PROBE.glob(f"{package}.py"), *PROBE.glob(f"{package}/**/*.py")]
    assert files
    for path in files:
        names = [name.split(".") for name in imports_of(path.read_text(encoding="utf-8"))]
        ours = {name[1] for name in names if name[0] == "probe" and len(name) > 1}
        assert ours & later_packages(package) == set(), path
        assert {name[0] for name in names} & HEAVY.get(package, set()) == set(), path


def test_every_file_belongs_to_a_package_and_every_form_of_import_counts() -> None:
    assert {
        path.relative_to(PROBE).parts[0].removesuffix(".py") for path in PROBE.rglob("*.py")
    } == {
        *PACKAGES,
        "__init__",
    }
    source = 'import_module("probe.pages.report")\ndef f():\n    from probe.charts import heads\n'
    assert imports_of(source) == {"probe.pages.report", "probe.charts.heads"}
