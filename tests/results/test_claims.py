"""The rules that limit what a report says."""

import numpy as np
import pandas as pd
import pytest
from example_study import make_study

from probe.claims import (
    credited_part,
    leading,
    mlps_more,
    named,
    names_of,
    peak,
    random_sets_like,
    ranked,
    reason_to_attend,
    smallest_set,
)

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


def test_a_smallest_set_names_every_head_if_sizes_grow_in_steps():
    shares = [0.0, 0.5, 0.95, 1.0]
    curves = pd.DataFrame(
        {"word": "bank", "size": [0, 1, 3, 6], "smallest": 3, "faithfulness": shares}
    )
    curves = curves.assign(faithfulness_low=shares, faithfulness_high=shares)
    curves = curves.assign(necessity=shares, necessity_low=shares, necessity_high=shares)
    curves["added"] = [None, "L0H0", "L0H1, L1H0", "L1H1, L2H0, L2H1"]
    assert smallest_set(curves).names == ("L0H0", "L0H1", "L1H0")


def test_without_a_set_that_keeps_enough_there_is_no_smallest_set():
    curves = make_study().frames["curves"].query("word == 'bank'")
    assert smallest_set(curves)["size"] == 2
    assert smallest_set(curves.assign(smallest=None)) is None
    assert smallest_set(curves[:0]) is None


def test_random_sets_have_the_size_of_a_set_or_the_next():
    sets = pd.DataFrame({"size": [1, 3, 3, 9], "faithfulness": [0.1, 0.4, 0.3, 0.9]})
    assert random_sets_like(sets, 2)["faithfulness"].tolist() == [0.4, 0.3]
    assert random_sets_like(sets, 3)["size"].tolist() == [3, 3]
    assert random_sets_like(sets, 10).empty


@pytest.mark.parametrize(
    ("faithfulness", "size"), [([0, 1.05, 1], None), ([0, 1.2, 1.3, 1], 2), ([], None)]
)
def test_a_peak_is_above_what_all_heads_keep(faithfulness, size):
    curves = pd.DataFrame({"size": range(len(faithfulness)), "faithfulness": faithfulness})
    found = peak(curves)
    assert (found if size is None else found["size"]) == size


BY_RANK = [
    # verdict, net, by rank. The first has the largest mean and a wide interval.
    ("none", 0.55),
    ("suggestive", 0.4),
    ("mover", 0.3),
    ("separates", 0.2),
    ("resolver", 0.1),
    ("unread", 0.09),
    ("resolver", 0.05),
    ("opposes", -0.1),
]
HEADS = pd.DataFrame(
    [
        {"layer": layer, "head": 0, "verdict": verdict, "net": net, "rank": layer + 1}
        for layer, (verdict, net) in enumerate(BY_RANK)
    ]
)


def test_movers_lead_then_other_verdicts_and_never_a_head_without_one():
    assert names_of(leading(HEADS)) == ["L2H0", "L4H0", "L6H0", "L1H0", "L5H0"]


def test_every_resolver_is_named_besides_the_top_heads():
    assert names_of(named(HEADS, 1)) == ["L2H0", "L4H0", "L6H0"]
    assert names_of(named(HEADS, 4)) == ["L2H0", "L4H0", "L6H0", "L1H0"]


def test_without_a_verdict_no_head_is_named():
    assert names_of(named(HEADS.assign(verdict="none"), 3)) == []


def test_an_mlp_does_more_by_the_rule_of_its_table():
    """In one pair of senses, and on average."""
    row = {
        "word": "bank",
        "more": 0.2,
        "comparison": "more",
        "sense_a": "river",
        "sense_b": "money",
    }
    unsure = {"layer": 1, "comparison": "undecided"}
    assert mlps_more(pd.DataFrame([row | {"layer": 0}, row | unsure])) == [0]
    reversed_ = row | {"layer": 0, "sense_b": "slope", "more": -0.3, "comparison": "undecided"}
    assert mlps_more(pd.DataFrame([row | {"layer": 0}, reversed_])) == []
