"""The house: a module imports only from its own room and rooms before it, and no files do so in a
circle."""

import ast
from pathlib import Path

import pytest

from probe.model.architectures import FAMILIES

PROBE = Path(__file__).parents[2] / "probe"
ROOMS = (
    *("errors", "provenance", "text", "stats", "model", "patching"),
    *("evidence", "walkthrough", "charts", "sweep", "pages", "explorer", "cli", "__main__"),
)
FILES = {
    ".".join(path.relative_to(PROBE).with_suffix("").parts): path for path in PROBE.rglob("*.py")
}
MODULES = {
    name.removesuffix(".__init__"): path for name, path in FILES.items() if name != "__init__"
}
HEAVY = {"charts": ("torch", "transformers", "transformer_lens"), "text": ("torch",)}


def imports_of(path: Path) -> set[str]:
    """Every import anywhere in the file, inside functions and for types only as well, as dotted
    names."""
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


GRAPH = {name: own(imports_of(path)) - {name} for name, path in MODULES.items()}


def room(name: str) -> str:
    return name.partition(".")[0]


def test_every_file_stands_in_a_room() -> None:
    assert {room(name) for name in MODULES} == set(ROOMS)


@pytest.mark.parametrize("name", sorted(GRAPH))
def test_imports_point_to_rooms_before(name: str) -> None:
    later = ROOMS[ROOMS.index(room(name)) + 1 :]
    back_up = sorted(other for other in GRAPH[name] if room(other) in later)
    assert back_up == [], f"{name} imports from a later room"


def circle_from(name: str, graph: dict[str, set[str]]) -> list[str]:
    """A way from the module back to itself, empty where there is none."""
    ways = [[name]]
    seen = set()
    while ways:
        way = ways.pop()
        for other in graph[way[-1]]:
            if other == name:
                return [*way, name]
            if other not in seen:
                seen.add(other)
                ways.append([*way, other])
    return []


def test_no_files_import_each_other_in_a_circle_and_one_would_be_found() -> None:
    assert [circle for name in sorted(GRAPH) if (circle := circle_from(name, GRAPH))] == []
    assert circle_from("a", {"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]


@pytest.mark.parametrize(("rooms", "packages"), HEAVY.items(), ids=HEAVY)
def test_what_a_room_never_imports(rooms: str, packages: tuple[str, ...]) -> None:
    for name, path in MODULES.items():
        if room(name) == rooms:
            heavy = sorted(other for other in imports_of(path) if other.split(".")[0] in packages)
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
    assert asked == [("model.load", "gpt2")]  # there a kind of tokenizer
