"""The analysis of why heads attend, on SmolLM2: its table equals the stored one, and both
replacements support its reasons."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from kept import require_same
from packaged import need_smollm2

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "analyses" / "why_it_attends.py"
STORED = ROOT / "reports" / "real" / "why_it_attends.csv"
LEVEL = 0.05


def test_in_the_stored_table_both_replacements_support_the_leading_pair_of_every_head():
    table = pd.read_csv(STORED)
    scores = table[table["measured"] == "score"]
    leading = scores.groupby(["word", "head"]).head(1)
    assert len(leading) == 9
    assert set(leading["part_query"]) == set(leading["part_key"]) == {"MLP 0"}
    assert (leading[["p_query", "p_key"]] < LEVEL).all(axis=None)
    assert (leading[["lost_query", "lost_key"]] > 0).all(axis=None)


@pytest.mark.campaign
@pytest.mark.real_model
def test_it_reproduces_the_stored_table(tmp_path):
    need_smollm2()
    environment = {name: value for name, value in os.environ.items() if name != "PROBE_MODEL"}
    environment["PROBE_OUT"] = str(tmp_path)
    process = subprocess.run(
        [sys.executable, str(SCRIPT)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert process.returncode == 0, process.stderr
    require_same(tmp_path / STORED.name, STORED, permutations=1000)
    assert (tmp_path / "why_it_attends.png").read_bytes().startswith(b"\x89PNG")
