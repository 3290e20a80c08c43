"""Resampling: separation of two groups, intervals, and p-values corrected for many heads.

All functions take and return numpy arrays. The first axis is sentences (or pairs); further axes
(layer, head) are kept. Every random choice comes from an explicit seed.

Tests permute the assignment of senses to cue words. Every frame reuses the same few cue words, so a
test that shuffled sentences or flipped frames would only ask whether these words differ, and they
differ in any model. If sentences come in pairs, the two senses of a whole pair of cue words are
exchanged, which preserves what the pairing controls for. Otherwise senses are reassigned to single
cue words. With u pairs of cue words, p is at least 2^-u (2^(1-u) for a gap, which has no sign), and
the page reports that limit.

Every relabelling fits the direction of every head again. Each head's statistic has to exceed the
largest statistic over all heads, which keeps the probability of even one false positive at the
level of the test.

Sources: Hanley & McNeil 1982 (AUROC as a rank statistic); Hedges 1981 (g); Efron & Tibshirani 1993
    (bootstrap); Owen 2007 (bootstrap of crossed factors); Hesterberg 2015 (few units); Westfall &
    Young 1993 (max-T); Winkler et al. 2014 (exchangeable groups); Benjamini & Hochberg 1995; Tusher
    et al. 2001 (a lower bound of standard errors).
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control, norm, rankdata
from scipy.stats import t as student_t

from probe.errors import InputError, require_at_least
from probe.text.splits import CrossFit

Array = NDArray[np.float64]
Labels = NDArray[np.bool_]
DRAWS = 2000  # of the bootstrap
ENDS = (0.025, 0.975)  # quantiles: the limits of a 95 % interval
# Of a sign-flip test. Fewer pairs are read along their own directions, so nothing can be tested.
FEWEST_PAIRS = 4
POWER_DRAWS = 4000  # simulated studies in which one head has an effect
# Of the gap test: p can be as small as .0002, because the gate asks for .01 after a correction over
# pairs of senses.
GATE_DRAWS = 4999
# Decimals at which means of positions and lengths are compared. Equal means of different sums
# differ in the last digit of float64.
MEAN_DECIMALS = 9
# Two values are equal if they differ by less than this fraction of the scale of the comparison.
# float32 is no more exact, and the last digit of a sum differs from one processor to the next.
TIE = 1e-6
# Of a bootstrap-t: the part of the observed standard error that is added to every draw's. Without
# it, draws of a few equal cue words have the largest t. .2 lets in skewness (error .15 for .05).
LEAST_ERROR = 0.05
# Of an AUROC's interval: the part of the scores' design effect above 1 that counts.
EXCESS_AT_EDGE = 0.5
T_CHUNK = 64  # draws whose sums by label are held at once


def folds(
    groups: Sequence[Hashable], count: int, *, seed: int
) -> list[tuple[list[int], list[int]]]:
    """(train, test) lists of rows in which each group is tested exactly once and is never in
    both lists.
    """
    order = sorted(set(groups), key=str)
    permutation = [order[index] for index in np.random.default_rng(seed).permutation(len(order))]
    fold_of = {group: rank % count for rank, group in enumerate(permutation)}
    parts = []
    for fold in range(min(count, len(order))):
        train = [row for row, group in enumerate(groups) if fold_of[group] != fold]
        test = [row for row, group in enumerate(groups) if fold_of[group] == fold]
        if train and test:
            parts.append((train, test))
    return parts


def auroc(a: Array, b: Array) -> Array:
    """P(score of an A sentence > score of a B sentence), where ties count one half.

    `n ..., m ... -> ...`. 0.5 is chance and 1 is perfect. The AUROC is one-sided: the caller fixes
        the sign beforehand, and a value below 0.5 stays below 0.5.
    """
    ranks = rankdata(np.concatenate([a, b]), axis=0)
    n = len(a)
    m = len(b)
    return np.asarray((ranks[:n].sum(0) - n * (n + 1) / 2) / (n * m))


def order(values: Array) -> NDArray[np.intp]:
    """The order along the last axis, largest value first. `... n -> ... n`

    Values equal within TIE keep their order; for a flattened `layer head`: lower layer first, then
    lower head.
    """
    falling = (-values).argsort(-1, kind="stable")
    margin = TIE * np.abs(values).max(initial=0)
    steps = -np.diff(np.take_along_axis(values, falling, -1), axis=-1) > margin
    # Values that follow each other within the margin share a number, and keep their order.
    ranks = np.zeros(values.shape, dtype=np.intp)
    np.put_along_axis(ranks, falling[..., 1:], steps.cumsum(-1), -1)
    return ranks.argsort(-1, kind="stable")


def ranks(values: Array) -> NDArray[np.intp]:
    """The rank of every value along the last axis; 1 is the largest, ties as in `order`. `... n
    -> ... n`
    """
    return order(values).argsort(-1) + 1


def rank_intervals(values: Array) -> tuple[Array, Array]:
    """The 95 % interval of each head's rank over draws; rank 1 is the largest. `draws layer head ->
    (layer head), (layer head)`
    """
    ranks_of_draws = ranks(values.reshape(len(values), -1))
    # Ranks are whole numbers, so quantiles are not interpolated.
    low, high = np.quantile(ranks_of_draws, ENDS, axis=0, method="closest_observation")
    return low.reshape(values.shape[1:]), high.reshape(values.shape[1:])


def hedges_g(a: Array, b: Array) -> Array:
    """The mean difference in pooled standard deviations, corrected for small samples. `n ..., m
    ... -> ...`

    ±infinity if nothing varies within the groups and the means differ; 0 if nothing differs at all.
    """
    n = len(a)
    m = len(b)
    # Offsets make equal numbers exactly 0: the means of n and of m equal floats may differ.
    offset_a = a - a[:1]
    offset_b = b - a[:1]
    variance = ((n - 1) * offset_a.var(0, ddof=1) + (m - 1) * offset_b.var(0, ddof=1)) / (n + m - 2)
    difference = offset_a.mean(0) - offset_b.mean(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        raw = np.where(difference == 0, 0.0, difference / np.sqrt(variance))
    return np.asarray(raw * (1 - 3 / (4 * (n + m) - 9)))


def as_numbers(names: Sequence[Hashable]) -> tuple[NDArray[np.intp], int]:
    """Names as numbers in order of first appearance, and the number of different names.

    `-> n, ()`
    """
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], dtype=np.intp), len(numbers)


def bootstrap_weights(
    crossed: Sequence[Sequence[Hashable]], *, seed: int, draws: int = DRAWS
) -> Array:
    """How often each row is drawn if every crossed factor (frames, cue words) is resampled
    separately.

    `-> draws n`

    `crossed`: one label per row for each factor. A row's weight is the product of its labels'
        counts.

    Resampling cells of frame and cue as if they were independent would make intervals far too
    narrow, because every frame reuses the same cues.

    Source: Owen 2007, the pigeonhole bootstrap.
    """
    rng = np.random.default_rng(seed)
    weights = np.ones((draws, len(crossed[0])))
    for labels in crossed:
        member, number = as_numbers(labels)
        weights *= rng.multinomial(number, np.full(number, 1 / number), size=draws)[:, member]
    # A draw in which no frame meets its cues is empty. It takes the data as they are.
    empty = weights.sum(1) == 0
    weights[empty] = 1.0
    return weights


def split_weights(weights: Array, sizes: Sequence[int]) -> list[Array]:
    """The weights of consecutive parts of the rows. `draws n -> draws size` for each part

    A draw in which a part is empty takes its data as they are.
    """
    parts = [part.copy() for part in np.split(weights, np.cumsum(sizes)[:-1], axis=1)]
    for part in parts:
        part[part.sum(1) == 0] = 1.0
    return parts


def crossed_factors(
    frames: Sequence[str | None], units: Sequence[Hashable]
) -> list[list[Hashable]]:
    """The factors of the bootstrap, a label per row each: frames and cue words, or only `units`
    if no frames are given.
    """
    if not any(frames):
        return [list(units)]
    # A sentence without a frame forms a frame by itself.
    names: list[Hashable] = [frame or f"row {row}" for row, frame in enumerate(frames)]
    return [names, list(units)]


def outer_factors(factors: Sequence[Sequence[Hashable]]) -> list[Sequence[Hashable]]:
    """The factors without those that are nested in another one: a frame that occurs with one cue
    word only varies with that word, and resampling both would count its variance twice. A factor
    with a single label does not vary, and stays only if it is the last.
    """
    kept = [factor for factor in factors if len(set(factor)) > 1] or [factors[-1]]
    for factor in list(kept):
        others = [other for other in kept if other is not factor]
        labels = len(set(factor))
        if any(len(set(zip(factor, other, strict=True))) == labels for other in others):
            kept = others
    return kept


def bootstrap_ratio(numerator: Array, denominator: Array, weights: Array) -> Array:
    """The ratio of sums in every bootstrap draw. `n ..., n ..., draws n -> draws ...`

    The denominator may have fewer axes than the numerator; it is broadcast.
    """
    numerator_sums = np.tensordot(weights, numerator, axes=1)
    denominator_sums = np.tensordot(weights, denominator, axes=1)
    missing_axes = [1] * (numerator_sums.ndim - denominator_sums.ndim)
    return np.asarray(
        numerator_sums / denominator_sums.reshape(*denominator_sums.shape, *missing_axes)
    )


def interval(
    draws: Array, estimate: Array | float | None = None, *, units: int = 0
) -> tuple[Array, Array]:
    """The central 95 % percentile interval over the first axis. `draws ... -> (...), (...)`

    `units`: the number of resampled cue words. If it is given, the interval is widened around the
        estimate by sqrt(n / (n - 1)) t / z, where t is the quantile of Student's distribution with
        n - 1 degrees of freedom. Percentiles of few units are too narrow (Hesterberg 2015): with
        ten they cover about .90.
    """
    low, high = np.quantile(draws, ENDS, axis=0)
    if units < 2 or estimate is None:
        return low, high
    wider = np.sqrt(units / (units - 1)) * student_t.ppf(0.975, units - 1) / norm.ppf(0.975)
    return estimate + wider * (low - estimate), estimate + wider * (high - estimate)


def ratio_interval(
    numerator: Array, denominator: Array, factors: Sequence[Sequence[Hashable]]
) -> tuple[float, float, float]:
    """The ratio of two sums over rows, with the ends of its 95 % interval; NaN where they are
    undefined. `n, n`

        ratio ± t sqrt(variance of Σ (numerator - ratio denominator)) / Σ denominator

    with the variance clustered by all factors, and Student's t for the factor with the fewest
    labels. A bootstrap of two crossed factors counts what varies by row three times, and covers .99
    where most cue words occur once (tests/stats/test_skew.py).

    factors: what varies, a label for each row: cue words, or frames and cue words

    Source: Cameron, Gelbach & Miller 2011.

    Example:
        >>> from probe.stats.resampling import ratio_interval
        >>> import numpy as np
        >>> cue_words = ["mud", "boat", "lake", "mud", "boat", "lake"]
        >>> part, whole = np.array([1.0, 2, 1, 1, 2, 2]), np.full(6, 3.0)
        >>> ratio, low, high = ratio_interval(part, whole, [cue_words])
        >>> bool(low < ratio == 0.5 < high)
        True
    """
    outer = outer_factors(factors)
    units = min(len(set(labels)) for labels in outer)
    total = float(denominator.sum())
    if total == 0:
        return (math.nan,) * 3
    ratio = float(numerator.sum()) / total
    if units < 2:
        return ratio, math.nan, math.nan
    residuals = (numerator - ratio * denominator)[:, None] / total
    error = math.sqrt(_clustered_variance(residuals, outer)[0])
    reach = float(student_t.ppf(ENDS[1], units - 1)) * error
    return ratio, ratio - reach, ratio + reach


def auroc_interval(
    estimate: Array, scores: Array, is_a: Sequence[bool], factors: Sequence[Sequence[Hashable]]
) -> tuple[Array, Array]:
    """The 95 % interval of AUROCs that holds at the edge: after complete separation the lower end
    is below 1. `-> (...), (...)`

    The ends are the values A at which |estimate - A| = z sqrt(deff V(A)), with V the variance of an
    AUROC of n and m independent scores. A bootstrap resamples the scores that were seen, and after
    complete separation all its draws are 1.

    estimate: the AUROCs. `...`
    scores: `n ...`, the scores that were compared
    is_a: `n`, whether a score belongs to the first sense
    factors: what varies, a label for each score: cue words, or frames and cue words

    deff is the variance with clustered scores divided by that with independent ones, whichever is
    larger: of the AUROC, which is 0 at the edge; or of the difference of means, of which half the
    excess over 1 counts, because near 1 scores of a cue word agree less about the comparisons than
    about the mean (chosen by simulated coverage, tests/stats/test_skew.py).

    Source: Newcombe 2006 (method 5); DeLong et al. 1988 (placements); Cameron, Gelbach & Miller
        2011 (clusters of two crossed factors).
    """
    of_a = np.asarray(is_a, dtype=bool)
    n = int(of_a.sum())
    m = int((~of_a).sum())
    flat = scores.reshape(len(scores), -1)
    larger = np.empty_like(flat)  # how many scores of the other sense are below a score
    for column, values in enumerate(flat.T):
        for group, others in ((of_a, values[~of_a]), (~of_a, values[of_a])):
            ordered = np.sort(others)
            below = np.searchsorted(ordered, values[group], "left")
            larger[group, column] = (below + np.searchsorted(ordered, values[group], "right")) / 2
    signs = np.where(of_a, 1 / n, -1 / m)[:, None]
    # What each score adds to the difference of means, and to the AUROC.
    of_means = np.empty_like(flat)
    of_auroc = np.empty_like(flat)
    for group, others_count in ((of_a, m), (~of_a, n)):
        of_means[group] = flat[group] - flat[group].mean(0)
        of_auroc[group] = (larger[group] - larger[group].mean(0)) / others_count
    of_means *= signs
    of_auroc *= signs
    independent = (of_means**2).sum(0)
    center = estimate.reshape(-1)
    model = _auroc_variance(center, n, m)
    of_scores = _over(_clustered_variance(of_means, factors), independent)
    of_scores = np.where(of_scores > 1, 1 + EXCESS_AT_EDGE * (of_scores - 1), of_scores)
    deff = np.maximum(of_scores, _over(_clustered_variance(of_auroc, factors), model))
    deff[deff == 0] = 1.0  # scores without any variance
    # (estimate - A)² = z² deff V(A) has one root on each side of the estimate.
    reach = norm.ppf(0.975) ** 2 * deff
    ends = []
    for end in (0.0, 1.0):
        inside = center.copy()
        outside = np.full_like(center, end)
        for _ in range(50):
            middle = (inside + outside) / 2
            reached_middle = (center - middle) ** 2 <= reach * _auroc_variance(middle, n, m)
            inside = np.where(reached_middle, middle, inside)
            outside = np.where(reached_middle, outside, middle)
        ends.append(outside.reshape(estimate.shape))
    return ends[0], ends[1]


def _auroc_variance(a: Array, n: int, m: int) -> Array:
    """The variance of the AUROC a of n and m independent scores; Newcombe 2006, method 5."""
    others = (n + m) / 2 - 1
    return np.asarray(a * (1 - a) * (1 + others * ((1 - a) / (2 - a) + a / (1 + a))) / (n * m))


def _over(numerator: Array, denominator: Array) -> Array:
    """A ratio; 0 where the denominator is 0."""
    positive = denominator > 0
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=positive)


def _clustered_variance(terms: Array, factors: Sequence[Sequence[Hashable]]) -> Array:
    """The variance of a sum of terms that vary with one or two crossed factors. `n k -> k`

        Σ_factor Σ_label (Σ_row term)² - Σ_row term² for two factors

    At least that of either factor alone. A factor of g labels counts g / (g - 1) times.
    """
    variances = []
    for labels in outer_factors(factors):
        member, number = as_numbers(labels)
        if number > 1:
            sums = _sums(terms, member, number)
            variances.append(number / (number - 1) * (sums**2).sum(0))
    cells = (terms**2).sum(0)
    if not variances:
        return cells
    together = np.sum(variances, axis=0) - (len(variances) - 1) * cells
    return np.maximum(together, np.max(variances, axis=0))


# --- permutation ----------------------------------------------------------------------------------


class Gap(NamedTuple):
    """Whether two senses differ at some stage: `p`, corrected for the stages, and the statistic
    `t` of each stage.
    """

    p: float
    t: Array


class MaxT(NamedTuple):
    """A family of tests: the statistics `t`, `p` corrected for the whole family, and the false
    discovery rate `q`.
    """

    t: Array
    p: Array
    q: Array


def relabel(
    is_a: Sequence[bool], units: Sequence[Hashable], *, draws: int, rng: np.random.Generator
) -> Labels:
    """The observed sense labels, then `draws` relabellings of whole units. `-> 1 + draws, n`

    Units with both senses are flipped; among units with a single sense, the senses are shuffled.
    """
    member, flips = _flip_units(is_a, units, draws=draws, rng=rng)
    return np.asarray(is_a, dtype=bool) ^ flips[:, member]


def _flip_units(
    is_a: Sequence[bool], units: Sequence[Hashable], *, draws: int, rng: np.random.Generator
) -> tuple[NDArray[np.intp], Labels]:
    """The unit of every row, and whether a relabelling changes the sense of a unit; the first
    changes none. `-> n, (1 + draws, unit)`
    """
    observed = np.asarray(is_a, dtype=bool)
    member, number = as_numbers(units)
    count_a = np.bincount(member, observed, minlength=number)
    count_b = np.bincount(member, ~observed, minlength=number)
    flips = rng.random((draws, number)) < 0.5
    single = (count_a == 0) | (count_b == 0)
    senses = count_a[single] > 0
    flips[:, single] = rng.permuted(np.tile(senses, (draws, 1)), axis=1) != senses
    return member, np.vstack([np.zeros(number, dtype=bool), flips])


def reached(draws: Array, observed: Array) -> Labels:
    """Where a statistic under relabelling is at least the observed one. `-> draw ...`

    `draws: draw ...`, `observed: ...`. Ties are within TIE of the scale, which is the largest
        absolute value, drawn or observed, of the whole family.

    With few units, many relabellings give exactly the observed statistic. The two are computed as
    sums of float32 values in different orders, so their last digit would decide which is larger,
    and it differs from one processor to the next. Every permutation test uses this comparison.
    """
    scale = max(np.abs(draws).max(initial=0), np.abs(observed).max(initial=0))
    return np.asarray(draws >= observed - TIE * scale)


def max_t(observed: Array, null: Array) -> MaxT:
    """One-sided p of every statistic, corrected for the whole family.

    `observed: ...`, `null: draws ...`: the same studentised statistic, observed and under
        relabelling.

    p = (1 + hits) / (1 + draws), so p is never 0. A hit is a relabelling whose largest statistic
    reaches the observed one. The correction is step-down (Westfall & Young): the maximum for a head
    is taken over that head and the heads with smaller statistics. Otherwise the strongest head,
    relabelled, would hide every smaller true effect.
    """
    t = observed.ravel()
    flat = null.reshape(len(null), -1)
    order = (-t).argsort(kind="stable")
    # The largest statistic over each head and the heads with smaller observed statistics.
    bar = np.maximum.accumulate(flat[:, order[::-1]], axis=1)[:, ::-1]
    p_in_order = (1 + reached(bar, t[order]).sum(0)) / (1 + len(null))
    p = np.empty_like(t)
    p[order] = np.maximum.accumulate(p_in_order)
    q = false_discovery_control((1 + reached(flat, t).sum(0)) / (1 + len(null)))
    return MaxT(observed, p.reshape(observed.shape), q.reshape(observed.shape))


def gap_test(resid: Array, split: CrossFit, *, seed: int) -> Gap:
    """One-sided test that two senses differ along held-out axes at some stage: max-T over the
    stages.

    `resid: row stage d`, the split's rows.

    The statistic of a stage is Σ <D_test, D_train> over the holdouts, with D a difference of sense
    means: the gap times the length of the fitted axis. The gap itself (divided by |D_train|²) would
    have no power, because relabelling most of the training rows makes the divisor tiny.

    Every relabelling exchanges the senses of units that have both, or reassigns senses to units
    that have one, and fits every axis again. Each stage is divided by its standard deviation under
    relabelling.
    """
    terms, flips = _relabelled(split.is_a, split.exchanged, seed=seed)
    offsets = resid - resid[:1]  # identical vectors become exactly 0
    centred = np.moveaxis(offsets - offsets.mean(0), 1, 0)
    # D_test is divided by the counts of all rows, so the holdouts add up to the whole difference.
    of_test = _factors(flips, terms.sum(1))
    statistics = np.zeros((len(flips), len(centred)))
    for holdout in split.holdouts:
        train, test = [*holdout.train], [*holdout.test]
        of_train = _factors(flips, terms[:, train].sum(1))
        for stage, vectors in enumerate(centred):
            products = (terms[:, train] @ vectors[train]) @ (terms[:, test] @ vectors[test]).T
            statistics[:, stage] += np.einsum("dt,dt->d", of_train @ products, of_test)
    spread = statistics[1:].std(0)
    statistics = np.divide(
        statistics,
        spread,
        out=np.zeros_like(statistics),
        where=spread > TIE * spread.max(initial=0),
    )
    return Gap(permutation_p(statistics.max(1)), statistics[0])


def _sums(rows: Array, member: NDArray[np.intp], number: int) -> Array:
    """The sum of the rows of each group. `row d -> group d`"""
    sums = np.zeros((number, rows.shape[1]))
    np.add.at(sums, member, rows)
    return sums


def _relabelled(
    is_a: Sequence[bool], units: Sequence[Hashable], *, seed: int
) -> tuple[Array, Array]:
    """The sums of which a difference D of sense means consists, however units are relabelled, and
    the units whose sense a relabelling of the gate changes. `-> (2 + unit, row), (draw unit)`

    The sums are of all rows, of the rows of sense A, and of what each unit adds to the latter when
    its sense changes. Multiplied with vectors of the rows, they are sums of vectors.
    """
    rng = np.random.default_rng(seed)
    member, flips = _flip_units(is_a, units, draws=GATE_DRAWS, rng=rng)
    changes = np.where(is_a, -1.0, 1.0) * (np.arange(flips.shape[1])[:, None] == member)
    return np.vstack([np.ones(len(member)), is_a, changes]), flips.astype(float)


def _factors(flips: Array, counts: Array) -> Array:
    """The factor of each sum of `_relabelled` in D, under every relabelling. `draw unit, 2 + unit
    -> draw, 2 + unit`

    With f = 1 for units whose sense changes, and n_A and n_B the rows of each sense,

        D = Σ_A / n_A - (Σ - Σ_A) / n_B
          = (1 / n_A + 1 / n_B) (Σ_A observed + Σ_u f_u change_u) - 1 / n_B Σ

    counts: the sums of rows that are 1
    """
    total, observed, *changes = counts
    of_a = observed + flips @ changes
    per_a, per_b = 1 / np.maximum(of_a, 1), 1 / np.maximum(total - of_a, 1)
    both = (per_a + per_b)[:, None]
    return np.hstack([-per_b[:, None], both, both * flips])


def difference_p(
    values: Array, is_a: Sequence[bool], units: Sequence[Hashable], *, seed: int
) -> float:
    """Two-sided p that the means of two senses differ in at least one of k numbers, e.g. the
    position of the word.

    `values: n k`. Max-T over the k numbers. 1 if no number differs at all.
    """
    offset = values - values[:1]
    spread = offset.std(0)
    scaled = np.divide(offset, spread, out=np.zeros_like(offset), where=spread > 0)
    terms, flips = _relabelled(is_a, units, seed=seed)
    largest = np.abs(_factors(flips, terms.sum(1)) @ (terms @ scaled)).max(1)
    return permutation_p(largest.round(MEAN_DECIMALS))


def permutation_p(statistic: Array) -> float:
    """p = (1 + hits) / (1 + draws): how often a relabelled statistic reaches the observed one,
    which comes first.
    """
    hits = np.count_nonzero(reached(statistic[1:], statistic[0]))
    return float((1 + hits) / len(statistic))


def flip_null(
    effects: Array, units: Sequence[Hashable], *, draws: int, rng: np.random.Generator
) -> Array:
    """Studentised mean effects, observed and with the signs of whole units flipped. `pair ... ->
    1 + draws, ...`

    t = mean / (se + s0), with s0 the median standard error over heads

    Under the null, a head's effect is equally likely to be positive or negative for every cue word
    (`flip_signs` says why). s0 prevents a head with hardly any effect from winning because it has
    hardly any noise (Tusher et al. 2001).
    """
    member, number = as_numbers(units)
    flat = effects.reshape(len(effects), -1)
    squares = (flat**2).sum(0)
    null = flipped(_sums(flat, member, number), squares, number=len(effects), draws=draws, rng=rng)
    return null.reshape(-1, *effects.shape[1:])


def flipped(
    by_unit: Array, squares: Array, *, number: int, draws: int, rng: np.random.Generator
) -> Array:
    """`flip_null` from the sums of `number` effects by unit, and of their squares.

    `unit head, head -> 1 + draws, head`
    """
    flips = rng.choice([-1.0, 1.0], size=(draws, len(by_unit)))
    signs = np.vstack([np.ones(len(by_unit)), flips])
    mean = signs @ by_unit / number
    error = np.sqrt(np.maximum(squares / number - mean**2, 0) / max(number - 1, 1))
    return np.asarray(mean / (error + max(float(np.median(error[0])), 1e-12)))


def sign_flip_test(
    effects: Array, units: Sequence[Hashable], *, seed: int = 0, draws: int = 1000
) -> MaxT:
    """A one-sided test of each mean effect against 0, corrected for the whole family.

    `pair ... -> ...`

    It tests whether an effect is above 0; pass `-effects` for the other side. If there is nothing
    to find, an effect has to be as likely as its negative, as the difference of two senses, or of a
    word and a noun, is. p is too small for skewed effects. Pairs that share a unit (a cue
    word, a noun) change their sign together. The steps are `flip_null` and `max_t`.

    Raises InputError for NaN or infinite effects, for a number of units other than the number of
    pairs, and for fewer than FEWEST_PAIRS pairs. `probe.patch` reads so few pairs along each pair's
    own direction, where every part that writes anything is above 0.

    Example:
        >>> from probe.stats.resampling import sign_flip_test
        >>> import numpy as np
        >>> effects = np.array([[1, 0.1], [0.9, -0.2], [1.1, 0], [1.2, 0.1], [0.8, -0.1], [1, 0]])
        >>> cue_words = ["mud", "boat", "lake", "loan", "cash", "debt"]
        >>> test = sign_flip_test(effects, cue_words, seed=0)
        >>> test.p[0] < 0.05 < test.p[1]  # the first column is above 0 in every pair
        np.True_
    """
    doing = "Cannot flip signs"
    require_at_least(1, draws, "draws", doing=doing, usual=1000)
    require_at_least(0, seed, "seed", doing=doing, usual=0)
    effects = _as_reals(effects, doing)
    labels = list(units) if isinstance(units, Iterable) else []
    wrong = [unit for unit in labels if not isinstance(unit, Hashable) or _is_empty(unit)]
    if wrong:
        raise InputError(
            f"{doing}: got units such as {wrong[0]!r}, expected a word or a number for each pair. "
            "Give the cue word of each pair."
        )
    if not effects.size or not effects.ndim or len(effects) != len(labels):
        raise InputError(
            f"{doing}: got effects of shape {list(effects.shape)} and {len(labels)} units, "
            "expected a row of effects for each unit, at least one. Give effects[pair, head] and "
            "the cue word of each pair."
        )
    if not np.isfinite(effects).all():
        raise InputError(
            f"{doing}: {np.count_nonzero(~np.isfinite(effects))} of {effects.size} effects are NaN "
            "or infinite, expected numbers. Omit their pairs or heads."
        )
    if len(effects) < FEWEST_PAIRS:
        raise InputError(
            f"{doing}: got {len(effects)} pairs, expected at least {FEWEST_PAIRS}, because the "
            "signs of fewer show nothing: probe.patch reads so few along each pair's direction. "
            "Give more pairs."
        )
    return flip_signs(effects, labels, seed=seed, draws=draws)


def flip_signs(
    effects: Array, units: Sequence[Hashable], *, seed: int = 0, draws: int = 1000
) -> MaxT:
    """`sign_flip_test` without its checks: the effects are numbers, and any number of pairs will
    do.

    It is exact where exchanging two things turns an effect into its negative and, under the null,
    leaves its distribution unchanged:

        swaps of heads, MLPs, edges  M(z_A) - M(z_B), in both directions, less that of a same-sense
                                     donor: z_A and z_B, if what is swapped does not depend on the
                                     sense
        gaps                         M(x_A) - M(x_B): x_A and x_B, if the senses do not differ
        word and unambiguous noun    the two effects, if both move alike

    It is not exact for a backup's joint excess, M(both) - M(first) - M(later): without a backup its
    mean is 0, but it need not be symmetric. Nor is it for the losses and contrasts of QK
    attribution. `bootstrap_t` tests both.
    """
    null = flip_null(effects, list(units), draws=draws, rng=np.random.default_rng(seed))
    return max_t(null[0], null[1:])


def bootstrap_t(
    effects: Array, factors: Sequence[Sequence[Hashable]], *, seed: int = 0, draws: int = 1000
) -> MaxT:
    """A one-sided test of each mean effect against 0, corrected for the whole family, for effects
    whose signs cannot be flipped because nothing makes them symmetric under the null.

    `n k -> k`

    factors: what varies, a label for each row: cue words, or frames and cue words

        t = mean / (se + c se_observed), in a draw with the mean's deviation from the observed one

    se is estimated anew in every draw, clustered by all factors, so that the distribution of t has
    the skewness that the effects have. c keeps draws in which hardly anything varies from having
    the largest t of all. With 16 cue words, 30 parts and effects whose skewness is -2, the
    family-wise error is about .05; that of sign flips is .22 (tests/stats/test_skew.py). With a
    skewness of -6 a single test of 16 cue words still claims .14 for .05. t is 0 for an effect that
    does not vary; p is 1 for all effects if a factor has a single label.

    Source: Hall 1992 (bootstrap-t); Owen 2007 (crossed factors); Romano & Wolf 2005 (families).

    Example:
        >>> from probe.stats.resampling import bootstrap_t
        >>> import numpy as np
        >>> losses = np.array([[1, 0.1], [0.9, -0.2], [1.1, 0], [1.2, 0.1], [0.8, -0.1], [1, 0]])
        >>> cue_words = ["mud", "boat", "lake", "loan", "cash", "debt"]
        >>> test = bootstrap_t(losses, [cue_words])
        >>> test.p[0] < 0.05 < test.p[1]
        np.True_
    """
    outer = outer_factors(factors)
    mean = effects.mean(0)
    if min(len(set(labels)) for labels in outer) < 2:
        return MaxT(np.zeros_like(mean), np.ones_like(mean), np.ones_like(mean))
    rng = np.random.default_rng(seed)
    counts = []  # how often each label is drawn, for each factor; once in the observed data
    for labels in outer:
        number = len(set(labels))
        drawn = rng.multinomial(number, np.full(number, 1 / number), size=draws)
        counts.append(np.vstack([np.ones(number), drawn]))
    members = [as_numbers(labels)[0] for labels in outer]
    deviation = np.zeros((1 + draws, len(mean)))
    variance = np.zeros_like(deviation)
    for start in range(0, 1 + draws, T_CHUNK):
        rows = slice(start, start + T_CHUNK)
        deviation[rows], variance[rows] = _means_of_draws(
            effects - mean, members, [of_label[rows] for of_label in counts]
        )
    error = np.sqrt(variance)
    least = np.maximum(LEAST_ERROR * error[0], TIE * np.abs(effects).max(initial=0))
    varies = error[0] > TIE * np.abs(effects).max(initial=0)
    denominator = error + np.maximum(least, np.finfo(float).tiny)
    observed = np.where(varies, mean / denominator[0], 0.0)
    return max_t(observed, np.where(varies, deviation[1:] / denominator[1:], 0.0))


def _means_of_draws(
    residuals: Array, members: Sequence[NDArray[np.intp]], counts: Sequence[Array]
) -> tuple[Array, Array]:
    """The mean in every draw, and its variance with every copy of a label as a cluster. 0 in a
    draw without rows.

    `n k -> (draw k), (draw k)`

    members: the label of every row, for each factor. `n` each
    counts: how often a label is drawn. `draw label` each
    """
    drawn = [of_label[:, member] for of_label, member in zip(counts, members, strict=True)]
    weights = np.prod(drawn, axis=0)  # draw n
    total = np.maximum(weights.sum(1), 1)[:, None]
    mean = weights @ residuals / total
    variances = []
    for of_label, member in zip(counts, members, strict=True):
        labels = of_label.shape[1]
        in_label = np.arange(labels)[:, None] == member  # label n
        by_label = weights[:, None] * in_label  # draw label n
        # Σ_row w (x - mean) of each label; its copies share it equally.
        sums = by_label @ residuals - by_label.sum(2)[..., None] * mean[:, None]
        squares = (sums**2 / np.maximum(of_label, 1)[..., None]).sum(1)
        variances.append(labels / (labels - 1) * squares / total**2)
    cells = weights @ residuals**2 - total * mean**2
    together = np.sum(variances, axis=0) - (len(variances) - 1) * cells / total**2
    return mean, np.maximum(together, np.max(variances, axis=0))


def _is_empty(cell: object) -> bool:
    """Whether this is the value of an empty cell in a table."""
    return cell is None or (isinstance(cell, float | np.floating) and bool(np.isnan(cell)))


def _as_reals(effects: Any, doing: str) -> Array:
    """Effects as an array of floats; InputError if they are not real numbers."""
    try:
        array = np.asarray(effects)
        if not np.iscomplexobj(array):
            return array.astype(float)
        problem = "complex numbers"
    except (TypeError, ValueError) as error:
        problem = f"something other than numbers ({error})"
    raise InputError(f"{doing}: got {problem}, expected real ones. Give effects[pair, head].")


def smallest_gap_p(split: CrossFit) -> float:
    """The smallest p that `gap_test` can give.

    Of n units with both senses and k of m units with a single sense there are 2^n · C(m, k)
    labellings. If k is half of m, two of them have the statistic that was observed: the observed
    one, and the one with all senses exchanged.
    """
    senses = [*zip(split.exchanged, split.is_a, strict=True)]
    of_a = {unit for unit, is_a in senses if is_a}
    of_b = {unit for unit, is_a in senses if not is_a}
    single_a = len(of_a - of_b)
    single_b = len(of_b - of_a)
    labellings = 2 ** len(of_a & of_b) * math.comb(single_a + single_b, single_a)
    alike = 2 if single_a == single_b else 1
    return max(alike / labellings, 1 / (GATE_DRAWS + 1))


def smallest_p(units: int, *, draws: int) -> float:
    """The smallest p that sign flips of this number of units can give: 2^-units, but at least 1
    / (draws + 1).
    """
    return max(0.5**units, 1 / (draws + 1))


@cache
def smallest_effect(
    n: int, *, tests: int, paired: bool, power: float = 0.8, level: float = 0.05
) -> float:
    """The smallest difference, in standard deviations, that `n` independent sentences per sense
    (or pairs) would detect.

    `n`: cue words if sentences share them, because those sentences are not independent.
    `tests`: the number of heads; one of them has an effect.
    `paired`: whether the sentences form pairs.

    Infinite for n < 2. This is the power of a test along a direction that is fixed beforehand; with
    a fitted direction it is lower. Effects are drawn from a normal distribution. t is the statistic
    of `flip_null`, and it has to exceed the largest over heads. With few units the error is itself
    poorly estimated, and quantiles of the normal distribution would be too optimistic.
    """
    if n < 2:
        return math.inf
    rng = np.random.default_rng(0)
    freedom, scale = (n - 1, n) if paired else (2 * (n - 1), n / 2)
    mean = rng.normal(size=(POWER_DRAWS, tests))
    error = np.sqrt(rng.chisquare(freedom, size=mean.shape) / freedom)
    error += np.median(error, axis=1, keepdims=True)
    to_beat = np.quantile((mean / error).max(1), 1 - level)
    effect = to_beat * error[:, 0] - mean[:, 0]
    return float(np.quantile(effect, power) / np.sqrt(scale))
