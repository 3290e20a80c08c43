"""Sets of heads: their masks, the sizes of a curve, and random matches in the same layers."""

import numpy as np
import pytest
from handmade import ODD

from probe.patching import sets

LAYERS, HEADS = ODD["n_layer"], ODD["n_head"]


def test_a_mask_is_true_for_its_heads_and_for_no_other():
    mask = sets.mask_of([(0, 1), (2, 3)], (LAYERS, HEADS))
    assert mask.shape == (LAYERS, HEADS) and np.argwhere(mask).tolist() == [[0, 1], [2, 3]]


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


def test_random_sets_have_as_many_heads_in_every_layer_and_are_others():
    mask = sets.mask_of([(0, 1), (0, 2), (2, 3)], (LAYERS, HEADS))
    found = sets.random_sets(mask, 200, np.random.default_rng(0))
    assert len(found) == 200 and all(drawn.sum(1).tolist() == [2, 0, 1] for drawn in found)
    assert not any(np.array_equal(drawn, mask) for drawn in found)
    assert (
        len({drawn.tobytes() for drawn in found}) == 6 * 4 - 1
    )  # all that exist, except the set itself


def test_where_there_is_no_other_set_it_is_the_set_itself():
    mask = sets.mask_of([(1, head) for head in range(HEADS)], (LAYERS, HEADS))
    assert (sets.random_sets(mask, 5, np.random.default_rng(0)) == mask).all()


def test_other_sets_have_as_many_heads_in_every_layer_none_of_the_set_and_no_two_are_the_same():
    mask = sets.mask_of([(0, 1), (2, 3)], (LAYERS, HEADS))
    for count, expected in ((5, 5), (8, 8), (9, 9), (200, 3 * 3)):
        found = sets.other_sets(mask, count, np.random.default_rng(0))
        assert found.shape == (expected, LAYERS, HEADS) and not (found & mask).any()
        assert all(drawn.sum(1).tolist() == [1, 0, 1] for drawn in found)
        assert len({drawn.tobytes() for drawn in found}) == expected


def test_other_sets_are_drawn_evenly():
    mask = sets.mask_of([(0, 0), (1, 0), (2, 0)], (3, 5))
    drawn = [sets.other_sets(mask, 1, np.random.default_rng(seed))[0] for seed in range(600)]
    counts = np.sum(drawn, axis=0)
    assert (counts[:, 0] == 0).all() and (np.abs(counts[:, 1:] - 150) < 45).all()
