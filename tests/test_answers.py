"""The sentences a report says: from frames to text, within what may be said."""

import re

import pandas as pd
import pytest
from example_study import make_study

from probe import numerals
from probe.report import answers

STUDY = make_study()
WORDS, HEADS = STUDY.frames["words"], STUDY.frames["word_heads"]


def head(name: str, rank: int, low: int, high: int, net: float = 0.3) -> dict[str, object]:
    layer, number = re.fullmatch(r"L(\d+)H(\d+)", name).groups()  # type: ignore[union-attr]
    effects = {
        "swap": net,
        "net": net,
        "net_low": net - 0.05,
        "net_high": net + 0.05,
        "direct": 0.2,
        "attention_cue": 0.6,
    }
    place = {"layer": int(layer), "head": int(number), "rank": rank, "rank_low": low, "rank_high": high}
    return {"word": "bank"} | place | effects


def answer_of(*heads: dict[str, object]) -> str:
    return answers.answer(WORDS, pd.DataFrame(list(heads)), "bank")


def test_one_leading_head_is_named_alone_with_its_interval_and_its_own_write():
    said = answer_of(head("L0H2", 1, 1, 1, 0.41), head("L1H0", 2, 2, 2, 0.18))
    assert said == (
        "Swapping the output of L0H2 alone moves “bank” 41\u202f% [36, 46] of the way between river and money (its own write "
        "accounts for 20\u202f%). Next comes L1H0 with 18\u202f% [13, 23]. From the word, L0H2 gives 60\u202f% of its attention to "
        "the cue and L1H0 60\u202f%."
    )


def test_groups_that_do_not_overlap_are_put_in_order():
    said = answer_of(head("L0H2", 1, 1, 1, 0.41), head("L1H0", 2, 2, 2, 0.18), head("L1H1", 3, 3, 3, 0.1))
    assert "Next comes L1H0 with 18\u202f% [13, 23], then L1H1 with 10\u202f% [5, 15]." in said


def test_what_the_other_heads_stay_within_includes_their_intervals():
    assert "The one other head stays within ±7\u202f%." in answer_of(
        head("L0H2", 1, 1, 1, 0.41), head("L1H0", 2, 2, 2, 0.012)
    )


def test_heads_after_the_read_out_are_not_counted():
    later = [
        head(f"L3H{place}", 3 + place, 3, 6, 0.0) | {"net_low": 0.0, "net_high": 0.0, "swap": 0.0} for place in range(3)
    ]
    said = answer_of(head("L0H2", 1, 1, 1, 0.41), head("L1H0", 2, 2, 2, 0.012), *later)
    assert "The one other head stays within ±7\u202f%." in said


def test_heads_with_overlapping_rank_intervals_are_never_put_in_order():
    said = answer_of(head("L0H2", 1, 1, 2), head("L1H0", 2, 1, 3), head("L2H0", 3, 2, 3))
    assert "Their ranks overlap, so none of them comes first." in said
    assert "Next" not in said and "alone" not in said


def test_a_head_that_is_not_named_but_could_hold_the_last_place_is_counted():
    rivals = [head("L3H0", 4, 3, 6, 0.02), head("L3H1", 5, 3, 6, 0.01), head("L3H2", 6, 5, 6, 0.0)]
    said = answer_of(head("L0H2", 1, 1, 1), head("L1H0", 2, 2, 2), head("L2H0", 3, 3, 4, 0.1), *rivals)
    assert "2 other heads could stand in the place of L2H0." in said


def test_a_head_whose_interval_includes_zero_is_not_named():
    said = answer_of(head("L0H2", 1, 1, 1, 0.41), head("L1H0", 2, 2, 2, 0.03))
    assert "L1H0" not in said


def test_a_head_whose_effect_is_clear_but_tiny_is_not_named():
    tiny = head("L1H0", 2, 2, 2, 0.004) | {"net_low": 0.003, "net_high": 0.005}
    said = answer_of(head("L0H2", 1, 1, 1, 0.41), tiny)
    assert "L1H0" not in said and "The one other head stays within ±1\u202f%." in said


def test_no_head_shown_gives_the_largest_effect_with_its_interval():
    said = answer_of(head("L0H2", 1, 1, 2, 0.03), head("L1H0", 2, 1, 2, 0.01))
    assert said == (
        "The senses of “bank” are apart at the word, but no single head was shown to move it by 1\u202f% of the way or more: the "
        "largest effect is 3\u202f% [−2, 8], by L0H2."
    )


