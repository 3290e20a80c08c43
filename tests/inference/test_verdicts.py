"""The rules of the verdicts, their order, and the best verdict over a word's pairs of senses."""

import math

import pandas as pd
import pytest
from example_verdicts import AGAINST, NEAR_ONLY, NO_MOVE, SILENT, STANDS_IN
from example_verdicts import RESOLVES as MOVES

from probe.inference import verdicts
from probe.inference.verdicts import ORDER, comparison, verdict

# The word passed the ambiguity gate, and two thirds of the head's effect are specific to the word.
FOR_THIS_WORD = {
    "ambiguity_p": 1 / 50,
    "nouns": 49,
    "nouns_with_gap": 20.0,
    "specific": 0.2,
    "specific_low": 0.15,
    "specific_high": 0.25,
    "p_specific": 0.01,
}
RESOLVES = MOVES | FOR_THIS_WORD
A_LITTLE_MORE = {"specific": 0.02, "specific_low": 0.01, "specific_high": 0.03}
NOT_COMPARED = {"specific": math.nan, "p_specific": math.nan}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "resolver"),
        (
            {"p_swap": 0.05},
            "suggestive",
        ),  # the interval excludes 0, but the corrected p does not pass
        ({"p_swap": 0.05, "net_low": 0.0}, "separates"),
        ({"p_swap": 0.05, "net_low": 0.0, "p_auroc": 0.05}, "none"),
        ({"p_auroc": 0.05}, "resolver"),  # a large effect, which needs no second sign
        ({"p_auroc": 0.05, "net": 0.1} | A_LITTLE_MORE, "resolver"),
        ({"p_auroc": 0.05, "net": 0.099}, "suggestive"),
        ({"net": 0.019, "direct": 0.01}, "separates"),  # significant, but too small to count
        ({"net": 0.019, "direct": 0.01, "p_auroc": 0.05}, "none"),
        ({"net": 0.02, "direct": 0.01} | A_LITTLE_MORE, "resolver"),
        ({"p_next_token": 0.05}, "unread"),  # written, but not significantly read
        ({"next_token": 0.019}, "unread"),
        ({"next_token": 0.02}, "resolver"),
        ({"p_next_token": 0.05, "p_auroc": 0.9}, "unread"),
        (SILENT, "resolver"),  # a model that predicts no tokens
        (NO_MOVE | {"p_next_token": 0.05}, "separates"),
        ({"ambiguity_p": 1 / 20, "nouns": 19}, "resolver"),
        ({"ambiguity_p": 2 / 50}, "mover"),  # one unambiguous noun changes as far as the word
        ({"ambiguity_p": math.nan}, "mover"),  # the gate was not computed
        ({"ambiguity_p": math.nan} | SILENT, "mover"),
        ({"ambiguity_p": 0.5, "p_swap": 0.05}, "suggestive"),
        ({"ambiguity_p": 0.5, "p_next_token": 0.05}, "unread"),
        ({"ambiguity_p": 0.5} | NEAR_ONLY, "position-explained"),
        ({"ambiguity_p": 0.5} | AGAINST, "opposes"),
        # A resolver does significantly more for the word than for nouns, by at least 2 % of the gap.
        ({"p_specific": 0.05}, "mover"),
        ({"specific_low": -0.01}, "mover"),
        ({"specific": 0.019, "specific_low": 0.001}, "mover"),
        ({"specific": 0.02, "specific_low": 0.001}, "resolver"),
        ({"specific": -0.2, "specific_low": -0.3, "specific_high": -0.1}, "mover"),
        ({"confounded": 1.0, "ambiguity_p": 2 / 50}, "confounded"),
        ({"confounded": 1.0, "ambiguity_p": math.nan}, "confounded"),
        # Nouns among the same function words are the control for a word that passes the gate.
        ({"confounded": 1.0}, "resolver"),
        ({"confounded": 1.0, "p_specific": 0.05}, "mover"),
        ({"confounded": 1.0, "specific_low": -0.01}, "mover"),
        ({"confounded": 1.0} | NOT_COMPARED, "mover"),
        # If no noun changes, nuisances have no effect.
        ({"confounded": 1.0} | NOT_COMPARED | {"nouns_with_gap": 2.0}, "resolver"),
        ({"confounded": 1.0} | NOT_COMPARED | {"nouns_with_gap": 3.0}, "mover"),
        ({"confounded": 1.0} | NOT_COMPARED | {"nouns_with_gap": math.nan}, "mover"),
        ({"confounded": 1.0, "p_specific": 0.05, "nouns_with_gap": 2.0}, "mover"),
        ({"confounded": 1.0, "p_next_token": 0.05}, "unread"),
        ({"confounded": 1.0} | NEAR_ONLY, "position-explained"),
        ({"confounded": 1.0} | NO_MOVE, "separates"),
        (NEAR_ONLY, "position-explained"),
        (NEAR_ONLY | {"p_auroc": 0.9, "p_next_token": 0.9}, "position-explained"),
        (NEAR_ONLY | {"attention_previous": 0.5}, "resolver"),
        (NEAR_ONLY | {"attention_previous": 0.1, "attention_next": 0.9}, "position-explained"),
        (
            NEAR_ONLY | {"net_far": 0.1},
            "resolver",
        ),  # further away, a fifth of the effect remains
        (
            NEAR_ONLY | {"net_far": math.nan},
            "position-explained",
        ),  # no cue is further away, so it cannot be tested
        (NEAR_ONLY | {"net_far": math.nan, "attention_previous": 0.5}, "resolver"),
        (
            NEAR_ONLY | {"net_near": math.nan, "net_far": math.nan},
            "resolver",
        ),  # no distance is known
        (NEAR_ONLY | NO_MOVE, "separates"),
        (AGAINST, "opposes"),
        (AGAINST | {"p_auroc": 0.9}, "opposes"),
        (AGAINST | STANDS_IN, "opposes"),
        (AGAINST | {"p_opposes": 0.05}, "separates"),
        (AGAINST | {"net": -0.019, "direct": 0.01}, "separates"),
        (STANDS_IN, "resolver"),
        (NO_MOVE | STANDS_IN, "backup"),
        (NO_MOVE | STANDS_IN | {"p_auroc": 0.9}, "backup"),  # active only without the first head
        (NO_MOVE | STANDS_IN | {"p_stands_in": 0.05}, "separates"),
        (NO_MOVE | STANDS_IN | {"direct": 1.0}, "backup"),
        (NO_MOVE | {"direct": 1.0}, "erased"),
        (NO_MOVE | {"direct": 1.0, "p_auroc": 0.3}, "none"),
        (NO_MOVE | {"direct": 0.099}, "separates"),
        ({"net": 0.06, "direct": 1.0, "p_swap": 0.4}, "erased"),
        ({"net": 0.2, "direct": 1.0, "p_swap": 0.4}, "suggestive"),
        (
            {"net": 0.06, "direct": 1.0} | A_LITTLE_MORE,
            "resolver",
        ),  # it moves the word, independent of its write
        (NO_MOVE, "separates"),
        (
            NO_MOVE | {"attention_cue": 1.0, "auroc": 1.0},
            "separates",
        ),  # no verdict depends on these alone
        (NO_MOVE | {"p_auroc": 0.3}, "none"),
        ({"net": math.nan}, "none"),
    ],
)
def test_the_first_rule_that_holds_decides(changed, expected):
    assert verdict(RESOLVES | changed) == expected


