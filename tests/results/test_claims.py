"""The rules that limit what a report says."""

import numpy as np
import pandas as pd
import pytest

from probe.claims import ranked, reason_to_attend

WHY = {"p_contrast": 0.001, "p_query": 0.01, "p_key": 0.01}
WHY |= {"part_query": "L0H1", "part_key": "MLP 0"}


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("pair", {}),
        ("both", {"part_query": "MLP 0"}),
        ("cue", {"part_query": "query bias", "p_query": np.nan}),
        ("none", {"p_contrast": 0.05}),
        ("apart", {"p_query": 0.05}),
        ("apart", {"p_query": np.nan}),
        ("apart", {"p_key": 0.05}),
        ("apart", {"p_key": np.nan}),
    ],
)
def test_a_reason_needs_the_agreement_of_attribution_and_replacements(reason, change):
    assert reason_to_attend(pd.Series(WHY | change)) == reason


def test_only_rows_of_senses_with_a_significant_gap_are_ranked():
    words = pd.DataFrame({"word": "mole", "sense_a": "animal", "sense_b": ["spy", "unit"]})
    rows = words.assign(share=[0.1, 0.2])
    kept = ranked(rows, words.assign(ranked=[False, True]))
    assert kept["share"].tolist() == [0.2]
