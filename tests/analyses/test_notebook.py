"""The notebook is its script, holds no outputs, runs from the first cell to the last, and shows its charts and
tables.
"""

from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.real_model

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "analyses").glob("*.ipynb"))
SVG = "image/svg+xml"


def test_there_is_a_notebook():
    assert [path.stem for path in NOTEBOOKS] == ["a_real_model", "investigation"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_what_its_script_makes_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    script = jupytext.read(path.with_suffix(".py"))
    cells, expected = ([(cell.cell_type, cell.source) for cell in book.cells] for book in (notebook, script))
    assert cells == expected, f"run make {path.relative_to(ROOT)}"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    nbformat.validate(notebook)


@pytest.mark.campaign  # its cells are the script's, which every run runs
@pytest.mark.parametrize("path", [ROOT / "analyses" / "investigation.ipynb"], ids=lambda path: path.stem)
def test_it_runs_and_shows_charts_and_tables(path, tmp_path, monkeypatch):
    monkeypatch.setenv("PROBE_MODEL", "tiny-senses")
    monkeypatch.setenv("PROBE_OUT", str(tmp_path / "out"))
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    printed = [output.text for output in outputs if output.output_type == "stream"]
    assert [text for text in printed if "TqdmWarning" not in text] == []  # a library's, where no widgets are installed
    shown = [output.data for output in outputs if "data" in output]
    charts = [data[SVG] for data in shown if SVG in data]
    assert len(charts) == notebook_calls(path, "charts.") and all(chart.count("<path") > 10 for chart in charts)
    assert not [data for data in shown if "http" in data.get("text/html", "")]
    tables = [data["text/html"] for data in shown if "<table" in data.get("text/html", "")]
    assert any("<b>Trace</b>" in table for table in tables) and any("<b>Study</b>" in table for table in tables)
    assert sum('class="dataframe"' in table for table in tables) >= 4
    assert {file.suffix for file in (tmp_path / "out").iterdir()} == {".csv", ".png", ".jsonl"}


def notebook_calls(path, name):
    """How many cells end with a chart or with the picture that they saved."""
    last = [cell.source.splitlines()[-1] for cell in jupytext.read(path).cells if cell.cell_type == "code"]
    return sum(line.startswith(name) or line == "picture" for line in last)
