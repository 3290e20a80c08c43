"""Whole answers, as they are read: what test_sentences checks phrase by phrase, put together; and
numbers as text."""

import re

import page_text
import pandas as pd
import pytest
from test_sentences import N, evidence, frames_of, head

from probe.inference.verdicts import ORDER
from probe.results.findings import head_finding, rank_groups, smallest_set
from probe.stats.numbers import interval, listed, measured, ordinal, p_value, percent, scientific

TWO = (("L0H1", (1, 1, 1)), ("L0H2", (2, 2, 2)))


def answer_of(*heads, word="bank", **given):
    return page_text.card_answer(frames_of(*heads, **given), word)


def test_two_resolvers_share_a_sentence_and_what_they_keep_together():
    said = answer_of(head("L0H2", (1, 1, 1), 0.41), head("L1H0", (2, 2, 2), 0.18))
    assert said == (
        f"Two heads move “bank”: L0H2 41{N}% [36, 46] of the way between river and money and L1H0 18{N}% [13, 23]. "
        "L0H2 and L1H0 resolve it, with more for “bank” than for nouns of one meaning in its place. "
        f"Together they keep 95{N}% [90, 98] of the gap, the best of 2 random sets of 2 heads from the same "
        f"layers 30{N}%. 48 nouns of one meaning in its place change 50{N}% as far in the mean and "
        f"80{N}% at most (“noun47”): “bank” is first of 49."
    )


def test_only_the_verdict_makes_a_resolver_however_large_and_certain_an_effect_is():
    for verdict in set(ORDER) - {"resolver"}:
        said = answer_of(head("L0H2", (1, 1, 1), 0.9, verdict))
        opening = "No head was shown to move “bank”, although its senses are apart at the word."
        if verdict == "mover":
            opening = "One head moves “bank”: L0H2"
        assert said.startswith(opening), verdict
        assert not re.search(r"\bresolves\b|L0H2 resolve\b", said), verdict


def test_the_power_is_that_of_the_hardest_pair_of_senses():
    frames = frames_of(head("L0H2", (1, 1, 1), 0.0, "none") | {"word": "mole"})
    frames["words"] = frames["words"].assign(visible_d_pairs=[0.4, *[0.5] * 5, 0.9, 0.4])
    assert "an effect of 0.90 standard deviations" in page_text.card_answer(frames, "mole")


def test_heads_that_resolve_some_pairs_of_senses_say_in_how_many():
    both = [head(name, place) | {"word": "mole", "resolves": 5} for name, place in TWO]
    said = answer_of(both[0], both[1] | {"resolves": 2}, word="mole")
    assert said.startswith(
        f"Two heads move “mole”: L0H1 30{N}% [25, 35] of the way between two senses and L0H2 30{N}% [25, 35] "
        "(mean over the 5 pairs that were shown to be apart)."
    )
    assert (
        "L0H1 (in 5 of 6 pairs of senses) and L0H2 (in 2 of 6 pairs of senses) resolve it" in said
    )


def test_the_evidence_gives_the_largest_p_the_attention_and_what_the_others_are():
    others = [head("L1H0", (2, 2, 3), 0.01, "separates"), head("L1H1", (3, 2, 3), 0.0, "none")]
    others += [head("L2H1", (4, 4, 4), -0.07, "opposes")]
    assert evidence(frames_of(head("L0H2", (1, 1, 1), 0.41), *others)) == (
        "It moves the word beyond a same-sense swap (max-T p = .013), and what the model says next (max-T p = .02). "
        "What it writes separates the senses in sentences held out (AUROC 0.93, max-T p = .001). Tests are corrected "
        f"for 4 heads and 1 pair of senses together. From the word, L0H2 gives 60{N}% of its attention to the cue. "
        "The 3 other heads: L2H1 moves the word the wrong way (opposes), 1 writes something different for "
        f"each sense, without an effect that was shown (separates) and of 1 nothing was shown; L2H1 has the largest effect of all 3, −7{N}%, and no interval of theirs reaches beyond 12{N}% either way."
    )
    assert evidence(
        frames_of(head("L0H2", (1, 1, 1), 0.3, "position-explained"))
    ) == (  # no test to speak of
        "The one head: L0H2 moves the word by the token beside it, whatever that is (position-explained); "
        f"its interval does not reach beyond 35{N}% either way."
    )


def test_groups_chain_through_overlaps_and_part_where_there_is_none():
    places = [(1, 1, 2), (2, 2, 3), (3, 3, 4), (5, 5, 5)]
    groups = rank_groups(
        [
            head_finding(head(f"L0H{number}", place), read_depth=4)
            for number, place in enumerate(places)
        ]
    )
    assert groups == (("L0H0", "L0H1", "L0H2"), ("L0H3",))


def test_a_smallest_set_names_every_head_also_where_sizes_grow_in_steps():
    kept = [0.0, 0.5, 0.95, 1.0]
    curves = pd.DataFrame(
        {"word": "bank", "size": [0, 1, 3, 6], "smallest": 3, "faithfulness": kept}
    )
    curves = curves.assign(faithfulness_low=kept, faithfulness_high=kept)
    curves = curves.assign(necessity=kept, necessity_low=kept, necessity_high=kept)
    curves["added"] = [None, "L0H0", "L0H1, L1H0", "L1H1, L2H0, L2H1"]
    assert smallest_set(curves).names == ("L0H0", "L0H1", "L1H0")


P_VALUES = {
    0.4: ".4",
    0.034: ".034",
    1.0: "1",
    0.01: ".01",
    0.0014: ".0014",
    0.00149: ".0015",
    0.157: ".16",
}
P_VALUES |= {0.001: ".001", 0.0496: ".0496", 0.04999: ".04999", 0.0504: ".05", 0.00999: ".01"}
WRITTEN = [
    *((p_value(value), f"p = {text}") for value, text in P_VALUES.items()),
    *((p_value(value), "p < .001") for value in (0.0002, 0.000999)),
    (p_value(0.08, 0.05), "p = .08, limit .05"),
    (p_value(0.01, 0.01), "p = .01, limit .01"),
    (p_value(0.0101, 0.01), "p = .0101, limit .01"),
    (p_value(0.00999, 0.01), "p = .00999"),
    (p_value(0.0004, 0.01), "p < .001"),
    *(
        (percent(value), f"{text}{N}%")
        for value, text in {-0.034: "−3", -0.004: "0", 0.0: "0", 1.0: "100"}.items()
    ),
    (measured(0.0104, 0.006, 0.0148), f"1.0{N}% [0.6, 1.5]"),  # a narrow interval gets a decimal
    (measured(0.41, 0.35, 0.47), f"41{N}% [35, 47]"),
    (scientific(6.2e-7), "6 × 10⁻⁷"),
    (scientific(0.0), "0"),
    (interval(-0.081, 0.052), "[−0.08, 0.05]"),
    *(
        (listed(list(items)), text)
        for items, text in {"a": "a", "ab": "a and b", "abc": "a, b and c"}.items()
    ),
    *((ordinal(place), text) for place, text in {1: "first", 2: "second", 12: "twelfth"}.items()),
    *(
        (ordinal(place), f"{place}{end}")
        for place, end in {13: "th", 21: "st", 22: "nd", 23: "rd", 24: "th"}.items()
    ),
    *((ordinal(place), f"{place}th") for place in (111, 112, 113)),
]


@pytest.mark.parametrize(("said", "text"), WRITTEN)
def test_numbers_are_written_as_statisticians_and_in_english(said, text):
    assert said == text
