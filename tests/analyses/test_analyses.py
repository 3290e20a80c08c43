"""Every analysis runs and reproduces its stored table, uses public names only, and appears in the
gallery; the notebooks are their scripts."""

import ast
import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import altair
import drawing
import jupytext
import nbformat
import numpy as np
import pandas as pd
import pytest
import timing
import torch
from inside import (
    TargetText,
    attention,
    loading,
    parameters,
    positions,
    read_weights,
    resampling,
    swap_pairs,
    tracing,
)
from inside import patched_heads as heads
from nbclient import NotebookClient
from packaged import need_smollm2

import probe
from probe import charts

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "reports"
SCRIPTS = sorted((ROOT / "analyses").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "analyses").glob("*.ipynb"))
OF_SMOLLM2 = ("a_word_in_motion", "why_it_attends")
# Other tests run these, or none: they need GPT-2 small or several models, or their times differ.
APART = (
    *("ioi", "speed", "cost_of_shortcuts", "which_shortcut_finds_the_heads"),
    *("what_the_heads_do_elsewhere", "is_it_the_seed"),
)
# A second or less together; the campaign runs all.
SHORT = ("plain_self_attention", "what_the_mask_hides", "why_divide_by_sqrt_d")
PERMUTATIONS = {
    "adjectives_to_nouns": 2000,
    "ambiguity_in_general": 2000,
    "is_it_ambiguity": 1000,
    "which_source_words_choose_rive": 1000,
    "why_it_attends": 1000,
}
# A stored table, recomputed, maybe on another processor.
CLOSE = 1e-4
NOISE = 1e-6  # float32: smaller numbers count as zero
STEPS = 3
LARGEST_PICTURE, MOST_ROWS = 70_000, 60  # as Pillow compresses them, the largest takes 69 kB

spec = importlib.util.spec_from_file_location("gallery", REPORTS / "gallery.py")
gallery = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gallery)


def require_same(recomputed: Path, reference: Path, *, permutations: int | None = None) -> None:
    """Require the same columns, texts, verdicts, whole numbers and ranks, and other numbers within
    CLOSE of their column's largest.

    p values, `p` and `p_...`, may differ by STEPS / (permutations + 1): few draws nearly reach the
    observed statistic. Raises AssertionError with the column and its rows.
    """
    table, expected = pd.read_csv(recomputed), pd.read_csv(reference)
    assert list(table.columns) == list(expected.columns) and len(table) == len(expected)
    for name in expected:
        off = _different(table[name], expected[name], permutations)
        assert not off.any(), (
            f"{name} differs:\n{pd.DataFrame({'recomputed': table[name], 'reference': expected[name]})[off]}"
        )


def _different(recomputed: pd.Series, reference: pd.Series, permutations: int | None) -> pd.Series:
    name, missing = str(reference.name), recomputed.isna() & reference.isna()
    if not (recomputed.dtype == reference.dtype == np.float64) or name.split("_")[0] == "rank":
        return (recomputed != reference) & ~missing
    if name.split("_")[0] == "p":
        assert permutations is not None, f"{name}: of how many permutations?"
        allowed = STEPS / (permutations + 1) + NOISE  # tables are written with six digits
    else:
        allowed = CLOSE * reference.abs().max() + NOISE
    return ~((recomputed - reference).abs() <= allowed) & ~missing


