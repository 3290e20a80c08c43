"""The sentences a report says: from frames to text, within what may be said."""

import re

import pandas as pd
import pytest
from test_sentences import FRAMES, N, evidence, frames_of, head

from probe.pages import answers, remarks
from probe.pages.rows import in_groups, smallest_set
from probe.stats import numbers


def answer_of(*heads: dict[str, object], **given: object) -> str:
    return answers.answer(frames_of(*heads, **given), "bank")


def evidence_of(*heads: dict[str, object], **given: object) -> str:
    return evidence(frames_of(*heads, **given))


def test_one_resolver_is_named_with_its_interval_and_what_it_keeps_alone():
    said = answer_of(head("L0H2", (1, 1, 1), 0.41), head("L1H0", (2, 2, 2), 0.18, "none"), kept=(0.0, 0.93, 1.0))
    assert said == (
        f"One head resolves “bank”: L0H2 moves it 41{N}% [36, 46] of the way between river and money. Alone it keeps "
        f"93{N}% [88, 96] of "
        f"the gap, the best of 2 random sets of 1 head from the same layers 20{N}%."
    )


def test_two_resolvers_share_a_sentence_and_what_they_keep_together():
    said = answer_of(head("L0H2", (1, 1, 1), 0.41), head("L1H0", (2, 2, 2), 0.18))
    assert said == (
        f"Two heads resolve “bank”: L0H2 moves it 41{N}% [36, 46] of the way between river and money and L1H0 18{N}% "
        "[13, 23]. "
        f"Together they keep 95{N}% [90, 98] of the gap, the best of 2 random sets of 2 heads from the same layers "
        f"30{N}%."
    )


def test_only_the_verdict_makes_a_resolver_however_large_and_certain_an_effect_is():
    for verdict in ("position-explained", "confounded", "suggestive", "erased", "carrier", "backup", "opposes", "none"):
        said = answer_of(head("L0H2", (1, 1, 1), 0.9, verdict))
        assert said.startswith("No head was shown to resolve “bank”, although its senses are apart at the word."), (
            verdict
        )
        assert not re.search(r"\bresolves\b|heads? resolve\b", said)


def test_where_no_head_resolves_the_smallest_visible_effect_is_said():
    said = answer_of(head("L0H2", (1, 1, 2), 0.03, "carrier"), head("L1H0", (2, 1, 2), 0.01, "none"))
    assert said == (
        "No head was shown to resolve “bank”, although its senses are apart at the word. In 192 sentences (64 pairs "
        f"with 14 pairs of cue words), an effect of 0.45 standard deviations over cue words would have been seen in "
        f"80{N}% of cases; "
        f"the largest effect is 3{N}% [−2, 8], by L0H2 (carrier)."
    )


def test_the_power_is_that_of_the_hardest_pair_of_senses():
    frames = frames_of(head("L0H2", (1, 1, 1), 0.0, "none") | {"word": "mole"})
    frames["words"] = frames["words"].assign(visible_d_pairs=[0.4, *[0.5] * 5, 0.9, 0.4])
    assert "an effect of 0.90 standard deviations" in answers.answer(frames, "mole")


def test_heads_that_share_the_pairs_of_senses_say_it_once_and_others_each():
    both = [head(name, place) | {"word": "mole", "resolves": 5} for name, place in _TWO]
    said = answers.answer(frames_of(*both), "mole")
    assert said.startswith(
        f"Two heads resolve “mole” in 5 of 6 pairs of senses: L0H1 moves it 30{N}% [25, 35] of the way between two "
        "senses and L0H2 "
        f"30{N}% [25, 35] (mean over the 5 pairs that were shown to be apart)."
    )
    said = answers.answer(frames_of(both[0], both[1] | {"resolves": 2}), "mole")
    assert "resolve “mole”: L0H1" in said and "two senses (in 5 of 6 pairs) and L0H2" in said
    assert f"L0H2 30{N}% [25, 35] (in 2 of 6 pairs)" in said
    many = [
        *both,
        head("L1H1", (3, 3, 3)) | {"word": "mole", "resolves": 5},
        head("L1H2", (4, 4, 4)) | {"word": "mole"},
    ]
    said = answers.answer(frames_of(*many), "mole")
    assert "L1H1 30" in said and said.count("in 5 of 6 pairs") == 1
    assert "(each in 5 of 6 pairs; mean over the 5 pairs that were shown to be apart)" in said


_TWO = (("L0H1", (1, 1, 1)), ("L0H2", (2, 2, 2)))


def test_when_only_all_heads_are_enough_no_set_is_praised():
    said = answer_of(head("L0H2", (1, 1, 1)), kept=(0.0, 0.2, 0.4, 1.0))
    assert said.endswith(f"Nothing less than all 3 heads together keeps 90{N}% of the gap.")
    assert "gap" not in answer_of(head("L0H2", (1, 1, 1)), kept=(0.0, 0.2)).replace("of the way", "")


