"""Every analysis runs as a script, opens as a notebook, uses public names only, and reproduces the
stored table."""

import ast
import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path

import altair
import jupytext
import nbformat
import numpy as np
import pandas as pd
import pytest
import timing
import torch
from kept import require_same
from nbclient import NotebookClient

import probe
from probe import charts
from probe.model import attention

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "analyses").glob("*.ipynb"))
SVG = "image/svg+xml"
SCRIPTS = sorted((ROOT / "analyses").glob("*.py"))
# Other tests run these: they need GPT-2 small or SmolLM2, or their times differ.
APART = (
    *("a_word_in_motion", "ioi", "speed", "why_it_attends"),
    *("cost_of_shortcuts", "which_shortcut_finds_the_heads"),
)
RUN_HERE = [script for script in SCRIPTS if script.stem not in APART]
# These three take a second or less together; the campaign runs all, each in a separate process.
SHORT = ("plain_self_attention", "what_the_mask_hides", "why_divide_by_sqrt_d")
PERMUTATIONS = {
    "adjectives_to_nouns": 2000,
    "ambiguity_in_general": 2000,
    "is_it_ambiguity": 1000,
    "which_source_words_choose_rive": 1000,
}
LARGEST_PICTURE, MOST_ROWS = 70_000, 60  # as Pillow compresses them, the largest takes 69 kB
MODULES = {
    *("probe", "probe.charts", "probe.model.attention", "probe.model.load", "probe.model.trace"),
    *("probe.model.parameters", "probe.patching.heads", "probe.patching.positions"),
    "probe.stats.resampling",
}
PUBLIC = {
    "probe": {*probe.__all__, "charts"},
    "charts": set(charts.__all__),
    "timing": set(timing.__all__),
    "attention": {name for name in vars(attention) if not name.startswith("_")},
}


@pytest.fixture(scope="module")
def load_once():
    """`probe.load` with one model per name for all scripts: a script that changed it would spoil
    the next table."""
    return cache(probe.load)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder in which a script runs, with the embedded model, and writes to `out`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBE_MODEL", "tiny-senses")
    monkeypatch.setenv("PROBE_OUT", str(tmp_path / "out"))
    return tmp_path


def require_stored_results(script, folder):
    """The folder in which a script ran contains only `out`, with the stored pictures and the stored
    table."""
    out = folder / "out"
    assert {path.name for path in folder.iterdir()} == {"out"}
    pictures = sorted(out.glob("*.png"))
    assert pictures
    for picture in pictures:
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert list((ROOT / "reports").rglob(picture.name)), (
            f"{picture.name} is not stored: run make gallery"
        )
    (reference,) = (ROOT / "reports").rglob(f"{script.stem}.csv")
    require_same(out / f"{script.stem}.csv", reference, permutations=PERMUTATIONS.get(script.stem))


@pytest.mark.real_model
@pytest.mark.parametrize(
    "script", [s for s in RUN_HERE if s.stem in SHORT], ids=lambda script: script.stem
)
def test_it_runs_and_reproduces_the_stored_table(script, folder, load_once, monkeypatch):
    monkeypatch.setattr(probe, "load", load_once)
    with torch.random.fork_rng(), altair.renderers.enable("default"):
        runpy.run_path(str(script), run_name="__main__")
    require_stored_results(script, folder)


@pytest.mark.campaign
@pytest.mark.parametrize("script", RUN_HERE, ids=lambda script: script.stem)
def test_it_runs_as_a_script_in_a_separate_process(script, folder):
    process = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    require_stored_results(script, folder)


@pytest.mark.parametrize(
    "changed",
    [
        {"share": [0.5, 0.2502]},
        {"share": [0.5, None]},
        {"head": ["L0H1", "L0H3"]},
        {"verdict": ["resolver", "resolver"]},
        {"rank": [2.0, 1.0]},
        {"tokens": [100_000, 100_001]},
        {"p_swap": [0.01, 0.344]},
        {"another": 1.0},
    ],
)
def test_a_changed_table_is_refused(changed, tmp_path):
    frame = pd.DataFrame({"head": ["L0H1", "L0H2"], "share": [0.5, 0.25], "p_swap": [0.01, 0.34]})
    frame = frame.assign(verdict=["resolver", "none"], rank=[1.0, 2.0], tokens=[100_000, 100_000])
    frame.to_csv(tmp_path / "stored.csv", index=False)
    frame.assign(share=[0.5, 0.25004], p_swap=[0.01, 0.338]).to_csv(
        tmp_path / "same.csv", index=False
    )
    frame.assign(**changed).to_csv(tmp_path / "new.csv", index=False)
    require_same(tmp_path / "same.csv", tmp_path / "stored.csv", permutations=1000)
    with pytest.raises(AssertionError):
        require_same(tmp_path / "new.csv", tmp_path / "stored.csv", permutations=1000)


