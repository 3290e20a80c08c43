"""Every rule of the verdicts, their order, their sentences, and the best verdict over a word's
pairs of senses."""

import math

import pandas as pd
import pytest

from probe.stats import verdicts
from probe.stats.verdicts import verdict

N = "\u202f"

# A head that resolves; every test changes what its rule is about.
RESOLVES = {
    "p_auroc": 0.001,
    "p_swap": 0.002,
    "p_opposes": 1.0,
    "p_next_token": 0.003,
    "next_token": 0.25,
    "auroc": 0.93,
}
RESOLVES |= {
    "net": 0.31,
    "net_low": 0.24,
    "net_high": 0.38,
    "direct": 0.22,
    "net_near": 0.33,
    "net_far": 0.3,
}
RESOLVES |= {"attention_previous": 0.2, "confounded": 0.0, "backed_up": 0.0}
RESOLVES |= dict.fromkeys(
    ("p_stands_in", "stands_in", "stands_in_layer", "stands_in_head"), math.nan
)
NEAR_ONLY = {"net_near": 0.5, "net_far": 0.01, "attention_previous": 0.9}
AGAINST = {"net": -0.1, "net_low": -0.2, "net_high": -0.05, "p_swap": 1.0, "p_opposes": 0.01}
NO_MOVE = {"net": 0.01, "net_low": -0.01, "direct": 0.01, "p_swap": 0.4}
STANDS_IN = {"p_stands_in": 0.01, "stands_in": 0.4, "stands_in_layer": 0.0, "stands_in_head": 3.0}
SILENT = {"p_next_token": math.nan, "next_token": math.nan}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "resolver"),
        ({"p_swap": 0.05}, "suggestive"),  # the interval excludes 0, the corrected p does not pass
        ({"p_swap": 0.05, "net_low": 0.0}, "carrier"),
        ({"p_swap": 0.05, "net_low": 0.0, "p_auroc": 0.05}, "none"),
        ({"p_auroc": 0.05}, "resolver"),  # it moves the word far, so that it needs no second sign
        ({"p_auroc": 0.05, "net": 0.1}, "resolver"),
        ({"p_auroc": 0.05, "net": 0.099}, "suggestive"),
        ({"net": 0.019, "direct": 0.01}, "carrier"),  # certain, and too small to count
        ({"net": 0.019, "direct": 0.01, "p_auroc": 0.05}, "none"),
        ({"net": 0.02, "direct": 0.01}, "resolver"),
        ({"p_next_token": 0.05}, "carrier"),  # written, and not shown to be read
        ({"next_token": 0.019}, "carrier"),
        ({"next_token": 0.02}, "resolver"),
        ({"p_next_token": 0.05, "p_auroc": 0.9}, "carrier"),
        (SILENT, "resolver"),  # a model that predicts nothing
        (
            {"p_next_token": 0.05, "backed_up": 1.0},
            "resolver",
        ),  # read from the head that stands in for it
        ({"next_token": 0.019, "backed_up": 1.0}, "resolver"),
        (NO_MOVE | {"p_next_token": 0.05, "backed_up": 1.0}, "carrier"),  # and no more than that
        ({"confounded": 1.0}, "confounded"),
        ({"confounded": 1.0, "p_next_token": 0.05}, "carrier"),
        ({"confounded": 1.0} | NEAR_ONLY, "position-explained"),
        ({"confounded": 1.0} | NO_MOVE, "carrier"),
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
        (NEAR_ONLY | NO_MOVE, "carrier"),
        (AGAINST, "opposes"),
        (AGAINST | {"p_auroc": 0.9}, "opposes"),
        (AGAINST | STANDS_IN, "opposes"),
        (AGAINST | {"p_opposes": 0.05}, "carrier"),
        (AGAINST | {"net": -0.019, "direct": 0.01}, "carrier"),
        (STANDS_IN, "resolver"),
        (NO_MOVE | STANDS_IN, "backup"),
        (NO_MOVE | STANDS_IN | {"p_auroc": 0.9}, "backup"),  # silent until it is needed
        (NO_MOVE | STANDS_IN | {"p_stands_in": 0.05}, "carrier"),
        (NO_MOVE | STANDS_IN | {"direct": 1.0}, "backup"),
        (NO_MOVE | {"direct": 1.0}, "erased"),
        (NO_MOVE | {"direct": 1.0, "p_auroc": 0.3}, "none"),
        (NO_MOVE | {"direct": 0.099}, "carrier"),
        ({"net": 0.06, "direct": 1.0, "p_swap": 0.4}, "erased"),
        ({"net": 0.2, "direct": 1.0, "p_swap": 0.4}, "suggestive"),
        ({"net": 0.06, "direct": 1.0}, "resolver"),  # it moves the word, whatever it writes
        (NO_MOVE, "carrier"),
        (
            NO_MOVE | {"attention_cue": 1.0, "auroc": 1.0},
            "carrier",
        ),  # no verdict rests on these alone
        (NO_MOVE | {"p_auroc": 0.3}, "none"),
        ({"net": math.nan}, "none"),
    ],
)
def test_the_first_rule_that_holds_decides(changed, expected):
    assert verdict(RESOLVES | changed)[0] == expected