def test_a_word_without_a_gap_ranks_nothing():
    assert answers.answer(WORDS, HEADS, "apple") == (
        "This model does not separate the senses of “apple” at the word (gap −0.02 [−0.08, 0.05], p = .4), so no head is ranked."
    )


def test_several_pairs_without_a_gap_give_the_smallest_p():
    nothing = make_study(apart=False).frames
    said = answers.answer(nothing["words"], nothing["word_heads"], "mole")
    assert said.startswith("This model does not separate any of the 6 pairs of senses of “mole” at the word (p ≥ .4)")


def test_more_than_two_senses_say_over_which_pairs_the_mean_is():
    assert "on average over the 5 of 6 pairs that this model separates" in answers.answer(WORDS, HEADS, "mole")
    all_apart = WORDS.assign(ranked=True)
    assert "on average over all 6 pairs" in answers.answer(all_apart, HEADS, "mole")


def test_sentences_without_cues_say_nothing_about_looking():
    said = answer_of(head("L0H2", 1, 1, 1) | {"attention_cue": float("nan")})
    assert "attention" not in said


@pytest.mark.parametrize("word", ["bank", "mole", "apple"])
def test_nothing_that_may_not_be_said_is_said(word):
    said = answers.answer(WORDS, HEADS, word)
    assert not re.search(r"resolve|because|\bfirst,|second|third", said)


def test_groups_chain_through_overlaps_and_part_where_there_is_none():
    groups = answers.in_groups(
        [head("L0H0", 1, 1, 2), head("L0H1", 2, 2, 3), head("L0H2", 3, 3, 4), head("L0H3", 5, 5, 5)]
    )
    assert [[item["head"] for item in group] for group in groups] == [[0, 1, 2], [3]]


def test_the_certificate_in_words_names_the_worst_row():
    assert answers.agreement(STUDY.frames["certificate"]) == (
        "The hooked model and the from-scratch math agree: the largest of 17 differences is 6 × 10⁻⁷ of its scale (logits, the "
        "whole model), allowed 1 × 10⁻⁵."
    )


def test_a_failed_certificate_is_never_called_agreement():
    frame = STUDY.frames["certificate"].assign(ok=[False, *[True] * 16])
    assert answers.agreement(frame).startswith("1 of 17 differences")


def test_a_cue_after_the_word_gives_the_measured_difference():
    row = STUDY.frames["showcase"].to_dict("records")[2]
    said = answers.later_words(row)
    assert said.startswith("“carbon” comes after the word: a causal model cannot have resolved the word by it.")
    assert "no head's write at the word changes by more than 3 × 10⁻⁸ of the largest ΔE" in said
    assert answers.later_words(row | {"cue": None}).startswith("What tells the sense comes after the word")


def test_a_reading_says_right_wrong_and_guess():
    right, wrong = STUDY.frames["showcase"].to_dict("records")[:2]
    assert "nearest to river, as meant (coordinate 0.43, from −0.50 for money to 0.50 for river)" in answers.reading(
        right, True
    )
    assert "nearest to river, although money is meant" in answers.reading(wrong, True)
    assert answers.reading(right, False).endswith("no better than a guess.")


@pytest.mark.parametrize(
    ("value", "text"), [(0.4, "p = .4"), (0.034, "p = .034"), (0.0002, "p < .001"), (1.0, "p = 1"), (0.01, "p = .01")]
)
def test_p_values_are_written_as_statisticians_do(value, text):
    assert numerals.p_value(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(-0.034, "−3\u202f%"), (-0.004, "0\u202f%"), (0.0, "0\u202f%"), (1.0, "100\u202f%")]
)
def test_percentages_have_a_true_minus_and_no_negative_zero(value, text):
    assert numerals.percent(value) == text


def test_a_narrow_interval_gets_a_decimal():
    assert numerals.measured(0.0104, 0.006, 0.0148) == "1.0\u202f% [0.6, 1.5]"
    assert numerals.measured(0.41, 0.35, 0.47) == "41\u202f% [35, 47]"


def test_small_numbers_are_powers_of_ten_and_zero_is_zero():
    assert numerals.scientific(6.2e-7) == "6 × 10⁻⁷"
    assert numerals.scientific(0.0) == "0"
    assert numerals.interval(-0.081, 0.052) == "[−0.08, 0.05]"


def test_lists_read_as_english():
    assert [numerals.listed(list(items)) for items in ("a", "ab", "abc")] == ["a", "a and b", "a, b and c"]
