"""Words as units: intervals of the right width, tests at their level, draws that do not depend
on the batches, and known answers.

25 of the experiments: signs flipped within words, 200 runs; some words have no gap.
"""

import numpy as np
import pytest
from scipy.stats import kstest, spearmanr

from probe.stats import across_words, resampling
from probe.stats.across_words import Spread, Sums

RUNS = 200
DRAWS = 399
WORDS, PARTS = 40, 30
LEVEL = 0.05


def summed(keys=None, *, seed=0, draws=DRAWS, batch=WORDS, **parts):
    """The sums of `word part`, added in batches of words."""
    words = len(next(iter(parts.values())))
    keys = range(words) if keys is None else keys
    sums = Sums(seed=seed, draws=draws)
    for start in range(0, words, batch):
        batch_slice = slice(start, start + batch)
        sums.add(
            list(keys)[batch_slice], **{name: rows[batch_slice] for name, rows in parts.items()}
        )
    return sums


def test_sums_are_drawn_by_key_and_not_by_position_or_batch():
    rows = np.random.default_rng(0).normal(size=(WORDS, 3))
    whole = summed(numerator=rows)
    reversed_sums = summed(range(WORDS)[::-1], numerator=rows[::-1], batch=7)
    for expected, actual in (
        (whole.total["numerator"], reversed_sums.total["numerator"]),
        (whole.flipped["numerator"], reversed_sums.flipped["numerator"]),
        (whole.bootstrapped("numerator"), reversed_sums.bootstrapped("numerator")),
    ):
        np.testing.assert_allclose(expected, actual, atol=1e-12)
    np.testing.assert_allclose(whole.total["numerator"], rows.sum(0), atol=1e-12)
    other_seed = summed(numerator=rows, seed=1)
    assert not np.allclose(other_seed.flipped["numerator"], whole.flipped["numerator"])


def test_a_draw_without_any_word_counts_as_the_data():
    sums = summed(numerator=np.array([[3.0]]), draws=200)
    draws = sums.bootstrapped("numerator")[1:, 0]
    assert (draws > 0).all()  # a third of the draws have a weight of 0
    assert (draws == 3.0).sum() > 100 and set(draws.tolist()) > {6.0, 9.0}


def test_a_ratio_of_sums_has_the_interval_of_its_delta_method():
    rng = np.random.default_rng(3)
    gap = rng.uniform(0.5, 1.5, size=(400, 1))
    net = 0.3 * gap + 0.2 * rng.normal(size=(400, 1))
    sums = summed(numerator=net, denominator=gap, draws=4000)
    ratio = across_words.ratio(
        sums.bootstrapped("numerator"), sums.bootstrapped("denominator"), 400
    )
    share = net.sum() / gap.sum()
    error = (net - share * gap).std() / gap.mean() / np.sqrt(400)
    assert ratio.value[0] == pytest.approx(share)
    assert ratio.high[0] - ratio.low[0] == pytest.approx(2 * 1.96 * error, rel=0.06)


def test_a_ratio_over_zero_is_missing_and_a_draw_over_zero_counts_as_the_data():
    numerator = np.array([[1.0], [2.0], [4.0]])
    denominator = np.array([[0.0], [1.0], [1.0]])
    assert np.isnan(across_words.ratio(numerator, denominator, 5).value).all()
    ratio = across_words.ratio(numerator[::-1], np.array([[1.0], [-1.0], [0.0]]), 5)
    assert ratio.draws.tolist() == [[4.0], [4.0]]


def null_run(seed, *, words=WORDS):
    """Effects of words whose senses were shuffled: words of different size, correlated heads,
    and signs that turn for a whole word.
    """
    rng = np.random.default_rng([7, seed])
    size = rng.gamma(2.0, size=(words, 1))
    together = rng.normal(size=(words, 1))
    return size * (rng.normal(size=(words, PARTS)) + together) * rng.uniform(0.2, 2, size=PARTS)


def test_without_an_effect_p_is_uniform_and_the_family_wise_error_is_at_its_level():
    first, smallest_p = [], []
    for run in range(RUNS):
        effects = null_run(run)
        sums = summed(numerator=effects, seed=run)
        observed, null = sums.total["numerator"], sums.flipped["numerator"]
        smallest_p.append(across_words.not_zero(observed, null).p.min())
        first.append(across_words.not_zero(observed[:1], null[:, :1]).p[0])
    assert kstest(first, "uniform").pvalue > 0.001
    wrong = sum(p < LEVEL for p in smallest_p)
    assert 0.02 <= wrong / RUNS <= 0.08


def test_an_effect_is_found_and_heads_without_an_effect_are_not():
    effects = null_run(1)
    effects[:, 4] += 1.5 * np.abs(effects[:, 4]).mean()
    sums = summed(numerator=effects, draws=1999)
    p = across_words.not_zero(sums.total["numerator"], sums.flipped["numerator"]).p
    assert p[4] < 0.01 and np.delete(p, 4).min() > LEVEL
    against = summed(numerator=-effects, draws=1999)
    np.testing.assert_array_equal(
        across_words.not_zero(against.total["numerator"], against.flipped["numerator"]).p, p
    )
    assert (
        across_words.above_zero(against.total["numerator"], against.flipped["numerator"]).p[4]
        > LEVEL
    )


def test_spread_is_that_of_all_words_and_exactly_0_where_they_agree():
    rows = np.random.default_rng(5).normal(1e6, 1e-3, size=(50, 2))
    rows[:, 1] = 0.1
    spread = Spread()
    for start in range(0, 50, 7):
        spread.add(rows[start : start + 7])
    spread.add(rows[:0])
    assert spread.count == 50
    assert spread.deviation[0] == pytest.approx(rows[:, 0].std(ddof=1), rel=1e-6)
    assert spread.deviation[1] == 0 and spread.positive.tolist() == [50, 50]
    assert spread.error[0] == pytest.approx(rows[:, 0].std(ddof=1) / np.sqrt(50), rel=1e-6)
    single = Spread()
    single.add(rows[:1])
    assert np.isnan(single.deviation).all()


# --- numbers of words -----------------------------------------------------------------------------


def test_rank_correlation_is_scipys_with_an_interval_over_words():
    rng = np.random.default_rng(4)
    x = rng.normal(size=60).round(1)  # with ties
    y = x + rng.normal(size=60)
    y[3] = np.nan
    correlation = across_words.rank_correlation(x, y, seed=0)
    finite = np.isfinite(y)
    assert correlation.words == 59
    assert correlation.rho == pytest.approx(spearmanr(x[finite], y[finite]).statistic)
    assert correlation.low < correlation.rho < correlation.high and correlation.low > 0.2
    again = across_words.rank_correlation(x, y, seed=0)
    assert again == correlation
    constant = across_words.rank_correlation(np.ones(8), np.arange(8.0), seed=0)
    assert np.isnan(constant.rho) and constant.words == 8


def test_few_words_have_wider_intervals_than_their_percentiles():
    rows = np.random.default_rng(0).normal(1, 1, size=(6, 1))
    sums = summed(numerator=rows, denominator=np.ones((6, 1)), draws=2000)
    wide = across_words.ratio(sums.bootstrapped("numerator"), sums.bootstrapped("denominator"), 6)
    low, high = resampling.interval(wide.draws)
    assert wide.high - wide.low > 1.3 * (high - low)
