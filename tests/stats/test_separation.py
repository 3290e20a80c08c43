"""Held-out separation both ways: by hand from the two parts, leaked by nothing, one-sided, and with honest
intervals.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from handmade import SENSES, make_sentences

from probe.stats import permutation
from probe.stats.separation import measure_separation

SHAPE, D_HEAD = (2, 3), 4
SENTENCES = make_sentences(frames=4, distances=(1,), cues=8)
CUE = [int(row.pair.split("/")[-1]) for row in SENTENCES]
FIT, REPORT = ([row for row, cue in enumerate(CUE) if (cue < 3) == fit] for fit in (True, False))
OF_A = np.array([row.sense == SENSES[0] for row in SENTENCES])


def drawn_writes(seed, *, d=0.0):
    writes = np.random.default_rng(seed).normal(size=(*SHAPE, len(SENTENCES), D_HEAD))
    writes[1, 2, OF_A, 0] += d
    return writes


def measured(writes, sentences=SENTENCES, parts=(FIT, REPORT)):
    return measure_separation(torch.from_numpy(writes), sentences, parts, permutations=19, seed=0)


def one_way(writes, fit, new):
    """AUROC by counting pairs, along mean difference / pooled variance of the fit part."""
    a, b = (writes[:, :, [row for row in fit if OF_A[row] == side]] for side in (True, False))
    pooled = ((a.shape[2] - 1) * a.var(2, ddof=1) + (b.shape[2] - 1) * b.var(2, ddof=1)) / (len(fit) - 2)
    scores = (writes * ((a.mean(2) - b.mean(2)) / pooled)[:, :, None]).sum(-1)
    first, second = (scores[..., [row for row in new if OF_A[row] == side]] for side in (True, False))
    return (first[..., :, None] > second[..., None, :]).mean((-1, -2))


def test_each_part_is_scored_along_the_others_direction_and_counts_by_its_sentences(monkeypatch):
    monkeypatch.setattr("probe.stats.axes.MANY", 0)  # writes as they are, so that they can be scored by hand
    writes = drawn_writes(1, d=0.8)
    found = measured(writes)
    expected = (one_way(writes, FIT, REPORT) * len(REPORT) + one_way(writes, REPORT, FIT) * len(FIT)) / len(SENTENCES)
    np.testing.assert_allclose(found.auroc, expected, atol=1e-12)
    assert np.abs(one_way(writes, FIT, REPORT) - one_way(writes, REPORT, FIT)).max() > 0.02
    assert found.null.shape == (20, *SHAPE)
    np.testing.assert_allclose(found.null[0], found.auroc, atol=0)


def test_other_rows_play_no_part():
    writes = drawn_writes(2)
    rows = FIT[4:], REPORT[4:]
    changed = writes.copy()
    changed[:, :, [*FIT[:4], *REPORT[:4]]] = 100
    np.testing.assert_array_equal(measured(writes, parts=rows).auroc, measured(changed, parts=rows).auroc)


def test_labels_that_turn_round_in_one_part_turn_the_scores_round():
    """One-sided: what separates the wrong way out of sample stays under one half."""
    writes = drawn_writes(3, d=5.0)
    turned = [
        replace(row, sense=SENSES[1 - SENSES.index(row.sense)]) if place in REPORT else row
        for place, row in enumerate(SENTENCES)
    ]
    one, other = measured(writes), measured(writes, turned)
    assert one.auroc[1, 2] > 0.99 and other.auroc[1, 2] < 0.01
    np.testing.assert_allclose(other.auroc, 1 - one.auroc, atol=1e-12)
    np.testing.assert_allclose(other.hedges_g, -one.hedges_g, atol=1e-9)


def test_intervals_hold_the_value_and_widen_where_there_is_doubt():
    found = measured(drawn_writes(4, d=5.0))
    assert (found.auroc_low <= found.auroc + 1e-12).all() and (found.auroc <= found.auroc_high + 1e-12).all()
    width = found.auroc_high - found.auroc_low
    assert width[1, 2] < 0.05 < np.delete(width.ravel(), 5).min()


def test_nothing_in_one_part_is_learned_from_itself():
    """Writes of one part alone separate: fitted on the other part, they are at chance."""
    found = []
    for seed in range(40):
        writes = drawn_writes(seed)
        place = [row for row in REPORT if OF_A[row]]
        writes[0, 0, place, 1] += 5.0
        found.append(measured(writes).auroc[0, 0])
    assert np.mean(found) == pytest.approx(0.5, abs=3 * np.std(found) / np.sqrt(40))
    labels = OF_A[REPORT][None]
    own = permutation.own_scores(
        writes[0, :1, REPORT].transpose(1, 0, 2), labels, writes[0, :1, REPORT].transpose(1, 0, 2)
    )
    assert permutation.aurocs(own, labels).item() > 0.99
