"""The rules of the verdicts, their order, and the best verdict over a word's pairs of senses."""

import math

import pandas as pd
import pytest
from inside import ORDER, comparison, verdict, verdicts
from verdict_rows import AGAINST, NEAR_ONLY, NO_MOVE, RESOLVES, SILENT, STANDS_IN

A_LITTLE_MORE = {"more": 0.02, "more_low": 0.01, "more_high": 0.03}
NOT_COMPARED = {"more": math.nan, "p_more": math.nan}


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
        ({"ambiguity_p": 1 / 20, "nouns_compared": 19}, "resolver"),
        ({"ambiguity_p": 2 / 50}, "mover"),  # one unambiguous noun changes as far as the word
        ({"ambiguity_p": math.nan}, "mover"),  # the gate was not computed
        ({"ambiguity_p": math.nan} | SILENT, "mover"),
        ({"ambiguity_p": 0.5, "p_swap": 0.05}, "suggestive"),
        ({"ambiguity_p": 0.5, "p_next_token": 0.05}, "unread"),
        ({"ambiguity_p": 0.5} | NEAR_ONLY, "position-explained"),
        ({"ambiguity_p": 0.5} | AGAINST, "opposes"),
        # A resolver moves the word significantly further than nouns, by at least 2 % of the gap.
        ({"p_more": 0.05}, "mover"),
        ({"more_low": -0.01}, "mover"),
        ({"more": 0.019, "more_low": 0.001}, "mover"),
        ({"more": 0.02, "more_low": 0.001}, "resolver"),
        ({"more": -0.2, "more_low": -0.3, "more_high": -0.1}, "mover"),
        (NOT_COMPARED, "mover"),
        # In each measure.
        ({"more_word_axis": -0.01}, "mover"),
        ({"more_length": -0.01}, "mover"),
        ({"more_at_surprisal": -0.01}, "mover"),
        ({"more_at_surprisal": 0.1}, "resolver"),
        ({"more_at_surprisal": math.nan}, "resolver"),
        # Its own write is larger at the word, by the same rule.
        ({"p_more_write": 0.05}, "mover"),
        ({"write_more_low": -0.01}, "mover"),
        ({"write_more": 0.019, "write_more_low": 0.001}, "mover"),
        ({"write_more_word_axis": -0.01}, "mover"),
        ({"write_more_length": -0.01}, "mover"),
        ({"write_more": math.nan}, "mover"),
        # A position separates the senses. Nouns do not rule that out.
        ({"misplaced": 1.0}, "confounded"),
        ({"misplaced": 1.0, "ambiguity_p": 2 / 50}, "confounded"),
        ({"misplaced": 1.0} | NOT_COMPARED, "confounded"),
        # An untrained model separates the senses. Nouns among the same words are the control.
        ({"untrained": 1.0}, "resolver"),
        ({"untrained": 1.0, "ambiguity_p": 2 / 50}, "confounded"),
        ({"untrained": 1.0, "ambiguity_p": math.nan}, "confounded"),
        ({"untrained": 1.0, "p_more": 0.05}, "mover"),
        ({"untrained": 1.0} | NOT_COMPARED, "mover"),
        ({"misplaced": 1.0, "p_next_token": 0.05}, "unread"),
        ({"misplaced": 1.0} | NEAR_ONLY, "position-explained"),
        ({"misplaced": 1.0} | NO_MOVE, "separates"),
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


def beyond(more, low, high, nouns=0.1):
    """The columns of a significant difference from nouns, in every measure."""
    further = abs(nouns + more) > abs(nouns)
    return {
        "nouns": nouns,
        "p_more": 0.01,
        "more": more,
        "more_low": low,
        "more_high": high,
        "more_word_axis": more,
        "more_length": 0.1 if further else -0.1,
    }


LESS = beyond(-0.2, -0.3, -0.1, nouns=0.5)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "more"),
        (LESS, "less"),
        # The interval includes 0, so for other nouns it may not be more.
        ({"more_low": 0.0}, "undecided"),
        (LESS | {"more_low": -0.4, "more_high": 0.0}, "undecided"),
        ({"p_more": 0.05}, "undecided"),  # up to a quarter of the gap may be more
        ({"p_more": 0.5, "more_low": -0.1, "more_high": 0.1}, "same"),
        ({"p_more": 0.5, "more_low": -0.104, "more_high": 0.1}, "undecided"),
        ({"p_more": 0.5, "more_low": -0.1, "more_high": 0.104}, "undecided"),
        (AGAINST | {"p_more": 0.5, "more_low": -0.03, "more_high": 0.03}, "same"),
        ({"more": math.nan}, ""),
        # Another measure has the other sign.
        ({"more_word_axis": -0.1}, "undecided"),
        (LESS | {"more_word_axis": 0.1}, "undecided"),
        (LESS | {"more_length": 0.1}, "undecided"),
        # Edges have a single measure.
        ({"more_word_axis": math.nan, "more_length": math.nan}, "more"),
        # A head that opposes the word less than it opposes nouns does less.
        (AGAINST | beyond(0.06, 0.02, 0.1, nouns=-0.16), "less"),
        (AGAINST | beyond(-0.06, -0.1, -0.02, nouns=-0.04), "more"),
        # A head that moves only nouns does less, in either direction.
        ({"net": -0.002} | beyond(-0.087, -0.117, -0.059, nouns=0.085), "less"),
        ({"net": 0.002} | beyond(0.087, 0.059, 0.117, nouns=-0.085), "less"),
    ],
)
def test_the_effect_on_a_word_is_compared_with_the_effect_on_nouns(changed, expected):
    """The effect is .31 of the gap, so a difference of up to .103 is within a third of it."""
    assert comparison(RESOLVES | changed) == expected
