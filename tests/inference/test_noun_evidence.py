"""The comparison with unambiguous nouns: the gate of a word, and effects as fractions of gaps."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from probe.experiments.design import Pairs
from probe.experiments.nouns import NounRecord
from probe.inference.nouns import (
    ambiguity_gate,
    compare_pairwise,
    compare_with_nouns,
    joined_parts,
)
from probe.text.splits import ALIGNED

NOUNS = tuple(f"noun{number}" for number in range(19))
DEPTH = 1  # the read-out depth, of two depths
LITTLE = [0.1] * 18
WORD_SURPRISAL = 7.5  # nats


def record_of(squared_gaps, *, nouns=NOUNS, comparable=24, gap=None, surprisal=None):
    """The record of nouns with these squared gaps, for a word whose squared gap is 1."""
    squared = np.tile(np.array(squared_gaps)[:, None], (1, 2))
    blank = np.zeros_like(squared)
    return NounRecord(
        nouns=nouns,
        sentences=(24,) * len(nouns),
        surprisal=np.full(len(nouns), np.nan) if surprisal is None else np.array(surprisal),
        word_surprisal=np.full(len(nouns), WORD_SURPRISAL),
        squared_gap=squared,
        word_squared_gap=blank + 1.0,
        shared_axis=blank,
        gap=blank + 1.0 if gap is None else np.tile(np.array(gap)[:, None], (1, 2)),
        pair_of=np.arange(0),
        noun_of=np.arange(0),
        pair_gap=np.empty((0, 2)),
        heads=(),
        net=np.empty((0, 0)),
        by_depth=np.empty((0, 2)),
        write=np.empty((0, 0)),
        word_write=np.empty((0, 0)),
        comparable=comparable,
        sentences_left_out=0,
        left_out={},
    )


# --- the ambiguity gate ---------------------------------------------------------------------------


def test_a_word_of_three_senses_has_one_gate():
    """A noun that changes further than the word in only one of three pairs of senses does not
    change further overall.
    """
    further = record_of([2.0, *LITTLE])
    hardly = record_of([0.1, *LITTLE])
    assert [gate.p for gate in ambiguity_gate([further], DEPTH)] == [2 / 20]
    together = ambiguity_gate([further, hardly, hardly], DEPTH)
    assert [gate.p for gate in together] == [1 / 20] * 3
    # A pair without a gate keeps its reason and is not part of the sums.
    tested, untested = ambiguity_gate([hardly, record_of([2.0, *LITTLE], comparable=12)], DEPTH)
    assert tested.p == 1 / 20
    assert np.isnan(untested.p) and untested.reason == (
        "it is a noun in its dictionary form in 12 of the paired sentences, and 24 are needed"
    )
    # Nouns that are missing in one pair do not count.
    other_nouns = record_of([*LITTLE, 0.1], nouns=(*NOUNS[1:], "another noun"))
    for gate in ambiguity_gate([hardly, other_nouns], DEPTH):
        assert np.isnan(gate.p)
        assert gate.reason == (
            "nouns that can take its place: 18 for all its senses, and 19 are needed"
        )


def test_the_gate_is_repeated_among_nouns_that_are_about_as_expected_as_the_word():
    """19 of 38 nouns are within 2 nats. The noun that changes further than the word is not."""
    names = tuple(f"noun{number}" for number in range(38))
    further = [2.0, *[0.1] * 37]
    far, near = [11.0] * 19, [9.5] * 19
    [gate] = ambiguity_gate([record_of(further, nouns=names, surprisal=far + near)], DEPTH)
    assert (gate.p, gate.near, gate.p_near) == (2 / 39, 19, 1 / 20)
    [gate] = ambiguity_gate([record_of(further, nouns=names, surprisal=near + far)], DEPTH)
    assert (gate.p, gate.near, gate.p_near) == (2 / 39, 19, 2 / 20)
    one_fewer = [9.51, *near[1:], *far]
    [gate] = ambiguity_gate([record_of(further, nouns=names, surprisal=one_fewer)], DEPTH)
    assert gate.near == 18 and np.isnan(gate.p_near)
    # A model that predicts no tokens has no surprisal.
    [gate] = ambiguity_gate([record_of(further, nouns=names)], DEPTH)
    assert gate.near == 0 and np.isnan(gate.p_near)


# --- effects of heads and MLPs --------------------------------------------------------------------

WORD_GAP = 2.0
GAPS = (2.0, 1.0, 0.4, 0.1)  # of four nouns; the last gap is less than a tenth of the word's
ROWS = tuple(range(8))
# Eight pairs of sentences with different cue words. Noun n replaces the word in pairs n and n + 4.
PAIRS = Pairs(ROWS, ROWS, ROWS, ROWS, tuple("fghijklm"), ROWS, ROWS, (1,) * 8, ALIGNED, 0)
NOUN_OF = np.array([0, 1, 2, 3] * 2)


def compared(gaps, word, noun, noun_of=NOUN_OF):
    """The comparison of one head with the effect `word`, a fraction of the word's gap, in every
    pair, and the effect `noun` of each noun, in units of the residual stream.
    """
    record = record_of([0.1] * len(gaps), nouns=NOUNS[: len(gaps)], gap=gaps)
    pair = SimpleNamespace(raw_gap=np.full((len(ROWS), 2), WORD_GAP), pairs=PAIRS)
    return compare_with_nouns(
        pair,
        record,
        word=np.full((len(ROWS), 1), word),
        noun=np.asarray(noun)[noun_of][:, None],
        at=np.array([DEPTH]),
        pair_of=np.arange(len(ROWS)),
        noun_of=noun_of,
        permutations=99,
    )


def test_an_effect_is_a_fraction_of_the_gap_of_each_noun():
    """The general effect is the mean of the fractions, whatever the size of each noun's gap."""
    effects = compared(GAPS[:3], 0.8, np.array(GAPS[:3]) / 2, noun_of=np.array([0, 1, 2, 0] * 2))
    assert (effects.net[0], effects.general[0]) == (pytest.approx(0.8), pytest.approx(0.5))
    assert effects.specific[0] == pytest.approx(0.3) and len(effects.nouns) == 8
    columns = joined_parts([effects])
    # All pairs are equal, so the draws do not vary.
    assert (columns["specific_low"][0], columns["specific_high"][0]) == pytest.approx((0.3, 0.3))


