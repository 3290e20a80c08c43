"""Sets of heads: their masks, the sizes of a curve, and random matches in the same layers."""

import numpy as np
import pytest
from handmade import ODD
from inside import sets

LAYERS, HEADS = ODD["n_layer"], ODD["n_head"]


def test_a_mask_is_true_for_its_heads_and_for_no_other():
    mask = sets.mask_of([(0, 1), (2, 3)], (LAYERS, HEADS))
    assert mask.shape == (LAYERS, HEADS) and np.argwhere(mask).tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize("heads", [1, 12, 20, 21, 144, 1000])
def test_sizes_begin_with_none_go_up_one_by_one_and_end_with_all(heads):
    sizes = sets.curve_sizes(heads)
    dense = min(heads, sets.DENSE)
    assert sizes[: dense + 1] == tuple(range(dense + 1))
    assert sizes[-1] == heads
    assert list(sizes) == sorted(set(sizes))
    assert len(sizes) <= 34
    steps = np.diff(sizes)
    assert (np.diff(steps[:-1]) >= -1).all()  # growing, up to rounding


def test_random_sets_have_as_many_heads_in_every_layer_and_differ_from_the_set():
    mask = sets.mask_of([(0, 1), (0, 2), (2, 3)], (LAYERS, HEADS))
    random_sets = sets.random_sets(mask, 200, np.random.default_rng(0))
    assert len(random_sets) == 200 and all(
        random_set.sum(1).tolist() == [2, 0, 1] for random_set in random_sets
    )
    assert not any(np.array_equal(random_set, mask) for random_set in random_sets)
    assert (
        len({random_set.tobytes() for random_set in random_sets}) == 6 * 4 - 1
    )  # all that exist, except the set itself


def test_without_another_set_the_random_set_is_the_set_itself():
    mask = sets.mask_of([(1, head) for head in range(HEADS)], (LAYERS, HEADS))
    assert (sets.random_sets(mask, 5, np.random.default_rng(0)) == mask).all()


def test_other_sets_have_as_many_heads_in_every_layer_none_of_the_set_and_no_two_are_the_same():
    mask = sets.mask_of([(0, 1), (2, 3)], (LAYERS, HEADS))
    for count, expected in ((5, 5), (8, 8), (9, 9), (200, 3 * 3)):
        other_sets = sets.other_sets(mask, count, np.random.default_rng(0))
        assert other_sets.shape == (expected, LAYERS, HEADS) and not (other_sets & mask).any()
        assert all(other_set.sum(1).tolist() == [1, 0, 1] for other_set in other_sets)
        assert len({other_set.tobytes() for other_set in other_sets}) == expected


def test_other_sets_are_drawn_evenly():
    mask = sets.mask_of([(0, 0), (1, 0), (2, 0)], (3, 5))
    draws = [sets.other_sets(mask, 1, np.random.default_rng(seed))[0] for seed in range(600)]
    counts = np.sum(draws, axis=0)
    assert (counts[:, 0] == 0).all() and (np.abs(counts[:, 1:] - 150) < 45).all()
