"""The sentences that give the reasons for the verdict of a head, from the numbers of its row."""

import math

import pytest
from example_study import make_study
from example_verdicts import AGAINST, NEAR_ONLY, SILENT, STANDS_IN
from example_verdicts import RESOLVES as MOVES_THE_WORD

from probe.experiments.senses import NOT_ASKED_FOR
from probe.pages.html import environment
from probe.pages.verdicts import because, with_reasons
from probe.verdicts import ORDER, verdict

N = "\u202f"


# The word changes more than all 48 nouns. The head moves it three times as far, and its own write
# is twice as large.
RESOLVES = MOVES_THE_WORD | {"ambiguity_p": 1 / 49, "nouns_compared": 48, "not_compared": ""}
RESOLVES |= {"nouns": 0.11, "more": 0.2, "more_low": 0.15, "more_high": 0.25, "p_more": 0.01}
RESOLVES |= {"more_word_axis": 0.2, "more_length": 0.2, "more_at_surprisal": 0.2}
RESOLVES |= {"write_nouns": 0.11, "write_more": 0.11, "write_more_low": 0.05}
RESOLVES |= {"write_more_high": 0.15, "p_more_write": 0.02}
RESOLVES |= {"write_more_word_axis": 0.1, "write_more_length": 0.1}
AS_FAR = {"ambiguity_p": 4 / 49}
NOT_ASKED = {"ambiguity_p": math.nan, "nouns_compared": 0, "not_compared": NOT_ASKED_FOR}
NO_MORE = {"more": 0.02, "more_low": -0.05, "more_high": 0.09, "p_more": 0.6}


def reason(row):
    return because(row | {"verdict": verdict(row)})


MOVES = f"; swapping it moves the word 31{N}% [24, 38] of the gap (max-T p < .001)"
NEXT_TOKEN = f", next token 25{N}% (p = .003)"
STILL = {"net": 0.03, "net_low": 0.02, "net_high": 0.04, "direct": 0.9, "p_swap": 0.4} | SILENT
HARDLY = f"; swapping it moves the word 3.0{N}% [2.0, 4.0] of the gap (max-T p = .4, limit .05)"
BEFORE = f"90{N}% of its attention on the token before"
UNDECIDED = ", and no cue is further away, so whether it reads the cue or the place cannot be told"
TOGETHER = (
    f"; swapped together with L0H3 it moves the word 40{N}% of the gap further (max-T p = .01)"
)
MISPLACED = (
    "but the place of the word or its cue, or the text's length, tells the senses apart as well"
)
UNTRAINED = "but an untrained model tells the senses apart as well"
FURTHER = "the word changes further than the 48 unambiguous nouns in its place"
NOUNS = f"; it moves such nouns 11{N}% of the word's gap, and the word"
WRITE = f"; its own write is 11{N}% [5, 15] larger (p = .02)"
MORE = f"{NOUNS} 20{N}% [15, 25] further (max-T p = .01){WRITE}"
NOT_MORE = f"{NOUNS} 2{N}% [−5, 9] further (max-T p = .6, limit .05){WRITE}"
THREE_AS_FAR = "3 of 48 unambiguous nouns change as far in its place"
UNCOMPARED = f"the word was not compared with unambiguous nouns ({NOT_ASKED_FOR})"
BUT_NO_MORE = ", but the head does not move it significantly further than these nouns"
BUT_NO_WRITE = ", but the head's own write is not significantly larger there"
NOT_RESOLVED = "; no evidence that an ambiguity is resolved: "


