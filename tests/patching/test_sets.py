"""Sets of heads: their sizes and random matches, faithfulness from nothing to everything, against whole hooked
forwards.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from handmade import ODD, random_model
from test_swaps import KINDS, bound, every_direction, made, random_rows, random_z, run_plainly

from probe.model import forward
from probe.model.weights import read_weights
from probe.patching import sets
from probe.patching import swaps as patching
from probe.patching.effects import ALIGNED, Pairs
from probe.patching.sets import Curves
from probe.stats.axes import fit_axis

LAYERS, HEADS = ODD["n_layer"], ODD["n_head"]
ALL = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]


def drawn_masks(count, seed=0, shape=(LAYERS, HEADS)):
    return np.random.default_rng(seed).random((count, *shape)) < 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_every_set_equals_a_whole_forward_with_many_heads_replaced(kind):
    model = made(kind)
    depth, shape = model.config.n_layers, (model.config.n_layers, model.config.n_heads)
    texts, donors, kept = random_rows(model), random_z(model, depth), drawn_masks(5, shape=shape)
    kept[0], kept[1] = True, False
    moved = patching.swap_sets(read_weights(model), texts, donors, torch.from_numpy(kept), every_direction(model))
    assert moved.shape == (len(texts), len(kept), model.config.d_model)
    for number, text in enumerate(texts):
        base = run_plainly(model, text, depth, {})
        for which, mask in enumerate(kept):
            swaps = {place: donors[number][place] for place in np.ndindex(shape) if not mask[place]}
            expected = run_plainly(model, text, depth, swaps) - base
            torch.testing.assert_close(moved[number, which], expected, rtol=0, atol=bound(model) * base.abs().max())
    assert moved[:, 0].abs().max() < 1e-12
    assert moved[:, 1].abs().max() > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_all_but_one_is_the_swap_of_that_one(kind):
    model = made(kind)
    depth, heads = model.config.n_layers, model.config.n_heads
    weights, texts, donors = read_weights(model), random_rows(model), random_z(model, depth)
    singles = torch.eye(depth * heads, dtype=torch.bool).unflatten(1, (depth, heads))
    by_set = patching.swap_sets(weights, texts, donors, ~singles, every_direction(model))
    by_head = patching.swap_heads(weights, texts, donors, every_direction(model))
    torch.testing.assert_close(by_set, by_head.flatten(1, 2), rtol=0, atol=1e-12)


def test_many_sets_are_run_in_parts(monkeypatch):
    model = made("bert", torch.float32)
    texts, donors = random_rows(model), random_z(model, 2)
    kept = torch.from_numpy(drawn_masks(9, shape=(2, 4)))
    whole = patching.swap_sets(read_weights(model), texts, donors, kept, every_direction(model))
    monkeypatch.setattr(patching, "SETS", 4)
    torch.testing.assert_close(
        patching.swap_sets(read_weights(model), texts, donors, kept, every_direction(model)), whole
    )


# --- faithfulness ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def setting():
    """A random model, ten sentences of equal length and last token, of which five donors are paired with five
    others.
    """
    model = random_model(torch.float64)
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(model.config.d_vocab, (10, 6), generator=generator)
    ids[:, -1] = 7
    weights, rows = read_weights(model), ids.tolist()
    z, [*_, last] = patching.target_z(weights, rows, LAYERS), forward.run(weights, ids, torch.float64)
    resid = last["resid_post"][:, -1]
    axis = fit_axis(resid[:5], resid[5:], ("a", "b"), LAYERS)
    a, b = (0, 1, 2, 3, 4), (5, 6, 7, 8, 9)
    pairs = Pairs(a, b, a, b, tuple("fghij"), tuple("uvwxy"), (1,) * 5, ALIGNED, 0)
    return weights, rows, z, (axis, pairs)


def test_all_heads_are_one_and_none_is_nothing(setting):
    weights, rows, z, study = setting
    masks = np.array([np.ones((LAYERS, HEADS), bool), np.zeros((LAYERS, HEADS), bool)])
    found = sets.faithfulness(weights, rows, z, [study], masks)
    assert found.tolist() == pytest.approx([1, 0], abs=1e-12)


def by_hand(setting, mask):
    """(M(S) - M(none)) / (M(all) - M(none)), summed over both directions of every pair."""
    weights, rows, z, (axis, pairs) = setting
    top, bottom = 0.0, 0.0
    for one, other in zip(pairs.a, pairs.b, strict=True):
        for recipient, donor, sign in ((one, other, 1), (other, one, -1)):
            kept = torch.from_numpy(np.array([mask, np.zeros_like(mask)]))
            given = weights, [rows[recipient]], z[[donor]], kept
            [some, none] = patching.swap_sets(*given, (axis.u / axis.gap)[None])[0, :, 0].tolist()
            top, bottom = top + sign * (some - none), bottom - sign * none
    return top / bottom


def test_faithfulness_is_the_ratio_of_sums_by_hand(setting):
    weights, rows, z, study = setting
    masks = drawn_masks(4, seed=1)
    found = sets.faithfulness(weights, rows, z, [study], masks)
    assert found.tolist() == pytest.approx([by_hand(setting, mask) for mask in masks], abs=1e-10)
    assert np.ptp(found) > 0.05


def test_alone_is_the_faithfulness_of_a_single_head(setting):
    weights, rows, z, (axis, pairs) = setting
    singles = np.eye(len(ALL), dtype=bool).reshape(-1, LAYERS, HEADS)
    found = sets.measure_alone(weights, rows, z, (axis, pairs))
    assert found.shape == (len(pairs), LAYERS, HEADS)
    expected = sets.faithfulness(weights, rows, z, [(axis, pairs)], singles)
    np.testing.assert_allclose(found.mean(0).ravel(), expected, atol=1e-12)


def test_curves_are_those_of_the_leading_sets(setting):
    weights, rows, z, study = setting
    order = [ALL[index] for index in np.random.default_rng(5).permutation(len(ALL))]
    found = sets.measure_curves(weights, rows, z, [study], order, seed=0)
    assert found.order == tuple(order)
    assert found.sizes == tuple(range(13))
    for place in (0, 1, 5, 12):
        mask = sets.mask_of(order[:place], (LAYERS, HEADS))
        assert found.faithfulness[place] == pytest.approx(by_hand(setting, mask), abs=1e-10)
        assert found.necessity[place] == pytest.approx(1 - by_hand(setting, ~mask), abs=1e-10)
    assert found.faithfulness[[0, -1]].tolist() == pytest.approx([0, 1], abs=1e-12)
    assert found.random.shape == (len(found.random_sizes), sets.RANDOM_SETS)
    assert found.random_sizes[0] == 1 and found.random_sizes[-1] == 11
    # one head of four per layer: 3 other heads of the same layer, and 3 other layers' worth of nothing
    assert np.isfinite(found.random[0]).sum() == HEADS - 1


def test_intervals_are_those_of_pairs_drawn_again(setting):
    weights, rows, z, (axis, pairs) = setting
    found = sets.measure_curves(weights, rows, z, [(axis, pairs)], ALL, seed=0)
    for name in ("faithfulness", "necessity"):
        (low, high), value = getattr(found, f"{name}_interval"), getattr(found, name)
        assert (low <= high).all()
        assert low[[0, -1]].tolist() == pytest.approx(value[[0, -1]].tolist(), abs=1e-9)  # none and all are exact
        assert high[[0, -1]].tolist() == pytest.approx(value[[0, -1]].tolist(), abs=1e-9)
        assert (high - low)[1:-1].min() > 0.01
    alike = replace(pairs, a=(0,) * 5, b=(5,) * 5)  # five times the same pair: nothing to be unsure of
    sure = sets.measure_curves(weights, rows, z, [(axis, alike)], ALL, seed=0)
    np.testing.assert_allclose(*sure.faithfulness_interval, atol=1e-9)
    np.testing.assert_allclose(sure.faithfulness_interval[0], sure.faithfulness, atol=1e-9)


# --- sets ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [1, 12, 20, 21, 144, 1000])
def test_sizes_begin_with_none_and_one_by_one_and_end_with_all(heads):
    sizes = sets.curve_sizes(heads)
    dense = min(heads, sets.DENSE)
    assert sizes[: dense + 1] == tuple(range(dense + 1))
    assert sizes[-1] == heads
    assert list(sizes) == sorted(set(sizes))
    assert len(sizes) <= 34
    steps = np.diff(sizes)
    assert (np.diff(steps[:-1]) >= -1).all()  # growing, up to rounding


def test_random_sets_have_as_many_heads_in_every_layer_and_are_all_others():
    mask = sets.mask_of([(0, 1), (0, 2), (2, 3)], (LAYERS, HEADS))
    found = sets.matched_sets(mask, 200, np.random.default_rng(0))
    assert all(drawn.sum(1).tolist() == [2, 0, 1] for drawn in found)
    assert not any(np.array_equal(drawn, mask) for drawn in found)
    assert len({drawn.tobytes() for drawn in found}) == len(found) == 6 * 4 - 1  # all there are, but the set itself


def test_no_more_random_sets_than_asked_for():
    mask = sets.mask_of([(layer, head) for layer in range(12) for head in range(3)], (12, 12))
    found = sets.matched_sets(mask, 50, np.random.default_rng(0))
    assert len(found) == len({drawn.tobytes() for drawn in found}) == 50


@pytest.mark.parametrize(
    ("faithfulness", "smallest", "area"), [((0, 0.5, 1), 2, 0.5), ((0, 0.9, 1), 1, 0.7), ((0, 0.2, 0.89), None, 0.3225)]
)
def test_area_and_smallest_set_by_hand(faithfulness, smallest, area):
    none = np.zeros(3)
    curves = Curves(
        ((0, 0), (0, 1)), (0, 1, 2), np.array(faithfulness), (none, none), none, (none, none), (), np.zeros((0, 0))
    )
    assert curves.smallest == smallest
    assert curves.area == pytest.approx(area)
