"""The sentences a report says: from frames to text, within what may be said."""

import re

import pandas as pd
import pytest
from example_study import make_study

from probe.pages import answers, remarks
from probe.pages.remarks import evidence
from probe.stats import numbers

STUDY = make_study()
FRAMES = STUDY.frames
N = "\u202f"


def head(name: str, place: tuple[int, int, int], net: float = 0.3, verdict: str = "resolver") -> dict[str, object]:
    """One head of bank; `place` is its rank and the interval of it."""
    layer, number = re.fullmatch(r"L(\d+)H(\d+)", name).groups()  # type: ignore[union-attr]
    effects = {"swap": net, "net": net, "net_low": net - 0.05, "net_high": net + 0.05, "attention_cue": 0.6}
    effects |= {"attention_itself": 0.3}
    ranks = dict(zip(("rank", "rank_low", "rank_high"), place, strict=True))
    found = {"verdict": verdict, "resolves": int(verdict == "resolver"), "of": 1, "p_auroc": 0.001, "p_swap": 0.013}
    return {"word": "bank", "layer": int(layer), "head": int(number), "auroc": 0.93} | ranks | effects | found


def frames_of(*heads: dict[str, object], kept: tuple[float, ...] = (0.0, 0.6, 0.95, 1.0), **words: object):
    """The study's frames with these heads for bank, and a curve over them in the order given."""
    rows = pd.DataFrame(list(heads))
    added = [None, *(f"L{row['layer']}H{row['head']}" for row in heads), "L9H9", "L9H8"][: len(kept)]
    smallest = next((size for size, value in enumerate(kept) if value >= 0.9), None)
    curve = pd.DataFrame({"word": "bank", "size": range(len(kept)), "added": added, "faithfulness": kept})
    curve = curve.assign(faithfulness_low=curve["faithfulness"] - 0.05, faithfulness_high=curve["faithfulness"] + 0.03)
    sets = pd.DataFrame({"word": "bank", "size": [1, 1, 2, 2], "faithfulness": [0.1, 0.2, 0.3, 0.12]})
    made = {"word_heads": rows, "heads": rows, "curves": curve.assign(smallest=smallest), "random_sets": sets}
    return FRAMES | made | {"words": FRAMES["words"].assign(**words)}


def answer_of(*heads: dict[str, object], **given: object) -> str:
    return answers.answer(frames_of(*heads, **given), "bank")


def evidence_of(*heads: dict[str, object], **given: object) -> str:
    return " ".join(evidence(frames_of(*heads, **given), "bank"))


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
    for verdict in ("position-explained", "carrier", "backup", "opposes", "none"):
        said = answer_of(head("L0H2", (1, 1, 1), 0.9, verdict))
        assert said.startswith("No head was shown to resolve “bank”, although its senses are apart at the word."), (
            verdict
        )
        assert not re.search(r"\bresolves\b|heads? resolve\b", said)


def test_where_no_head_resolves_the_smallest_visible_effect_is_said():
    said = answer_of(head("L0H2", (1, 1, 2), 0.03, "carrier"), head("L1H0", (2, 1, 2), 0.01, "none"))
    assert said == (
        "No head was shown to resolve “bank”, although its senses are apart at the word. In 192 sentences (14 cue "
        "words per sense, "
        "64 pairs to swap), a separation of 0.46 standard deviations and a swap effect of 0.45 would have been seen "
        f"in 80{N}% of cases; "
        f"the largest effect is 3{N}% [−2, 8], by L0H2 (carrier)."
    )


def test_the_power_is_that_of_the_hardest_pair_of_senses():
    frames = frames_of(head("L0H2", (1, 1, 1), 0.0, "none") | {"word": "mole"})
    frames["words"] = frames["words"].assign(visible_d=[0.4, *[0.5] * 5, 0.9, 0.4])
    assert "a separation of 0.90 standard deviations" in answers.answer(frames, "mole")


def test_few_sentences_are_called_exploratory_first():
    assert answer_of(head("L0H2", (1, 1, 1)), exploratory=True).startswith("Exploratory, with fewer than 50 sentences")
    assert "xploratory" not in answer_of(head("L0H2", (1, 1, 1)))


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


