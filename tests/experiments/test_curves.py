"""Faithfulness and necessity of sets of heads, from no heads to all heads."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import plain_forward
import pytest
import torch
import xarray as xr
from handmade import ODD, random_model
from hooked_runs import target_z
from inside import ALIGNED, HeldOutAxes, Pairs, fit_axis, read_weights, sets
from inside import patched_heads as patching

from probe.experiments import backups
from probe.experiments.sets import Ranked, area, run_curves, smallest_enough

LAYERS, HEADS = ODD["n_layer"], ODD["n_head"]
ALL = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]


@pytest.fixture(scope="module")
def setting():
    """A random model, ten sentences of equal length and with equal last tokens in five pairs, and
    two holdouts with different axes.
    """
    model = random_model(torch.float64)
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(model.config.d_vocab, (10, 6), generator=generator)
    ids[:, -1] = 7
    weights, rows = read_weights(model), ids.tolist()
    z, [*_, last] = target_z(model, rows), plain_forward.run(weights, ids, torch.float64)
    resid = last["resid_post"][:, -1]
    fitted = [fit_axis(resid[:5] + shift, resid[5:], ("a", "b"), LAYERS) for shift in (0, 0.3)]
    u, midpoint = (
        torch.stack([getattr(axis, name) for axis in fitted])[:, None] for name in ("u", "midpoint")
    )
    gap = torch.tensor([[axis.gap] for axis in fitted], dtype=torch.float64)
    stages = (part.expand(2, LAYERS + 1, *part.shape[2:]) for part in (u, midpoint, gap))
    axes = HeldOutAxes(("a", "b"), *stages, np.array([0, 1, 0, 1, 1] * 2))
    a, b = (0, 1, 2, 3, 4), (5, 6, 7, 8, 9)
    pairs = Pairs(
        a, b, a, b, tuple("fghij"), (0, 1, 2, 3, 4), (0, 1, 2, 3, 4), (1,) * 5, ALIGNED, 0
    )
    return weights, rows, z, (axes, pairs)


def toward_donor(setting, pairs, mask):
    """How far the heads outside a set move M toward the donor, pair by pair, in both directions.

    Every number is a separate swap.
    """
    weights, rows, z, (axes, _) = setting
    for a, b in zip(pairs.a, pairs.b, strict=True):
        for recipient, donor, sign in ((b, a, 1), (a, b, -1)):
            axis = axes.at(recipient, LAYERS)
            swap = weights, [rows[recipient]], z[[donor]], torch.from_numpy(np.array([mask]))
            yield sign * patching.swap_sets(*swap, (axis.u / axis.gap)[None]).item()


def by_hand(setting, *parts):
    """(M(S) - M(none)) / (M(all) - M(none)), each a sum over both directions of all pairs.

    parts: (pairs, set); the set may differ between pairs
    """
    none = np.zeros((LAYERS, HEADS), dtype=bool)
    by_part = [
        [sum(toward_donor(setting, pairs, heads)) for heads in (mask, none)]
        for pairs, mask in parts
    ]
    outside, whole = np.sum(by_part, axis=0)
    return (whole - outside) / whole


def test_shifts_of_sets_are_of_all_their_heads_swapped_together(setting):
    weights, rows, z, (axes, pairs) = setting
    swapped = [[(0, 1)], [(0, 1), (2, 3)], [(1, 2)]]
    shifts = backups.shifts_of_sets(weights, rows, z, axes, pairs, swapped)
    assert shifts.shape == (len(pairs), len(swapped))
    for column, heads in enumerate(swapped):
        both = list(toward_donor(setting, pairs, ~sets.mask_of(heads, (LAYERS, HEADS))))
        np.testing.assert_allclose(shifts[:, column], np.reshape(both, (-1, 2)).mean(1), atol=1e-12)


def test_the_joint_excess_of_backups_compares_swaps_of_one_kind_on_the_same_pairs(setting):
    """E(both) - E(first) - E(later), each without same-sense donors and in the swapped pairs alone.

    The net effects over all pairs only select the first head.
    """
    weights, rows, z, (axes, pairs) = setting
    net = np.full((LAYERS, HEADS, LAYERS), 0.25)
    net[0, 1] = [0.9, 0.5, 0.1]  # most of the effect of this head is lost again
    gap = np.random.default_rng(0).uniform(1, 2, (len(pairs), LAYERS + 1))
    data = xr.Dataset(
        {
            "net_by_depth": (("layer", "head", "depth"), net),
            "direct_by_pair": (("sentence_pair", "layer", "head"), net[None, ..., 0]),
            "direct_gap_by_pair": (("sentence_pair", "layer"), np.ones((1, LAYERS))),
        }
    )
    each = SimpleNamespace(
        data=data,
        net=net[None, ..., 0],
        prepared=SimpleNamespace(
            gap=gap,
            readout=SimpleNamespace(direct=(1, 2, 3)),
            sense=SimpleNamespace(axes=axes),
        ),
        pairs=pairs,
    )
    run = SimpleNamespace(
        options=SimpleNamespace(seed=0, permutations=99),
        weights=weights,
        observation=SimpleNamespace(texts=rows, states=SimpleNamespace(z=z)),
    )
    found = backups.backups_of(run, each)
    assert (found.earlier_layer.item(), found.earlier_head.item()) == (0, 1)
    is_later = ~np.isnan(found.joint_excess.values[0]).any(0)
    assert [*map(tuple, np.argwhere(is_later))] == ALL[HEADS:]

    def effect(*heads):
        mask = ~sets.mask_of(list(heads), (LAYERS, HEADS))
        both_ways = np.reshape([*toward_donor(setting, pairs, mask)], (-1, 2)).mean(1)
        return both_ways / gap[:, LAYERS].mean()

    order = np.argsort(pairs.units)  # the five pairs are taken in another order
    assert sorted(found.unit.values) == sorted(pairs.units)
    for later in ALL[HEADS:]:
        excess = effect((0, 1), later) - effect((0, 1)) - effect(later)
        measured = found.joint_excess.values[0, np.argsort(found.unit.values), *later]
        np.testing.assert_allclose(measured, excess[order], atol=1e-10)


def curves(setting, groups, *, depth=LAYERS):
    """The curves, and F of the random sets."""
    weights, rows, z, _ = setting
    order = tuple(head for head in ALL if head[0] < depth)
    data = run_curves(weights, rows, z, groups, order, depth, seed=0)
    return data["curves"], data["random_sets"].faithfulness


def test_every_group_of_a_curve_is_run_with_the_top_heads_of_its_order(setting):
    axes, pairs = setting[-1]
    orders = [
        tuple(ALL[index] for index in np.random.default_rng(seed).permutation(len(ALL)))
        for seed in (5, 6)
    ]
    parts = [pairs.take([0, 2]), pairs.take([1, 3, 4])]
    curve, random = curves(
        setting, [Ranked(axes, part, order) for part, order in zip(parts, orders, strict=True)]
    )
    assert ", ".join(curve.added.values[1:]) == ", ".join("L{}H{}".format(*head) for head in ALL)
    assert curve.pairs == 5
    assert curve["size"].values.tolist() == [*range(13)]
    for size in (0, 1, 5, 12):
        masks = [sets.mask_of(order[:size], (LAYERS, HEADS)) for order in orders]
        inside = zip(parts, masks, strict=True)
        outside = zip(parts, [~mask for mask in masks], strict=True)
        assert curve.faithfulness[size] == pytest.approx(by_hand(setting, *inside), abs=1e-10)
        assert curve.necessity[size] == pytest.approx(1 - by_hand(setting, *outside), abs=1e-10)
    assert curve.faithfulness[[0, -1]].values.tolist() == pytest.approx([0, 1], abs=1e-12)
    assert random.sizes["random_set"] == sets.RANDOM_SETS
    assert random["size"].values[[0, -1]].tolist() == [1, 11]


def test_random_sets_have_the_same_number_of_heads_per_layer(setting):
    axes, pairs = setting[-1]
    _, random = curves(setting, [Ranked(axes, pairs, tuple(ALL))])
    # The first head is in layer 0, so a random set of one head is one of the other three there.
    single_heads = [
        by_hand(setting, (pairs, sets.mask_of([(0, head)], (LAYERS, HEADS))))
        for head in range(1, HEADS)
    ]
    of_one = random.sel(size=1).values
    nearest = np.abs(of_one[:, None] - np.array(single_heads)).argmin(1)
    np.testing.assert_allclose(of_one, np.array(single_heads)[nearest], atol=1e-10)
    assert set(nearest) == {0, 1, 2}


def test_groups_with_the_same_top_heads_have_the_same_random_sets(setting):
    """This holds even if they rank these heads differently: a mixture of sets would hide the best
    set."""
    axes, pairs = setting[-1]
    first, second, *later_heads = ALL
    _, single = curves(setting, [Ranked(axes, pairs, tuple(ALL))])
    _, mixed = curves(
        setting,
        [Ranked(axes, pairs, tuple(ALL)), Ranked(axes, pairs, (second, first, *later_heads))],
    )
    assert mixed["size"].equals(single["size"])
    np.testing.assert_allclose(mixed[1:], single[1:], atol=1e-12)
    assert not np.allclose(mixed[0], single[0])


def test_heads_after_the_read_out_layer_have_no_influence(setting):
    weights, rows, z, (axes, pairs) = setting
    below = tuple(head for head in ALL if head[0] < 2)
    changed = z.clone()
    changed[:, 2:] = 9.0
    groups, study = [Ranked(axes, pairs, below)], (axes, pairs)
    (before, _), (after, _) = (
        curves((weights, rows, donors, study), groups, depth=2) for donors in (z, changed)
    )
    np.testing.assert_array_equal(before.faithfulness, after.faithfulness)
    assert before["size"].values[-1] == len(below)
    assert before.faithfulness[-1] == pytest.approx(1, abs=1e-12)


def test_intervals_come_from_resampled_pairs(setting):
    axes, pairs = setting[-1]
    curve, _ = curves(setting, [Ranked(axes, pairs, tuple(ALL))])
    for name in ("faithfulness", "necessity"):
        low, value, high = (curve[f"{name}{end}"].values for end in ("_low", "", "_high"))
        assert (low <= high).all()
        # No heads and all heads are exact: their F is 0 and 1 by definition.
        assert low[[0, -1]].tolist() == pytest.approx(value[[0, -1]].tolist(), abs=1e-9)
        assert high[[0, -1]].tolist() == pytest.approx(value[[0, -1]].tolist(), abs=1e-9)
        assert (high - low)[1:-1].min() > 0.01
    # Five times the same pair: the intervals have width 0.
    alike = replace(pairs, a=(0,) * 5, b=(5,) * 5)
    certain, _ = curves(setting, [Ranked(axes, alike, tuple(ALL))])
    np.testing.assert_allclose(certain.faithfulness_low, certain.faithfulness_high, atol=1e-9)
    np.testing.assert_allclose(certain.faithfulness_low, certain.faithfulness, atol=1e-9)


BY_HAND = [((0, 0.5, 1), 2, 0.5), ((0, 0.9, 1), 1, 0.7), ((0, 0.2, 0.89), None, 0.3225)]


@pytest.mark.parametrize(("faithfulness", "size", "area_under"), BY_HAND)
def test_the_area_and_the_smallest_set_follow_from_the_curve(faithfulness, size, area_under):
    curve = (0, 1, 2), np.array(faithfulness)
    assert smallest_enough(*curve) == size
    assert area(*curve) == pytest.approx(area_under)
