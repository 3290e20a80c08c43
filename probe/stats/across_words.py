"""Inference across words: sums over words as they are, in bootstrap draws and under sign flips, in
memory that does not grow with the number of words.

A word here is a unit: a row of numbers and a key. All arrays are `word part`; what the parts are
(heads, gaps) is the caller's to know. Words come in batches, once, and are forgotten.

    ratio        E = Σ numerator / Σ denominator; its interval from bootstrapped words
    sign flips   under the null a word's numerator is as likely to point one way as the other;
                 two-sided, and the largest statistic over the whole family is what each has to beat

The bootstrap gives every word a weight from Poisson(1), drawn by the seed and the word's key, and
not by its position: the same words in another order, or in batches of another size, are drawn
alike. Multinomial weights would have to be drawn for all words at once; for a ratio of sums the two
agree to first order. Signs are drawn in the same way.

Sources: Chamandy et al. 2012 (Poisson bootstrap of streams); Westfall & Young 1993 (max-T); Wu 1986
(flipped residuals); Tusher et al. 2001 (a lower bound of standard errors).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import bootstrap, rankdata

from probe.stats import resampling
from probe.stats.resampling import DRAWS, Array, MaxT

BATCH = 1_000_000  # numbers of a bootstrap that are held at once
SMALLEST_SPREAD = 1e-300  # so that a family in which nothing varies is divided by something


class Interval(NamedTuple):
    """An estimate with its 95 % interval over words, and the bootstrap draws behind it. `...`,
    `draws: draw ...`"""

    value: Array
    low: Array
    high: Array
    draws: Array


class Sums:
    """Sums over words of named parts: `total[name]: part`, `bootstrapped(name): 1 + draw part`, and
    `flipped[name]: draw part`, with the signs of words flipped.

    All parts of a word have one weight and one sign in a draw, so that what is made of several
    parts is paired by word.
    """

    def __init__(self, *, seed: int, draws: int = DRAWS) -> None:
        self.words = 0
        self.total: dict[str, Array] = {}
        self.flipped: dict[str, Array] = {}
        self._drawn: dict[str, Array] = {}
        self._seed = seed
        self._draws = draws
        self._weight = np.zeros(draws)  # of all words together

    def add(self, keys: Sequence[int], **parts: Array) -> None:
        """Add words: a key for each, and `word part` (or `word`) of every name, finite."""
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
        """The sums as they are (first), and of bootstrapped words; those of all words in a draw
        that has none. `1 + draw part`"""
        total = self.total[name]
        drawn = np.where(self._weight[:, None] == 0, total, self._drawn[name])
        return np.vstack([total, drawn])


def ratio(numerators: Array, denominators: Array, words: int) -> Interval:
    """Ratio of sums with its 95 % interval over `words` words. `1 + draw part` each, the sums as
    they are first; NaN where the denominator is not above 0, and a draw in which it is not says
    nothing."""
    shared = np.broadcast_shapes(numerators.shape, denominators.shape)
    bottom = np.broadcast_to(denominators, shared)
    ratios = np.divide(numerators, bottom, out=np.full(shared, np.nan), where=bottom > 0)
    return interval(ratios, words)


def interval(values: Array, words: int) -> Interval:
    """An estimate, first, and its bootstrap draws with the 95 % interval, widened for few words.
    `1 + draw part`"""
    estimate = values[0]
    drawn = values[1:]
    # A draw without a gap says nothing of a ratio over it: it counts as the data.
    drawn = np.where(np.isnan(drawn), estimate, drawn)
    low, high = resampling.interval(drawn, estimate, units=words)
    return Interval(estimate, low, high, drawn)


def above_zero(observed: Array, null: Array) -> MaxT:
    """Which statistics are above 0: corrected for the whole family. `..., draw ... -> ...`, sums
    over words under sign flips.

    t = statistic / (s + s0), s its root mean square under the null (of flips, the root of the sum
    of squares over words) and s0 the median of s over the family: a head that hardly does anything
    must not win by having hardly any noise.
    """
    spread = np.sqrt((null**2).mean(0))
    scale = np.maximum(spread + np.median(spread), SMALLEST_SPREAD)
    return resampling.max_t(observed / scale, null / scale)


def not_zero(observed: Array, null: Array) -> MaxT:
    """Which statistics differ from 0, either way: `above_zero` of absolute values."""
    return above_zero(np.abs(observed), np.abs(null))


def difference_of_ratios(
    sums: Sums, known: NDArray[np.bool_], column: NDArray[np.intp]
) -> tuple[Array, Array]:
    """Sums over words whose mean is the difference of two ratios of sums: as they are, and with
    signs flipped. `part, draw part`

    The parts are `top` and `other_top`, `bottom` and `other_bottom`, and `one`, which is 1 for
    every word; `known: part` says which parts of the two tops are compared, and `column` which
    column of the two bottoms belongs to each of these. A word
    counts as D + (n - E g) / mean g - (m - G c) / mean c, with E = Σn / Σg, G = Σm / Σc and D = E -
    G: linearised, so that a gap that is large in a word is no noise where it is large in both.
    """
    total = sums.total
    count = total["one"]
    bottom = total["bottom"][column]
    other_bottom = total["other_bottom"][column]
    effect = total["top"][known] / bottom
    general = total["other_top"][known] / other_bottom
    difference = effect - general

    def linear(of: dict[str, Array]) -> Array:
        own = (of["top"][..., known] - effect * of["bottom"][..., column]) / (bottom / count)
        other = of["other_top"][..., known] - general * of["other_bottom"][..., column]
        return np.asarray(difference * of["one"] + own - other / (other_bottom / count))

    return linear(total), linear(sums.flipped)


# --- one word beside another ----------------------------------------------------------------------


@dataclass
class Spread:
    """How numbers differ between words: mean, standard deviation and in how many words they are
    positive, `part` each.

    Means and sums of squares around them are updated batch by batch (Chan, Golub & LeVeque 1983),
    as offsets from the first word, so that what is the same in every word has a standard deviation
    of exactly 0.
    """

    count: int = 0
    first: Array | float = 0.0
    offset: Array | float = 0.0  # of the mean from the first word
    squares: Array | float = 0.0  # around the mean
    positive: Array | float = 0.0

    def add(self, values: Array) -> None:
        """Add words. `word part`"""
        if not len(values):
            return
        if not self.count:
            self.first = values[0]
        both = self.count + len(values)
        offsets = values - self.first
        offset = offsets.mean(0)
        apart = offset - self.offset
        within = ((offsets - offset) ** 2).sum(0)
        self.squares = self.squares + within + apart**2 * (self.count * len(values) / both)
        self.offset = self.offset + apart * (len(values) / both)
        self.positive = self.positive + (values > 0).sum(0)
        self.count = both

    @property
    def mean(self) -> Array:
        """The mean over words."""
        return np.asarray(self.first + self.offset)

    @property
    def deviation(self) -> Array:
        """The standard deviation between words; NaN for fewer than two."""
        if self.count < 2:
            return np.full(np.shape(self.offset), np.nan)
        return np.asarray(np.sqrt(self.squares / (self.count - 1)))

    @property
    def error(self) -> Array:
        """The standard error of the mean over words."""
        return np.asarray(self.deviation / np.sqrt(max(self.count, 1)))


class Correlation(NamedTuple):
    """Spearman's correlation with its 95 % bootstrap interval over `words` words."""

    rho: float
    low: float
    high: float
    words: int