# --- scripts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(path, marks=() if path.stem in SHORT else pytest.mark.campaign, id=path.stem)
        for path in SCRIPTS
        if path.stem not in APART
    ],
)
def test_a_script_runs_and_reproduces_its_stored_table(script, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBE_MODEL", "tiny-senses")
    monkeypatch.setenv("PROBE_OUT", str(tmp_path / "out"))
    if script.stem in OF_SMOLLM2:
        need_smollm2()
        monkeypatch.setenv("PROBE_MODEL", "smollm2")
    if script.stem in SHORT:
        # One model for all: a script that changed it would spoil the next table.
        monkeypatch.setattr(probe, "load", lambda name: tiny)
        with torch.random.fork_rng(), altair.renderers.enable("default"):
            runpy.run_path(str(script), run_name="__main__")
    else:
        subprocess.run([sys.executable, script], check=True, capture_output=True)
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    pictures = [path for path in (tmp_path / "out").iterdir() if path.suffix in (".png", ".svg")]
    assert pictures and all(list(REPORTS.rglob(picture.name)) for picture in pictures)
    reference = REPORTS / gallery.read(script).table
    permutations = PERMUTATIONS.get(script.stem)
    require_same(tmp_path / "out" / reference.name, reference, permutations=permutations)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_opens_as_a_notebook_and_uses_public_names_only(path):
    cells = jupytext.read(path).cells
    assert cells[0].cell_type == "markdown" and len(cells) > 3
    first = cells[0].source.splitlines()
    assert first[0].startswith("# ") and first[0].endswith("?")
    assert "Needs: " in cells[0].source and first[-1].startswith("Shown: ")
    assert foreign_names(ast.parse(path.read_text(encoding="utf-8"))) == set()


MODULES = {
    module.__name__
    for module in (probe, charts, attention, loading, tracing, parameters, heads, positions)
} | {resampling.__name__}
PUBLIC = {
    "probe": {*probe.__all__, "charts"},
    "charts": set(charts.__all__),
    "timing": {name for name in vars(timing) if not name.startswith("_")},
    "attention": {name for name in vars(attention) if not name.startswith("_")},
}


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


def test_a_private_name_is_noticed():
    code = "import probe.model.replay\nfrom probe.model.tokens import locate\nprobe.__file__"
    names = {"probe.model.replay", "probe.model.tokens", "probe.__file__"}
    assert foreign_names(ast.parse(code)) == names


@pytest.mark.campaign
def test_the_quick_benchmark_compares_each_work(tmp_path):
    command = [sys.executable, str(ROOT / "analyses" / "speed.py"), "--quick"]
    environment = os.environ | {"PROBE_OUT": str(tmp_path)}
    subprocess.run(command, check=True, capture_output=True, env=environment, cwd=tmp_path)
    costs = pd.read_csv(tmp_path / "speed.csv")
    assert len(costs) == 3 and (costs["ratio_low"] > 0).all()
    assert costs.set_index("against").loc["these swaps", "ratio"] > 1


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
    stored, same, new = (tmp_path / f"{name}.csv" for name in ("stored", "same", "new"))
    frame.to_csv(stored, index=False)
    frame.assign(share=[0.5, 0.25004], p_swap=[0.01, 0.338]).to_csv(same, index=False)
    frame.assign(**changed).to_csv(new, index=False)
    require_same(same, stored, permutations=1000)
    for permutations in (9999, None):  # p may differ by steps of the permutations
        with pytest.raises(AssertionError):
            require_same(same, stored, permutations=permutations)
    with pytest.raises(AssertionError):
        require_same(new, stored, permutations=1000)


# --- the gallery ----------------------------------------------------------------------------------


def test_the_gallery_shows_every_picture_and_is_generated_from_the_scripts():
    text = gallery.README.read_text(encoding="utf-8")
    assert gallery.with_gallery(text) == text, "run python reports/gallery.py --readme"
    pictures = {
        str(path.relative_to(REPORTS))
        for path in REPORTS.rglob("*")
        if path.suffix in (".png", ".svg") and REPORTS / "site" not in path.parents
    }
    assert set(re.findall(r'<img src="([^"]+)"', text)) == pictures
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) >= 2 * len(gallery.analyses())
    assert [link for link in links if not (REPORTS / link).exists()] == []
    for path in (REPORTS / "lessons").glob("*.[pc][ns][gv]"):
        assert path.stem in {script.stem for script in SCRIPTS}
        small = path.suffix == ".png" and path.stat().st_size <= LARGEST_PICTURE
        assert small or 1 <= len(pd.read_csv(path)) <= MOST_ROWS, path.name


def test_a_script_without_a_claim_is_refused(tmp_path):
    (tmp_path / "silent.py").write_text("# %% [markdown]\n# # Why?\n#\n# Because.\n\n# %%\n")
    expected = "^reading silent.py: expected a question and one line `Shown: `"
    with pytest.raises(ValueError, match=expected):
        gallery.read(tmp_path / "silent.py")


@pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="not a git checkout"
)
def test_git_tracks_pictures_and_small_tables_but_no_pages():
    outputs = ["ambiguity.html", "heads.csv", "walk/walk.html", "lessons/investigation.parquet"]
    tracked = ["lessons/x.png", "lessons/x.csv", "head_map.png", "gallery.py"]
    command = ["git", "check-ignore", "--no-index", *outputs, *tracked]
    result = subprocess.run(command, cwd=REPORTS, capture_output=True, text=True, check=False)
    assert result.stdout.split() == outputs


