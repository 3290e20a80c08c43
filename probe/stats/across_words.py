"""Inference across words: sums over words, bootstrapped and with flipped signs, in a stream.

The unit is a word: a key and a row of numbers. All arrays are `word part`; the caller defines the
parts (heads, gaps). Words are added in batches and are not stored, so the memory does not grow with
the number of words.

    ratio        E = Σ numerator / Σ denominator, with an interval from bootstrapped words
    sign flips   Under the null, a word's numerator is equally likely to be positive or negative.
                 The test is two-sided, and each statistic has to exceed the largest of the whole
                 family.

The bootstrap draws each word's weight from Poisson(1). The seed and the word's key determine the
draw, and the word's position does not, so the order of the words and the size of the batches make
no difference. Multinomial weights would have to be drawn for all words at once. For a ratio of sums
the two agree to first order. Signs are drawn in the same way.

Sources: Chamandy et al. 2012 (Poisson bootstrap of streams); Westfall & Young 1993 (max-T); Wu 1986
    (flipped residuals); Tusher et al. 2001 (a lower bound of standard errors).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.stats import bootstrap, rankdata

from probe.stats import resampling
from probe.stats.resampling import DRAWS, Array, MaxT

BATCH = 1_000_000  # numbers of a bootstrap that are held in memory at once
SMALLEST_SPREAD = 1e-300  # avoids a division by zero in a family in which nothing varies


class Interval(NamedTuple):
    """An estimate over words, its 95 % interval and its bootstrap draws.

    `value, low, high: ...`, `draws: draw ...`.
    """

    value: Array
    low: Array
    high: Array
    draws: Array


class Sums:
    """Sums over words of named parts, as they are, bootstrapped and with flipped signs.

    `total[name]: part`
    `bootstrapped(name): 1 + draw part`
    `flipped[name]: draw part`

    Within a draw, all parts of a word share one weight and one sign, so quantities computed from
    several parts are paired by word.
    """

    def __init__(self, *, seed: int, draws: int = DRAWS) -> None:
        self.words = 0
        self.total: dict[str, Array] = {}
        self.flipped: dict[str, Array] = {}
        self._drawn: dict[str, Array] = {}
        self._seed = seed
        self._draws = draws
        self._weight = np.zeros(draws)  # the sum of the weights of all words, by draw

    def add(self, keys: Sequence[int], **parts: Array) -> None:
        """Adds words.

        `keys`: the key of each word.
        `parts: word part` or `word`, finite, by name.
        """
        weights = np.empty((self._draws, len(keys)))
        signs = np.empty((self._draws, len(keys)))
        for column, key in enumerate(keys):
            rng = np.random.default_rng([self._seed, key])
            weights[:, column] = rng.poisson(1.0, self._draws)
            signs[:, column] = 2 * rng.integers(0, 2, self._draws) - 1
        self.words += len(keys)
        self._weight += weights.sum(1)
        for name, values in parts.items():
            rows = np.asarray(values, dtype=float).reshape(len(keys), -1)
            for sums, added in (
                (self.total, rows.sum(0)),
                (self._drawn, weights @ rows),
                (self.flipped, signs @ rows),
            ):
                sums[name] = sums.get(name, 0.0) + added

    def bootstrapped(self, name: str) -> Array:
        """The sums as they are, then the sums of each bootstrap draw. `1 + draw part`

        A draw without any word takes the sums as they are.
        """
        total = self.total[name]
        draws = np.where(self._weight[:, None] == 0, total, self._drawn[name])
        return np.vstack([total, draws])


def ratio(numerators: Array, denominators: Array, words: int) -> Interval:
    """The ratio of two sums with its 95 % interval over `words` words.

    `numerators, denominators: 1 + draw part`, the observed sums first.

    NaN if the observed denominator is not above 0. A draw in which it is not above 0 counts as the
    observed ratio.
    """
    shared = np.broadcast_shapes(numerators.shape, denominators.shape)
    bottom = np.broadcast_to(denominators, shared)
    ratios = np.divide(numerators, bottom, out=np.full(shared, np.nan), where=bottom > 0)
    return interval(ratios, words)


def interval(values: Array, words: int) -> Interval:
    """An estimate with its bootstrap draws and 95 % interval, widened for few words.

    `values: 1 + draw part`, the estimate first.
    """
    estimate = values[0]
    ratios = values[1:]
    # A ratio over a gap is undefined in a draw without a gap. Such a draw takes the estimate.
    ratios = np.where(np.isnan(ratios), estimate, ratios)
    low, high = resampling.interval(ratios, estimate, units=words)
    return Interval(estimate, low, high, ratios)


def above_zero(observed: Array, null: Array) -> MaxT:
    """A test for each statistic that it is above 0, corrected for the whole family.

    `observed: ...`, `null: draw ...`: sums over words, as they are and under sign flips. Result:
        `...`.

    t = statistic / (s + s0)

    s is the statistic's root mean square under the null (under sign flips: the root of the sum of
    squares over words). s0 is the median of s over the family. It prevents a head with hardly any
    effect from winning because it has hardly any noise.
    """
    spread = np.sqrt((null**2).mean(0))
    scale = np.maximum(spread + np.median(spread), SMALLEST_SPREAD)
    return resampling.max_t(observed / scale, null / scale)


def not_zero(observed: Array, null: Array) -> MaxT:
    """A test for each statistic that it differs from 0 in either direction: `above_zero` of their
    absolute values.
    """
    return above_zero(np.abs(observed), np.abs(null))


# --- differences between words
# ---------------------------------------------------------------------


@dataclass
class Spread:
    """How numbers vary between words: mean, standard deviation and number of words with a
    positive value. `part` each

    Means, and sums of squares around them, are updated batch by batch (Chan, Golub & LeVeque 1983).
    They are offsets from the first word, so the standard deviation is exactly 0 if all words have
    the same value.
    """

    count: int = 0
    first: Array | float = 0.0
    offset: Array | float = 0.0  # of the mean, from the first word
    squares: Array | float = 0.0  # sum of squares around the mean
    positive: Array | float = 0.0

    def add(self, values: Array) -> None:
        """Adds words. `word part`"""
        if not len(values):
            return
        if not self.count:
            self.first = values[0]
        total = self.count + len(values)
        offsets = values - self.first
        offset = offsets.mean(0)
        shift = offset - self.offset
        within = ((offsets - offset) ** 2).sum(0)
        self.squares = self.squares + within + shift**2 * (self.count * len(values) / total)
        self.offset = self.offset + shift * (len(values) / total)
        self.positive = self.positive + (values > 0).sum(0)
        self.count = total

    @property
    def mean(self) -> Array:
        """The mean over words."""
        return np.asarray(self.first + self.offset)

    @property
    def deviation(self) -> Array:
        """The standard deviation between words; NaN for fewer than two words."""
        if self.count < 2:
            return np.full(np.shape(self.offset), np.nan)
        return np.asarray(np.sqrt(self.squares / (self.count - 1)))

    @property
    def error(self) -> Array:
        """The standard error of the mean over words."""
        return np.asarray(self.deviation / np.sqrt(max(self.count, 1)))


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
