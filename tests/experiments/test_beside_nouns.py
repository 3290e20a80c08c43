"""The comparison with unambiguous nouns: the gate of a word, and how far each is moved."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from inside import (
    ALIGNED,
    Pairs,
    ambiguity_gates,
    compare_pairwise,
    compare_with_nouns,
    expected_movement,
    holm,
    joined_parts,
)

NOUNS = tuple(f"noun{number}" for number in range(19))
DEPTH = 1  # the read-out depth, of two depths
LITTLE = [0.1] * 18
NEAR = ("ambiguity_p", "nouns_near", "ambiguity_p_near")
WORD_SURPRISAL = 7.5  # nats


def record_of(squared_gaps, *, nouns=NOUNS, comparable=24, gap=None, surprisal=None):
    """What is measured of nouns with these squared gaps, for a word whose squared gap is 1."""
    squared = np.tile(np.array(squared_gaps)[:, None], (1, 2))
    blank = np.zeros_like(squared)
    unknown = np.full(len(nouns), np.nan)
    return xr.Dataset(
        {
            "noun_surprisal": ("noun", unknown if surprisal is None else np.array(surprisal)),
            "word_surprisal": ("noun", np.full(len(nouns), WORD_SURPRISAL)),
            "squared_gap": (("noun", "depth"), squared),
            "word_squared_gap": (("noun", "depth"), blank + 1.0),
            "noun_gap": (
                ("noun", "depth"),
                blank + 1.0 if gap is None else np.tile(np.array(gap)[:, None], (1, 2)),
            ),
            "comparable": comparable,
            "sentences_left_out": 0,
        },
        coords={"noun": [*nouns]},
    )


# --- the ambiguity gate ---------------------------------------------------------------------------


def test_a_word_of_three_senses_has_one_gate():
    """A noun that changes further than the word in only one of three pairs of senses does not
    change further overall.
    """
    further = record_of([2.0, *LITTLE])
    hardly = record_of([0.1, *LITTLE])
    assert [gate["ambiguity_p"] for gate in ambiguity_gates([further], DEPTH)] == [2 / 20]
    together = ambiguity_gates([further, hardly, hardly], DEPTH)
    assert [gate["ambiguity_p"] for gate in together] == [1 / 20] * 3
    # A pair without a gate keeps its reason and is not part of the sums.
    tested, untested = ambiguity_gates([hardly, record_of([2.0, *LITTLE], comparable=12)], DEPTH)
    assert tested["ambiguity_p"] == 1 / 20
    assert np.isnan(untested["ambiguity_p"]) and untested["not_compared"] == (
        "it is a noun in its dictionary form in 12 of the paired sentences, and 24 are needed"
    )
    # Nouns that are missing in one pair do not count.
    other_nouns = record_of([*LITTLE, 0.1], nouns=(*NOUNS[1:], "another noun"))
    for gate in ambiguity_gates([hardly, other_nouns], DEPTH):
        assert np.isnan(gate["ambiguity_p"])
        assert gate["not_compared"] == (
            "nouns that can take its place: 18 for all its senses, and 19 are needed"
        )


def test_the_gate_is_repeated_among_nouns_that_are_about_as_expected_as_the_word():
    """19 of 38 nouns are within 2 nats. The noun that changes further than the word is not."""
    names = tuple(f"noun{number}" for number in range(38))
    further = [2.0, *[0.1] * 37]
    far, near = [11.0] * 19, [9.5] * 19
    [gate] = ambiguity_gates([record_of(further, nouns=names, surprisal=far + near)], DEPTH)
    assert [gate[name] for name in NEAR] == [2 / 39, 19, 1 / 20]
    [gate] = ambiguity_gates([record_of(further, nouns=names, surprisal=near + far)], DEPTH)
    assert [gate[name] for name in NEAR] == [2 / 39, 19, 2 / 20]
    one_fewer = [9.51, *near[1:], *far]
    [gate] = ambiguity_gates([record_of(further, nouns=names, surprisal=one_fewer)], DEPTH)
    assert gate["nouns_near"] == 18 and np.isnan(gate["ambiguity_p_near"])
    # A model that predicts no tokens has no surprisal.
    [gate] = ambiguity_gates([record_of(further, nouns=names)], DEPTH)
    assert gate["nouns_near"] == 0 and np.isnan(gate["ambiguity_p_near"])


# --- effects of heads and MLPs --------------------------------------------------------------------

WORD_GAP = 2.0
GAPS = (2.0, 1.0, 0.4, 0.1)  # of four nouns; the last gap is less than a tenth of the word's
ROWS = tuple(range(8))
# Eight pairs of sentences with different cue words. Noun n replaces the word in pairs n and n + 4.
PAIRS = Pairs(ROWS, ROWS, ROWS, ROWS, tuple("fghijklm"), ROWS, ROWS, (1,) * 8, ALIGNED, 0)
NOUN_OF = np.array([0, 1, 2, 3] * 2)


def compared(gaps, word, noun, noun_of=NOUN_OF, **record):
    """The comparison of one head that moves the word by `word` of its gap in every pair, and each
    noun by `noun`, in units of the residual stream, in every measure.
    """
    record = record_of([0.1] * len(gaps), nouns=NOUNS[: len(gaps)], gap=gaps, **record)
    return compare_with_nouns(
        PAIRS,
        np.full((len(ROWS), 2), WORD_GAP),
        record,
        word=np.full((len(ROWS), 1, 2), word * WORD_GAP),
        noun=np.repeat(np.asarray(noun)[noun_of][:, None, None], 3, axis=-1),
        at=np.array([DEPTH]),
        pair_of=np.arange(len(ROWS)),
        noun_of=noun_of,
        permutations=99,
    )


THREE = np.array([0, 1, 2, 0] * 2)  # the last two nouns never replace the word


def test_word_and_nouns_are_compared_in_the_words_gap_and_the_share_is_of_each_nouns_own():
    effects = compared(GAPS[:3], 0.8, np.array(GAPS[:3]) / 2, noun_of=THREE)
    moved = np.array(GAPS)[THREE].mean() / 2 / WORD_GAP
    assert (effects.net[0], effects.nouns[0]) == (pytest.approx(0.8), pytest.approx(moved))
    assert effects.more[:, 0] == pytest.approx(0.8 - moved) and len(effects.names) == 8
    assert effects.share[0] == pytest.approx(0.5)
    columns = joined_parts([effects])
    assert columns["more"] == pytest.approx(0.8 - moved)
    assert columns["more_low"][0] < columns["more"][0] < columns["more_high"][0]


def test_signs_are_flipped_as_often_as_the_study_asks_for():
    effects = compared(GAPS[:3], 0.8, np.array(GAPS[:3]) / 2, noun_of=THREE)
    # Two-sided: p = 2 (1 + hits) / (1 + flips).
    assert 0 < effects.p[0] < 0.2
    assert effects.p[0] * 50 == pytest.approx(round(effects.p[0] * 50))


def test_a_noun_without_a_gap_is_compared_but_has_no_share():
    """As a fraction of a tiny gap, an effect could be any number."""
    effects = compared(GAPS, 0.8, [*np.array(GAPS[:3]) / 2, 0.0])
    assert effects.nouns[0] == pytest.approx(np.sum(GAPS[:3]) / 2 / 4 / WORD_GAP)
    assert effects.share[0] == pytest.approx(0.5) and len(effects.names) == 8
    tenth = compared((*GAPS[:3], WORD_GAP / 10), 0.8, [*np.array(GAPS[:3]) / 2, WORD_GAP / 10])
    assert tenth.share[0] == pytest.approx((3 * 0.5 + 1) / 4)  # a tenth is sufficient
    few = compared((*GAPS[:2], 0.1, 0.1), 0.8, [1.0, 0.5, 0.05, 0.05])
    assert np.isnan(few.share[0]) and few.more[0, 0] > 0


def test_fewer_than_three_nouns_give_no_comparison():
    assert compared(GAPS[:2], 0.8, [1.0, 0.5], noun_of=np.array([0, 1] * 4)) is None


def test_the_trend_over_surprisal_is_extrapolated_to_the_word():
    """Nouns move by exp(-s / 2), s nats more surprising than the word: at 0 a noun would move 1."""
    nats = np.arange(1.0, 21.0)
    noun_of = np.arange(20)
    falling = np.stack([np.exp(-nats / 2), np.full(20, 0.3)], axis=1)
    expected = expected_movement(falling, noun_of, nats)
    assert expected == pytest.approx([1, 0.3], abs=1e-6)
    # A head that moves less expected nouns further, and too few nouns whose surprisal is known.
    assert expected_movement(falling[::-1], noun_of, nats)[0] == pytest.approx(falling[:, 0].mean())
    assert np.isnan(expected_movement(falling[:18], noun_of[:18], nats[:18])).all()
    # Nouns that are equally expected move differently: no noun with the word's surprisal is known.
    scattered = falling[:, :1] * np.where(noun_of % 2, 2.0, 0.0)[:, None]
    assert expected_movement(scattered, noun_of, nats) == pytest.approx(scattered.mean(0))


def test_p_is_corrected_over_the_pairs_of_senses_by_holms_method():
    p = np.array([[0.02, 0.5, np.nan], [0.01, 0.04, np.nan], [0.9, 0.03, np.nan]])
    expected = [[0.04, 0.5, np.nan], [0.03, 0.09, np.nan], [0.9, 0.09, np.nan]]
    np.testing.assert_allclose(holm(p), expected)


# --- several pairs of senses ----------------------------------------------------------------------


def of_senses(differences, order):
    """A comparison in eight pairs of sentences with the same cue words and nouns, in some order."""
    pairs = replace(PAIRS, frames=("f",) * 8).take(order)
    pairs = replace(pairs, units=ROWS)  # numbered in the order of the pairs
    more = np.repeat(np.asarray(differences)[list(order), None, None], 3, axis=-1)
    names = [NOUNS[row] for row in order]
    blank = np.full(1, np.nan)
    return compare_pairwise(
        more, np.zeros_like(more), pairs, names, at_surprisal=blank, share=blank, permutations=999
    )


def test_cue_words_and_nouns_are_drawn_together_in_all_pairs_of_senses():
    """Pairs of senses with equal differences at the same cue words and nouns have the interval of
    one of them: the second adds nothing.
    """
    differences = np.arange(8.0)
    first = of_senses(differences, ROWS)
    columns = joined_parts([first])
    for order in (ROWS[::-1], (3, 0, 7, 5, 1, 2, 6, 4)):
        both = joined_parts([first, of_senses(differences, order)])
        for name in ("more", "more_low", "more_high"):
            assert both[name] == pytest.approx(columns[name]), name


def test_p_of_a_word_is_that_of_the_mean_over_its_pairs_of_senses():
    """A difference in one pair of senses that is reversed in the other is none of the word."""
    differences = np.arange(1.0, 9.0)
    first = of_senses(differences, ROWS)
    assert joined_parts([first])["p_more"][0] < 0.05
    assert joined_parts([first, of_senses(differences, ROWS)])["p_more"][0] < 0.05
    assert joined_parts([first, of_senses(-differences, ROWS)])["p_more"][0] == 1
