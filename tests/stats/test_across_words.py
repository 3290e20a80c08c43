"""Words as units: intervals of the right width, tests at their level, draws by word.

25 of the experiments: signs flipped within words, 200 runs; some words have no gap.
"""

import numpy as np
import pytest
from inside import resampling
from scipy.stats import kstest, spearmanr

from probe.stats.across_words import above_zero, draw_words, rank_correlation, ratio

RUNS = 200
DRAWS = 399
WORDS, PARTS = 40, 30
LEVEL = 0.05


def test_a_word_keeps_its_draws_when_words_are_added_or_reordered():
    few = draw_words([3, 7], seed=0, draws=DRAWS)
    many = draw_words([7, 5, 3], seed=0, draws=DRAWS)
    for of_few, of_many in zip(few, many, strict=True):
        assert (of_few[0] == 1).all()
        np.testing.assert_array_equal(of_few, of_many[:, [2, 0]])
    assert set(np.unique(many.signs)) == {-1, 1}
    other_seed = draw_words([3, 7], seed=1, draws=DRAWS)
    assert not np.array_equal(other_seed.signs, few.signs)


def test_a_ratio_of_sums_has_the_interval_of_its_delta_method():
    rng = np.random.default_rng(3)
    gap = rng.uniform(0.5, 1.5, size=400)
    net = 0.3 * gap + 0.2 * rng.normal(size=400)
    over = ratio(draw_words(range(400), seed=0, draws=4000).weights, net, gap)
    share = net.sum() / gap.sum()
    error = (net - share * gap).std() / gap.mean() / np.sqrt(400)
    assert over.value == pytest.approx(share)
    assert over.high - over.low == pytest.approx(2 * 1.96 * error, rel=0.06)


def test_a_draw_without_a_word_or_a_gap_counts_as_the_words_as_they_are():
    weights = np.array([[1.0, 1.0], [0.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    over = ratio(weights, np.array([1.0, 2.0]), np.array([-1.0, 2.0]))
    assert over.value == 3 and over.draws.tolist() == [3, 3, 1]
    assert np.isnan(ratio(weights, np.ones(2), np.zeros(2)).value)


def test_few_words_have_wider_intervals_than_their_percentiles():
    rows = np.random.default_rng(0).normal(1, 1, size=6)
    wide = ratio(draw_words(range(6), seed=0, draws=2000).weights, rows, np.ones(6))
    low, high = resampling.interval(wide.draws)
    assert wide.high - wide.low > 1.3 * (high - low)


def null_run(seed):
    """Effects of words whose senses were shuffled: words of different size, correlated heads,
    and signs that turn for a whole word.
    """
    rng = np.random.default_rng([7, seed])
    size = rng.gamma(2.0, size=(WORDS, 1))
    together = rng.normal(size=(WORDS, 1))
    return size * (rng.normal(size=(WORDS, PARTS)) + together) * rng.uniform(0.2, 2, size=PARTS)


def test_without_an_effect_p_is_uniform_and_the_family_wise_error_is_at_its_level():
    first, smallest_p = [], []
    for run in range(RUNS):
        effects = null_run(run)
        signs = draw_words(range(WORDS), seed=run, draws=DRAWS).signs
        smallest_p.append(above_zero(signs, effects, either_way=True).p.min())
        first.append(above_zero(signs, effects[:, :1], either_way=True).p[0])
    assert kstest(first, "uniform").pvalue > 0.001
    wrong = sum(p < LEVEL for p in smallest_p)
    assert 0.02 <= wrong / RUNS <= 0.08


def test_an_effect_is_found_and_heads_without_an_effect_are_not():
    effects = null_run(1)
    effects[:, 4] += 1.5 * np.abs(effects[:, 4]).mean()
    signs = draw_words(range(WORDS), seed=0, draws=1999).signs
    p = above_zero(signs, effects, either_way=True).p
    assert p[4] < 0.01 and np.delete(p, 4).min() > LEVEL
    np.testing.assert_array_equal(above_zero(signs, -effects, either_way=True).p, p)
    assert above_zero(signs, effects).p[4] < 0.01 and above_zero(signs, -effects).p[4] > LEVEL


def test_rank_correlation_is_scipys_with_an_interval_over_words():
    rng = np.random.default_rng(4)
    x = rng.normal(size=60).round(1)  # with ties
    y = x + rng.normal(size=60)
    y[3] = np.nan
    correlation = rank_correlation(x, y, seed=0)
    finite = np.isfinite(y)
    assert correlation.words == 59
    assert correlation.rho == pytest.approx(spearmanr(x[finite], y[finite]).statistic)
    assert correlation.low < correlation.rho < correlation.high and correlation.low > 0.2
    assert rank_correlation(x, y, seed=0) == correlation
    constant = rank_correlation(np.ones(8), np.arange(8.0), seed=0)
    assert np.isnan(constant.rho) and constant.words == 8
