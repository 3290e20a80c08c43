"""The rules that limit what a report says."""

import numpy as np
import pandas as pd
import pytest

from probe.claims import credited_part, ranked, reason_to_attend

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


@pytest.mark.parametrize(
    ("part", "cue_only", "other_only"),
    [
        ("cue_only", [0.3, 0.1], [0.3, 0.1]),
        ("other_only", [0.2, 0.1], [0.3, 0.1]),
        (None, [0.2, 0.5], [0.2, 0.5]),  # the second head does not move the word
        (None, [np.nan, 0.5], [np.nan, 0.5]),  # it is not known for the first head
    ],
)
def test_words_are_credited_with_at_least_half_of_the_effect_of_a_mover(part, cue_only, other_only):
    movers = pd.DataFrame({"layer": [1], "head": [2], "swap": [0.6]})
    parts = pd.DataFrame(
        {"layer": 1, "head": [2, 3], "cue_only": cue_only, "other_only": other_only}
    )
    assert credited_part(parts, movers) == part
