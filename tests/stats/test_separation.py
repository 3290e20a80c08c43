"""Held-out separation: computed by hand from every holdout, without leaks, one-sided, and with
honest intervals.
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from handmade import SENSES, make_sentences
from inside import (
    Holdout,
    corrected_tests,
    cross_fit,
    measure_separation,
    own_direction_scores,
    reduced,
    separations,
)

SHAPE, D_HEAD = (2, 3), 4
SENTENCES = make_sentences(frames=4, distances=(1,), cues=8)
SPLIT = cross_fit(SENTENCES, SENSES, seed=0)
OF_A = np.array(SPLIT.is_a)
FIT, REPORT = (
    tuple(row for row, unit in enumerate(SPLIT.units) if (unit < 3) == fit) for fit in (True, False)
)
ONE_WAY = replace(SPLIT, holdouts=(Holdout(FIT, REPORT),))


def random_writes(seed, *, d=0.0):
    writes = np.random.default_rng(seed).normal(size=(*SHAPE, len(SENTENCES), D_HEAD))
    writes[1, 2, OF_A, 0] += d
    return writes


def measured(writes, split=SPLIT):
    return measure_separation(torch.from_numpy(writes), split, permutations=19, seed=0)


def counted(writes, holdout):
    """Comparisons won and made, along mean difference / pooled variance of the training part."""
    train, test = list(holdout.train), list(holdout.test)
    a, b = (writes[:, :, [row for row in train if OF_A[row] == side]] for side in (True, False))
    pooled = ((a.shape[2] - 1) * a.var(2, ddof=1) + (b.shape[2] - 1) * b.var(2, ddof=1)) / (
        len(train) - 2
    )
    scores = (writes * ((a.mean(2) - b.mean(2)) / pooled)[:, :, None]).sum(-1)
    first, second = (
        scores[..., [row for row in test if OF_A[row] == side]] for side in (True, False)
    )
    return (first[..., :, None] > second[..., None, :]).sum((-1, -2)), first.shape[
        -1
    ] * second.shape[-1]


def test_every_holdout_is_scored_along_the_others_and_counts_by_its_comparisons(monkeypatch):
    # Unreduced writes, so that they can be scored by hand.
    monkeypatch.setattr(separations, "MANY", 0)
    writes = random_writes(1, d=0.8)
    separation = measured(writes)
    wins, compared = zip(*(counted(writes, holdout) for holdout in SPLIT.holdouts), strict=True)
    np.testing.assert_allclose(separation.auroc, sum(wins) / sum(compared), atol=1e-12)
    np.testing.assert_allclose(separation.null[0], separation.auroc, atol=0)
    assert separation.null.shape == (20, *SHAPE) and len(set(compared)) > 1
    won, of = counted(writes, ONE_WAY.holdouts[0])
    np.testing.assert_allclose(measured(writes, ONE_WAY).auroc, won / of, atol=1e-12)
    assert np.abs(won / of - separation.auroc).max() > 0.02


def test_rows_outside_the_holdouts_have_no_influence():
    writes = random_writes(2)
    part = replace(SPLIT, holdouts=(Holdout(FIT[4:], REPORT[4:]),))
    changed = writes.copy()
    changed[:, :, [*FIT[:4], *REPORT[:4]]] = 100
    for name in ("auroc", "hedges_g", "auroc_low", "null"):
        np.testing.assert_array_equal(
            getattr(measured(writes, part), name), getattr(measured(changed, part), name)
        )


def test_labels_reversed_in_one_part_reverse_the_scores():
    """One-sided: a separation in the wrong direction out of sample stays below one half."""
    writes = random_writes(3, d=5.0)
    reversed_split = replace(
        ONE_WAY, is_a=tuple(a != (row in REPORT) for row, a in enumerate(SPLIT.is_a))
    )
    forward, backward = measured(writes, ONE_WAY), measured(writes, reversed_split)
    assert forward.auroc[1, 2] > 0.99 and backward.auroc[1, 2] < 0.01
    np.testing.assert_allclose(backward.auroc, 1 - forward.auroc, atol=1e-12)
    np.testing.assert_allclose(backward.hedges_g, -forward.hedges_g, atol=1e-9)


def test_intervals_contain_the_value_and_widen_with_uncertainty():
    separation = measured(random_writes(4, d=5.0))
    assert (separation.auroc_low <= separation.auroc + 1e-12).all() and (
        separation.auroc <= separation.auroc_high + 1e-12
    ).all()
    assert separation.auroc_low.min() >= 0 and separation.auroc_high.max() <= 1
    width = separation.auroc_high - separation.auroc_low
    # The planted head separates completely; the variance is then that of n cue words, not 0.
    assert 0.02 < width[1, 2] < 0.15 < np.delete(width.ravel(), 5).min()


def test_both_directions_of_a_swap_have_a_test_each_corrected_over_all_pairs_of_senses():
    """In the second of two pairs of senses, one head moves the word toward its sense and one
    away from it.
    """
    cues, rng = range(12), np.random.default_rng(0)
    effects = [0.1 * rng.normal(size=(len(cues), *SHAPE)) for _ in range(2)]
    effects[1][:, 0, 1] += 1.0
    effects[1][:, 1, 0] -= 1.0
    tested = corrected_tests(
        [measured(random_writes(5))] * 2,
        {"swap": effects},
        [cues] * 2,
        permutations=19,
        seed=0,
    )
    for name, head in (("swap", (0, 1)), ("opposes", (1, 0))):
        without_effect, with_effect = (getattr(pair, name).p for pair in tested)
        assert (
            with_effect[head] == 1 / 20
            and (np.delete(with_effect, np.ravel_multi_index(head, SHAPE)) > 0.05).all()
        )
        assert (without_effect > 0.05).all()
    assert tested[0].next_token is None
    (single,) = corrected_tests(
        [measured(random_writes(5))],
        {"swap": effects[1:], "next_token": effects[:1], "continuation": [None]},
        [cues],
        permutations=19,
        seed=0,
    )
    assert single.next_token is not None and single.continuation is None


def test_a_measurement_that_one_pair_of_senses_lacks_is_tested_in_the_others():
    """The units stay with their pair of senses."""
    cues, rng = range(12), np.random.default_rng(0)
    effects = [rng.normal(size=(len(cues), *SHAPE)) for _ in range(2)]
    effects[1][:, 0, 1] += 3.0
    one_unit = [0] * len(cues)  # so that no p can be small
    without, with_effect = corrected_tests(
        [measured(random_writes(5))] * 2,
        {"swap": effects, "next_token": [None, effects[1]]},
        [one_unit, cues],
        permutations=19,
        seed=0,
    )
    assert without.next_token is None and without.swap.p.min() > 0.05
    assert with_effect.next_token is not None and with_effect.next_token.p[0, 1] == 1 / 20


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_own_direction_scores_by_hand():
    # Means (2, 1) and (0, 0) after centring; pooled variances 2 and 0.5 over 100 + 100 sentences.
    spread = torch.tensor([[1.0, 0.5], [-1, 0.5], [1, -0.5], [-1, -0.5]], dtype=torch.float64)
    a, b = spread.repeat(25, 1) + torch.tensor([2.0, 1]), spread.repeat(25, 1)
    within = torch.tensor([1.0, 0.25], dtype=torch.float64) * 200 / 198
    new = torch.tensor([[1.0, 0.5], [2, 0.5], [1, 1.5]], dtype=torch.float64)
    expected = (new - torch.tensor([1.0, 0.5])) @ (torch.tensor([2.0, 1]) / within)
    torch.testing.assert_close(own_direction_scores(a, b, new), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("n", [30, 120])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e3])
def test_a_head_without_spread_is_scored_by_its_means(n, size):
    a, b = (
        torch.full((n, 8), size, dtype=torch.float64),
        torch.full((n, 8), -size, dtype=torch.float64),
    )
    a[:, ::2] *= -1
    new = torch.cat([a[:3], b[:3], torch.zeros(1, 8)])
    scores = own_direction_scores(a, b, new)
    assert torch.isfinite(scores).all()
    assert (scores[:3] > 0).all() and scores[3:6].max() < scores[:3].min()
    assert (
        len(set(own_direction_scores(a, a, a[:5]).tolist())) == 1
    )  # a head with a constant write is at chance


@pytest.mark.parametrize(("per_sense", "components"), [(99, 16), (100, 64)])
def test_few_sentences_are_read_in_few_components(per_sense, components):
    fit, new = normal(2, 2 * per_sense, 64) + 3, normal(2, 5, 64, seed=1)
    less, fresh = reduced(fit, new, per_sense=per_sense)
    assert less.shape == (2, 2 * per_sense, components) and fresh.shape == (2, 5, components)
    assert less.mean(1).abs().max() < 1e-12
    spectrum = torch.linalg.svdvals(fit - fit.mean(1, keepdim=True))
    torch.testing.assert_close(
        less.norm(dim=(1, 2)), spectrum[:, :components].norm(dim=1)
    )  # the largest ones


def test_a_layer_without_heads_is_not_tested():
    null = np.random.default_rng(0).normal(size=(200, 3, 4))  # draw layer head
    null[0, 2] += 2
    null[:, 1] = 0
    has_heads = np.array([True, False, True])

    def p_of(layers, **options):
        effects = {"swap": [np.ones((8, len(layers), 4))]}
        separations = [SimpleNamespace(null=null[:, layers])]
        [tested] = corrected_tests(
            separations, effects, [range(8)], permutations=19, seed=0, **options
        )
        return tested.separation

    whole, part = p_of([0, 1, 2], has_heads=has_heads), p_of([0, 2])
    for name in ("t", "p", "q"):
        np.testing.assert_array_equal(getattr(whole, name)[has_heads], getattr(part, name))
    assert (whole.p[1] == 1).all() and (whole.q[1] == 1).all() and (whole.t[1] == 0).all()
