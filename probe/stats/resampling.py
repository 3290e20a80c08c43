"""Resampling: how far two groups of numbers are apart, how sure we may be of it, and p corrected
for many heads.

All functions take and return numpy arrays; the first axis is sentences (or pairs), any further axes
(layer, head) are carried along. Every random choice comes from an explicit seed.

What is permuted is the assignment of senses to cue words: every frame reuses the same few cue
words, so shuffling sentences, or flipping frames, would only ask whether these words differ, which
they do in any model. Where sentences come in pairs, the two senses of a whole pair of cue words are
exchanged, which keeps what the pairing took out; where they do not, senses are reassigned to single
cue words. With u pairs of cue words no p is below 2^-u (2^(1-u) for a gap, which has no sign), and
the page says so. The direction of every head is fitted again under every relabelling, and the
largest statistic over all heads is what each head has to beat, which holds the chance of even one
false claim at the level of the test.

Sources: Hanley & McNeil 1982 (AUROC as a rank statistic); Hedges 1981 (g); Efron & Tibshirani 1993
(bootstrap); Owen 2007 (bootstrap of crossed factors); Hesterberg 2015 (few units); Westfall & Young
1993 (max-T); Winkler et al. 2014 (exchangeable groups); Benjamini & Hochberg 1995; Tusher et al.
2001 (a lower bound of standard errors).
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
FEWEST_PAIRS = 4  # whose signs are flipped, and that are read along the axis of the others
POWER_DRAWS = 4000  # of studies in which one head does something
# Of the gate: p as small as .0002, for it asks for .01 after correction over pairs of senses.
GATE_DRAWS = 4999
# Decimals to which means of positions and lengths are compared: equal means of different sums
# differ in the last digit of float64.
MEAN_DECIMALS = 9
# Values this close, relative to the scale of what they are compared with, are equal: float32 says
# no more, and which of two sums is larger would be decided by their last digit, which differs from
# one processor to the next.
TIE = 1e-6


def folds(
    groups: Sequence[Hashable], count: int, *, seed: int
) -> list[tuple[list[int], list[int]]]:
    """(train, test) row lists in which each group is tested exactly once and never trained on at
    the same time."""
    order = sorted(set(groups), key=str)
    shuffled = [order[index] for index in np.random.default_rng(seed).permutation(len(order))]
    fold_of = {group: rank % count for rank, group in enumerate(shuffled)}
    parts = []
    for fold in range(min(count, len(order))):
        train = [row for row, group in enumerate(groups) if fold_of[group] != fold]
        test = [row for row, group in enumerate(groups) if fold_of[group] == fold]
        if train and test:
            parts.append((train, test))
    return parts


def auroc(a: Array, b: Array) -> Array:
    """P(score of an A sentence > score of a B sentence), ties one half; 0.5 is chance, 1 perfect.
    `n ..., m ... -> ...` One-sided: the sign is the caller's to fix beforehand, so a value under
    0.5 stays under 0.5.
    """
    ranks = rankdata(np.concatenate([a, b]), axis=0)
    n = len(a)
    m = len(b)
    return np.asarray((ranks[:n].sum(0) - n * (n + 1) / 2) / (n * m))


def order(values: Array) -> NDArray[np.intp]:
    """Order along the last axis, the largest value first; of values equal within TIE the first,
    for a flattened `layer head` the lower layer, then the lower head. `... n -> ... n`
    """
    falling = (-values).argsort(-1, kind="stable")
    margin = TIE * np.abs(values).max(initial=0)
    steps = -np.diff(np.take_along_axis(values, falling, -1), axis=-1) > margin
    # Values that follow each other within the margin have one number, and keep their order.
    tied = np.zeros(values.shape, dtype=np.intp)
    np.put_along_axis(tied, falling[..., 1:], steps.cumsum(-1), -1)
    return tied.argsort(-1, kind="stable")


def ranks(values: Array) -> NDArray[np.intp]:
    """The rank of every value along the last axis, 1 = largest, ties as in `order`. `... n -> ...
    n`"""
    return order(values).argsort(-1) + 1


def hedges_g(a: Array, b: Array) -> Array:
    """Mean difference in pooled standard deviations, corrected for small samples; plus or minus
    infinity where nothing varies within and the means differ, 0 where nothing differs at all. `n
    ..., m ... -> ...`
    """
    n = len(a)
    m = len(b)
    # Equal numbers become exactly 0: the mean of n equal floats need not equal that of m.
    offset_a = a - a[:1]
    offset_b = b - a[:1]
    pooled = ((n - 1) * offset_a.var(0, ddof=1) + (m - 1) * offset_b.var(0, ddof=1)) / (n + m - 2)
    difference = offset_a.mean(0) - offset_b.mean(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        raw = np.where(difference == 0, 0.0, difference / np.sqrt(pooled))
    return np.asarray(raw * (1 - 3 / (4 * (n + m) - 9)))


def as_numbers(names: Sequence[Hashable]) -> tuple[NDArray[np.intp], int]:
    """Names as numbers in order of first appearance, and how many there are. `-> n, ()`"""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], dtype=np.intp), len(numbers)


def bootstrap_weights(
    crossed: Sequence[Sequence[Hashable]], *, seed: int, draws: int = DRAWS
) -> Array:
    """How often each row is drawn when every crossed factor (frames, cue words) is resampled on its
    own. `-> draws n`

    `crossed` holds one label per row for each factor; a row's weight is the product of its labels'
    counts. Resampling cells of frame and cue as if they were independent would make intervals far
    too narrow, because every frame reuses the same cues. Source: Owen 2007, the pigeonhole
    bootstrap.
    """
    rng = np.random.default_rng(seed)
    weights = np.ones((draws, len(crossed[0])))
    for labels in crossed:
        member, number = as_numbers(labels)
        weights *= rng.multinomial(number, np.full(number, 1 / number), size=draws)[:, member]
    # A draw in which no frame met its cues says nothing: it counts as the data themselves.
    empty = weights.sum(1) == 0
    weights[empty] = 1.0
    return weights


def crossed_factors(
    frames: Sequence[str | None], units: Sequence[Hashable]
) -> list[list[Hashable]]:
    """What is resampled: frames and cue words where frames are known, else the units alone; a label
    per row in each."""
    if not any(frames):
        return [list(units)]
    # A sentence without a frame is a frame of its own.
    names: list[Hashable] = [frame or f"row {row}" for row, frame in enumerate(frames)]
    return [names, list(units)]


def bootstrap_ratio(numerator: Array, denominator: Array, weights: Array) -> Array:
    """Ratio of sums in every bootstrap draw. `n ..., n ..., draws n -> draws ...`, the
    denominator's axes broadcast"""
    top = np.tensordot(weights, numerator, axes=1)
    bottom = np.tensordot(weights, denominator, axes=1)
    missing_axes = [1] * (top.ndim - bottom.ndim)
    return np.asarray(top / bottom.reshape(*bottom.shape, *missing_axes))


