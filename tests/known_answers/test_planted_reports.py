"""The command line on models built by hand: a report of each is written to its end.

In `by_query` all parts of a planted head's score are exactly 0 at some tokens.
"""

import csv

import numpy as np
import pytest
from handmade import WORD, make_handmade, make_sentences
from inside import app
from planted import PATH_KINDS
from seeds import campaign_except
from typer.testing import CliRunner

COLUMNS = ("word", "sense", "text", "start", "end", "frame", "pair", "cue_start", "cue_end")


@pytest.mark.parametrize("kind", campaign_except(tuple(PATH_KINDS), ("by_query",)))
def test_a_planted_model_has_a_report(kind, tmp_path):
    planted = PATH_KINDS[kind](np.random.default_rng([0, *map(ord, kind)]))
    folder = make_handmade(tmp_path / "model", planted.heads, units=planted.units)
    sentences = make_sentences(frames=4, distances=(planted.distance,), cues=12)
    with (tmp_path / "lock.csv").open("w", newline="") as opened:
        rows = csv.writer(opened)
        rows.writerow(COLUMNS)
        rows.writerows([getattr(sentence, name) for name in COLUMNS] for sentence in sentences)
    given = ["--model", str(folder), "--sentences", str(tmp_path / "lock.csv")]
    given += ["--out", str(tmp_path / "out"), "--permutations", "99", "--only", "heads,qk"]
    result = CliRunner().invoke(app, ["report", WORD, *given])
    assert result.exit_code == 0, result.exception
    page = (tmp_path / "out" / "ambiguity.html").read_text(encoding="utf-8")
    last = max(head for head, *_ in {edge[2:3] for edge in planted.edges})
    assert f"L{last[0]}H{last[1]}" in page
