"""Axes, shares of space and held-out scores: identities, numbers computed by hand, and a
detector of leaks.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from handmade import SENSES, make_sentences, random_model, tokens_of
from inside import (
    FOLDS,
    CrossFit,
    Holdout,
    axes,
    cross_fit,
    read_weights,
    resampling,
    target_states,
)
from scipy.stats import norm

import probe

EXACT = {"rtol": 0, "atol": 1e-12}


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- the axis -------------------------------------------------------------------------------------


def test_the_axis_is_calibrated_on_its_two_means_and_an_effect_is_a_difference_of_coordinates():
    a, b = normal(7, 5) + 1, normal(9, 5, seed=1)
    axis = axes.fit_axis(a, b, ("river", "money"), 3)
    assert axis.u.norm().item() == pytest.approx(1)
    assert axis.gap == pytest.approx((a.mean(0) - b.mean(0)).norm().item())
    for vectors, coordinate in ((a, 0.5), (b, -0.5), (axis.midpoint, 0)):
        assert axis.coordinate(vectors).mean().item() == pytest.approx(coordinate)
    reversed_axis, change = axes.fit_axis(b, a, ("money", "river"), 3), normal(7, 5, seed=2)
    torch.testing.assert_close(reversed_axis.coordinate(a), -axis.coordinate(a), **EXACT)
    difference = axis.coordinate(a + change) - axis.coordinate(a)
    torch.testing.assert_close(axis.effect(change), difference, **EXACT)
    same = torch.ones(3, 4)
    harmless = axes.fit_axis(same, same, ("a", "b"), 0)
    assert harmless.coordinate(normal(2, 4)).tolist() == [0, 0]


def test_pairs_of_senses_are_in_order_and_the_nearest_sense_is_the_nearest_mean():
    labels = ["unit", "spy", "unit", "skin"]
    assert axes.sense_pairs(labels) == [("unit", "spy"), ("unit", "skin"), ("spy", "skin")]
    assert axes.sense_pairs(["only"]) == []
    fit, new = [[0.0, 0], [2, 0], [10, 0]], [[5.4, 3], [5.6, -3], [-9, 0]]
    nearest = axes.nearest_sense(torch.tensor(fit), ["a", "a", "b"], torch.tensor(new))
    assert nearest == ["a", "b", "a"]


# --- depth ----------------------------------------------------------------------------------------


def separated(depths, *, n=24, noise=1.0, seed=0):
    """Two senses with the distance `depths[d]` at depth d."""
    labels = ["a", "b"] * (n // 2)
    side = torch.tensor([0.5 if label == "a" else -0.5 for label in labels], dtype=torch.float64)
    resid = normal(n, len(depths), 6, seed=seed) * noise
    resid[..., 0] += side[:, None] * torch.tensor(depths)
    return resid, labels


def by_depth(resid, labels, groups, seed=0):
    """The separation of the only pair of senses, held out in folds of groups."""
    is_a = tuple(label == "a" for label in labels)
    units = tuple(resampling.as_numbers(groups)[0].tolist())
    holdouts = tuple(
        Holdout(tuple(train), tuple(test))
        for train, test in resampling.folds(units, FOLDS, seed=seed)
        if len({is_a[position] for position in train}) == 2
    )
    if not holdouts:
        # The scores of a split without holdouts.
        return axes.separation_by_holdout(None, resid, CrossFit((), (), (), (), ()))
    split = CrossFit(tuple(range(len(labels))), is_a, units, units, holdouts)
    return axes.separation_by_holdout(axes.hold_out(resid, split, ("a", "b")), resid, split)


def error_of(g, units):
    return np.sqrt(2 / units + g**2 / (4 * units))


def test_separation_follows_the_gap():
    apart = np.array([0.0, 1.0, 3.0, 1.5])
    resid, labels = separated(apart.tolist(), n=600)
    separation = by_depth(resid, labels, range(600))
    # Of two normal distributions at that distance.
    np.testing.assert_allclose(separation.auroc, norm.cdf(apart / np.sqrt(2)), atol=0.05)
    assert (np.abs(separation.g - apart) < 3 * error_of(apart, 300)).all()


@pytest.mark.parametrize(
    ("name", "chance", "group"), [("auroc", 0.5, 1), ("auroc", 0.5, 2), ("g", 0, 2)]
)
def test_separation_is_held_out(name, chance, group):
    """In sample, noise in more dimensions than sentences would look perfectly separated at every
    depth.

    g is computed with groups that contain both senses, so that every fold trains on equal numbers
    of each. Otherwise the midpoint would be nearer to the more frequent sense, which puts noise
    below 0.
    """
    groups, labels = [row // group for row in range(24)], ["a", "b"] * 12
    scores = [
        getattr(by_depth(normal(24, 3, 200, seed=seed), labels, groups, seed), name)
        for seed in range(40)
    ]
    mean, error = np.mean(scores, axis=0), np.std(scores, axis=0) / np.sqrt(40)
    assert (np.abs(mean - chance) < 3 * error).all()


def test_groups_are_not_trained_and_tested_on_at_once():
    """Cue words are different vectors without a common sense: sentences leak, cue words do not."""
    cue = np.arange(96) % 12
    rows = normal(12, 1, 100)[cue] + 0.01 * normal(96, 1, 100, seed=1)
    labels = ["a" if number % 2 else "b" for number in cue]
    leaks, held_out = by_depth(rows, labels, range(96)), by_depth(rows, labels, cue.tolist())
    assert leaks.auroc == 1 and held_out.auroc < 0.9 and leaks.g > 4 and held_out.g < 1
    # For each sense; sentences of one cue word form a unit.
    for separation, units in ((leaks, 48), (held_out, 6)):
        np.testing.assert_allclose(separation.error, error_of(separation.g, units), rtol=1e-12)


@pytest.mark.parametrize("counts", [(17, 19), (30, 7)])
def test_identical_vectors_are_not_separated_at_all(counts):
    labels = ["a"] * counts[0] + ["b"] * counts[1]
    rows = normal(1, 2, 64).expand(sum(counts), 2, 64).float()
    nothing = by_depth(normal(4, 2, 5), ["a", "b"] * 2, [0, 0, 0, 0])
    for separation in (by_depth(rows, labels, range(sum(counts))), nothing):
        assert (separation.auroc == 0.5).all() and (separation.g == 0).all()


def test_a_gap_without_spread_is_perfect():
    resid, labels = separated([0.0, 0.0, 2.0, 3.0, 3.0], noise=0.0)
    separation = by_depth(resid, labels, range(24))
    assert separation.auroc.tolist() == [0.5, 0.5, 1, 1, 1]
    assert separation.g.tolist() == [0, 0, *[np.inf] * 3]
    assert axes.choose_depth([separation]) == 2


@pytest.mark.parametrize(
    ("g", "expected"),
    [
        # The error of 4 from 32 cue words is sqrt(.0625 + .125) = .433.
        ([[9.0, 1.0, 3.0, 4.0, 3.9]], 3),
        ([[9.0, 1.0, 3.566, 4.0, 3.9]], 3),
        ([[9.0, 1.0, 3.568, 4.0, 3.9]], 2),
        ([[0.0, 1.0, 4.0], [0.0, 5.5, 4.0]], 2),  # means 3.25 and 4, mean error .433
        ([[0.0, 1.0, 4.0], [0.0, 6.2, 4.0]], 1),  # means 3.6 and 4
        ([[0.0, 4.0 - 1e-12, 4.0]], 1),
        ([[0.0, 0.0, 0.0]], 1),
        ([[0.0, 4.0, np.inf, np.inf]], 2),  # nothing varies within the senses
    ],
)
def test_the_read_out_is_within_one_standard_error_by_hand(g, expected):
    """Pairs of senses with this g at every depth. AUROC is not used."""
    by_hand = [
        axes.DepthSeparation(np.linspace(1, 0.5, len(values)), values, error_of(values, 32))
        for values in map(np.array, g)
    ]
    assert axes.choose_depth(by_hand) == expected


# --- axes of every holdout ------------------------------------------------------------------------

SENTENCES = make_sentences(frames=5, distances=(1,), cues=8)
SPLIT = cross_fit(SENTENCES, SENSES, seed=1)
OF_A = np.array(SPLIT.is_a)
ROWS = np.array(SPLIT.rows)


def sides_of(positions):
    """The rows of each sense among some positions."""
    positions = np.array(positions)
    return [ROWS[positions[side]] for side in (OF_A[positions], ~OF_A[positions])]


def test_held_out_axes_are_fitted_on_the_training_rows_of_their_holdout():
    resid = normal(len(SENTENCES), 3, 6)
    held_out = axes.hold_out(resid, SPLIT, SENSES)
    for holdout in SPLIT.holdouts:
        a, b = (resid[rows] for rows in sides_of(holdout.train))
        for row in ROWS[list(holdout.test)].tolist():
            for depth in range(3):
                expected = axes.fit_axis(a[:, depth], b[:, depth], SENSES, depth)
                actual = held_out.at(row, depth)
                torch.testing.assert_close(actual.u, expected.u, **EXACT)
                torch.testing.assert_close(actual.midpoint, expected.midpoint, **EXACT)
                assert actual.gap == pytest.approx(expected.gap, abs=1e-12)
                m = held_out.coordinates(resid[[row]], [row])[0, depth]
                assert m == pytest.approx(expected.coordinate(resid[row, depth]).item(), abs=1e-12)
                change = normal(6, seed=row)
                along = held_out.directions([row])[0, depth] @ change
                assert along.item() == pytest.approx(expected.effect(change).item(), abs=1e-12)
    changed = resid.clone()
    changed[ROWS[list(SPLIT.holdouts[0].test)]] = 100  # tested rows have no influence on their axis
    assert torch.equal(axes.hold_out(changed, SPLIT, SENSES).u[0], held_out.u[0])


def test_the_next_token_is_read_in_centred_logits():
    """M of the last stage: a fraction of the difference of the senses' mean logits, over the
    whole vocabulary.
    """
    resid, unembedding = normal(len(SENTENCES), 3, 6), normal(40, 6, seed=2)
    held_out = axes.hold_out(resid, SPLIT, SENSES, axes.next_token_root(unembedding))
    plain, logits = axes.hold_out(resid, SPLIT, SENSES), resid[:, -1] @ unembedding.T
    logits = logits - logits.mean(-1, keepdim=True)
    torch.testing.assert_close(held_out.u[:, :-1], plain.u[:, :-1], **EXACT)
    for holdout in SPLIT.holdouts:
        row = SPLIT.rows[holdout.test[0]]
        mean_a, mean_b = (logits[rows].mean(0) for rows in sides_of(holdout.train))
        difference, offset = mean_a - mean_b, logits[row] - (mean_a + mean_b) / 2
        expected = offset @ difference / (difference @ difference)
        m = held_out.coordinates(resid[[row]], [row])[0, -1]
        assert m == pytest.approx(expected.item(), abs=1e-10)


def test_separation_by_holdout_is_that_of_held_out_coordinates_by_hand():
    """AUROC within every holdout, g over all of them."""
    resid = normal(len(SENTENCES), 2, 6)
    separation = axes.separation_by_holdout(axes.hold_out(resid, SPLIT, SENSES), resid, SPLIT)
    for depth in range(2):
        aurocs, coordinates = [], ([], [])
        for holdout in SPLIT.holdouts:
            fit = (resid[rows, depth] for rows in sides_of(holdout.train))
            axis = axes.fit_axis(*fit, SENSES, depth)
            tested = [
                axis.coordinate(resid[rows, depth]).numpy() for rows in sides_of(holdout.test)
            ]
            aurocs.append(float(resampling.auroc(*tested)))
            for values, of_holdout in zip(coordinates, tested, strict=True):
                values.extend(of_holdout)
        assert separation.auroc[depth] == pytest.approx(np.mean(aurocs)) and len(set(aurocs)) > 1
        g = resampling.hedges_g(*map(np.array, coordinates)).item()
        assert separation.g[depth] == pytest.approx(g)
    units = len({SPLIT.units[index] for holdout in SPLIT.holdouts for index in holdout.test})
    np.testing.assert_allclose(separation.error, error_of(separation.g, units), rtol=1e-12)


def test_separation_scores_only_holdouts_that_test_both_senses():
    resid, first = normal(len(SENTENCES), 2, 6), SPLIT.holdouts[0]
    only_a = Holdout(first.train, tuple(index for index in first.test if OF_A[index]))
    remaining = SPLIT.holdouts[1:]
    splits = [
        replace(SPLIT, holdouts=holdouts)
        for holdouts in (remaining, (only_a, *remaining), (only_a,))
    ]
    without, with_one, only_one = (
        axes.separation_by_holdout(axes.hold_out(resid, split, SENSES), resid, split)
        for split in splits
    )
    np.testing.assert_array_equal(with_one.auroc, without.auroc)
    assert only_one.auroc.tolist() == [0.5, 0.5] and only_one.g.tolist() == [0, 0]


def test_the_profile_begins_at_exactly_zero():
    rows = len(SENTENCES)
    side = [0.5 if row.sense == SENSES[0] else -0.5 for row in SENTENCES]
    resid = normal(rows, 2, 6)
    resid[:, 0] = 0
    resid[:, 1, 0] += 4 * torch.tensor(side, dtype=torch.float64)
    token = normal(1, 1, 6, seed=8).expand(rows, 1, 6)
    stages = torch.cat([token, resid + token], dim=1)
    held_out = axes.hold_out(stages[:, 1:], SPLIT, SENSES)
    profile = axes.profile(held_out, stages, SPLIT, 1, np.array([0.5, 0.97]))
    places = [(point.depth, point.sense) for point in profile]
    assert places == [(depth, sense) for depth in (-1, 0, 1) for sense in SENSES]
    for point in profile[:4]:
        assert (point.coordinate, point.low, point.high, point.auroc) == (0, 0, 0, 0.5)
    of_a = [row for row in SPLIT.rows if SENTENCES[row].sense == SENSES[0]]
    at_one = held_out.coordinates(stages[of_a, 1:], of_a)[:, 1]
    first, second = profile[4:]
    expected = (at_one.mean(), *np.quantile(at_one, [0.1, 0.9]))
    assert (first.coordinate, first.low, first.high) == pytest.approx(expected, abs=1e-9)
    assert first.auroc == second.auroc == 0.97
    assert second.coordinate == pytest.approx(-0.5, abs=0.15)


# --- writes of a head -----------------------------------------------------------------------------


def test_coordinates_of_a_write_keep_its_lengths_and_angles():
    model = random_model(torch.float64)
    rows = [[3, 50, 7, 9], [8, 1, 90, 9], [7, 7, 1, 30]]
    states = target_states(model, [tokens_of(row) for row in rows], [3, 3, 2])
    weights = read_weights(model)
    coordinates = probe.decomposition.write_coordinates(states.z, weights)
    layers, heads, _, d_head = weights.shape
    assert coordinates.shape == (layers, heads, 3, d_head)
    for layer, head in np.ndindex(layers, heads):
        writes = states.z[:, layer, head] @ weights.blocks[layer].w_o[head]  # sentence d_model
        mine = coordinates[layer, head]
        torch.testing.assert_close(mine @ mine.T, writes @ writes.T, **EXACT)