MOVES = f"; swapping it moves the word 31{N}% [24, 38] of the gap (max-T p < .001)"
SAID = f", what is said next 25{N}% (p = .003)"
STILL = {"net": 0.03, "net_low": 0.02, "net_high": 0.04, "direct": 0.9, "p_swap": 0.4} | SILENT
HARDLY = f"; swapping it moves the word 3.0{N}% [2.0, 4.0] of the gap (max-T p = .4)"
BEFORE = f"90{N}% of its attention on the token before"
UNTOLD = ", and no cue stands further away, so whether it reads the cue or the place cannot be told"
TOGETHER = (
    f"; swapped together with L0H3 it moves the word 40{N}% of the gap further (max-T p = .01)"
)
AS_WELL = (
    "; but the word's place, the text's length or an untrained model tells the senses apart as well"
)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, MOVES + SAID),
        (SILENT, MOVES),
        (
            NEAR_ONLY,
            f"{MOVES}{SAID}; 50{N}% with the cue next to the word, 1{N}% further away, and {BEFORE}",
        ),
        (NEAR_ONLY | {"net_far": math.nan}, f"{MOVES}{SAID}; {BEFORE}{UNTOLD}"),
        (
            AGAINST,
            f"; swapping it moves the word −10{N}% [−20, −5] of the gap (max-T p = .01){SAID}",
        ),
        (STILL | STANDS_IN, HARDLY + TOGETHER),
        (STILL, f"{HARDLY}; it writes 90{N}% of the gap itself, which later layers take away"),
        ({"confounded": 1.0}, MOVES + SAID + AS_WELL),
    ],
)
def test_the_reasons_are_the_numbers(changed, said):
    told = verdict(RESOLVES | {"p_auroc": 0.0014, "p_swap": 0.0009} | changed)[1]
    assert told == f"separates the senses held out with AUROC 0.93 (max-T p = .0014){said}"


def test_the_reasons_say_what_was_not_shown_and_what_is_too_small():
    weak = {"p_auroc": 0.2, "p_swap": 0.3, "net": 0.001, "net_low": -0.01, "net_high": 0.01}
    name, said = verdict(RESOLVES | weak)
    begins = (
        "was not shown to separate them: AUROC 0.93 (max-T p = .2); swapping it moves the word 0.1"
    )
    assert name == "none" and said.startswith(begins)
    unswapped = (
        "the model was not shown to separate these senses at the word, so no head was swapped"
    )
    assert verdict(RESOLVES | {"net": math.nan})[1] == unswapped
    tiny = {
        "net": 0.003,
        "net_low": 0.002,
        "net_high": 0.005,
        "direct": 0.0,
        "p_swap": 0.01,
    } | SILENT
    name, said = verdict(RESOLVES | tiny)
    ends = f"of the gap (max-T p = .01), less than the 2{N}% from which an effect counts"
    assert name == "carrier" and said.endswith(ends)
    assert verdict(RESOLVES | {"p_next_token": 0.3})[1].endswith(
        f"25{N}% (p = .3); not shown to be read"
    )
    ends = "; not confirmed: the p corrected for all heads does not pass"
    assert verdict(RESOLVES | {"p_swap": 0.3})[1].endswith(ends)


def test_a_frame_keeps_its_index():
    frame = pd.DataFrame([RESOLVES, RESOLVES | NO_MOVE], index=[7, 3])
    found = verdicts.verdicts(frame)
    assert found.index.tolist() == [7, 3]
    assert found["verdict"].tolist() == ["resolver", "carrier"]


def test_over_pairs_of_senses_the_verdict_that_says_most_stands_for_the_head():
    names = ["none", "carrier", "resolver", "resolver", "opposes", "backup"]
    rows = pd.DataFrame({"layer": [0, 0, 0, 0, 1, 1], "head": [0, 0, 1, 1, 0, 0], "verdict": names})
    found = verdicts.best_verdicts(rows)
    assert list(found) == ["layer", "head", "verdict", "resolves", "of"]
    assert found.values.tolist() == [
        [0, 0, "carrier", 0, 2],
        [0, 1, "resolver", 2, 2],
        [1, 0, "opposes", 0, 2],
    ]
