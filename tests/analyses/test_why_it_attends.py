"""The analysis of why heads attend, on SmolLM2: its table equals the stored one, which supports
what reports/README.md says."""

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


def test_in_the_stored_table_mlp_0_matches_the_cue_at_nouns():
    """The same pair leads for every head; a noun's part costs less than another token's; nouns in
    the word's place keep the pair's share. reports/README.md says so for "bank"."""
    table = pd.read_csv(STORED)
    scores = table[table["measured"] == "score"]
    leading = scores.groupby(["word", "head"]).head(1)
    assert len(leading) == 9
    assert set(leading["part_query"]) == set(leading["part_key"]) == {"MLP 0"}
    assert (leading[["lost_query", "lost_key"]] > 0).all(axis=None)
    assert (leading["lost_nouns"] < leading["lost_query"]).all()
    assert (leading["noun_share"] > leading["share"]).all()
    of_bank = leading[leading["word"] == "bank"]
    assert (of_bank[["p_query", "p_key"]] < LEVEL).all(axis=None)
    row = next(
        line
        for line in (ROOT / "reports" / "README.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| Why do they attend")
    )
    for column in ("share", "noun_share", "lost_query", "lost_nouns", "cue_first"):
        assert all(f"{100 * value:.0f}" in row for value in of_bank[column])
    for low, high in zip(of_bank["low"], of_bank["high"], strict=True):
        assert f"[{100 * low:.0f}, {100 * high:.0f}]" in row


def test_in_minilm_a_noun_costs_almost_as_much_as_another_token():
    table = pd.read_csv(STORED.parent / "minilm" / STORED.name)
    row = table[(table["measured"] == "score") & (table["head"] == "L0H10")].iloc[0]
    assert row["word"] == "bank"
    assert row["part_query"] == row["part_key"] == "token embedding"
    assert f"{row['lost_nouns']:.2f}" == "0.89" and row["p_nouns"] < LEVEL
    assert row["noun_contrast"] < 0.2 * row["contrast"]


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
