"""Every rule of the verdicts, their order, and the best verdict over a word's pairs of senses."""

import math

import pandas as pd
import pytest
from example_verdicts import AGAINST, NEAR_ONLY, NO_MOVE, SILENT, STANDS_IN
from example_verdicts import RESOLVES as MOVES

from probe.inference import verdicts
from probe.inference.verdicts import ORDER, comparison, verdict

# The word passed the ambiguity gate, and the head does two thirds of its effect for this word alone.
FOR_THIS_WORD = {
    "ambiguity_p": 0.02,
    "ambiguity_p_near": math.nan,
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
        ({"p_swap": 0.05}, "suggestive"),  # the interval excludes 0, the corrected p does not pass
        ({"p_swap": 0.05, "net_low": 0.0}, "separates"),
        ({"p_swap": 0.05, "net_low": 0.0, "p_auroc": 0.05}, "none"),
        ({"p_auroc": 0.05}, "resolver"),  # it moves the word far, so that it needs no second sign
        ({"p_auroc": 0.05, "net": 0.1} | A_LITTLE_MORE, "resolver"),
        ({"p_auroc": 0.05, "net": 0.099}, "suggestive"),
        ({"net": 0.019, "direct": 0.01}, "separates"),  # certain, and too small to count
        ({"net": 0.019, "direct": 0.01, "p_auroc": 0.05}, "none"),
        ({"net": 0.02, "direct": 0.01} | A_LITTLE_MORE, "resolver"),
        ({"p_next_token": 0.05}, "unread"),  # written, and not shown to be read
        ({"next_token": 0.019}, "unread"),
        ({"next_token": 0.02}, "resolver"),
        ({"p_next_token": 0.05, "p_auroc": 0.9}, "unread"),
        (SILENT, "resolver"),  # a model that predicts nothing
        (NO_MOVE | {"p_next_token": 0.05}, "separates"),
        ({"ambiguity_p": 0.05}, "resolver"),
        ({"ambiguity_p": 0.051}, "mover"),  # the word changes no more than other nouns do
        ({"ambiguity_p": math.nan}, "mover"),  # that was not asked
        ({"ambiguity_p": math.nan} | SILENT, "mover"),
        ({"ambiguity_p": 0.5, "p_swap": 0.05}, "suggestive"),
        ({"ambiguity_p": 0.5, "p_next_token": 0.05}, "unread"),
        ({"ambiguity_p": 0.5} | NEAR_ONLY, "position-explained"),
        ({"ambiguity_p": 0.5} | AGAINST, "opposes"),
        # A resolver does more for the word than for other nouns: surely, and by 2 % of the gap.
        ({"p_specific": 0.05}, "mover"),
        ({"specific_low": -0.01}, "mover"),
        ({"specific": 0.019, "specific_low": 0.001}, "mover"),
        ({"specific": 0.02, "specific_low": 0.001}, "resolver"),
        ({"specific": -0.2, "specific_low": -0.3, "specific_high": -0.1}, "mover"),
        # The gate holds also among the nouns that are about as expected, where it was asked.
        ({"ambiguity_p_near": 0.05}, "resolver"),
        ({"ambiguity_p_near": 0.051}, "mover"),
        ({"confounded": 1.0, "ambiguity_p_near": 0.051}, "confounded"),
        ({"confounded": 1.0, "ambiguity_p": 0.051}, "confounded"),
        ({"confounded": 1.0, "ambiguity_p": math.nan}, "confounded"),
        # Other nouns stand among the same function words: behind the gate they are the control.
        ({"confounded": 1.0}, "resolver"),
        ({"confounded": 1.0, "p_specific": 0.05}, "mover"),
        ({"confounded": 1.0, "specific_low": -0.01}, "mover"),
        ({"confounded": 1.0} | NOT_COMPARED, "mover"),
        # Where no noun changes, what has no meaning does nothing.
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
        ),  # a fifth of the near effect is there further away
        (
            NEAR_ONLY | {"net_far": math.nan},
            "position-explained",
        ),  # no cue further away: it cannot be told
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
        (NO_MOVE | STANDS_IN | {"p_auroc": 0.9}, "backup"),  # silent until it is needed
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
        ),  # it moves the word, whatever it writes
        (NO_MOVE, "separates"),
        (
            NO_MOVE | {"attention_cue": 1.0, "auroc": 1.0},
            "separates",
        ),  # no verdict rests on these alone
        (NO_MOVE | {"p_auroc": 0.3}, "none"),
        ({"net": math.nan}, "none"),
    ],
)
def test_the_first_rule_that_holds_decides(changed, expected):
    assert verdict(RESOLVES | changed) == expected


def test_a_frame_keeps_its_index():
    frame = pd.DataFrame([RESOLVES, RESOLVES | NO_MOVE], index=[7, 3])
    found = verdicts.verdicts(frame)
    assert found.index.tolist() == [7, 3]
    assert found.tolist() == ["resolver", "separates"]


def test_over_pairs_of_senses_the_verdict_that_says_most_stands_for_the_head():
    names = ["none", "separates", "resolver", "resolver", "opposes", "backup"]
    rows = pd.DataFrame({"layer": [0, 0, 0, 0, 1, 1], "head": [0, 0, 1, 1, 0, 0], "verdict": names})
    found = verdicts.best_verdicts(rows)
    assert list(found) == ["layer", "head", "verdict", "resolves", "of"]
    assert found.values.tolist() == [
        [0, 0, "separates", 0, 2],
        [0, 1, "resolver", 2, 2],
        [1, 0, "opposes", 0, 2],
    ]


def test_a_head_that_does_more_stands_before_one_that_does_less_in_the_order_of_verdicts():
    assert ORDER[:4] == ("resolver", "mover", "position-explained", "confounded")
    assert ORDER[-2:] == ("separates", "none") and len(set(ORDER)) == len(ORDER)


def beyond(specific, low, high):
    """Columns of a difference from nouns that the test confirms."""
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
        ({"specific_low": 0.0}, "undecided"),  # with other nouns it might not be more
        ({"specific": -0.2, "specific_low": -0.4, "specific_high": 0.0}, "undecided"),
        ({"p_specific": 0.05}, "undecided"),  # as much as a quarter of the gap may be the word's
        ({"p_specific": 0.5, "specific_low": -0.1, "specific_high": 0.1}, "same"),
        ({"p_specific": 0.5, "specific_low": -0.104, "specific_high": 0.1}, "undecided"),
        ({"p_specific": 0.5, "specific_low": -0.1, "specific_high": 0.104}, "undecided"),
        (AGAINST | {"p_specific": 0.5, "specific_low": -0.03, "specific_high": 0.03}, "same"),
        ({"specific": math.nan}, ""),
        # What opposes the word, and opposes it less than other nouns, does less.
        (AGAINST | beyond(0.06, 0.02, 0.1), "less"),
        (AGAINST | beyond(-0.06, -0.1, -0.02), "more"),
        # What does nothing for the word, and something for other nouns, does less, either way.
        ({"net": -0.002} | beyond(-0.087, -0.117, -0.059), "less"),
        ({"net": 0.002} | beyond(0.087, 0.059, 0.117), "less"),
    ],
)
def test_what_is_done_for_a_word_is_compared_with_what_is_done_for_other_nouns(changed, expected):
    """The effect is .31 of the gap: a difference of up to .103 is within a third of it."""
    assert comparison(RESOLVES | changed) == expected