@pytest.mark.parametrize(
    ("changed", "ending"),
    [
        ({}, f"{MOVES}{NEXT_TOKEN}; {FURTHER}{MORE}"),
        (SILENT, f"{MOVES}; {FURTHER}{MORE}"),
        ({"more": math.nan}, f"{MOVES}{NEXT_TOKEN}; {FURTHER}{BUT_NO_MORE}"),
        (
            {"write_more_length": -0.1},
            f"{MOVES}{NEXT_TOKEN}; {FURTHER}{BUT_NO_WRITE}{MORE}",
        ),
        (AS_FAR, f"{MOVES}{NEXT_TOKEN}{NOT_RESOLVED}{THREE_AS_FAR}{MORE}"),
        (NOT_ASKED | {"more": math.nan}, f"{MOVES}{NEXT_TOKEN}{NOT_RESOLVED}{UNCOMPARED}"),
        (
            NEAR_ONLY,
            f"{MOVES}{NEXT_TOKEN}; 50{N}% with the cue next to the word, 1{N}% further away, and {BEFORE}",
        ),
        (NEAR_ONLY | {"net_far": math.nan}, f"{MOVES}{NEXT_TOKEN}; {BEFORE}{UNDECIDED}"),
        (
            AGAINST,
            f"; swapping it moves the word −10{N}% [−20, −5] of the gap (max-T p = .01){NEXT_TOKEN}",
        ),
        (STILL | STANDS_IN, HARDLY + TOGETHER),
        (STILL, f"{HARDLY}; it writes 90{N}% of the gap itself, which later layers take away"),
        ({"misplaced": 1.0}, f"{MOVES}{NEXT_TOKEN}; {MISPLACED}, and {FURTHER}{MORE}"),
        (
            {"untrained": 1.0} | NOT_ASKED | {"more": math.nan},
            f"{MOVES}{NEXT_TOKEN}; {UNTRAINED}, and {UNCOMPARED}",
        ),
        ({"untrained": 1.0}, f"{MOVES}{NEXT_TOKEN}; {FURTHER}{MORE}"),
        (
            NO_MORE,
            f"{MOVES}{NEXT_TOKEN}; {FURTHER}{BUT_NO_MORE}{NOT_MORE}",
        ),
        (
            {"p_next_token": 0.3},
            f"{MOVES}, next token 25{N}% (p = .3, limit .05); the effect on the next token is not significant",
        ),
    ],
)
def test_the_reasons_give_the_numbers(changed, ending):
    assert (
        reason(RESOLVES | {"p_auroc": 0.0014, "p_swap": 0.0009} | changed)
        == f"separates the senses held out with AUROC 0.93 (max-T p = .0014){ending}"
    )


def test_the_reasons_name_insignificant_and_small_effects():
    weak = {"p_auroc": 0.2, "p_swap": 0.3, "net": 0.001, "net_low": -0.01, "net_high": 0.01}
    name = verdict(RESOLVES | weak)
    text = reason(RESOLVES | weak)
    begins = "does not separate the senses significantly: AUROC 0.93 (max-T p = .2, limit .05); swapping it moves the word 0.1"
    assert name == "none" and text.startswith(begins)
    unswapped = "the gap between these senses is not significant, so no head was swapped"
    assert reason(RESOLVES | {"net": math.nan}) == unswapped
    tiny = {
        "net": 0.003,
        "net_low": 0.002,
        "net_high": 0.005,
        "direct": 0.0,
        "p_swap": 0.01,
    } | SILENT
    name = verdict(RESOLVES | tiny)
    text = reason(RESOLVES | tiny)
    ends = f"of the gap (max-T p = .01), less than the 2{N}% from which an effect counts"
    assert name == "separates" and text.endswith(ends)
    ends = "; not confirmed: the p corrected for all heads does not pass"
    assert reason(RESOLVES | {"p_swap": 0.3}).endswith(ends)
    neither_large_nor_separating = {"net": 0.09, "p_auroc": 0.2}
    assert verdict(RESOLVES | neither_large_nor_separating) == "suggestive"
    ends = f"an effect below 10{N}% counts only where what the head writes separates the senses"
    assert reason(RESOLVES | neither_large_nor_separating).endswith(ends)


def test_every_verdict_has_a_meaning():
    texts = environment("report").get_template("verdicts.html.j2").module
    assert list(texts.MEANINGS) == list(ORDER)


def test_the_table_of_verdicts_gets_a_reason_for_each_row_and_keeps_its_numbers():
    frames = make_study().frames
    table = with_reasons(frames["verdicts"], frames["heads"], frames["words"])
    assert table.drop(columns="because").equals(frames["verdicts"])
    assert table["because"].str.contains("AUROC|the gap between these senses").all()
    first = frames["heads"].query("word == 'bank' and layer == 0 and head == 2").iloc[0]
    of_first = table.query("word == 'bank' and layer == 0 and head == 2")["because"].item()
    assert f"AUROC {first['auroc']:.2f} (max-T p = .001)" in of_first
