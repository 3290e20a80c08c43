"""Separation and uncertainty: how far two groups of numbers are apart, and how sure we may be of it.

All functions take and return numpy arrays; the first axis is sentences (or pairs), any further axes (layer, head) are
carried along. Every random choice comes from an explicit seed.

Sources: Hanley & McNeil 1982 (AUROC as a rank statistic); Hedges 1981 (g); Efron & Tibshirani 1993 (bootstrap);
Owen 2007 (bootstrap of crossed factors); Hesterberg 2015 (few units).
"""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, rankdata
from scipy.stats import t as student_t

Array = NDArray[np.float64]
DRAWS = 2000
# Values this close, relative to the scale of what they are compared with, are equal: float32 says no more, and which of
# two sums is larger would be decided by their last digit, which differs from one processor to the next.
TIE = 1e-6


def folds(groups: Sequence[Hashable], count: int, *, seed: int) -> list[tuple[list[int], list[int]]]:
    """(train, test) row lists in which each group is tested exactly once and never trained on at the same time."""
    order = sorted(set(groups), key=str)
    shuffled = [order[index] for index in np.random.default_rng(seed).permutation(len(order))]
    fold_of = {group: rank % count for rank, group in enumerate(shuffled)}
    of_row = [fold_of[group] for group in groups]
    pairs = [
        ([r for r, f in enumerate(of_row) if f != fold], [r for r, f in enumerate(of_row) if f == fold])
        for fold in range(min(count, len(order)))
    ]
    return [(train, test) for train, test in pairs if train and test]


def auroc(a: Array, b: Array) -> Array:
    """P(score of an A sentence > score of a B sentence), ties one half; 0.5 is chance, 1 perfect. `n ..., m ... -> ...`

    One-sided: the sign is the caller's to fix beforehand, so a value under 0.5 stays under 0.5.
    """
    ranks = rankdata(np.concatenate([a, b]), axis=0)
    n, m = len(a), len(b)
    return np.asarray((ranks[:n].sum(0) - n * (n + 1) / 2) / (n * m))


def order(values: Array) -> NDArray[np.intp]:
    """Places along the last axis, the largest value first; of values equal within TIE, the first. `... n -> ... n`

    For a flattened `layer head` the ties go to the lower layer, then the lower head.
    """
    falling = (-values).argsort(-1, kind="stable")
    steps = -np.diff(np.take_along_axis(values, falling, -1), axis=-1) > TIE * np.abs(values).max(initial=0)
    tied = np.zeros(values.shape, dtype=np.intp)
    np.put_along_axis(tied, falling[..., 1:], steps.cumsum(-1), -1)
    return tied.argsort(-1, kind="stable")


def ranks(values: Array) -> NDArray[np.intp]:
    """The rank of every value along the last axis, 1 = largest, ties as in `order`. `... n -> ... n`"""
    return order(values).argsort(-1) + 1


def hedges_g(a: Array, b: Array) -> Array:
    """Mean difference in pooled standard deviations, corrected for small samples. `n ..., m ... -> ...`

    Plus or minus infinity where nothing varies within and the means differ, 0 where nothing differs at all.
    """
    n, m = len(a), len(b)
    a, b = a - a[:1], b - a[:1]  # equal numbers become exactly 0: the mean of n equal floats need not equal that of m
    pooled = ((n - 1) * a.var(0, ddof=1) + (m - 1) * b.var(0, ddof=1)) / (n + m - 2)
    difference = a.mean(0) - b.mean(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        raw = np.where(difference == 0, 0.0, difference / np.sqrt(pooled))
    return np.asarray(raw * (1 - 3 / (4 * (n + m) - 9)))


def as_numbers(names: Sequence[Hashable]) -> tuple[NDArray[np.intp], int]:
    """Names as numbers in order of first appearance, and how many there are. `-> n, ()`"""
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return np.array([places[name] for name in names], dtype=np.intp), len(places)


def bootstrap_weights(crossed: Sequence[Sequence[Hashable]], *, seed: int, draws: int = DRAWS) -> Array:
    """How often each row is drawn when every crossed factor (frames, cue words) is resampled on its own. `-> draws n`

    `crossed` holds one label per row for each factor; a row's weight is the product of its labels' counts. Resampling
    cells of frame and cue as if they were independent would make intervals far too narrow, because every frame reuses
    the same cues. Source: Owen 2007, the pigeonhole bootstrap.
    """
    rng = np.random.default_rng(seed)
    weights = np.ones((draws, len(crossed[0])))
    for labels in crossed:
        member, number = as_numbers(labels)
        weights *= rng.multinomial(number, np.full(number, 1 / number), size=draws)[:, member]
    empty = weights.sum(1) == 0
    weights[empty] = 1.0  # a draw in which no frame met its cues says nothing: it counts as the data themselves
    return weights


def crossed_factors(frames: Sequence[str | None], units: Sequence[Hashable]) -> list[list[Hashable]]:
    """What is resampled: frames and cue words where frames are known, else the units alone; a label per row in each."""
    named: list[Hashable] = [frame or f"row {row}" for row, frame in enumerate(frames)]
    return [named, list(units)] if any(frames) else [list(units)]


def bootstrap_ratio(numerator: Array, denominator: Array, weights: Array) -> Array:
    """Ratio of sums in every bootstrap draw. `n ..., n ..., draws n -> draws ...`, the denominator's axes broadcast"""
    top, bottom = (np.tensordot(weights, values, axes=1) for values in (numerator, denominator))
    return np.asarray(top / bottom.reshape(*bottom.shape, *[1] * (top.ndim - bottom.ndim)))


def interval(draws: Array, estimate: Array | float | None = None, *, units: int = 0) -> tuple[Array, Array]:
    """The central 95 % percentile interval over the first axis. `draws ... -> (...), (...)`

    With `units`, how many cue words were resampled, it is widened around the estimate by sqrt(n / (n - 1)) t / z, t the
    quantile of Student's distribution with n - 1 degrees of freedom: percentiles of few units are too narrow
    (Hesterberg 2015), with ten they cover about .90.
    """
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    if units < 2 or estimate is None:
        return low, high
    wider = np.sqrt(units / (units - 1)) * student_t.ppf(0.975, units - 1) / norm.ppf(0.975)
    return estimate + wider * (low - estimate), estimate + wider * (high - estimate)
