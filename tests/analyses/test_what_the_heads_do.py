"""The analysis of what resolvers do elsewhere: its stored table supports what the gallery says."""

from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).parents[2]
STORED = ROOT / "reports" / "real" / "what_the_heads_do_elsewhere.csv"
KINDS = ["previous", "induction", "duplicate"]
LEVEL = 0.05


def test_no_resolver_is_a_head_with_a_general_name_and_in_smollm2_they_read_cues_of_all_words():
    table = pd.read_csv(STORED)
    assert table["model"].unique().tolist() == ["smollm2", "minilm", "gemma-3-270m"]
    resolvers = table[table["role"] == "resolver"].set_index("model")
    assert (resolvers[KINDS] < 0.5).all(axis=None)
    p = table[table["role"] == "p, corrected"].set_index("model")["cue_share"]
    assert p["smollm2"] < LEVEL <= min(p["minilm"], p["gemma-3-270m"])
    others = table[table["role"] == "others, median"].set_index("model")["cue_share"]
    medians = resolvers.groupby(level=0)["cue_share"].median()
    assert (medians > others.loc[medians.index]).all()
    # No other measure of any model is significant.
    corrected = table[table["role"] == "p, corrected"].set_index("model").drop(columns="cue_share")
    assert corrected.select_dtypes(float).min(axis=None) >= LEVEL


def test_the_correction_is_holms():
    table = pd.read_csv(STORED)
    raw, corrected = (
        table[table["role"] == role].drop(columns=["model", "role"]).to_numpy(float).ravel()
        for role in ("p", "p, corrected")
    )
    raw, corrected = raw[~np.isnan(raw)], corrected[~np.isnan(corrected)]
    for value, result in zip(raw, corrected, strict=True):
        expected = max(other * (len(raw) - np.sum(raw < other)) for other in raw if other <= value)
        assert np.isclose(result, min(expected, 1), rtol=1e-4)
