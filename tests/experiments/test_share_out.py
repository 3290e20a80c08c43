"""How pairs of sentences are shared out to nouns, and which pairs a noun can use."""

from dataclasses import fields

import numpy as np
import pytest
from handmade import SENSES, make_sentences

from probe.experiments import design
from probe.experiments.nouns import WordInPlace, _usable_pairs, share_out
from probe.text.splits import ALIGNED, CrossFit, Holdout, cross_fit

NOUNS = tuple(f"noun{number}" for number in range(7))


def drawn_case(seed):
    """Pairs with their cue words, and the pairs that each noun can use."""
    rng = np.random.default_rng(seed)
    units = rng.integers(0, 5, size=rng.integers(1, 20)).tolist()
    chance = rng.choice([0.2, 0.6, 1.0])
    usable = {noun: [pair for pair in range(len(units)) if rng.random() < chance] for noun in NOUNS}
    return units, usable, int(rng.integers(1, 8))


@pytest.mark.parametrize("seed", range(30))
def test_every_pair_goes_to_the_planned_number_of_nouns_or_to_all_that_fit(seed):
    units, usable, per_pair = drawn_case(seed)
    shared = share_out(units, usable, per_pair)
    assert set(shared) == set(usable)
    for pair in range(len(units)):
        fitting = {noun for noun in usable if pair in usable[noun]}
        receivers = [noun for noun in shared if pair in shared[noun]]
        assert len(receivers) == min(per_pair, len(fitting)) and set(receivers) <= fitting
    for pairs in shared.values():
        assert len(set(pairs)) == len(pairs)


@pytest.mark.parametrize("per_pair", [1, 3, 6, 7])
@pytest.mark.parametrize("pairs", [1, 5, 12, 23])
def test_nouns_that_fit_everywhere_get_as_many_pairs_as_each_other(pairs, per_pair):
    units = [pair % 4 for pair in range(pairs)]
    shared = share_out(units, dict.fromkeys(NOUNS, range(pairs)), per_pair)
    counts = [len(of_noun) for of_noun in shared.values()]
    assert sum(counts) == pairs * per_pair and max(counts) - min(counts) <= 1


def test_the_pairs_of_a_cue_word_go_to_different_nouns():
    """Seven pairs of each of two cue words, in turn: every noun meets both."""
    shared = share_out([0, 1] * 7, dict.fromkeys(NOUNS, range(14)), per_pair=1)
    assert all({pair % 2 for pair in pairs} == {0, 1} for pairs in shared.values())


def test_without_swaps_no_noun_gets_a_pair():
    assert share_out([0, 1], {"fence": [0, 1]}, per_pair=0) == {"fence": ()}


# --- the pairs that a noun can use ----------------------------------------------------------------


def word_with(split, pairs):
    """A word of which only the split and the pairs are read."""
    unread = dict.fromkeys(field.name for field in fields(WordInPlace) if field.init)
    return WordInPlace(**unread | {"split": split, "pairs": pairs})


def test_all_pairs_of_some_sentences_are_used_where_each_is_held_out():
    sentences = make_sentences(frames=3, distances=(1,))
    split = cross_fit(sentences, SENSES, seed=0)
    pairs = design.make_pairs(
        sentences, [row.distance for row in sentences], split, limit=1000, seed=0
    )
    word = word_with(split, pairs)
    assert _usable_pairs(word, range(len(sentences))) == list(range(len(pairs)))
    members = (pairs.a[3], pairs.b[3], pairs.same_a[3], pairs.same_b[3])
    remaining_rows = [row for row in range(len(sentences)) if row not in members]
    assert not set(_usable_pairs(word, remaining_rows)) & {3}


def test_a_pair_that_is_only_fitted_on_is_not_used():
    """Rows 0, 1 and 2, 3 are pairs of one sense each, and held out from each other. Without row 3
    the second pair has only one sense, so there is no axis for the first pair."""
    split = CrossFit(
        rows=(0, 1, 2, 3),
        is_a=(True, False, True, False),
        units=(0, 0, 1, 1),
        exchanged=(0, 0, 1, 1),
        holdouts=(Holdout((2, 3), (0, 1)), Holdout((0, 1), (2, 3))),
        pairs=((0, 1), (2, 3)),
    )
    a, b = (0, 2), (1, 3)
    pairs = design.Pairs(a, b, a, b, ("f", "g"), (0, 1), (0, 1), (1, 1), ALIGNED, seed=0)
    word = word_with(split, pairs)
    assert _usable_pairs(word, [0, 1, 2, 3]) == [0, 1]
    assert _usable_pairs(word, [0, 1, 2]) == []