def interval(
    draws: Array, estimate: Array | float | None = None, *, units: int = 0
) -> tuple[Array, Array]:
    """The central 95 % percentile interval over the first axis. `draws ... -> (...), (...)`

    With `units`, how many cue words were resampled, it is widened around the estimate by sqrt(n /
    (n - 1)) t / z, t the quantile of Student's distribution with n - 1 degrees of freedom:
    percentiles of few units are too narrow (Hesterberg 2015), with ten they cover about .90.
    """
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    if units < 2 or estimate is None:
        return low, high
    wider = np.sqrt(units / (units - 1)) * student_t.ppf(0.975, units - 1) / norm.ppf(0.975)
    return estimate + wider * (low - estimate), estimate + wider * (high - estimate)


# --- permutation ----------------------------------------------------------------------------------


class Gap(NamedTuple):
    """Whether two senses differ at some stage: `p`, corrected for the stages, and the statistic `t`
    of each."""

    p: float
    t: Array


class MaxT(NamedTuple):
    """A family of tests: `t` the statistics, `p` corrected for the whole family, `q` the false
    discovery rate."""

    t: Array
    p: Array
    q: Array


def relabel(
    is_a: Sequence[bool], units: Sequence[Hashable], *, draws: int, rng: np.random.Generator
) -> Labels:
    """Sense labels as observed (first) and reassigned `draws` times, whole units at a time: units
    that hold both senses are flipped; senses are shuffled among the units that hold one. `-> 1 +
    draws, n`
    """
    observed = np.asarray(is_a, dtype=bool)
    member, number = as_numbers(units)
    count_a = np.bincount(member, observed, minlength=number)
    count_b = np.bincount(member, ~observed, minlength=number)
    turned = rng.random((draws, number)) < 0.5
    single = (count_a == 0) | (count_b == 0)
    senses = count_a[single] > 0
    turned[:, single] = rng.permuted(np.tile(senses, (draws, 1)), axis=1) != senses
    return np.vstack([observed, observed ^ turned[:, member]])


