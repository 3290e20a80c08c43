"""P-values corrected for many heads: max-T permutation of the whole pipeline, false discovery rates, power.

What is permuted is the assignment of senses to cue words: every frame reuses the same few cue words, so shuffling
sentences, or flipping frames, would only ask whether these words differ, which they do in any model. Cue words are
dealt out one by one also where sentences come in pairs: ten pairs could only be turned round in a thousand ways, too
few for p-values to become small. Effects of swaps belong to a pair, so there whole pairs of cue words change their
sign. The direction of every head is fitted again under every relabelling, and the largest statistic over all heads is
what each head has to beat, which holds the chance of even one false claim at the level of the test.

Sources: Westfall & Young 1993 (max-T); Winkler et al. 2014 (exchangeable groups); Benjamini & Hochberg 1995;
Tusher et al. 2001 (a floor under standard errors).
"""

import os
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control, norm, rankdata

from probe.stats.resampling import TIE, Array, as_numbers

Labels = NDArray[np.bool_]
CHUNK = 64
# Chunks of relabellings that are worked on at once; each holds three arrays of draw x head x sentence.
THREADS = min(4, os.cpu_count() or 1)
GATE_DRAWS = 4999  # p as small as .0002: the gate asks for .01 after correction over pairs of senses


@dataclass(frozen=True, eq=False)
class MaxT:
    """A family of tests: `t` the statistics, `p` corrected for the whole family, `q` the false discovery rate."""

    t: Array
    p: Array
    q: Array


def relabel(is_a: Sequence[bool], units: Sequence[Hashable], *, draws: int, rng: np.random.Generator) -> Labels:
    """Sense labels as given (first) and reassigned `draws` times, whole units at a time. `-> 1 + draws, n`

    Units that hold both senses are flipped; senses are shuffled among the units that hold one.
    """
    given = np.asarray(is_a, dtype=bool)
    member, number = as_numbers(units)
    count_a, count_b = (np.bincount(member, side, minlength=number) for side in (given, ~given))
    turned = rng.random((draws, number)) < 0.5
    single = (count_a == 0) | (count_b == 0)
    own = count_a[single] > 0
    turned[:, single] = rng.permuted(np.tile(own, (draws, 1)), axis=1) != own
    return np.vstack([given, given ^ turned[:, member]])


def reached(drawn: Array, observed: Array) -> Labels:
    """Where a statistic under relabelling is at least the observed one, ties within TIE of its scale. `-> draw ...`

    `drawn: draw ...`, `observed: ...`; the scale is the largest absolute value, drawn or observed, of the whole family.
    Relabellings that give exactly the observed statistic are common where units are few. Computed, the two are sums in
    different orders of numbers from a model in float32, and which is larger would be decided by the last digit, which
    differs from one processor to the next. Every permutation test compares here.
    """
    scale = max(np.abs(drawn).max(initial=0), np.abs(observed).max(initial=0))
    return np.asarray(drawn >= observed - TIE * scale)


def max_t(observed: Array, null: Array) -> MaxT:
    """Corrected one-sided p of every statistic: how often the largest one under relabelling reaches it.

    `observed: ...`, `null: draws ...`, the same studentised statistic. p = (1 + hits) / (1 + draws), so it is never 0.
    The bar is lowered step by step: a head that has passed no longer sets it for the heads behind it (Westfall &
    Young's step-down), without which the relabelled leader would hide every true but smaller head.
    """
    t, flat = observed.ravel(), null.reshape(len(null), -1)
    order = (-t).argsort(kind="stable")
    bar = np.maximum.accumulate(flat[:, order[::-1]], axis=1)[:, ::-1]  # the largest of this head and those behind it
    corrected = (1 + reached(bar, t[order]).sum(0)) / (1 + len(null))
    p = np.empty_like(t)
    p[order] = np.maximum.accumulate(corrected)
    q = false_discovery_control((1 + reached(flat, t).sum(0)) / (1 + len(null)))
    return MaxT(observed, p.reshape(observed.shape), q.reshape(observed.shape))


