"""The analysis that holds three words against nouns of one meaning: its table is whole, and says
what the rules of the verdicts allow."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "analyses" / "is_it_ambiguity.py"
KEPT = ROOT / "reports" / "is_it_ambiguity.csv"
WORDS = ["bank", "mole", "apple"]
VERDICTS_OF_NOUNS = "context position-explained confounded opposes backup erased unread suggestive"


def require_whole(table):
    """Of every word and noun that was studied its leading heads and its MLPs, with the comparison;
    and no resolver of a noun that did not pass the gate."""
    assert list(table["word"].drop_duplicates()) == WORDS
    of_words = table[table["studied"] == table["word"]]
    assert (of_words["ambiguity_p"] <= 0.05).all()
    assert "resolver" in set(of_words["verdict"])
    nouns = table[table["studied"] != table["word"]]
    assert nouns.groupby("word")["studied"].nunique().min() >= 1
    failed = nouns[~(nouns["ambiguity_p"] <= 0.05)]
    others = {*VERDICTS_OF_NOUNS.split(), "separates", "none"}
    assert set(failed["verdict"].dropna()) <= others
    is_head = table["part"].str.fullmatch(r"L\d+H\d+")
    assert (is_head | table["part"].str.fullmatch(r"MLP \d+")).all()
    assert table.loc[is_head, "verdict"].notna().all()
    assert table.loc[~is_head, "verdict"].isna().all()
    compared = table.dropna(subset=["specific"])
    assert compared["specific"].between(compared["specific_low"], compared["specific_high"]).all()
    assert compared["comparison"].isin(["more", "less", "same", "undecided"]).all()


def test_the_kept_table_is_whole():
    require_whole(pd.read_csv(KEPT))


@pytest.mark.campaign
@pytest.mark.real_model
def test_it_runs_with_the_embedded_model(tmp_path):
    chosen = {"PROBE_MODEL": "tiny-senses", "PROBE_NOUNS": "1", "PROBE_OUT": str(tmp_path)}
    environment = os.environ | chosen | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "is_it_ambiguity.png").read_bytes().startswith(b"\x89PNG")
    require_whole(pd.read_csv(tmp_path / "is_it_ambiguity.csv"))