def reached(drawn: Array, observed: Array) -> Labels:
    """Where a statistic under relabelling is at least the observed one, ties within TIE of its
    scale. `-> draw ...`

    `drawn: draw ...`, `observed: ...`; the scale is the largest absolute value, drawn or observed,
    of the whole family. Relabellings that give exactly the observed statistic are common where
    units are few. Computed, the two are sums in different orders of numbers from a model in
    float32, and which is larger would be decided by the last digit, which differs from one
    processor to the next. Every permutation test compares here.
    """
    scale = max(np.abs(drawn).max(initial=0), np.abs(observed).max(initial=0))
    return np.asarray(drawn >= observed - TIE * scale)


def max_t(observed: Array, null: Array) -> MaxT:
    """Corrected one-sided p of every statistic: how often the largest one under relabelling reaches
    it.

    `observed: ...`, `null: draws ...`, the same studentised statistic. p = (1 + hits) / (1 +
    draws), so it is never 0. The bar is lowered step by step: a head that has passed no longer sets
    it for the heads behind it (Westfall & Young's step-down), without which the relabelled leader
    would hide every true but smaller head.
    """
    t = observed.ravel()
    flat = null.reshape(len(null), -1)
    order = (-t).argsort(kind="stable")
    # The largest of each head and those behind it.
    bar = np.maximum.accumulate(flat[:, order[::-1]], axis=1)[:, ::-1]
    corrected = (1 + reached(bar, t[order]).sum(0)) / (1 + len(null))
    p = np.empty_like(t)
    p[order] = np.maximum.accumulate(corrected)
    q = false_discovery_control((1 + reached(flat, t).sum(0)) / (1 + len(null)))
    return MaxT(observed, p.reshape(observed.shape), q.reshape(observed.shape))


def gap_test(resid: Array, split: CrossFit, *, seed: int) -> Gap:
    """One-sided test that two senses differ along held-out axes at some stage: max-T over the
    stages.

    `resid: row stage d`, the split's rows. The statistic of a stage is Σ <D_test, D_train> over the
    holdouts, D a difference of sense means: the gap times the length of the fitted axis. (Divided
    by |D_train|² it would be the gap itself, and have no power: relabelling most of the rows that
    are fitted on makes the divisor tiny.) Every relabelling exchanges the senses of units that
    hold both, or reassigns them to units that hold one, and fits every axis again. Each stage is
    divided by its standard deviation under relabelling.
    """
    member, number = as_numbers(
        list(zip(split.exchanged, split.is_a, split.cells.tolist(), strict=True))
    )
    # A row of every group that changes its sense as a whole.
    first = np.unique(member, return_index=True)[1]
    rng = np.random.default_rng(seed)
    count = np.bincount(member, minlength=number)
    labels = relabel(split.is_a, split.exchanged, draws=GATE_DRAWS, rng=rng)[:, first].astype(float)
    learned = np.array(
        [np.bincount(member[[*holdout.train]], minlength=number) > 0 for holdout in split.holdouts],
        dtype=float,
    )
    tested = [np.flatnonzero(split.cells[first] == part) for part in range(len(learned))]
    offsets = resid - resid[:1]  # identical vectors become exactly 0
    sums = [_sums(stage - stage.mean(0), member, number) for stage in np.moveaxis(offsets, 1, 0)]
    drawn = _agreement([stage @ stage.T for stage in sums], labels, count, learned, tested)
    spread = drawn[1:].std(0)
    drawn = np.divide(
        drawn, spread, out=np.zeros_like(drawn), where=spread > TIE * spread.max(initial=0)
    )
    return Gap(permutation_p(drawn.max(1)), drawn[0])


def _sums(rows: Array, member: NDArray[np.intp], number: int) -> Array:
    """Sums of the rows of each group. `row d -> group d`"""
    sums = np.zeros((number, rows.shape[1]))
    np.add.at(sums, member, rows)
    return sums