@dataclass(frozen=True, eq=False)
class Sample:
    """Vectors with their sense: `rows: n d_model`, which are of sense A, and the units that are exchanged whole."""

    rows: Array
    is_a: Sequence[bool]
    units: Sequence[Hashable]

    def differences(self, *, draws: int, rng: np.random.Generator) -> Array:
        """The difference of sense means as observed (first) and under `draws` relabellings. `-> 1 + draws, d_model`"""
        labels = relabel(self.is_a, self.units, draws=draws, rng=rng).astype(float)
        of_a = labels.sum(1, keepdims=True)
        return np.asarray(labels @ self.rows / of_a - (1 - labels) @ self.rows / (len(self.rows) - of_a))


def gap_p(fit: Sample, report: Sample, *, seed: int, draws: int = GATE_DRAWS) -> float:
    """One-sided p that the report part's gap along the axis fitted on the fit part is above chance.

    The statistic is <D_report, D_fit>, D a difference of sense means: the gap times the length of the fitted axis.
    (Divided by |D_fit|² it would be the gap itself, and have no power: relabelling most of the fit part makes the
    divisor tiny.) Both parts are relabelled and the axis is fitted again.
    """
    rng = np.random.default_rng(seed)
    on_fit, on_report = (part.differences(draws=draws, rng=rng) for part in (fit, report))
    return permutation_p((on_report * on_fit).sum(1))


def permutation_p(statistic: Array) -> float:
    """How often a relabelled statistic reaches the observed one, which stands first: (1 + hits) / (1 + draws)."""
    hits = np.count_nonzero(reached(statistic[1:], statistic[0]))
    return float((1 + hits) / len(statistic))


def separation_null(fit: Array, fit_labels: Labels, report: Array, report_labels: Labels) -> Array:
    """AUROC of every head's own direction under every labelling, fitted on fit and scored on report.

    `fit: head n d`, `report: head m d` in coordinates that do not depend on the labels; labels `draw n`, `draw m` with
    the true ones first -> `draw head`. Under the null the standard error of an AUROC is the same for every head, so it
    is not divided out.
    """

    def chunk(start: int) -> Array:
        some = slice(start, start + CHUNK)
        return aurocs(own_scores(fit, fit_labels[some], report), report_labels[some])

    with ThreadPoolExecutor(THREADS) as pool:  # sorting is most of it, and lets other threads run
        return np.concatenate(list(pool.map(chunk, range(0, len(fit_labels), CHUNK))))


def own_scores(fit: Array, labels: Labels, new: Array) -> Array:
    """New writes along each head's own direction, under every labelling: mean difference / pooled variance.

    `head n d, draw n, head m d -> draw head m`
    """
    n_a = labels.sum(1)[:, None, None]
    n_b = labels.shape[1] - n_a
    weights, total, squares = labels.astype(float), fit.sum(1), (fit**2).sum(1)
    sum_a = np.einsum("bn,hnd->bhd", weights, fit, optimize=True)
    square_a = np.einsum("bn,hnd->bhd", weights, fit**2, optimize=True)
    mean_a, mean_b = sum_a / n_a, (total - sum_a) / n_b
    within = np.maximum(square_a - n_a * mean_a**2 + squares - square_a - n_b * mean_b**2, 0) / (labels.shape[1] - 2)
    difference = mean_a - mean_b
    floor = 1e-9 * within.max(-1, keepdims=True) + 1e-12 * (difference**2).max(-1, keepdims=True) + np.finfo(float).tiny
    return np.asarray(np.einsum("bhd,hmd->bhm", difference / (within + floor), new, optimize=True))


def aurocs(scores: Array, labels: Labels) -> Array:
    """AUROC of every head under every labelling, ties one half. `draw head m, draw m -> draw head`"""
    marked = _with_label(scores, labels)
    marked.view(float).sort(axis=-1)
    sums = (marked & 1).astype(float) @ np.arange(1.0, scores.shape[-1] + 1)  # of the ranks of A
    tied = (marked[..., 1:] ^ marked[..., :-1] <= 1).any(-1)
    if tied.any():  # rare, and ten times slower to rank fairly
        draws, heads = np.nonzero(tied)
        sums[draws, heads] = (rankdata(scores[draws, heads], axis=-1) * labels[draws]).sum(-1)
    n_a = labels.sum(1)[:, None]
    return np.asarray((sums - n_a * (n_a + 1) / 2) / (n_a * (labels.shape[1] - n_a)))