def test_p_values_are_compared_in_steps_of_their_permutations(tmp_path):
    for name, p in (("stored", 0.34), ("new", 0.341)):
        pd.DataFrame({"p": [p, 1.0]}).to_csv(tmp_path / f"{name}.csv", index=False)
    require_same(tmp_path / "new.csv", tmp_path / "stored.csv", permutations=1000)
    for permutations in (9999, None):
        with pytest.raises(AssertionError):
            require_same(tmp_path / "new.csv", tmp_path / "stored.csv", permutations=permutations)


def test_the_gradient_of_the_softmax_is_the_largest_eigenvalue_of_its_jacobian():
    """Shares that are even, tied, masked and saturated, for which a general solver in float32 may
    not converge."""
    tree = ast.parse((ROOT / "analyses" / "why_divide_by_sqrt_d.py").read_text(encoding="utf-8"))
    namespace: dict[str, object] = {"torch": torch}
    (gradient,) = (
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "gradient"
    )
    exec(ast.unparse(gradient), namespace)  # noqa: S102 - a cell of the script
    draw = torch.Generator().manual_seed(0)
    sizes = torch.logspace(-1, 4, 60, dtype=torch.float64)[:, None, None]
    scores = sizes * torch.randn(60, 20, 9, generator=draw, dtype=torch.float64)
    scores[:, 5:10, 4:] = -torch.inf
    scores[:, 10:15, 1] = scores[:, 10:15, 0] = 3 * sizes[:, 0]
    scores[:, 15] = 0
    shares = scores.softmax(-1)
    jacobians = torch.diag_embed(shares) - shares.unsqueeze(-1) * shares.unsqueeze(-2)
    expected = np.linalg.eigvalsh(jacobians.numpy())[..., -1]
    np.testing.assert_allclose(namespace["gradient"](shares), expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(namespace["gradient"](shares.float()), expected, rtol=0, atol=1e-6)


STORED = sorted((ROOT / "reports" / "lessons").glob("*.[pc][ns][gv]"))


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.name)
def test_stored_results_are_small_and_a_script_writes_each(path):
    assert path.stem in {script.stem for script in SCRIPTS}
    if path.suffix == ".png":
        assert path.stat().st_size <= LARGEST_PICTURE
    else:
        assert 1 <= len(pd.read_csv(path)) <= MOST_ROWS


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_it_opens_as_a_notebook(script):
    notebook = jupytext.read(script)
    kinds = [cell.cell_type for cell in notebook.cells]
    assert kinds[0] == "markdown" and kinds.count("code") >= 3
    first = notebook.cells[0].source.splitlines()
    assert first[0].startswith("# ") and first[0].endswith("?")
    assert first[-1].startswith("Shown: ") and first[-1].endswith(".")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_its_first_cell_lists_what_it_needs(script):
    """The packages next to it in a clone, the model, and the folder that it writes to, as in its
    code."""
    text = script.read_text(encoding="utf-8")
    first = jupytext.read(script).cells[0].source.replace("\n", " ")
    assert first.count("Needs: ") == 1
    needs = first.partition("Needs: ")[2].partition("Shown: ")[0]
    beside = imported(ast.parse(text)) & BESIDE
    for name in BESIDE:
        assert (f"`{name}`" in needs) == (name in beside)
    from_the_clone = bool(beside) or 'files("probe")' in text or "__file__" in text
    assert ("a clone of the repository" in needs) == from_the_clone
    for variable in re.findall(r'environ\.get\("(PROBE_\w+)"', text):
        assert f"`{variable}`" in needs
    folder = re.search(r'"PROBE_OUT", "([^"]+)"', text)
    assert f"`{folder[1]}` below the current folder" in needs


BESIDE = {path.parent.name for path in (ROOT / "analyses").glob("*/__init__.py")}