def test_a_frame_keeps_its_index():
    frame = pd.DataFrame([RESOLVES, RESOLVES | NO_MOVE], index=[7, 3])
    result = verdicts.verdicts(frame)
    assert result.index.tolist() == [7, 3]
    assert result.tolist() == ["resolver", "separates"]


def test_a_head_has_its_best_verdict_over_pairs_of_senses():
    names = ["none", "separates", "resolver", "resolver", "opposes", "backup"]
    rows = pd.DataFrame({"layer": [0, 0, 0, 0, 1, 1], "head": [0, 0, 1, 1, 0, 0], "verdict": names})
    best = verdicts.best_verdicts(rows)
    assert list(best) == ["layer", "head", "verdict", "resolves", "of"]
    assert best.values.tolist() == [
        [0, 0, "separates", 0, 2],
        [0, 1, "resolver", 2, 2],
        [1, 0, "opposes", 0, 2],
    ]


def test_the_order_of_verdicts_begins_with_resolver_and_ends_with_none():
    assert ORDER[:4] == ("resolver", "mover", "position-explained", "confounded")
    assert ORDER[-2:] == ("separates", "none") and len(set(ORDER)) == len(ORDER)


def beyond(specific, low, high):
    """The columns of a significant difference from nouns."""
    return {
        "p_specific": 0.01,
        "specific": specific,
        "specific_low": low,
        "specific_high": high,
    }


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "more"),
        ({"specific": -0.2, "specific_low": -0.3, "specific_high": -0.1}, "less"),
        (
            {"specific_low": 0.0},
            "undecided",
        ),  # the interval includes 0, so for other nouns it may not be more
        ({"specific": -0.2, "specific_low": -0.4, "specific_high": 0.0}, "undecided"),
        (
            {"p_specific": 0.05},
            "undecided",
        ),  # up to a quarter of the gap may be specific to the word
        ({"p_specific": 0.5, "specific_low": -0.1, "specific_high": 0.1}, "same"),
        ({"p_specific": 0.5, "specific_low": -0.104, "specific_high": 0.1}, "undecided"),
        ({"p_specific": 0.5, "specific_low": -0.1, "specific_high": 0.104}, "undecided"),
        (AGAINST | {"p_specific": 0.5, "specific_low": -0.03, "specific_high": 0.03}, "same"),
        ({"specific": math.nan}, ""),
        # A head that opposes the word less than it opposes nouns does less.
        (AGAINST | beyond(0.06, 0.02, 0.1), "less"),
        (AGAINST | beyond(-0.06, -0.1, -0.02), "more"),
        # A head that moves only nouns does less, in either direction.
        ({"net": -0.002} | beyond(-0.087, -0.117, -0.059), "less"),
        ({"net": 0.002} | beyond(0.087, 0.059, 0.117), "less"),
    ],
)
def test_the_effect_on_a_word_is_compared_with_the_effect_on_nouns(changed, expected):
    """The effect is .31 of the gap, so a difference of up to .103 is within a third of it."""
    assert comparison(RESOLVES | changed) == expected