def _agreement(
    grams: Sequence[Array],
    labels: Array,
    count: NDArray[np.intp],
    learned: Array,
    tested: Sequence[Any],
) -> Array:
    """Σ <D_test, D_train> over the holdouts under every labelling, for each stage. `-> draw stage`

    `grams: group group`, the products of the groups' sums · `learned: holdout group`, 1 where a
    group is fitted on · `tested`: the groups that each holdout tests. D_test has the divisors of
    all rows, so that its parts add up to the whole difference.
    """
    signed = _signed(labels, count)
    total = np.zeros((len(labels), len(grams)))
    for mask, groups in zip(learned, tested, strict=True):
        fitted = _signed(labels, count * mask) * mask
        for stage, gram in enumerate(grams):
            total[:, stage] += ((fitted @ gram[:, groups]) * signed[:, groups]).sum(1)
    return total


def _signed(labels: Array, count: Any) -> Array:
    """What each group's sum is multiplied with in a difference of sense means: 1 / n_A or
    -1 / n_B."""
    of_a = labels @ count
    of_b = count.sum() - of_a
    return labels / np.maximum(of_a, 1)[:, None] - (1 - labels) / np.maximum(of_b, 1)[:, None]


def difference_p(
    values: Array, is_a: Sequence[bool], units: Sequence[Hashable], *, seed: int
) -> float:
    """Two-sided p that the means of two senses differ in one of several numbers, such as the
    position of the word in the text. `n k`: max-T over the k. 1 where no number differs at all.
    """
    offset = values - values[:1]
    labels = relabel(is_a, units, draws=GATE_DRAWS, rng=np.random.default_rng(seed)).astype(float)
    signed = _signed(labels, np.ones(len(values), dtype=np.intp))
    spread = offset.std(0)
    scaled = np.divide(offset, spread, out=np.zeros_like(offset), where=spread > 0)
    largest = np.abs(signed @ scaled).max(1)
    return permutation_p(largest.round(MEAN_DECIMALS))


def permutation_p(statistic: Array) -> float:
    """How often a relabelled statistic reaches the observed one, which stands first: (1 + hits) /
    (1 + draws)."""
    hits = np.count_nonzero(reached(statistic[1:], statistic[0]))
    return float((1 + hits) / len(statistic))


def flip_null(
    effects: Array, units: Sequence[Hashable], *, draws: int, rng: np.random.Generator
) -> Array:
    """Studentised mean effects, as they are (first) and with whole units' signs flipped. `pair ...
    -> 1 + draws, ...`

    Under the null a head's effect is as likely to point one way as the other for every cue word. t
    = mean / (se + s0), s0 being the median standard error over heads: a head that hardly does
    anything must not win by having hardly any noise (Tusher et al. 2001).
    """
    member, number = as_numbers(units)
    flat = effects.reshape(len(effects), -1)
    squares = (flat**2).sum(0)
    null = flipped(_sums(flat, member, number), squares, number=len(effects), draws=draws, rng=rng)
    return null.reshape(-1, *effects.shape[1:])


def flipped(
    by_unit: Array, squares: Array, *, number: int, draws: int, rng: np.random.Generator
) -> Array:
    """`flip_null` from sums by unit of `number` effects and of their squares. `unit head, head -> 1
    + draws, head`"""
    flips = rng.choice([-1.0, 1.0], size=(draws, len(by_unit)))
    signs = np.vstack([np.ones(len(by_unit)), flips])
    mean = signs @ by_unit / number
    error = np.sqrt(np.maximum(squares / number - mean**2, 0) / max(number - 1, 1))
    return np.asarray(mean / (error + max(float(np.median(error[0])), 1e-12)))


