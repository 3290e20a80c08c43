"""Faithfulness and necessity of sets of heads, from nothing to everything."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from handmade import ODD, random_model
from hooked_runs import target_z

from probe.experiments.backup import joint_swaps
from probe.experiments.design import Pairs, Ranked
from probe.experiments.sets import Curves, _moved_from_all, run_curves
from probe.model import forward
from probe.model.load import read_weights
from probe.patching import heads as patching
from probe.patching import sets
from probe.stats.axes import HeldOutAxes, fit_axis
from probe.text.splits import ALIGNED

LAYERS, HEADS = ODD["n_layer"], ODD["n_head"]
ALL = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]


def drawn_masks(count, seed=0, shape=(LAYERS, HEADS)):
    return np.random.default_rng(seed).random((count, *shape)) < 0.5


@pytest.fixture(scope="module")
def setting():
    """A random model, ten sentences of equal length and last token in five pairs, two holdouts with
    their own axes."""
    model = random_model(torch.float64)
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(model.config.d_vocab, (10, 6), generator=generator)
    ids[:, -1] = 7
    weights, rows = read_weights(model), ids.tolist()
    z, [*_, last] = target_z(model, rows), forward.run(weights, ids, torch.float64)
    resid = last["resid_post"][:, -1]
    fitted = [fit_axis(resid[:5] + shift, resid[5:], ("a", "b"), LAYERS) for shift in (0, 0.3)]
    u, midpoint = (
        torch.stack([getattr(axis, name) for axis in fitted])[:, None] for name in ("u", "midpoint")
    )
    gap = torch.tensor([[axis.gap] for axis in fitted], dtype=torch.float64)
    stages = (part.expand(2, LAYERS + 1, *part.shape[2:]) for part in (u, midpoint, gap))
    axes = HeldOutAxes(("a", "b"), *stages, np.array([0, 1, 0, 1, 1] * 2))
    a, b = (0, 1, 2, 3, 4), (5, 6, 7, 8, 9)
    pairs = Pairs(a, b, a, b, tuple("fghij"), (0, 1, 2, 3, 4), (1,) * 5, ALIGNED, 0)
    return weights, rows, z, (axes, pairs)


def restored(setting, masks):
    """F of every set, over all pairs."""
    weights, rows, z, study = setting
    return sets.faithfulness(
        _moved_from_all(weights, rows, z, Ranked(*study, tuple(ALL)), masks).sum(0)
    )


def toward_donor(setting, pairs, mask):
    """How far the heads outside a set move M towards their donor, in both directions of every pair,
    by hand."""
    weights, rows, z, (axes, _) = setting
    for one, other in zip(pairs.a, pairs.b, strict=True):
        for recipient, donor, sign in ((other, one, 1), (one, other, -1)):
            axis, kept = axes.at(recipient, LAYERS), torch.from_numpy(np.array([mask]))
            given = weights, [rows[recipient]], z[[donor]], kept
            yield sign * patching.swap_sets(*given, (axis.u / axis.gap)[None]).item()


def by_hand(setting, *parts):
    """(M(S) - M(none)) / (M(all) - M(none)), summed over both directions of the pairs of every
    (pairs, set)."""
    none = np.zeros((LAYERS, HEADS), dtype=bool)
    moved = [
        [sum(toward_donor(setting, pairs, kept)) for kept in (mask, none)] for pairs, mask in parts
    ]
    some, whole = np.sum(moved, axis=0)
    return (whole - some) / whole


def test_faithfulness_is_the_ratio_of_sums_by_hand(setting):
    masks, pairs = drawn_masks(4, seed=1), setting[-1][1]
    found = restored(setting, masks)
    assert found.tolist() == pytest.approx(
        [by_hand(setting, (pairs, mask)) for mask in masks], abs=1e-10
    )
    assert np.ptp(found) > 0.05


def test_joint_swaps_are_those_of_one_head_and_of_two(setting):
    weights, rows, z, (axes, pairs) = setting
    others = [(1, 0), (2, 3), (1, 2)]
    found = joint_swaps(weights, rows, z, axes, pairs, first=(0, 1), others=others)
    assert found.shape == (len(pairs), 1 + len(others))
    for column, heads in enumerate([[(0, 1)], *([(0, 1), other] for other in others)]):
        both = list(toward_donor(setting, pairs, ~sets.mask_of(heads, (LAYERS, HEADS))))
        np.testing.assert_allclose(found[:, column], np.reshape(both, (-1, 2)).mean(1), atol=1e-12)


def curves(setting, groups, *, depth=LAYERS):
    weights, rows, z, _ = setting
    shown = tuple(head for head in ALL if head[0] < depth)
    return run_curves(weights, rows, z, groups, shown, depth, seed=0)


def test_curves_are_those_of_the_leading_sets_of_every_groups_own_order(setting):
    axes, pairs = setting[-1]
    orders = [
        tuple(ALL[index] for index in np.random.default_rng(seed).permutation(len(ALL)))
        for seed in (5, 6)
    ]
    parts = [pairs.take([0, 2]), pairs.take([1, 3, 4])]
    found = curves(
        setting, [Ranked(axes, part, order) for part, order in zip(parts, orders, strict=True)]
    )
    assert found.order == tuple(ALL) and found.pairs == 5
    assert found.sizes == tuple(range(13))
    for size in (0, 1, 5, 12):
        masks = [sets.mask_of(order[:size], (LAYERS, HEADS)) for order in orders]
        kept, left = (zip(parts, some, strict=True) for some in (masks, [~mask for mask in masks]))
        assert found.faithfulness[size] == pytest.approx(by_hand(setting, *kept), abs=1e-10)
        assert found.necessity[size] == pytest.approx(1 - by_hand(setting, *left), abs=1e-10)
    assert found.faithfulness[[0, -1]].tolist() == pytest.approx([0, 1], abs=1e-12)
    assert found.random.shape == (len(found.random_sizes), sets.RANDOM_SETS)
    assert found.random_sizes[0] == 1 and found.random_sizes[-1] == 11


def test_random_sets_are_measured_as_sets_of_the_same_layers(setting):
    axes, pairs = setting[-1]
    found = curves(setting, [Ranked(axes, pairs, tuple(ALL))])
    others = [
        by_hand(setting, (pairs, sets.mask_of([(0, head)], (LAYERS, HEADS))))
        for head in range(1, HEADS)
    ]
    drawn = np.abs(found.random[0][:, None] - np.array(others)).argmin(1)
    np.testing.assert_allclose(found.random[0], np.array(others)[drawn], atol=1e-10)
    assert set(drawn) == {0, 1, 2}


def test_heads_behind_the_read_out_play_no_part(setting):
    weights, rows, z, (axes, pairs) = setting
    below = tuple(head for head in ALL if head[0] < 2)
    changed = z.clone()
    changed[:, 2:] = 9.0
    groups, study = [Ranked(axes, pairs, below)], (axes, pairs)
    one, other = (curves((weights, rows, given, study), groups, depth=2) for given in (z, changed))
    np.testing.assert_array_equal(one.faithfulness, other.faithfulness)
    assert one.sizes[-1] == len(below) and one.faithfulness[-1] == pytest.approx(1, abs=1e-12)


def test_intervals_are_those_of_pairs_drawn_again(setting):
    axes, pairs = setting[-1]
    found = curves(setting, [Ranked(axes, pairs, tuple(ALL))])
    for name in ("faithfulness", "necessity"):
        (low, high), value = getattr(found, f"{name}_interval"), getattr(found, name)
        assert (low <= high).all()
        assert low[[0, -1]].tolist() == pytest.approx(
            value[[0, -1]].tolist(), abs=1e-9
        )  # none and all are exact
        assert high[[0, -1]].tolist() == pytest.approx(value[[0, -1]].tolist(), abs=1e-9)
        assert (high - low)[1:-1].min() > 0.01
    alike = replace(
        pairs, a=(0,) * 5, b=(5,) * 5
    )  # five times the same pair: nothing to be unsure of
    sure = curves(setting, [Ranked(axes, alike, tuple(ALL))])
    np.testing.assert_allclose(*sure.faithfulness_interval, atol=1e-9)
    np.testing.assert_allclose(sure.faithfulness_interval[0], sure.faithfulness, atol=1e-9)


BY_HAND = [((0, 0.5, 1), 2, 0.5), ((0, 0.9, 1), 1, 0.7), ((0, 0.2, 0.89), None, 0.3225)]


@pytest.mark.parametrize(("faithfulness", "smallest", "area"), BY_HAND)
def test_area_and_smallest_set_by_hand(faithfulness, smallest, area):
    none, ends = np.zeros(3), (np.zeros(3), np.zeros(3))
    given = ((0, 0), (0, 1)), 1, (0, 1, 2), np.array(faithfulness)
    curves = Curves(*given, ends, none, ends, (), np.zeros((0, 0)))
    assert curves.smallest == smallest
    assert curves.area == pytest.approx(area)