def test_signs_are_flipped_as_often_as_the_study_asks_for():
    effects = compared(GAPS[:3], 0.8, np.array(GAPS[:3]) / 2, noun_of=np.array([0, 1, 2, 0] * 2))
    # Two-sided: p = 2 (1 + hits) / (1 + flips).
    assert 0 < effects.p[0] < 0.2
    assert effects.p[0] * 50 == pytest.approx(round(effects.p[0] * 50))


def test_a_noun_without_a_gap_is_not_compared():
    """As a fraction of a tiny gap, an effect could be any number."""
    effects = compared(GAPS, 0.8, [*np.array(GAPS[:3]) / 2, 9.0])
    assert effects.general[0] == pytest.approx(0.5)
    # Without the two pairs of the last noun.
    assert len(effects.nouns) == 6 and len(set(effects.pairs.units)) == 6
    tenth = compared((*GAPS[:3], WORD_GAP / 10), 0.8, [*np.array(GAPS[:3]) / 2, WORD_GAP / 20])
    assert len(tenth.nouns) == 8  # a tenth is sufficient


def test_fewer_than_three_nouns_with_a_gap_give_no_comparison():
    assert compared((*GAPS[:2], 0.1, 0.1), 0.8, [1.0, 0.5, 0.05, 0.05]) is None


# --- several pairs of senses ----------------------------------------------------------------------


def of_senses(differences, order):
    """A comparison in eight pairs of sentences with the same cue words and nouns, in some order."""
    pairs = replace(PAIRS, frames=("f",) * 8).take(order)
    pairs = replace(pairs, units=ROWS)  # numbered in the order of the pairs
    more = np.asarray(differences)[list(order), None]
    names = [NOUNS[row] for row in order]
    return compare_pairwise(more, np.zeros_like(more), pairs, names, permutations=99)


def test_cue_words_and_nouns_are_drawn_together_in_all_pairs_of_senses():
    """Pairs of senses with equal differences at the same cue words and nouns have the interval of
    one of them: the second adds nothing.
    """
    differences = np.arange(8.0)
    first = of_senses(differences, ROWS)
    columns = joined_parts([first])
    for order in (ROWS[::-1], (3, 0, 7, 5, 1, 2, 6, 4)):
        both = joined_parts([first, of_senses(differences, order)])
        for name in ("specific", "specific_low", "specific_high"):
            assert both[name] == pytest.approx(columns[name]), name
