"""Answers by the nearest centroid and their baselines: centroids, angles, scores and bags derived by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from handmade import corpus_of
from sklearn.metrics import accuracy_score, f1_score

from probe.study import material, nearest
from probe.text.sentences import Sentence
from probe.text.splits import Holdout


def row(text, sense, word="bank", **more):
    """A sentence whose word is at its first mention; `cue` and `late` mark another word of it."""
    start = text.index(word)
    cue = more.pop("cue", None)
    if cue:
        more |= {"cue_start": text.index(cue), "cue_end": text.index(cue) + len(cue)}
    return Sentence(word=word, sense=sense, text=text, start=start, end=start + len(word), **more)


def numbers(*values):
    return np.array(values)


def resid_of(*by_depth):
    """`sentence depth d_model` from one list of vectors per depth."""
    return torch.tensor(by_depth, dtype=torch.float32).transpose(0, 1)


# Nearest centroid.


def test_the_nearest_centroid_is_nearest_by_cosine_and_not_by_distance():
    # Means (2, 0) and (0, 1). (1, .9) is nearer to (0, 1), 1.005 against 1.345, but its angles are 42 and 48 degrees.
    resid = resid_of([[1, 0], [3, 0], [0, 1], [0, 1], [1, 0.9], [0.9, 1]])
    said = nearest.predict(resid, numbers(0, 0, 1, 1, 1, 1), Holdout((0, 1, 2, 3), (4, 5)))
    assert said.tolist() == [[0, 1]]


def test_a_centroid_is_the_mean_of_the_vectors_as_they_are():
    # The mean of (10, 0) and (0, 1) points to 6 degrees, that of their directions to 45; the other sense to 76.
    # A vector at 50 degrees is nearer to 76 than to 6, and nearer to 45 than to 76.
    resid = resid_of([[10, 0], [0, 1], [1, 4], [1, 4], [np.cos(np.radians(50)), np.sin(np.radians(50))]])
    assert nearest.predict(resid, numbers(0, 0, 1, 1, 0), Holdout((0, 1, 2, 3), (4,))).tolist() == [[1]]


def test_every_depth_has_its_own_centroids():
    first, second = [[1, 0], [0, 1], [1, 0.1]], [[0, 1], [1, 0], [1, 0.1]]
    said = nearest.predict(resid_of(first, second), numbers(4, 7, 4), Holdout((0, 1), (2,)))
    assert said.tolist() == [[4], [7]]


def test_vectors_that_say_nothing_get_the_sense_most_frequent_in_training():
    resid = torch.full((9, 1, 3), 0.1)
    for labels, frequent in ((numbers(0, 0, 0, 1, 1, 1, 1, 0, 0), 1), (numbers(0, 0, 0, 0, 1, 1, 1, 0, 0), 0)):
        said = nearest.predict(resid, labels, Holdout(tuple(range(7)), (7, 8)))
        assert said.tolist() == [[frequent, frequent]]


def test_cosines_that_differ_in_rounding_only_are_a_tie():
    # At each of 64 depths one centroid is three times the other: the same direction, but not the same rounding.
    drawn = torch.randint(-9, 10, (64, 2, 5), generator=torch.Generator().manual_seed(0)).float()
    resid = torch.stack([3 * drawn[:, 0], drawn[:, 0], drawn[:, 0], drawn[:, 1]])
    said = nearest.predict(resid, numbers(0, 1, 1, 0), Holdout((0, 1, 2), (3,)))
    assert (said == 1).all()


def test_the_vector_zero_is_no_error():
    resid = resid_of([[0, 0], [0, 1], [0, 0]])
    assert nearest.predict(resid, numbers(0, 1, 1), Holdout((0, 1), (2,))).tolist() == [[0]]


# Angles.


def turned(*degrees):
    return [[3 * np.cos(np.radians(angle)), 3 * np.sin(np.radians(angle))] for angle in degrees]


def test_the_angle_is_that_of_different_senses_minus_that_of_the_same_sense():
    # One sense at 0 and 10 degrees, the other at 60 and 90. Same sense: 10, 30, mean 20.
    # Different: 60, 90, 50, 80, mean 70.
    resid = resid_of(turned(0, 10, 60, 90), turned(30, 30, 30, 30))
    assert np.allclose(nearest.angle_gap(resid, numbers(0, 0, 1, 1)), [50, 0], atol=1e-4)
    # The other way round the senses are nearer to each other than to themselves.
    # Same: 60, 80; different: 10, 90, 50, 30.
    assert np.allclose(nearest.angle_gap(resid, numbers(0, 1, 0, 1)), [45 - 70, 0], atol=1e-4)


@pytest.mark.parametrize("block", [1, 3])
def test_the_angle_does_not_depend_on_how_the_pairs_are_cut(monkeypatch, block):
    resid, labels = torch.randn(7, 2, 5, generator=torch.Generator().manual_seed(0)), numbers(0, 1, 1, 0, 2, 0, 1)
    whole = nearest.angle_gap(resid, labels)
    monkeypatch.setattr(nearest, "BLOCK", block)
    assert np.allclose(nearest.angle_gap(resid, labels), whole, rtol=1e-12)


def test_the_angle_is_missing_where_there_is_no_pair_of_either_kind():
    resid = resid_of(turned(0, 10, 60))
    assert np.isnan(nearest.angle_gap(resid, numbers(0, 0, 0))).all()
    assert np.isnan(nearest.angle_gap(resid, numbers(0, 1, 2))).all()


# Scores.


def test_macro_f1_by_hand():
    # Sense 0: 2 hits, 3 in gold, 2 said: 4/5. Sense 1: 1 hit, 1 in gold, 2 said: 2/3.
    assert np.isclose(nearest.macro_f1(numbers(0, 0, 0, 1), numbers(0, 0, 1, 1)), (4 / 5 + 2 / 3) / 2)
    # A sense that is said and never tested costs its sentence and is no sense of its own: 4/5 and 1.
    assert np.isclose(nearest.macro_f1(numbers(0, 0, 0, 1), numbers(0, 0, 2, 1)), 0.9)
    assert nearest.accuracy(numbers(0, 0, 0, 1), numbers(0, 0, 2, 1)) == 0.75


def test_scores_equal_scikit_learns_at_every_depth():
    rng = np.random.default_rng(0)
    gold, said = rng.integers(0, 4, 60), rng.integers(0, 5, (3, 60))
    f1 = [f1_score(gold, depth, labels=range(4), average="macro") for depth in said]
    assert np.allclose(nearest.macro_f1(gold, said), f1)
    assert np.allclose(nearest.accuracy(gold, said), [accuracy_score(gold, depth) for depth in said])


# Baselines.


def test_bags_hold_the_other_words_and_never_the_word():
    sentence = row("The old bank, a Bank by the bank's River", "river")
    assert nearest.whole_bag(sentence) == ("the", "old", "a", "by", "the", "s", "river")
    assert nearest.left_bag(sentence) == ("the", "old")


def test_the_marked_form_of_the_word_is_in_no_bag():
    sentence = Sentence("bank", "river", "both banks flooded", 5, 10)
    assert nearest.whole_bag(sentence) == ("both", "flooded")


def predicted(bag, pairs, train):
    sentences = [row(text, sense) for text, sense in pairs]
    labels = nearest.numbered(sentences)
    holdout = Holdout(tuple(range(train)), tuple(range(train, len(pairs))))
    return nearest.predict_by_bag([bag(sentence) for sentence in sentences], labels, holdout).tolist()


AFTER = [("the bank of the river", "b"), ("the bank gave a loan", "a"), ("the bank of a river", "b")]
AFTER += [("the bank has one loan", "a"), ("the bank near his river", "b"), ("the bank wants that loan back", "a")]


def test_where_only_the_right_tells_the_whole_bag_knows_and_the_left_one_says_the_most_frequent():
    assert predicted(nearest.whole_bag, AFTER, 3) == [0, 1, 0]
    assert predicted(nearest.left_bag, AFTER, 3) == [1, 1, 1]  # b is more frequent in training


def test_where_the_left_tells_both_know():
    before = [(f"{text.split()[-1]} bank", sense) for text, sense in AFTER[:5]] + [("a loan bank", "a")]
    assert predicted(nearest.whole_bag, before, 3) == predicted(nearest.left_bag, before, 3) == [0, 1, 0]


def test_a_bag_without_a_known_word_gets_the_most_frequent_sense():
    pairs = [("loan bank", "a"), ("river bank", "b"), ("shore bank", "b"), ("bank", "a"), ("wholly new bank", "a")]
    assert predicted(nearest.left_bag, pairs, 3) == [1, 1]
    assert predicted(nearest.left_bag, [("bank", "a"), ("bank on", "b"), ("bank in", "b"), ("new bank", "a")], 3) == [1]


def test_the_most_frequent_sense_is_that_of_the_training_part():
    assert nearest.most_frequent(numbers(2, 1, 1, 2, 2), 2).tolist() == [2, 2]
    assert nearest.most_frequent(numbers(5, 3, 3, 5), 1).tolist() == [3]


# The depth that is read.


def told_apart(depths, *, told_at):
    """`sentence depth d_model` of eight sentences, a and b in turn, that differ by sense at some depths only."""
    sign = torch.tensor([1.0, -1.0] * 4)
    noise = torch.randn(8, depths, 3, generator=torch.Generator().manual_seed(0)) * 0.01 + torch.tensor([1.0, 0, 0])
    for depth in told_at:
        noise[:, depth, 1] += sign
    return noise


EIGHT = [row(f"{n} bank", "ab"[n % 2]) for n in range(8)]


@pytest.mark.parametrize("told_at, expected", [([2], 2), ([0, 2], 2), ([1, 2], 1), ([0, 3], 3)])
def test_the_depth_is_the_first_after_a_block_at_which_the_senses_are_told_apart(told_at, expected):
    assert nearest.choose_depth(EIGHT, told_apart(4, told_at=told_at), seed=0) == expected


def test_too_few_sentences_to_choose_are_read_at_the_last_depth():
    assert nearest.choose_depth(EIGHT[:2], told_apart(4, told_at=[1])[:2], seed=0) == 3


def test_the_depth_is_chosen_without_the_tested_sentences(model):
    rows = [replace(sentence, split="train" if n < 8 else "test") for n, sentence in enumerate([*EIGHT, *EIGHT])]
    (task,) = material.prepare_task(model, corpus_of(rows), seed=0)
    trained, tested = told_apart(4, told_at=[1]), told_apart(4, told_at=[2])
    tested[:, 1] = tested[0, 1]  # at the depth that training prefers the tested sentences are all alike
    found = nearest.answer(task, torch.cat([trained, tested]), seed=0)
    assert found.depth == 1
    assert nearest.accuracy(found.gold, found.nearest) == 0.5 == nearest.accuracy(found.gold, found.by_depth[1])
    assert nearest.choose_depth(EIGHT, tested, seed=0) == 2
