"""The sentences that say why a head has its verdict, from the numbers of its row."""

import math

import pytest
from example_study import make_study
from example_verdicts import AGAINST, NEAR_ONLY, RESOLVES, SILENT, STANDS_IN

from probe.pages.verdicts import MEANINGS, because, with_reasons
from probe.stats.verdicts import ORDER, verdict

N = "\u202f"


def reason(row):
    return because(row | {"verdict": verdict(row)})


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
    assert (
        reason(RESOLVES | {"p_auroc": 0.0014, "p_swap": 0.0009} | changed)
        == f"separates the senses held out with AUROC 0.93 (max-T p = .0014){said}"
    )


def test_the_reasons_say_what_was_not_shown_and_what_is_too_small():
    weak = {"p_auroc": 0.2, "p_swap": 0.3, "net": 0.001, "net_low": -0.01, "net_high": 0.01}
    name = verdict(RESOLVES | weak)
    said = reason(RESOLVES | weak)
    begins = (
        "was not shown to separate them: AUROC 0.93 (max-T p = .2); swapping it moves the word 0.1"
    )
    assert name == "none" and said.startswith(begins)
    unswapped = (
        "the model was not shown to separate these senses at the word, so no head was swapped"
    )
    assert reason(RESOLVES | {"net": math.nan}) == unswapped
    tiny = {
        "net": 0.003,
        "net_low": 0.002,
        "net_high": 0.005,
        "direct": 0.0,
        "p_swap": 0.01,
    } | SILENT
    name = verdict(RESOLVES | tiny)
    said = reason(RESOLVES | tiny)
    ends = f"of the gap (max-T p = .01), less than the 2{N}% from which an effect counts"
    assert name == "carrier" and said.endswith(ends)
    assert reason(RESOLVES | {"p_next_token": 0.3}).endswith(
        f"25{N}% (p = .3); not shown to be read"
    )
    ends = "; not confirmed: the p corrected for all heads does not pass"
    assert reason(RESOLVES | {"p_swap": 0.3}).endswith(ends)


def test_every_verdict_has_a_meaning():
    assert list(MEANINGS) == list(ORDER)


def test_the_table_of_verdicts_gets_a_reason_for_each_row_and_keeps_its_numbers():
    frames = make_study().frames
    table = with_reasons(frames["verdicts"], frames["heads"])
    assert table.drop(columns="because").equals(frames["verdicts"])
    assert table["because"].str.contains("AUROC|was not shown to separate these senses").all()
    first = frames["heads"].query("word == 'bank' and layer == 0 and head == 2").iloc[0]
    of_first = table.query("word == 'bank' and layer == 0 and head == 2")["because"].item()
    assert f"AUROC {first['auroc']:.2f} (max-T p = .001)" in of_first
