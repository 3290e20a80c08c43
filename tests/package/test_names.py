"""Renamed public names occur nowhere except in the changelog, which gives their new names."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHANGELOG = ROOT / "reports" / "docs" / "pages" / "changelog.md"
TREES = ("probe", "tests", "analyses", "reports/docs")
FILES = ("README.md", "reports/README.md", "reports/gallery.py", "Makefile", "pyproject.toml")
ENDINGS = {".py", ".pyi", ".toml", ".j2", ".js", ".css", ".md", ".ipynb", ".html", ".yml"}

WORD = r"\b"  # where every pattern begins
# An old name as a pattern, and a line in which it is found. An old name that is also an English
# word, such as `said`, only counts where it must be the name of a column.
OLD = {
    r"\bp_said\b": 'heads["p_said"]',
    r"\bsaid_p\b": 'words["said_p"]',
    r"\bp_continued\b": "p_continued = {",
    r"\bcontinued_p\b": "pair.continued_p",
    r"\bways\.(csv|parquet)\b": "ways.csv",
    r"\broutes\.(csv|parquet)\b": "out / 'routes.parquet'",
    r"\bledger\.(csv|parquet)\b": "ledger.csv",
    r"\bframes\[.(ways|routes|ledger).\]": 'frames["ways"]',
    r"\bstud(y|ied)\.(ways|routes|ledger)\b": "study.ledger",
    r"\bprobe[./](model[./])?ledger\b": "probe.ledger.logit_lens",
    r"\bprobe\.paths\b": "probe.paths(weights)",
    r"\b(probe[./]|from \.)study[./](study|columns|evaluation|examples|circuit|word)\b": (
        "from probe.study.columns import"
    ),
    r"\b(probe[./]|from \.)explore[./](notebook|server|session|page|desk|templates)\b": (
        "probe/explore/templates"
    ),
    r"\bpages[./]walk[./](choose|scene|numbers|frames|walk)\b": "probe.pages.walk.scene",
    r"\bprobe[./](walkthrough|explorer)\b": "probe.walkthrough.walk",
    r"\bpatching[./](engine|live|swaps|ways|routes)\b": "probe.patching.live",
    r"\b(cue_ledger|ledger_bars|ledger_in_words|route_bars|route_table)\b": "charts.cue_ledger(",
    r"\b(share_heads|look_back)\b": "attention.share_heads",
}


def sources() -> list[Path]:
    """Every text of the project with names in it, without this file and the changelog."""
    paths = [ROOT / name for name in FILES]
    for tree in TREES:
        paths += [path for path in (ROOT / tree).rglob("*") if path.suffix in ENDINGS]
    return [path for path in paths if path not in (CHANGELOG, Path(__file__))]


TEXTS = {path: path.read_text(encoding="utf-8") for path in sources()}


@pytest.mark.parametrize(("pattern", "example"), OLD.items(), ids=OLD.values())
def test_an_old_name_is_recognized(pattern: str, example: str) -> None:
    assert re.search(pattern, example)


def test_old_names_occur_nowhere() -> None:
    # All patterns begin at a word, so that one pass over the texts looks for all of them.
    assert all(pattern.startswith(WORD) for pattern in OLD)
    old_name = re.compile(f"{WORD}(?:{'|'.join(pattern.removeprefix(WORD) for pattern in OLD)})")
    occurrences = []
    for path, text in TEXTS.items():
        for found in old_name.finditer(text):
            number = text.count("\n", 0, found.start()) + 1
            occurrences.append(f"{path.relative_to(ROOT)}:{number}: {found[0]}")
    assert occurrences == []


def test_the_search_reads_code_tests_chapters_templates_and_analyses() -> None:
    names = {str(path.relative_to(ROOT)) for path in TEXTS}
    assert {
        "probe/experiments/columns.toml",
        "probe/pages/templates/report/ambiguity.html.j2",
        "tests/conftest.py",
        "analyses/investigation.ipynb",
        "reports/docs/pages/methods.md",
    } <= names
    assert len(names) > 250
