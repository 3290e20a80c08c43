"""Every analysis runs as a script, opens as a notebook, and uses only the public names of probe."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import jupytext
import pytest

import probe

SCRIPTS = sorted((Path(__file__).parent.parent / "analyses").glob("*.py"))


def test_there_are_analyses():
    assert SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_it_runs_as_a_script_and_writes_its_page(script, tmp_path):
    environment = os.environ | {"PROBE_MODEL": "tiny-senses", "PROBE_OUT": str(tmp_path / "out")}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "out").glob("*.html"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_it_opens_as_a_notebook(script):
    notebook = jupytext.read(script)
    kinds = [cell.cell_type for cell in notebook.cells]
    assert kinds[0] == "markdown" and kinds.count("code") >= 3
    assert notebook.cells[0].source.startswith("# ") and notebook.cells[0].source.splitlines()[0].endswith("?")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_it_uses_only_public_names(script):
    public = {"probe", "probe.charts"}
    tree = ast.parse(script.read_text(encoding="utf-8"))
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {name.name for node in imported if isinstance(node, ast.Import) for name in node.names}
    modules |= {node.module for node in imported if isinstance(node, ast.ImportFrom)}
    assert {module for module in modules if module and module.split(".")[0] == "probe"} <= public
    used = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "probe"}
    assert used <= set(probe.__all__)
