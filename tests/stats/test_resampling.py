"""Separation compared with scikit-learn and computed by hand, and the width of intervals."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from probe.stats import resampling

quick = settings(max_examples=60, deadline=None, derandomize=True)


@quick
@given(
    groups=st.lists(st.integers(0, 8), min_size=2, max_size=40),
    count=st.integers(2, 5),
    seed=st.integers(0, 1000),
)
def test_folds_test_every_group_once_and_never_train_on_it(groups, count, seed):
    folds = resampling.folds(groups, count, seed=seed)
    if len(set(groups)) == 1:
        assert folds == []
        return
    tested = [row for _, test in folds for row in test]
    assert sorted(tested) == list(range(len(groups)))
    for train, test in folds:
        assert sorted(train + test) == list(range(len(groups)))
        assert not {groups[row] for row in train} & {groups[row] for row in test}
    assert len(folds) == min(count, len(set(groups)))
    assert folds == resampling.folds(groups, count, seed=seed)


# --- separation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("decimals", [8, 0])  # 0: many ties
def test_auroc_is_scikit_learns(decimals):
    rng = np.random.default_rng(0)
    a, b = (
        rng.normal(0.4, 1, (13, 3, 2)).round(decimals),
        rng.normal(0, 1, (17, 3, 2)).round(decimals),
    )
    ours = resampling.auroc(a, b)
    truth = np.r_[np.ones(13), np.zeros(17)]
    for index in np.ndindex(3, 2):
        theirs = roc_auc_score(truth, np.r_[a[(slice(None), *index)], b[(slice(None), *index)]])
        assert ours[index] == pytest.approx(theirs, abs=1e-12)
    np.testing.assert_allclose(
        resampling.auroc(b, a), 1 - ours, atol=1e-12
    )  # one-sided: labels swapped, sign flipped


def test_hedges_g_by_hand():
    # means 2 and 4, variances 1 and 4: pooled (2*1 + 2*4) / 4 = 2.5; correction 1 - 3 / (4*6 - 9) =
    # 0.8
    g = resampling.hedges_g(np.array([1.0, 2, 3]), np.array([2.0, 4, 6]))
    assert g == pytest.approx(-2 / np.sqrt(2.5) * 0.8)
    # means 1 and 0, variances 2 and 1: pooled (1*2 + 2*1) / 3 = 4/3; correction 1 - 3 / (4*5 - 9) =
    # 8/11
    g = resampling.hedges_g(np.array([0.0, 2]), np.array([-1.0, 0, 1]))
    assert g == pytest.approx(1 / np.sqrt(4 / 3) * 8 / 11)


@pytest.mark.parametrize(
    ("a", "b", "expected"), [(0.3, 0.1, np.inf), (0.1, 0.3, -np.inf), (0.1, 0.1, 0.0)]
)
def test_hedges_g_where_nothing_varies_within(a, b, expected):
    assert resampling.hedges_g(np.full(5, a), np.full(7, b)) == expected


# --- uncertainty ----------------------------------------------------------------------------------


def test_bootstrap_draws_groups_as_often_as_there_are_groups():
    labels = ["a", "b", "b", "c", "c", "c"]
    weights = resampling.bootstrap_weights([labels], seed=0, draws=4000)
    assert weights.shape == (4000, 6)
    assert (weights[:, 1] == weights[:, 2]).all() and (weights[:, 3] == weights[:, 5]).all()
    assert (weights[:, [0, 1, 3]].sum(1) == 3).all()
    # binomial(3, 1/3): mean 1, variance 2/3
    np.testing.assert_allclose(weights[:, [0, 1, 3]].mean(0), 1, atol=0.06)
    np.testing.assert_allclose(weights[:, [0, 1, 3]].var(0), 2 / 3, atol=0.06)
    again = resampling.bootstrap_weights([labels], seed=0, draws=4000)
    assert np.array_equal(weights, again)
    assert not np.array_equal(weights, resampling.bootstrap_weights([labels], seed=1, draws=4000))


def test_crossed_factors_are_drawn_independently():
    frames, cues = zip(*product("abcd", "xyz"), strict=True)
    weights = resampling.bootstrap_weights([frames, cues], seed=0, draws=50).reshape(50, 4, 3)
    for draw in weights:
        by_frame, by_cue = draw.sum(1) / 3, draw.sum(0) / 4
        np.testing.assert_array_equal(draw, np.outer(by_frame, by_cue))
        assert by_frame.sum() == 4 and by_cue.sum() == 3


def test_a_draw_without_a_single_row_counts_as_the_data():
    weights = resampling.bootstrap_weights(
        [["a", "b"], ["x", "y"]], seed=0, draws=500
    )  # frame a occurs only with x, b only with y
    assert (weights.sum(1) > 0).all()
    assert (weights == 1).all(1).any()


def coverage(make, factors, *, runs=200):
    """How often the 95 % interval of the mean contains the true mean, 0."""
    hits = 0
    for run in range(runs):
        values = make(np.random.default_rng(run))
        weights = resampling.bootstrap_weights(factors, seed=run, draws=300)
        low, high = resampling.interval(
            resampling.bootstrap_ratio(values, np.ones(len(values)), weights)
        )
        hits += bool(low <= 0 <= high)
    return hits / runs


def test_intervals_of_independent_rows_cover():
    rows = [str(row) for row in range(40)]
    # Percentile intervals of 40 rows are a little narrow (nominal .94); 3 standard errors of 200
    # runs are .05.
    assert 0.90 <= coverage(lambda rng: rng.normal(size=40), [rows]) <= 0.98


def test_intervals_of_crossed_rows_cover_where_independent_cells_would_not():
    frames, cues = zip(*product(range(10), range(10)), strict=True)
    cells = [str(cell) for cell in range(100)]

    def crossed(rng):
        return (
            rng.normal(size=10)[list(frames)]
            + rng.normal(size=10)[list(cues)]
            + rng.normal(size=100)
        )

    assert 0.88 <= coverage(crossed, [frames, cues]) <= 0.99
    assert coverage(crossed, [cells]) < 0.75


def test_a_ratio_is_of_sums_and_not_a_mean_of_ratios():
    numerator, denominator = np.array([[1.0, 0], [3, 1], [2, 5]]), np.array([1.0, 2, 5])
    weights = np.array([[1.0, 1, 1], [2, 0, 1]])
    expected = [[6 / 8, 6 / 8], [4 / 7, 5 / 7]]
    np.testing.assert_allclose(
        resampling.bootstrap_ratio(numerator, denominator, weights), expected
    )


def test_an_interval_is_central():
    low, high = resampling.interval(np.arange(1001.0))
    assert (low, high) == pytest.approx((25, 975))
    low, high = resampling.interval(
        np.arange(1001.0), 400.0, units=4
    )  # t(3) is 3.182; the normal quantile is 1.960
    wider = np.sqrt(4 / 3) * 3.182446 / 1.959964
    assert (low, high) == pytest.approx((400 - wider * 375, 400 + wider * 575))
    assert resampling.interval(np.arange(1001.0), 400.0, units=10**6) == pytest.approx(
        (25, 975), rel=1e-4
    )


def test_a_separate_denominator_for_every_layer_gives_separate_ratios():
    rng = np.random.default_rng(0)
    numerator, denominator, weights = (
        rng.normal(size=(5, 3, 2)),
        rng.random((5, 3)) + 1,
        rng.integers(0, 3, (7, 5)).astype(float),
    )
    weights[:, 0] += 1
    ratios = resampling.bootstrap_ratio(numerator, denominator, weights)
    for layer in range(3):
        ratio = resampling.bootstrap_ratio(numerator[:, layer], denominator[:, layer], weights)
        np.testing.assert_allclose(ratios[:, layer], ratio)


# --- order ----------------------------------------------------------------------------------------


def test_the_largest_comes_first_and_ties_go_to_the_first():
    values = np.array(
        [[0.1, 0.5, 0.5 + 1e-7, -0.2, 0.5 - 1e-7, 0.1 + 1e-6], [3.0, 1.0, 2.0, 0.0, 1e-6, -1e-6]]
    )
    assert resampling.order(values).tolist() == [[1, 2, 4, 0, 5, 3], [0, 2, 1, 3, 4, 5]]
    assert resampling.ranks(values).tolist() == [[4, 1, 2, 6, 3, 5], [1, 3, 2, 4, 5, 6]]
    assert (
        resampling.order(np.zeros(3)).tolist() == [0, 1, 2]
        and resampling.order(np.empty(0)).tolist() == []
    )


def test_rank_intervals_equal_results_by_hand():
    draws = np.tile(np.array([3.0, 1, 2]), (1000, 1)).reshape(1000, 1, 3)
    draws[:100, 0] = [1.0, 3, 2]  # in 10% of the draws, heads 0 and 1 are exchanged
    low, high = resampling.rank_intervals(draws)
    assert (low.tolist(), high.tolist()) == ([[1, 1, 2]], [[3, 3, 2]])
    draws[10:100, 0] = [3.0, 1, 2]  # now in 1%
    low, high = resampling.rank_intervals(draws)
    assert (low.tolist(), high.tolist()) == ([[1, 3, 2]], [[1, 3, 2]])


def test_a_part_that_a_draw_leaves_empty_takes_its_data_as_they_are():
    weights = np.array([[2.0, 0, 0, 1], [0, 0, 3, 1]])
    first, second = resampling.split_weights(weights, [2, 2])
    assert (first.tolist(), second.tolist()) == ([[2, 0], [1, 1]], [[0, 1], [3, 1]])