def test_heads_with_overlapping_rank_intervals_are_said_to_be_in_no_order():
    said = answer_of(head("L0H2", (1, 1, 2)), head("L1H0", (2, 1, 3)), head("L2H0", (3, 4, 4)))
    assert "The ranks of L0H2 and L1H0 overlap: they are in no order." in said
    assert "overlap" not in answer_of(head("L0H2", (1, 1, 1)), head("L1H0", (2, 2, 2)))


def test_of_many_resolvers_the_leading_ones_are_among_them():
    said = answer_of(*(head(f"L0H{place}", (place, place, place)) for place in range(1, 6)))
    assert said.startswith("Five heads resolve “bank”. Among them, L0H1 moves it") and "L0H4" not in said


def test_a_set_that_is_not_the_resolvers_is_named():
    said = answer_of(head("L0H2", (1, 1, 1), 0.41), head("L1H0", (2, 2, 2), 0.18, "carrier"))
    assert f"The first 2 heads (L0H2 and L1H0) together keep 95{N}% [90, 98] of the gap, the best" in said


def test_a_random_set_that_does_as_well_is_said_to():
    frames = frames_of(head("L0H2", (1, 1, 1)), head("L1H0", (2, 2, 2)))
    frames["random_sets"] = frames["random_sets"].assign(faithfulness=0.96)
    assert f"from the same layers 96{N}%: a random set does as well." in answers.answer(frames, "bank")


def test_when_only_all_heads_are_enough_no_set_is_praised():
    said = answer_of(head("L0H2", (1, 1, 1)), kept=(0.0, 0.2, 0.4, 1.0))
    assert said.endswith(f"Nothing less than all 3 heads together keeps 90{N}% of the gap.")
    assert "gap" not in answer_of(head("L0H2", (1, 1, 1)), kept=(0.0, 0.2)).replace("of the way", "")


def test_the_evidence_gives_the_largest_p_the_attention_and_what_the_others_are():
    others = [head("L1H0", (2, 2, 3), 0.01, "carrier"), head("L1H1", (3, 2, 3), 0.0, "none")]
    others += [head("L2H1", (4, 4, 4), -0.07, "opposes")]
    said = evidence_of(head("L0H2", (1, 1, 1), 0.41), *others)
    assert said == (
        "It separates the senses held out (AUROC 0.93) and moves the word beyond a same-sense swap, both corrected "
        "for every head and "
        f"pair of senses (max-T p ≤ .013). From the word, L0H2 gives 60{N}% of its attention to the cue. The 3 other "
        "heads: L2H1 moves "
        f"it the wrong way (opposes), 1 separates the senses without being shown to move the word by 2{N}% or more "
        "(carrier) and of 1 "
        f"nothing was shown; all within ±12{N}%."
    )


def test_heads_that_look_at_the_word_itself_are_named():
    looks = {"attention_cue": 0.02, "attention_itself": 0.83}
    told = f"L3H2 looks at the word itself (83{N}%), at what layers below have brought there."
    reader = head("L0H2", (1, 1, 1))
    assert told in evidence_of(reader, head("L3H2", (2, 2, 2)) | looks)
    assert "at the word itself" not in evidence_of(reader, head("L3H2", (2, 2, 2)) | {"attention_itself": 0.5})
    both = evidence_of(
        reader, head("L3H2", (2, 2, 2)) | looks, head("L3H3", (3, 3, 3)) | looks | {"attention_itself": 0.9}
    )
    assert f"L3H2 and L3H3 look at the word itself (83{N}% or more)" in both


def test_layers_after_the_read_out_are_named_as_untested():
    def told(*layers: int) -> str:
        heads = [head(f"L{layer}H0", (place, place, place)) for place, layer in enumerate(layers, 1)]
        return evidence_of(*heads)

    assert "not tested" not in told(0, 1, 2)
    assert told(0, 3).endswith("Layer 3 writes after the read-out (after layer 2): its heads were not tested.")
    assert told(0, 7).endswith("Layers 3 to 7 write after the read-out (after layer 2): their heads were not tested.")


