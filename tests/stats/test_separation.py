"""Held-out separation: by hand from every holdout, leaked by nothing, one-sided, and with honest intervals."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from handmade import SENSES, make_sentences

from probe.stats import permutation
from probe.stats.separation import corrected_tests, measure_separation
from probe.text.splits import Holdout, cross_fit

SHAPE, D_HEAD = (2, 3), 4
SENTENCES = make_sentences(frames=4, distances=(1,), cues=8)
SPLIT = cross_fit(SENTENCES, SENSES, seed=0)
OF_A = np.array(SPLIT.is_a)
FIT, REPORT = (tuple(row for row, unit in enumerate(SPLIT.units) if (unit < 3) == fit) for fit in (True, False))
ONE_WAY = replace(SPLIT, holdouts=(Holdout(FIT, REPORT),))


def drawn_writes(seed, *, d=0.0):
    writes = np.random.default_rng(seed).normal(size=(*SHAPE, len(SENTENCES), D_HEAD))
    writes[1, 2, OF_A, 0] += d
    return writes


def measured(writes, split=SPLIT):
    return measure_separation(torch.from_numpy(writes), split, permutations=19, seed=0)


def counted(writes, holdout):
    """Comparisons won and made, along mean difference / pooled variance of what is learned from."""
    train, test = list(holdout.train), list(holdout.test)
    a, b = (writes[:, :, [row for row in train if OF_A[row] == side]] for side in (True, False))
    pooled = ((a.shape[2] - 1) * a.var(2, ddof=1) + (b.shape[2] - 1) * b.var(2, ddof=1)) / (len(train) - 2)
    scores = (writes * ((a.mean(2) - b.mean(2)) / pooled)[:, :, None]).sum(-1)
    first, second = (scores[..., [row for row in test if OF_A[row] == side]] for side in (True, False))
    return (first[..., :, None] > second[..., None, :]).sum((-1, -2)), first.shape[-1] * second.shape[-1]


def test_every_holdout_is_scored_along_the_direction_of_the_others_and_counts_by_its_comparisons(monkeypatch):
    monkeypatch.setattr("probe.stats.axes.MANY", 0)  # writes as they are, so that they can be scored by hand
    writes = drawn_writes(1, d=0.8)
    found = measured(writes)
    wins, compared = zip(*(counted(writes, holdout) for holdout in SPLIT.holdouts), strict=True)
    np.testing.assert_allclose(found.auroc, sum(wins) / sum(compared), atol=1e-12)
    np.testing.assert_allclose(found.null[0], found.auroc, atol=0)
    assert found.null.shape == (20, *SHAPE) and len(set(compared)) > 1
    won, of = counted(writes, ONE_WAY.holdouts[0])
    np.testing.assert_allclose(measured(writes, ONE_WAY).auroc, won / of, atol=1e-12)
    assert np.abs(won / of - found.auroc).max() > 0.02


def test_other_rows_play_no_part():
    writes = drawn_writes(2)
    some = replace(SPLIT, holdouts=(Holdout(FIT[4:], REPORT[4:]),))
    changed = writes.copy()
    changed[:, :, [*FIT[:4], *REPORT[:4]]] = 100
    for name in ("auroc", "hedges_g", "auroc_low", "null"):
        np.testing.assert_array_equal(getattr(measured(writes, some), name), getattr(measured(changed, some), name))


def test_labels_that_turn_round_in_one_part_turn_the_scores_round():
    """One-sided: what separates the wrong way out of sample stays under one half."""
    writes = drawn_writes(3, d=5.0)
    turned = replace(ONE_WAY, is_a=tuple(a != (row in REPORT) for row, a in enumerate(SPLIT.is_a)))
    one, other = measured(writes, ONE_WAY), measured(writes, turned)
    assert one.auroc[1, 2] > 0.99 and other.auroc[1, 2] < 0.01
    np.testing.assert_allclose(other.auroc, 1 - one.auroc, atol=1e-12)
    np.testing.assert_allclose(other.hedges_g, -one.hedges_g, atol=1e-9)


def test_intervals_hold_the_value_and_widen_where_there_is_doubt():
    found = measured(drawn_writes(4, d=5.0))
    assert (found.auroc_low <= found.auroc + 1e-12).all() and (found.auroc <= found.auroc_high + 1e-12).all()
    assert found.auroc_low.min() >= 0 and found.auroc_high.max() <= 1
    width = found.auroc_high - found.auroc_low
    assert width[1, 2] < 0.05 < np.delete(width.ravel(), 5).min()


def test_nothing_in_one_part_is_learned_from_itself():
    """Writes of one part alone separate: fitted on the other part, they are at chance."""
    found = []
    for seed in range(40):
        writes = drawn_writes(seed)
        place = [row for row in REPORT if OF_A[row]]
        writes[0, 0, place, 1] += 5.0
        found.append(measured(writes, ONE_WAY).auroc[0, 0])
    assert np.mean(found) == pytest.approx(0.5, abs=3 * np.std(found) / np.sqrt(40))
    own, of_a = writes[0, :1, list(REPORT)].transpose(1, 0, 2), OF_A[list(REPORT)]
    learned = permutation.each(of_a[None])
    scores = permutation.own_scores(learned.summed(own), learned.labels, own)
    assert permutation.won(scores, learned.labels).item() > 0.99 * of_a.sum() * (~of_a).sum()


def test_what_moves_the_word_and_what_moves_it_back_have_a_test_each_corrected_over_all_pairs_of_senses():
    """In the second of two pairs of senses one head moves the word towards its sense, one away from it."""
    cues, rng = range(12), np.random.default_rng(0)
    effects = [0.1 * rng.normal(size=(len(cues), *SHAPE)) for _ in range(2)]
    effects[1][:, 0, 1] += 1.0
    effects[1][:, 1, 0] -= 1.0
    tested = corrected_tests([measured(drawn_writes(5))] * 2, effects, [], [], [cues] * 2, permutations=19, seed=0)
    for name, place in (("swap", (0, 1)), ("opposes", (1, 0))):
        nothing, moved = (getattr(pair, name).p for pair in tested)
        assert moved[place] == 1 / 20 and (np.delete(moved, np.ravel_multi_index(place, SHAPE)) > 0.05).all()
        assert (nothing > 0.05).all()
    assert tested[0].said is None
    (one,) = corrected_tests([measured(drawn_writes(5))], effects[1:], effects[:1], [], [cues], permutations=19, seed=0)
    assert one.said is not None and one.continued is None