def sign_flip_test(
    effects: Array, units: Sequence[Hashable], *, seed: int = 0, draws: int = 1000
) -> MaxT:
    """Which mean effects are above 0, corrected for the whole family: `flip_null`, then `max_t`.
    `pair ... -> ...`

    One-sided; for the other side give `-effects`. Pairs that share a unit (a cue word, a noun)
    change their sign together. Raises InputError for effects that are not there (NaN) or infinite,
    which no sign could be flipped of, where there is not one unit for each pair, and for fewer than
    FEWEST_PAIRS pairs: what `probe.patch` finds in so few of them is read along each pair's own
    way, so that every part that writes anything is above 0.

    Example:
        >>> import numpy as np
        >>> effects = np.array([[1, 0.1], [0.9, -0.2], [1.1, 0], [1.2, 0.1], [0.8, -0.1], [1, 0]])
        >>> cue_words = ["mud", "boat", "lake", "loan", "cash", "debt"]
        >>> test = probe.sign_flip_test(effects, cue_words, seed=0)
        >>> test.p[0] < 0.05 < test.p[1]  # the first column is above 0 in every pair
        np.True_
    """
    doing = "Flipping signs"
    require_at_least(1, draws, "draws", doing=doing, usual=1000)
    require_at_least(0, seed, "seed", doing=doing, usual=0)
    effects = _as_reals(effects, doing)
    named = list(units) if isinstance(units, Iterable) else []
    wrong = [unit for unit in named if not isinstance(unit, Hashable) or _is_empty(unit)]
    if wrong:
        raise InputError(
            f"{doing}: got units such as {wrong[0]!r}, expected a word or a number for each pair; "
            "give the cue word of each pair."
        )
    if not effects.size or not effects.ndim or len(effects) != len(named):
        raise InputError(
            f"{doing}: got effects of shape {list(effects.shape)} and {len(named)} units, expected "
            "a row of effects for each unit, at least one; give effects[pair, head] and the cue "
            "word of each pair."
        )
    if not np.isfinite(effects).all():
        raise InputError(
            f"{doing}: {np.count_nonzero(~np.isfinite(effects))} of {effects.size} effects are NaN "
            "or infinite, expected numbers; leave out the pairs or the heads that have none."
        )
    if len(effects) < FEWEST_PAIRS:
        raise InputError(
            f"{doing}: got {len(effects)} pairs, expected at least {FEWEST_PAIRS}, because the "
            "signs of fewer show nothing, and probe.patch reads so few along each pair's own way; "
            "give more pairs."
        )
    return flip_signs(effects, named, seed=seed, draws=draws)


def flip_signs(
    effects: Array, units: Sequence[Hashable], *, seed: int = 0, draws: int = 1000
) -> MaxT:
    """`sign_flip_test` of effects that are known to be numbers, of any number of pairs."""
    null = flip_null(effects, list(units), draws=draws, rng=np.random.default_rng(seed))
    return max_t(null[0], null[1:])


def _is_empty(cell: object) -> bool:
    """Whether this is what a table has in an empty cell."""
    return cell is None or (isinstance(cell, float | np.floating) and bool(np.isnan(cell)))


def _as_reals(effects: Any, doing: str) -> Array:
    """Effects as an array of floats; InputError for what are no real numbers."""
    try:
        found = np.asarray(effects)
        if not np.iscomplexobj(found):
            return found.astype(float)
        problem = "complex numbers"
    except (TypeError, ValueError) as error:
        problem = f"what is no array of numbers ({error})"
    raise InputError(f"{doing}: got {problem}, expected real ones; give effects[pair, head].")


def smallest_p(units: int, *, draws: int) -> float:
    """The smallest p that flipping the signs of so many units can give: 2^-units, and no less than
    1 / (draws + 1)."""
    return max(0.5**units, 1 / (draws + 1))


@cache
def smallest_effect(
    n: int, *, tests: int, paired: bool, power: float = 0.8, level: float = 0.05
) -> float:
    """Smallest difference, in standard deviations, that `n` independent sentences per sense (or
    pairs) would show.

    Sentences that share a cue word are not independent: there `n` counts cue words. It is the power
    of a test along a direction known beforehand; one that is fitted first sees less. Effects are
    drawn from a normal distribution, one of `tests` heads has one, and t is that of `flip_null`,
    whose largest over heads has to be beaten: with few units an error is itself known so poorly
    that quantiles of the normal distribution would promise too much. Infinite for a single one.
    """
    if n < 2:
        return math.inf
    rng = np.random.default_rng(0)
    freedom, scale = (n - 1, n) if paired else (2 * (n - 1), n / 2)
    mean = rng.normal(size=(POWER_DRAWS, tests))
    error = np.sqrt(rng.chisquare(freedom, size=mean.shape) / freedom)
    error += np.median(error, axis=1, keepdims=True)
    to_beat = np.quantile((mean / error).max(1), 1 - level)
    needed = to_beat * error[:, 0] - mean[:, 0]
    return float(np.quantile(needed, power) / np.sqrt(scale))