def test_the_evidence_gives_the_largest_p_the_attention_and_what_the_others_are():
    others = [head("L1H0", (2, 2, 3), 0.01, "carrier"), head("L1H1", (3, 2, 3), 0.0, "none")]
    others += [head("L2H1", (4, 4, 4), -0.07, "opposes")]
    said = evidence_of(head("L0H2", (1, 1, 1), 0.41), *others)
    assert said == (
        "It moves the word beyond a same-sense swap (max-T p = .013), and what the model says next (max-T p = .02). "
        "What it writes separates the senses in sentences held out (AUROC 0.93, max-T p = .001). Tests are corrected "
        f"for 4 heads and 1 pair of senses together. From the word, L0H2 gives 60{N}% of its attention to the cue. "
        "The 3 other heads: L2H1 moves the word the wrong way (opposes), 1 writes something that was not shown to be "
        f"read (carrier) and of 1 nothing was shown; all within ±12{N}%."
    )


def test_without_a_resolver_there_is_no_test_to_speak_of():
    said = evidence_of(head("L0H2", (1, 1, 1), 0.3, "position-explained"))
    assert said == (
        "The one head: L0H2 moves the word by the token beside it, whatever that is (position-explained); "
        f"within ±35{N}%."
    )


def test_a_word_without_a_gap_ranks_nothing():
    assert answers.answer(FRAMES, "apple") == (
        "This model was not shown to separate the senses of “apple” at the word (gap −0.02 [−0.08, 0.05], p = .4), so "
        "no head is ranked. In 192 sentences (64 pairs with 14 pairs of cue words), an effect of 0.45 standard "
        f"deviations over cue words would have been seen in 80{N}% of cases."
    )


def test_groups_chain_through_overlaps_and_part_where_there_is_none():
    places = [(1, 1, 2), (2, 2, 3), (3, 3, 4), (5, 5, 5)]
    groups = in_groups([head(f"L0H{number}", place) for number, place in enumerate(places)])
    assert [[item["head"] for item in group] for group in groups] == [[0, 1, 2], [3]]


def test_the_certificate_in_words_names_the_worst_row():
    assert remarks.agreement(FRAMES["certificate"]) == (
        "The hooked model and the from-scratch math agree: the largest of 17 differences is 6 × 10⁻⁷ of its scale "
        "(logits, the "
        "whole model), allowed 1 × 10⁻⁵."
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0.4, "p = .4"), (0.034, "p = .034"), (0.0002, "p < .001"), (1.0, "p = 1"), (0.01, "p = .01")),
        *(
            (0.0014, "p = .0014"),
            (0.00149, "p = .0015"),
            (0.157, "p = .16"),
            (0.000999, "p < .001"),
            (0.001, "p = .001"),
        ),
        *((0.0496, "p = .0496"), (0.04999, "p = .04999"), (0.0504, "p = .05"), (0.00998, "p = .00998")),
    ],
)
def test_p_values_are_written_as_statisticians_do(value, text):
    assert numbers.p_value(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(-0.034, "−3\u202f%"), (-0.004, "0\u202f%"), (0.0, "0\u202f%"), (1.0, "100\u202f%")]
)
def test_percentages_have_a_true_minus_and_no_negative_zero(value, text):
    assert numbers.percent(value) == text


def test_a_narrow_interval_gets_a_decimal():
    assert numbers.measured(0.0104, 0.006, 0.0148) == "1.0\u202f% [0.6, 1.5]"
    assert numbers.measured(0.41, 0.35, 0.47) == "41\u202f% [35, 47]"


def test_small_numbers_are_powers_of_ten_and_zero_is_zero():
    assert numbers.scientific(6.2e-7) == "6 × 10⁻⁷"
    assert numbers.scientific(0.0) == "0"
    assert numbers.interval(-0.081, 0.052) == "[−0.08, 0.05]"


def test_lists_read_as_english():
    assert [numbers.listed(list(items)) for items in ("a", "ab", "abc")] == ["a", "a and b", "a, b and c"]


def test_a_smallest_set_names_every_head_also_where_sizes_grow_in_steps():
    size = [0, 1, 3, 6]
    kept = [0.0, 0.5, 0.95, 1.0]
    curves = pd.DataFrame({"word": "bank", "size": size, "smallest": 3, "faithfulness": kept})
    curves = curves.assign(faithfulness_low=kept, faithfulness_high=kept)
    curves["added"] = [None, "L0H0", "L0H1, L1H0", "L1H1, L2H0, L2H1"]
    assert smallest_set({"curves": curves}, "bank").names == ["L0H0", "L0H1", "L1H0"]


def test_ordinals():
    places = (1, 2, 12, 13, 21, 22, 23, 24, 111, 112, 113)
    expected = ["first", "second", "twelfth", "13th", "21st", "22nd", "23rd", "24th", "111th", "112th", "113th"]
    assert [numbers.ordinal(place) for place in places] == expected