def imported(tree: ast.AST) -> set[str]:
    """The imported packages, by their first name."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_outside_its_folder(path):
    """It can be opened anywhere: it imports nothing from its folder."""
    code = [cell.source for cell in jupytext.read(path).cells if cell.cell_type == "code"]
    packages = imported(ast.parse("\n".join(code)))
    assert "probe" in packages and not packages & BESIDE


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_it_uses_only_public_names(script):
    tree = ast.parse(script.read_text(encoding="utf-8"))
    assert foreign_names(tree) == set()


def test_a_private_name_is_noticed():
    lines = (
        "import probe.model.replay",
        "from probe.model.tokens import locate",
        "from probe import models",
    )
    code = "\n".join([*lines, "probe.__file__", "charts.palette"])
    private_names = {
        "probe.model.replay",
        "probe.model.tokens",
        "probe.models",
        "probe.__file__",
        "charts.palette",
    }
    assert foreign_names(ast.parse(code)) == private_names


def foreign_names(tree: ast.AST) -> set[str]:
    """Modules of probe that are imported, and names from it, that are not public."""
    modules, names = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {name.name for name in node.names}
        if isinstance(node, ast.ImportFrom) and node.module == "probe":
            names |= {("probe", name.name) for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            wholes = {f"{node.module}.{name.name}" for name in node.names}
            modules |= {whole if whole in MODULES else node.module for whole in wholes}
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in PUBLIC:
            names.add((ast.unparse(node.value), node.attr))
    ours = {module for module in modules if module.split(".")[0] == "probe"}
    foreign = {f"{home}.{name}" for home, name in names if name not in PUBLIC[home]}
    return foreign | ours - MODULES


def test_every_analysis_and_notebook_exists():
    assert len(RUN_HERE) > 5 and [path.stem for path in NOTEBOOKS] == [
        "a_real_model",
        "investigation",
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_equals_its_script_and_was_run_from_top_to_bottom(path):
    notebook = nbformat.read(path, as_version=4)
    script = jupytext.read(path.with_suffix(".py"))
    cells, expected = (
        [(cell.cell_type, cell.source) for cell in book.cells] for book in (notebook, script)
    )
    assert cells == expected, f"run make {path.relative_to(ROOT)}"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    assert not re.search(r"/(home|root|tmp|work|Users)/", path.read_text(encoding="utf-8"))
    nbformat.validate(notebook)


def executed(path, folder, monkeypatch):
    """The notebook after a run in this folder."""
    monkeypatch.setenv("PROBE_MODEL", "tiny-senses")
    monkeypatch.setenv("PROBE_OUT", str(folder / "out"))
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}
    ).execute()
    return notebook


def kinds_of_outputs(notebook):
    """For each cell of code, what its outputs are: streams, or the forms in which a value is shown."""
    return [
        [(output.output_type, sorted(output.get("data", {}))) for output in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.campaign  # like the next test; the kinds of outputs change only with the cells
def test_the_outputs_in_a_notebook_are_those_of_a_run(tmp_path, monkeypatch):
    path = ROOT / "analyses" / "a_real_model.ipynb"  # which reads tables, so it is the faster one
    (tmp_path / "out").mkdir()
    run = executed(path, tmp_path, monkeypatch)
    assert kinds_of_outputs(run) == kinds_of_outputs(nbformat.read(path, as_version=4))


@pytest.mark.campaign  # its cells are the cells of the script, which every run runs
@pytest.mark.parametrize(
    "path", [ROOT / "analyses" / "investigation.ipynb"], ids=lambda path: path.stem
)
def test_it_runs_and_shows_charts_and_tables(path, tmp_path, monkeypatch):
    notebook = executed(path, tmp_path, monkeypatch)
    assert kinds_of_outputs(notebook) == kinds_of_outputs(nbformat.read(path, as_version=4))
    outputs = [
        output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    ]
    printed = [output.text for output in outputs if output.output_type == "stream"]
    assert [
        text for text in printed if "TqdmWarning" not in text
    ] == []  # a library's message, if no widgets are installed
    displays = [output.data for output in outputs if "data" in output]
    charts = [data[SVG] for data in displays if SVG in data]
    assert len(charts) == notebook_calls(path, "charts.") and all(
        chart.count("<path") > 10 for chart in charts
    )
    assert not [data for data in displays if "http" in data.get("text/html", "")]
    tables = [data["text/html"] for data in displays if "<table" in data.get("text/html", "")]
    assert any("<b>Trace</b>" in table for table in tables) and any(
        "<b>Study</b>" in table for table in tables
    )
    assert sum('class="dataframe"' in table for table in tables) >= 4
    assert {file.suffix for file in (tmp_path / "out").iterdir()} == {".csv", ".png"}


def notebook_calls(path, name):
    """The number of cells that end with a chart or with a saved picture."""
    last = [
        cell.source.splitlines()[-1]
        for cell in jupytext.read(path).cells
        if cell.cell_type == "code"
    ]
    return sum(line.startswith(name) or line == "picture" for line in last)