def rank_correlation(x: Array, y: Array, *, seed: int, draws: int = DRAWS) -> Correlation:
    """Spearman's correlation of two numbers over words, which are bootstrapped together; words in
    which either is missing are left out. NaN where one of the two takes fewer than three values."""
    known = np.isfinite(x) & np.isfinite(y)
    x = x[known]
    y = y[known]
    if min(len(np.unique(x)), len(np.unique(y))) < 3:
        return Correlation(np.nan, np.nan, np.nan, len(x))
    drawn = bootstrap(
        (x, y),
        _spearman,
        paired=True,
        vectorized=True,
        n_resamples=draws,
        batch=max(1, BATCH // len(x)),
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    ends = drawn.confidence_interval
    return Correlation(float(_spearman(x, y)), float(ends.low), float(ends.high), len(x))


def _spearman(x: Array, y: Array, axis: int = -1) -> Array:
    """Pearson's correlation of mean ranks; 0 where a draw has one value only, and so no order."""
    ranks_x = rankdata(x, axis=axis)
    ranks_y = rankdata(y, axis=axis)
    ranks_x -= ranks_x.mean(axis, keepdims=True)
    ranks_y -= ranks_y.mean(axis, keepdims=True)
    size = np.sqrt((ranks_x**2).sum(axis) * (ranks_y**2).sum(axis))
    product = np.asarray((ranks_x * ranks_y).sum(axis))
    return np.divide(product, size, out=np.zeros_like(product), where=size > 0)
