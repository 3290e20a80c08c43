"""Axes, shares of space and held-out scores: identities, numbers computed by hand, and a
detector of leaks.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from handmade import SENSES, make_sentences, random_model, tokens_of
from scipy.stats import norm

from probe.model import decomposition
from probe.model.load import read_weights
from probe.model.trace import target_states
from probe.stats import axes, resampling
from probe.text.splits import FOLDS, CrossFit, Holdout, cross_fit

EXACT = {"rtol": 0, "atol": 1e-12}


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- the axis -------------------------------------------------------------------------------------


def test_the_axis_is_calibrated_on_its_two_means_and_an_effect_is_a_difference_of_coordinates():
    a, b = normal(7, 5) + 1, normal(9, 5, seed=1)
    axis = axes.fit_axis(a, b, ("river", "money"), 3)
    assert axis.u.norm().item() == pytest.approx(1)
    assert axis.gap == pytest.approx((a.mean(0) - b.mean(0)).norm().item())
    assert axis.coordinate(a).mean().item() == pytest.approx(0.5)
    assert axis.coordinate(b).mean().item() == pytest.approx(-0.5)
    assert axis.coordinate(axis.midpoint).item() == pytest.approx(0)
    assert (axis.sense_a, axis.sense_b, axis.depth) == ("river", "money", 3)
    reversed_axis, change = axes.fit_axis(b, a, ("money", "river"), 3), normal(7, 5, seed=2)
    torch.testing.assert_close(reversed_axis.coordinate(a), -axis.coordinate(a), **EXACT)
    torch.testing.assert_close(
        axis.effect(change), axis.coordinate(a + change) - axis.coordinate(a), **EXACT
    )


def test_identical_senses_have_a_harmless_axis():
    same = torch.ones(3, 4)
    axis = axes.fit_axis(same, same, ("a", "b"), 0)
    assert axis.coordinate(normal(2, 4)).tolist() == [0, 0]


def test_pairs_of_senses_are_in_order_of_appearance():
    labels = ["unit", "spy", "unit", "skin"]
    assert axes.sense_pairs(labels) == [("unit", "spy"), ("unit", "skin"), ("spy", "skin")]
    assert axes.sense_pairs(["only"]) == []


def test_the_nearest_sense_is_the_nearest_mean():
    fit = torch.tensor([[0.0, 0], [2, 0], [10, 0]])
    assert axes.nearest_sense(
        fit, ["a", "a", "b"], torch.tensor([[5.4, 3], [5.6, -3], [-9, 0]])
    ) == ["a", "b", "a"]


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


def by_hand(g):
    """One pair of senses with this g at every depth, from 32 cue words. AUROC is not used."""
    g = np.array(g)
    return axes.DepthSeparation(np.linspace(1, 0.5, len(g)), g, np.sqrt(2 / 32 + g**2 / (4 * 32)))


def test_separation_follows_the_gap():
    apart = np.array([0.0, 1.0, 3.0, 1.5])
    resid, labels = separated(apart.tolist(), n=600)
    separation = by_depth(resid, labels, range(600))
    np.testing.assert_allclose(
        separation.auroc, norm.cdf(apart / np.sqrt(2)), atol=0.05
    )  # of two normal distributions at that distance
    assert (np.abs(separation.g - apart) < 3 * np.sqrt(4 / 600 + apart**2 / 1200)).all()


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
        np.testing.assert_allclose(
            separation.error, np.sqrt(2 / units + separation.g**2 / (4 * units)), rtol=1e-12
        )


@pytest.mark.parametrize("counts", [(17, 19), (12, 12), (30, 7)])
def test_identical_vectors_are_not_separated_at_all(counts):
    labels = ["a"] * counts[0] + ["b"] * counts[1]
    separation = by_depth(
        normal(1, 2, 64).expand(sum(counts), 2, 64).float(), labels, range(sum(counts))
    )
    assert (separation.auroc == 0.5).all() and (separation.g == 0).all()


def test_a_gap_without_spread_is_perfect():
    resid, labels = separated([0.0, 0.0, 2.0, 3.0, 3.0], noise=0.0)
    separation = by_depth(resid, labels, range(24))
    assert separation.auroc.tolist() == [0.5, 0.5, 1, 1, 1] and separation.g.tolist() == [
        0,
        0,
        *[np.inf] * 3,
    ]
    assert axes.choose_depth([separation]) == 2


@pytest.mark.parametrize(
    ("g", "expected"),
    [
        (
            [[9.0, 1.0, 3.0, 4.0, 3.9]],
            3,
        ),  # the error of 4 from 32 cue words is sqrt(.0625 + .125) = .433
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
    assert axes.choose_depth([by_hand(values) for values in g]) == expected


def test_nothing_to_score_is_chance():
    separation = by_depth(normal(4, 3, 5), ["a", "b"] * 2, [0, 0, 0, 0])
    assert separation.auroc.tolist() == [0.5] * 3 and separation.g.tolist() == [0] * 3


# --- axes of every holdout ------------------------------------------------------------------------

SENTENCES = make_sentences(frames=5, distances=(1,), cues=8)
SPLIT = cross_fit(SENTENCES, SENSES, seed=1)
OF_A = np.array(SPLIT.is_a)


def test_held_out_axes_are_fitted_on_the_training_rows_of_their_holdout():
    resid = normal(len(SENTENCES), 3, 6)
    held_out = axes.hold_out(resid, SPLIT, SENSES)
    for holdout in SPLIT.holdouts:
        train = np.array(holdout.train)
        a, b = (resid[np.array(SPLIT.rows)[train[side]]] for side in (OF_A[train], ~OF_A[train]))
        for row, depth in [
            (SPLIT.rows[index], depth) for index in holdout.test for depth in range(3)
        ]:
            expected, actual = (
                axes.fit_axis(a[:, depth], b[:, depth], SENSES, depth),
                held_out.at(row, depth),
            )
            torch.testing.assert_close(actual.u, expected.u, **EXACT)
            torch.testing.assert_close(actual.midpoint, expected.midpoint, **EXACT)
            assert actual.gap == pytest.approx(expected.gap, abs=1e-12)
            m = expected.coordinate(resid[row, depth]).item()
            assert held_out.coordinates(resid[[row]], [row])[0, depth] == pytest.approx(
                m, abs=1e-12
            )
            change = normal(6, seed=row)
            along = held_out.directions([row])[0, depth] @ change
            assert along.item() == pytest.approx(expected.effect(change).item(), abs=1e-12)
    rows = [SPLIT.rows[index] for index in SPLIT.holdouts[0].test]
    changed = resid.clone()
    changed[rows] = 100  # tested rows have no influence on their axis
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
        train, row = np.array(holdout.train), SPLIT.rows[holdout.test[0]]
        means = [
            logits[np.array(SPLIT.rows)[train[side]]].mean(0)
            for side in (OF_A[train], ~OF_A[train])
        ]
        difference = means[0] - means[1]
        expected = (
            (logits[row] - (means[0] + means[1]) / 2) @ difference / (difference @ difference)
        )
        assert held_out.coordinates(resid[[row]], [row])[0, -1] == pytest.approx(
            expected.item(), abs=1e-10
        )


def test_separation_by_holdout_is_that_of_held_out_coordinates_by_hand():
    """AUROC within every holdout, g over all of them."""
    resid = normal(len(SENTENCES), 2, 6)
    separation = axes.separation_by_holdout(axes.hold_out(resid, SPLIT, SENSES), resid, SPLIT)
    resid = resid[list(SPLIT.rows)]
    for depth in range(2):
        aurocs, sides = [], ([], [])
        for train, test in (
            (np.array(holdout.train), np.array(holdout.test)) for holdout in SPLIT.holdouts
        ):
            fit = (resid[train[side], depth] for side in (OF_A[train], ~OF_A[train]))
            along = axes.fit_axis(*fit, SENSES, depth).coordinate(resid[test, depth]).numpy()
            aurocs.append(float(resampling.auroc(along[OF_A[test]], along[~OF_A[test]])))
            for side, of in zip(sides, (OF_A[test], ~OF_A[test]), strict=True):
                side.extend(along[of])
        assert separation.auroc[depth] == pytest.approx(np.mean(aurocs)) and len(set(aurocs)) > 1
        assert separation.g[depth] == pytest.approx(
            resampling.hedges_g(*map(np.array, sides)).item()
        )
    units = len({SPLIT.units[index] for holdout in SPLIT.holdouts for index in holdout.test})
    np.testing.assert_allclose(
        separation.error, np.sqrt(2 / units + separation.g**2 / (4 * units)), rtol=1e-12
    )


def test_separation_scores_only_holdouts_that_test_both_senses():
    resid, first = normal(len(SENTENCES), 2, 6), SPLIT.holdouts[0]
    only_a = Holdout(first.train, tuple(index for index in first.test if OF_A[index]))
    remaining = SPLIT.holdouts[1:]
    without, with_one, only_one = (
        axes.separation_by_holdout(axes.hold_out(resid, split, SENSES), resid, split)
        for split in (
            replace(SPLIT, holdouts=holdouts)
            for holdouts in (remaining, (only_a, *remaining), (only_a,))
        )
    )
    np.testing.assert_array_equal(with_one.auroc, without.auroc)
    assert only_one.auroc.tolist() == [0.5, 0.5] and only_one.g.tolist() == [0, 0]


def test_the_profile_begins_at_exactly_zero():
    rows = len(SENTENCES)
    side = torch.tensor(
        [0.5 if row.sense == SENSES[0] else -0.5 for row in SENTENCES], dtype=torch.float64
    )
    resid = normal(rows, 2, 6)
    resid[:, 0] = 0
    resid[:, 1, 0] += 4 * side
    token = normal(1, 1, 6, seed=8).expand(rows, 1, 6)
    stages = torch.cat([token, resid + token], dim=1)
    held_out = axes.hold_out(stages[:, 1:], SPLIT, SENSES)
    profile = axes.profile(held_out, stages, SPLIT, 1, np.array([0.5, 0.97]))
    assert [(point.depth, point.sense) for point in profile] == [
        (d, sense) for d in (-1, 0, 1) for sense in SENSES
    ]
    for point in profile[:4]:
        assert (point.coordinate, point.low, point.high, point.auroc) == (0, 0, 0, 0.5)
    assert held_out.coordinates(stages[:, 1:], range(rows))[:, 0].tolist() == [0] * rows
    of_a = [row for row in SPLIT.rows if SENTENCES[row].sense == SENSES[0]]
    at_one = held_out.coordinates(stages[of_a, 1:], of_a)[:, 1]
    assert profile[4].coordinate == pytest.approx(at_one.mean(), abs=1e-9)
    assert profile[4].low == pytest.approx(np.quantile(at_one, 0.1), abs=1e-9)
    assert profile[4].high == pytest.approx(np.quantile(at_one, 0.9), abs=1e-9)
    assert profile[4].auroc == profile[5].auroc == 0.97
    assert profile[5].coordinate == pytest.approx(-0.5, abs=0.15)


# --- writes of a head -----------------------------------------------------------------------------


def test_coordinates_of_a_write_keep_its_lengths_and_angles():
    model = random_model(torch.float64)
    rows = [[3, 50, 7, 9], [8, 1, 90, 9], [7, 7, 1, 30]]
    states = target_states(model, [tokens_of(row) for row in rows], [3, 3, 2])
    weights = read_weights(model)
    coordinates = decomposition.write_coordinates(states.z, weights)
    layers, heads, _, d_head = weights.shape
    assert coordinates.shape == (layers, heads, 3, d_head)
    for layer in range(layers):
        for head in range(heads):
            writes = states.z[:, layer, head] @ weights.blocks[layer].w_o[head]  # sentence d_model
            mine = coordinates[layer, head]
            torch.testing.assert_close(mine @ mine.T, writes @ writes.T, **EXACT)
