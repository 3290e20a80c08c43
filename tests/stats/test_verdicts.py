"""Every rule of the verdicts, their order, their sentences, and the best verdict over a word's pairs of senses."""

import math

import pandas as pd
import pytest

from probe.stats import verdicts
from probe.stats.verdicts import verdict

N = "\u202f"

# A head that resolves; every test changes what its rule is about.
RESOLVES = {
    "layer": 1,
    "depth": 3,
    "p_auroc": 0.001,
    "p_swap": 0.002,
    "p_opposes": 1.0,
    "p_alone": 1.0,
    "auroc": 0.93,
    "net": 0.31,
    "net_low": 0.24,
    "net_high": 0.38,
    "direct": 0.22,
    "alone": 0.3,
    "net_near": 0.33,
    "net_far": 0.3,
    "attention_previous": 0.2,
}
NEAR_ONLY = {"net_near": 0.5, "net_far": 0.01, "attention_previous": 0.9}
AGAINST = {"net": -0.1, "net_low": -0.2, "net_high": -0.05, "p_swap": 1.0, "p_opposes": 0.01}
NO_MOVE = {"net": 0.01, "direct": 0.01, "alone": 0.01, "p_swap": 0.4}


def name_of(**changed):
    return verdict(RESOLVES | changed)[0]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "resolver"),
        ({"p_swap": 0.05}, "carrier"),
        ({"p_auroc": 0.05}, "none"),  # it moves the word, and was not shown to separate
        ({"net": 0.019, "direct": 0.01}, "carrier"),  # certain, and too small to count
        ({"net": 0.02, "direct": 0.01}, "resolver"),
        (NEAR_ONLY, "position-explained"),
        (NEAR_ONLY | {"attention_previous": 0.5}, "resolver"),
        (NEAR_ONLY | {"attention_previous": 0.1, "attention_next": 0.9}, "position-explained"),
        (NEAR_ONLY | {"net_far": 0.1}, "resolver"),  # a fifth of the near effect is there further away
        (NEAR_ONLY | {"net_far": math.nan}, "resolver"),  # nothing further away was measured
        (NEAR_ONLY | NO_MOVE, "carrier"),
        (AGAINST, "opposes"),
        (AGAINST | {"p_auroc": 0.9}, "opposes"),
        (AGAINST | {"p_opposes": 0.05}, "carrier"),
        (AGAINST | {"net": -0.019, "direct": 0.01}, "carrier"),
        (NO_MOVE | {"direct": 1.0}, "backup"),
        (NO_MOVE | {"direct": 1.0, "p_auroc": 0.3}, "none"),
        (NO_MOVE | {"direct": 0.099}, "carrier"),
        (NO_MOVE | {"alone": 1.0, "p_alone": 0.01}, "backup"),
        (NO_MOVE | {"alone": 1.0, "p_alone": 0.01, "p_auroc": 0.9}, "backup"),  # silent until it is needed
        (NO_MOVE | {"alone": 1.0, "p_alone": 0.05}, "carrier"),
        ({"net": 0.06, "direct": 1.0}, "backup"),  # moves, and hardly shows what it does
        ({"net": 0.2, "direct": 1.0}, "resolver"),
        (AGAINST | {"net": -0.05, "direct": 1.0}, "backup"),  # the other path makes up for a little more than it
        (NO_MOVE, "carrier"),
        (NO_MOVE | {"p_auroc": 0.3}, "none"),
        ({"layer": 3}, "none"),
        ({"layer": 2}, "resolver"),
        ({"net": math.nan}, "none"),
    ],
)
def test_the_first_rule_that_holds_decides(changed, expected):
    assert name_of(**changed) == expected


def test_no_verdict_rests_on_attention_or_separation_alone():
    assert name_of(attention_previous=0, attention_cue=1.0, auroc=1.0, **NO_MOVE) == "carrier"


def test_the_reasons_are_the_numbers():
    separates = "separates the senses held out with AUROC 0.93 (max-T p = .0014)"
    moves = f"swapping it moves the word 31{N}% [24, 38] of the gap (max-T p < .001)"
    resolves = RESOLVES | {"p_auroc": 0.0014, "p_swap": 0.0009}
    assert verdict(resolves)[1] == f"{separates}; {moves}"
    assert verdict(resolves | NEAR_ONLY)[1] == (
        f"{separates}; {moves}; 50{N}% with the cue next to the word, 1{N}% further away, and 90{N}% of its attention "
        "on the token before"
    )
    assert verdict(resolves | AGAINST)[1] == (
        f"{separates}; swapping it moves the word −10{N}% [−20, −5] of the gap (max-T p = .01)"
    )
    backup = verdict(resolves | {"net": 0.03, "net_low": 0.02, "net_high": 0.04, "direct": 0.9, "p_alone": 0.01})[1]
    assert backup == (
        f"{separates}; swapping it moves the word 3.0{N}% [2.0, 4.0] of the gap (max-T p < .001); "
        f"it writes 90{N}% of the gap itself and alone restores 30{N}% of it (max-T p = .01)"
    )


def test_the_reasons_say_what_was_not_shown_and_what_is_too_small():
    nothing = verdict(RESOLVES | {"p_auroc": 0.2, "p_swap": 0.3, "net": 0.001, "net_low": -0.01, "net_high": 0.01})
    assert nothing[0] == "none"
    assert nothing[1].startswith(
        "was not shown to separate them: AUROC 0.93 (max-T p = .2); swapping it moves the word 0.1"
    )
    tiny = {"net": 0.003, "net_low": 0.002, "net_high": 0.005, "direct": 0.0, "alone": 0.0, "p_alone": 0.9}
    small = verdict(RESOLVES | tiny | {"p_swap": 0.01})
    assert small[0] == "carrier"
    assert small[1].endswith(f"of the gap (max-T p = .01), less than the 2{N}% from which an effect counts")


def test_the_reasons_where_nothing_was_or_could_be_measured():
    assert verdict(RESOLVES | {"net": math.nan})[1] == (
        "the model was not shown to separate these senses at the word, so no head was swapped"
    )
    assert verdict(RESOLVES | {"layer": 3})[1] == (
        "it writes after the layer where the word is read, so it cannot have moved what is read there"
    )


def test_a_frame_keeps_its_index():
    frame = pd.DataFrame([RESOLVES, RESOLVES | NO_MOVE], index=[7, 3])
    found = verdicts.verdicts(frame)
    assert found.index.tolist() == [7, 3]
    assert found["verdict"].tolist() == ["resolver", "carrier"]


def test_over_pairs_of_senses_the_verdict_that_says_most_stands_for_the_head():
    names = ["none", "carrier", "resolver", "resolver", "opposes", "backup"]
    rows = pd.DataFrame({"layer": [0, 0, 0, 0, 1, 1], "head": [0, 0, 1, 1, 0, 0], "verdict": names})
    found = verdicts.best_verdicts(rows)
    assert found.to_dict("list") == {
        "layer": [0, 0, 1],
        "head": [0, 1, 0],
        "verdict": ["carrier", "resolver", "opposes"],
        "resolves": [0, 2, 0],
        "of": [2, 2, 2],
    }