def test_the_animation_is_drawn_from_its_table_without_a_script_and_stands_still_on_request():
    picture = REPORTS / "real" / "a_word_in_motion.svg"
    script = (ROOT / "analyses" / "a_word_in_motion.py").read_text(encoding="utf-8")
    text = picture.read_text(encoding="utf-8")
    constants = dict(re.findall(r'^([A-Z]+) = "(.+)"$', script, re.MULTILINE))
    texts = [constants[name] for name in ("NOTE", "CONTINUED") if name in constants]
    assert text == drawing.word_in_motion(pd.read_csv(picture.with_suffix(".csv")), *texts)
    elements = [*ElementTree.fromstring(text).iter()]
    names = {element.tag.rpartition("}")[2] for element in elements}
    assert (
        not names & {"script", "foreignObject", "image", "use", "a"} and {"title", "desc"} <= names
    )
    assert not any(name.startswith("on") for element in elements for name in element.attrib)
    assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"]
    still, _, moving = text.partition("@media (prefers-reduced-motion: no-preference)")
    assert "animation:" not in still and "animation:" in moving and "url(" not in text


# --- notebooks ------------------------------------------------------------------------------------


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


def kinds_of_outputs(notebook):
    """For each cell of code, what its outputs are: streams, or the forms in which a value is shown."""
    return [
        [(output.output_type, sorted(output.get("data", {}))) for output in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.campaign  # its cells are those of the script; the kinds of outputs change with them
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_outputs_in_a_notebook_are_those_of_a_run(path, tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    monkeypatch.setenv("PROBE_MODEL", "tiny-senses")
    monkeypatch.setenv("PROBE_OUT", str(tmp_path / "out"))
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": tmp_path}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    assert kinds_of_outputs(notebook) == kinds_of_outputs(nbformat.read(path, as_version=4))
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    displays = [output.data for cell in code for output in cell.outputs if "data" in output]
    assert not [data for data in displays if "http" in data.get("text/html", "")]


# --- what the benchmark computes ------------------------------------------------------------------


def test_the_arithmetic_of_the_benchmark_by_hand():
    called = []
    works = {name: lambda name=name: called.append(name) for name in "ab"}
    timings = timing.interleave(works, runs=3)
    assert called == ["a", "b"] * 4 and (timings["seconds"] > 0).all()  # in turn, after a warm-up
    assert timings["run"].tolist() == [0, 0, 1, 1, 2, 2]
    timings = timings.assign(seconds=[2.0, 1, 9, 3, 8, 2])
    comparison = timing.compare(timings, "a", "b", times=10)
    ratios = [comparison[name] for name in ("ratio", "ratio_low", "ratio_high")]
    assert ratios == pytest.approx([0.3, 0.2, 0.4])  # the median of the ratios of the turns
    assert (comparison["seconds"], comparison["against_seconds"]) == (8, 20)


def test_the_loops_that_are_timed_compute_what_the_library_computes():
    """The swap of each head by hooks, in both directions, and attribution by autograd."""
    model = timing.shaped("tiny")
    weights = read_weights(model)
    layers, _, d_model, _ = weights.shape
    a, b = pairs = timing.aligned_pairs(model, 3, 9)
    for first, second in zip(a, b, strict=True):
        assert [pos for pos in range(9) if first[pos] != second[pos]] == [3]
    generator = torch.Generator().manual_seed(1)
    direction = torch.nn.functional.normalize(torch.randn(d_model, generator=generator), dim=0)
    heads = [(0, 0), (1, 3), (3, 2)]
    looped = timing.loop_over_heads(model, pairs, direction, heads)
    targets = [[TargetText(tuple(row), 8) for row in rows] for rows in pairs]
    effects = swap_pairs(model, *targets, direction[None], depth=layers)[..., 0]
    exact = torch.stack([effects[:, :, layer, head] for layer, head in heads], -1)
    torch.testing.assert_close(looped, exact, rtol=0, atol=1e-5)
    assert looped.abs().max() > 1e-3
    estimated = timing.both_ways_by_gradients(model, pairs, direction, steps=20)
    assert (estimated - effects).abs().max() < 0.05 * effects.abs().max()