def _with_label(scores: Array, labels: Labels) -> NDArray[np.uint64]:
    """Each score's bits with its label as the last one: sorting the scores sorts the labels. `-> draw head m`

    Scores that differ in no other bit look tied afterwards, which they then are or not: that is decided by the scores
    themselves.
    """
    bits = (scores + 0.0).view(np.uint64)  # + 0.0: one zero, not two
    bits &= ~np.uint64(1)
    bits |= labels[:, None]
    return bits


def auroc_draws(scores: Array, is_a: Sequence[bool], weights: Array) -> Array:
    """AUROC of every head in every bootstrap draw. `head m`, m labels, `draws m -> draws head`"""
    of_a = np.asarray(is_a)
    weight_a, weight_b = weights[:, of_a], weights[:, ~of_a]
    size = weight_a.sum(1) * weight_b.sum(1)
    draws = []
    for values in scores:
        above = np.sign(values[of_a][:, None] - values[~of_a][None]) / 2 + 0.5  # a b
        won = ((weight_a @ above) * weight_b).sum(1)
        draws.append(np.divide(won, size, out=np.full(len(size), 0.5), where=size > 0))
    return np.stack(draws, axis=1)


def flip_null(effects: Array, units: Sequence[Hashable], *, draws: int, rng: np.random.Generator) -> Array:
    """Studentised mean effects, as they are (first) and with whole units' signs flipped. `pair ... -> 1 + draws, ...`

    Under the null a head's effect is as likely to point one way as the other for every cue word. t = mean / (se +
    floor), the floor being the median standard error over heads: a head that hardly does anything must not win by
    having hardly any noise (Tusher et al. 2001).
    """
    member, number = as_numbers(units)
    flat = effects.reshape(len(effects), -1)
    by_unit = np.zeros((number, flat.shape[1]))
    np.add.at(by_unit, member, flat)
    null = flipped(by_unit, (flat**2).sum(0), number=len(effects), draws=draws, rng=rng)
    return null.reshape(-1, *effects.shape[1:])


def flipped(by_unit: Array, squares: Array, *, number: int, draws: int, rng: np.random.Generator) -> Array:
    """`flip_null` from sums by unit of `number` effects and of their squares. `unit head, head -> 1 + draws, head`"""
    signs = np.vstack([np.ones(len(by_unit)), rng.choice([-1.0, 1.0], size=(draws, len(by_unit)))])
    mean = signs @ by_unit / number
    error = np.sqrt(np.maximum(squares / number - mean**2, 0) / max(number - 1, 1))
    return np.asarray(mean / (error + max(float(np.median(error[0])), 1e-12)))


def sign_flip_test(effects: Array, units: Sequence[Hashable], *, seed: int, draws: int = 1000) -> MaxT:
    """Which mean effects are above 0, corrected for the whole family: `flip_null`, then `max_t`. `pair ... -> ...`

    One-sided; for the other side give `-effects`. Pairs that share a unit (a cue word, a noun) change their sign
    together.
    """
    null = flip_null(effects, units, draws=draws, rng=np.random.default_rng(seed))
    return max_t(null[0], null[1:])


def smallest_effect(n: int, *, tests: int, paired: bool, power: float = 0.8, level: float = 0.05) -> float:
    """Smallest difference, in standard deviations, that `n` independent sentences per sense (or pairs) would show.

    Sentences that share a cue word are not independent: there `n` counts cue words. It is the power of a test along a
    direction known beforehand; one that is fitted first sees less.
    """
    scale = np.sqrt(n if paired else n / 2)
    return float((norm.ppf(1 - level / tests) + norm.ppf(power)) / scale)
