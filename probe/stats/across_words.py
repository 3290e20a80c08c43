"""Inference across words: ratios of sums over words, and tests with flipped signs.

The unit is a word. All arrays begin with the axis `word`; the caller defines the others (layers,
heads, depths).

    ratio        E = Σ numerator / Σ denominator, with an interval from bootstrapped words
    sign flips   Under the null, a word's numerator is equally likely to be positive or negative.
                 Each statistic has to exceed the largest of the whole family.

The bootstrap draws each word's weight from Poisson(1). The seed and the word's key determine the
draw, and the word's position does not, so the order of the words makes no difference, and a word
keeps its draws when others are added. For a ratio of sums this agrees with multinomial weights to
first order. Signs are drawn in the same way. All parts of a word share its weights and signs, so
quantities computed from several parts are paired by word.

Sources: Chamandy et al. 2012 (Poisson bootstrap); Westfall & Young 1993 (max-T); Wu 1986 (flipped
    residuals); Tusher et al. 2001 (a lower bound of standard errors).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import bootstrap, rankdata

from probe.stats import resampling
from probe.stats.resampling import DRAWS, Array, MaxT

BATCH = 1_000_000  # numbers of a bootstrap that are held in memory at once
SMALLEST_SPREAD = 1e-300  # avoids a division by zero in a family in which nothing varies


class WordDraws(NamedTuple):
    """How often each word counts in each bootstrap draw, and its sign in each draw of the test.

    `1 + draw word` each; the first row is 1 everywhere, which gives the sums as they are.
    """

    weights: Array
    signs: Array


def draw_words(keys: Sequence[int], *, seed: int, draws: int = DRAWS) -> WordDraws:
    """The draws of words with these keys."""
    weights = np.ones((1 + draws, len(keys)))
    signs = np.ones((1 + draws, len(keys)))
    for column, key in enumerate(keys):
        rng = np.random.default_rng([seed, key])
        weights[1:, column] = rng.poisson(1.0, draws)
        signs[1:, column] = 2 * rng.integers(0, 2, draws) - 1
    return WordDraws(weights, signs)


class Interval(NamedTuple):
    """An estimate over words, its 95 % interval and its bootstrap draws.

    `value, low, high: ...`, `draws: draw ...`.
    """

    value: Array
    low: Array
    high: Array
    draws: Array


def ratio(weights: Array, numerators: Array, denominators: Array) -> Interval:
    """The ratio of two sums over words with its 95 % interval, which is widened for few words.

    `1 + draw word, word ..., word ...`, the weights as in `WordDraws`

    NaN if the observed denominator is not above 0. A draw in which it is not above 0 counts as the
    observed ratio, and a draw without any word as the words as they are.
    """
    weights = np.where(weights.any(axis=1, keepdims=True), weights, 1.0)
    top = np.tensordot(weights, numerators, 1)
    bottom = np.tensordot(weights, denominators, 1)
    shared = np.broadcast_shapes(top.shape, bottom.shape)
    ratios = np.divide(top, bottom, out=np.full(shared, np.nan), where=bottom > 0)
    draws = np.where(np.isnan(ratios[1:]), ratios[0], ratios[1:])
    low, high = resampling.interval(draws, ratios[0], units=weights.shape[1])
    return Interval(ratios[0], low, high, draws)


def above_zero(signs: Array, values: Array, *, either_way: bool = False) -> MaxT:
    """A test for each sum over words that it is above 0, corrected for the whole family.

    `1 + draw word, word ... -> ...`, the signs as in `WordDraws`

    either_way: whether to test that it differs from 0 in either direction

        t = statistic / (s + s0)

    s is the statistic's root mean square under sign flips. s0 is the median of s over the family.
    It prevents a head with hardly any effect from winning because it has hardly any noise.
    """
    sums = np.tensordot(signs, values, 1)
    if either_way:
        sums = np.abs(sums)
    spread = np.sqrt((sums[1:] ** 2).mean(0))
    t = sums / np.maximum(spread + np.median(spread), SMALLEST_SPREAD)
    return resampling.max_t(t[0], t[1:])


class Correlation(NamedTuple):
    """Spearman's correlation over `words` words, with its 95 % bootstrap interval."""

    rho: float
    low: float
    high: float
    words: int


def rank_correlation(x: Array, y: Array, *, seed: int, draws: int = DRAWS) -> Correlation:
    """Spearman's correlation of two numbers over words, with a bootstrap interval over words.

    Words with a missing number are left out. NaN if either number takes fewer than three values.
    """
    complete = np.isfinite(x) & np.isfinite(y)
    x = x[complete]
    y = y[complete]
    if min(len(np.unique(x)), len(np.unique(y))) < 3:
        return Correlation(np.nan, np.nan, np.nan, len(x))
    result = bootstrap(
        (x, y),
        _spearman,
        paired=True,
        vectorized=True,
        n_resamples=draws,
        batch=max(1, BATCH // len(x)),
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    ends = result.confidence_interval
    return Correlation(float(_spearman(x, y)), float(ends.low), float(ends.high), len(x))


def _spearman(x: Array, y: Array, axis: int = -1) -> Array:
    """Pearson's correlation of mean ranks; 0 if a draw has a single value and therefore no
    order.
    """
    ranks_x = rankdata(x, axis=axis)
    ranks_y = rankdata(y, axis=axis)
    ranks_x -= ranks_x.mean(axis, keepdims=True)
    ranks_y -= ranks_y.mean(axis, keepdims=True)
    size = np.sqrt((ranks_x**2).sum(axis) * (ranks_y**2).sum(axis))
    product = np.asarray((ranks_x * ranks_y).sum(axis))
    return np.divide(product, size, out=np.zeros_like(product), where=size > 0)