def test_without_a_resolver_there_is_no_test_to_speak_of():
    said = evidence_of(head("L0H2", (1, 1, 1), 0.3, "position-explained"))
    assert said == (
        "The one head up to the read-out: L0H2 moves the word only when the cue stands right before it "
        f"(position-explained); within ±35{N}%."
    )


def test_heads_after_the_read_out_are_not_counted():
    later = [head(f"L3H{place}", (3, 3, 3), 0.0, "none") | {"rank": pd.NA, "rank_low": pd.NA} for place in range(3)]
    said = evidence_of(head("L0H2", (1, 1, 1), 0.41), head("L1H0", (2, 2, 2), 0.012, "none"), *later)
    assert "Of the one other head nothing was shown; within" in said


def test_a_word_without_a_gap_ranks_nothing():
    assert answers.answer(FRAMES, "apple") == (
        "This model was not shown to separate the senses of “apple” at the word (gap −0.02 [−0.08, 0.05], p = .4), so "
        "no head is "
        "ranked. In 192 sentences (14 cue words per sense, 64 pairs to swap), a difference of 0.46 standard "
        "deviations would have been "
        f"seen in 80{N}% of cases."
    )


def test_several_pairs_without_a_gap_give_the_smallest_p():
    nothing = make_study(apart=False).frames
    said = answers.answer(nothing, "mole")
    assert said.startswith(
        "This model was not shown to separate any of the 6 pairs of senses of “mole” at the word (p ≥ .4), so no head "
        "is ranked."
    )


def test_more_than_two_senses_say_over_which_pairs_the_mean_is():
    assert "(mean over the 5 pairs that were shown to be apart)" in answers.answer(FRAMES, "mole")
    all_apart = FRAMES | {"words": FRAMES["words"].assign(ranked=True)}
    assert "(mean over all 6 pairs)" in answers.answer(all_apart, "mole")


def test_sentences_without_cues_say_nothing_about_looking():
    said = evidence_of(head("L0H2", (1, 1, 1)) | {"attention_cue": float("nan")})
    assert "attention" not in said


@pytest.mark.parametrize("word", ["bank", "mole", "apple"])
def test_nothing_that_may_not_be_said_is_said(word):
    said = " ".join([answers.answer(FRAMES, word), *evidence(FRAMES, word)])
    assert not re.search(r"because|\bfirst,|second|third", said)


def test_groups_chain_through_overlaps_and_part_where_there_is_none():
    places = [(1, 1, 2), (2, 2, 3), (3, 3, 4), (5, 5, 5)]
    groups = answers.in_groups([head(f"L0H{number}", place) for number, place in enumerate(places)])
    assert [[item["head"] for item in group] for group in groups] == [[0, 1, 2], [3]]


def test_the_certificate_in_words_names_the_worst_row():
    assert remarks.agreement(STUDY.frames["certificate"]) == (
        "The hooked model and the from-scratch math agree: the largest of 17 differences is 6 × 10⁻⁷ of its scale "
        "(logits, the "
        "whole model), allowed 1 × 10⁻⁵."
    )


def test_a_failed_certificate_is_never_called_agreement():
    frame = STUDY.frames["certificate"].assign(ok=[False, *[True] * 16])
    assert remarks.agreement(frame).startswith("1 of 17 differences")


def test_a_cue_after_the_word_gives_the_measured_difference():
    row = STUDY.frames["showcase"].to_dict("records")[2]
    said = remarks.later_words(row)
    assert said.startswith("“carbon” comes after the word: a causal model cannot have resolved the word by it.")
    assert "no head's write at the word changes by more than 3 × 10⁻⁸ of the largest ΔE" in said
    assert remarks.later_words(row | {"cue": None}).startswith("What tells the sense comes after the word")


def test_a_reading_says_right_wrong_and_guess():
    right, wrong = STUDY.frames["showcase"].to_dict("records")[:2]
    assert "nearest to river, as meant (coordinate 0.43, from −0.50 for money to 0.50 for river)" in remarks.reading(
        right, True
    )
    assert "nearest to river, although money is meant" in remarks.reading(wrong, True)
    assert remarks.reading(right, False).endswith(
        "The senses were not shown to be apart in this model, so this is no better than a guess."
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
    assert answers.smallest_set({"curves": curves}, "bank").names == ["L0H0", "L0H1", "L1H0"]
