"""Held-out separation of every head's write along its own direction, and the tests of a word:
corrected over all its heads and pairs of senses.

One family of tests per word: separation and swap effect each have to beat the largest value that
any head reaches in any pair of the word's senses when senses are reassigned to cue words.
"""

import os
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

from probe.stats import resampling
from probe.stats.resampling import Array, Labels, MaxT
from probe.text.splits import CrossFit

MANY = 100  # sentences per sense: with fewer, a direction of d_head numbers (64, say) fits noise
COMPONENTS = 16  # fewer numbers than the fifty sentences per sense from which a result is not called exploratory
CHUNK = 64
# Chunks of relabellings that are worked on at once; each holds three arrays of draw x head x
# sentence.
THREADS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True, eq=False)
class Separation:
    """Held-out separation of two senses by each head's write. `layer head`; `null: 1 + permutations
    layer head`."""

    auroc: Array
    auroc_low: Array
    auroc_high: Array
    hedges_g: Array
    null: Array


@dataclass(frozen=True, eq=False)
class Tests:
    """Corrected tests of one pair of senses, `layer head` each: separation, swap, the wrong way;
    what is said next, None for a model that predicts no tokens, and the logits of continuations,
    None where none are known.
    """

    separation: MaxT
    swap: MaxT
    opposes: MaxT
    next_token: MaxT | None = None
    continuation: MaxT | None = None


class Sums(NamedTuple):
    """Sums and sums of squares of rows that change their sense in groups, `head group d`, and group
    sizes."""

    rows: Array
    squares: Array
    size: Array


def sums_of(rows: Array, group: NDArray[np.intp]) -> Sums:
    """The sums of groups of rows. `head n d, n`"""
    member = np.zeros((group.max() + 1, len(group)))
    member[group, np.arange(len(group))] = 1
    return Sums(member @ rows, member @ rows**2, member.sum(1))


def measure_separation(
    writes: Tensor, split: CrossFit, *, permutations: int, seed: int
) -> Separation:
    """Held-out AUROC and Hedges' g of every head's write along its own direction, and AUROC under
    every relabelling. `writes: layer head row d_head`. Every sentence is scored once, along a
    direction fitted on the sentences that its holdout learns from, and compared with those of the
    other sense in its holdout.
    """
    is_a, heads = np.array(split.is_a), int(np.prod(writes.shape[:2]))
    rng = np.random.default_rng(seed)
    labels = resampling.relabel(split.is_a, split.exchanged, draws=permutations, rng=rng)
    together, _ = resampling.as_numbers(list(zip(split.exchanged, split.is_a, strict=True)))
    weights = resampling.bootstrap_weights(
        resampling.crossed_factors(split.frames, split.units), seed=seed
    )
    wins, compared = np.zeros((1 + permutations, heads)), np.zeros(1 + permutations)
    drawn, drawn_compared = np.zeros((len(weights), heads)), np.zeros(len(weights))
    scores = np.full((heads, len(is_a)), np.nan)
    for train, test in ((list(holdout.train), list(holdout.test)) for holdout in split.holdouts):
        per_sense = int(min(is_a[train].sum(), (~is_a[train]).sum()))
        few = reduced(writes[:, :, train], writes[:, :, test], per_sense=per_sense)
        fit, new = (part.flatten(0, 1).numpy() for part in few)
        first, group = np.unique(together[train], return_index=True, return_inverse=True)[1:]
        sums, learned = sums_of(fit, group), labels[:, train][:, first]
        wins += separation_null(sums, learned, new, labels[:, test])
        of_a = labels[:, test].sum(1)
        compared += of_a * (len(test) - of_a)
        own = own_scores(sums, learned[:1], np.concatenate([fit, new], axis=1))[0]
        scores[:, test] = _calibrated(own, is_a[train])
        here, pairs = won_draws(scores[:, test], list(is_a[test]), weights[:, test])
        drawn, drawn_compared = drawn + here, drawn_compared + pairs
    null, draws = _auroc(wins, compared), _auroc(drawn, drawn_compared)
    low, high = resampling.interval(draws, null[0], units=len(set(split.units)))
    tested = ~np.isnan(scores[0])
    g = resampling.hedges_g(scores[:, tested & is_a].T, scores[:, tested & ~is_a].T)
    auroc, low, high, g = (
        values.reshape(writes.shape[:2]) for values in (null[0], low.clip(0), high.clip(max=1), g)
    )
    return Separation(auroc, low, high, g, null.reshape(-1, *writes.shape[:2]))


def _auroc(won: Array, of: Array) -> Array:
    """The share of comparisons won, one half where there are none. `draw head, draw -> draw head`"""
    return np.divide(won, of[:, None], out=np.full_like(won, 0.5), where=of[:, None] > 0)


def _calibrated(scores: Array, is_a: NDArray[np.bool_]) -> Array:
    """New scores, about +1/2 for A and -1/2 for B, as the fitted ones in front of them say. `head n
    + m -> head m`"""
    fitted, new = np.split(scores, [len(is_a)], axis=1)
    mean_a, mean_b = (fitted[:, side].mean(1, keepdims=True) for side in (is_a, ~is_a))
    gap = mean_a - mean_b
    return (new - (mean_a + mean_b) / 2) / np.where(gap > 0, gap, 1.0)


def reduced(fit: Tensor, new: Tensor, *, per_sense: int) -> tuple[Tensor, Tensor]:
    """Writes centred on the fit part; with fewer than MANY sentences per sense, their first
    principal components, at most COMPONENTS, so that a direction has fewer numbers than sentences.
    The labels play no part, so one reduction serves every relabelling. `... n d, ... m d -> ... n
    k, ... m k`
    """
    centre = fit.mean(-2, keepdim=True)
    fit, new = fit - centre, new - centre
    if per_sense >= MANY:
        return fit, new
    basis = torch.linalg.eigh(fit.transpose(-1, -2) @ fit).eigenvectors.flip(
        -1
    )  # the largest variance first
    basis = basis[..., : min(COMPONENTS, fit.shape[-2] - 1)]
    return fit @ basis, new @ basis


def own_direction_scores(fit_a: Tensor, fit_b: Tensor, new: Tensor) -> Tensor:
    """`own_scores` of new writes, reduced, along the directions fitted on two senses. `... n d, ...
    m d, ... k d`"""
    fit, new = reduced(
        torch.cat([fit_a, fit_b], dim=-2), new, per_sense=min(fit_a.shape[-2], fit_b.shape[-2])
    )
    flat_fit, flat_new = (part.reshape(-1, *part.shape[-2:]).numpy() for part in (fit, new))
    of_a = (np.arange(fit.shape[-2]) < fit_a.shape[-2])[None]
    scores = own_scores(sums_of(flat_fit, np.arange(fit.shape[-2])), of_a, flat_new)[0]
    return torch.from_numpy(scores).reshape(new.shape[:-1])


def separation_null(fit: Sums, learned: Labels, new: Array, labels: Labels) -> Array:
    """How often a sentence of A scores above one of B along every head's own direction, under every
    labelling. Under the null the standard error of an AUROC is the same for every head, so it is
    not divided out. `learned: draw group`, the labels of what is fitted on · `new: head m d`,
    `labels: draw m -> draw head`
    """

    def chunk(start: int) -> Array:
        some = slice(start, start + CHUNK)
        return won(own_scores(fit, learned[some], new), labels[some])

    with ThreadPoolExecutor(THREADS) as pool:  # sorting is most of it, and lets other threads run
        return np.concatenate(list(pool.map(chunk, range(0, len(labels), CHUNK))))


def own_scores(fit: Sums, labels: Labels, new: Array) -> Array:
    """New writes along each head's own direction, mean difference / pooled variance.
    `draw group, head m d -> draw head m`
    """
    sums, squared, size = fit
    weights, total, squares = labels.astype(float), sums.sum(1), squared.sum(1)
    n_a = (weights @ size)[:, None, None]
    n_b = size.sum() - n_a
    sum_a = np.einsum("bn,hnd->bhd", weights, sums, optimize=True)
    square_a = np.einsum("bn,hnd->bhd", weights, squared, optimize=True)
    mean_a, mean_b = sum_a / np.maximum(n_a, 1), (total - sum_a) / np.maximum(n_b, 1)
    within = np.maximum(square_a - n_a * mean_a**2 + squares - square_a - n_b * mean_b**2, 0) / (
        size.sum() - 2
    )
    difference = mean_a - mean_b
    floor = (
        1e-9 * within.max(-1, keepdims=True)
        + 1e-12 * (difference**2).max(-1, keepdims=True)
        + np.finfo(float).tiny
    )
    return np.asarray(np.einsum("bhd,hmd->bhm", difference / (within + floor), new, optimize=True))


def won(scores: Array, labels: Labels) -> Array:
    """How many comparisons of an A with a B the A wins, ties one half. `draw head m, draw m -> draw
    head`"""
    marked = _with_label(scores, labels)
    marked.view(float).sort(axis=-1)
    sums = (marked & 1).astype(float) @ np.arange(1.0, scores.shape[-1] + 1)  # of the ranks of A
    tied = (marked[..., 1:] ^ marked[..., :-1] <= 1).any(-1)
    if tied.any():  # rare, and ten times slower to rank fairly
        draws, heads = np.nonzero(tied)
        sums[draws, heads] = (rankdata(scores[draws, heads], axis=-1) * labels[draws]).sum(-1)
    n_a = labels.sum(1)[:, None]
    return np.asarray(sums - n_a * (n_a + 1) / 2)


def _with_label(scores: Array, labels: Labels) -> NDArray[np.uint64]:
    """Each score's bits with its label as the last one: sorting the scores sorts the labels. `->
    draw head m`

    Scores that differ in no other bit look tied afterwards, which they then are or not: that is
    decided by the scores themselves.
    """
    bits = (scores + 0.0).view(np.uint64)  # + 0.0: one zero, not two
    bits &= ~np.uint64(1)
    bits |= labels[:, None]
    return bits


def won_draws(scores: Array, is_a: Sequence[bool], weights: Array) -> tuple[Array, Array]:
    """Comparisons won and their number in every bootstrap draw: an A wins the weight of all B below
    it, and half of those that tie with it. `head m`, m labels, `draw m -> draw head, draw`
    """
    of_a = np.asarray(is_a)
    weight_a, weight_b = weights[:, of_a], weights[:, ~of_a]
    wins = np.empty((len(weights), len(scores)))
    for head, (score_a, score_b) in enumerate(zip(scores[:, of_a], scores[:, ~of_a], strict=True)):
        order = score_b.argsort()
        up_to = np.insert(weight_b[:, order].cumsum(1), 0, 0, axis=1)
        below, with_ties = (
            up_to[:, np.searchsorted(score_b[order], score_a, side)] for side in ("left", "right")
        )
        wins[:, head] = (weight_a * (below + with_ties)).sum(1) / 2
    return wins, weight_a.sum(1) * weight_b.sum(1)


def corrected_tests(
    separations: Sequence[Separation],
    swaps: Sequence[Array],
    next_token: Sequence[Array],
    continuation: Sequence[Array],
    units: Sequence[Sequence[Hashable]],
    *,
    permutations: int,
    seed: int,
) -> list[Tests]:
    """Corrected tests of all pairs of senses of one word together, a result per pair.

    `swaps`, `next_token`, `continuation`: net swap effects of each pair of senses on the sense coordinate,
    on what is said next (empty for a model that predicts no tokens) and on known continuations
    (empty without any), `pair layer head` each · `units`: the cue words of each pair.
    """
    given = {"swap": swaps, "next_token": next_token, "continuation": continuation}
    flips = {
        name: _flipped(kind, units, permutations, seed) for name, kind in given.items() if kind
    }
    separation = np.stack([each.null for each in separations], axis=1)  # draw pair layer head
    nulls = {"separation": separation, **flips, "opposes": -flips["swap"]}
    families = [resampling.max_t(null[0], null[1:]) for null in nulls.values()]
    tested = zip(
        *([MaxT(*values) for values in zip(*family, strict=True)] for family in families),
        strict=True,
    )
    return [Tests(**dict(zip(nulls, pair, strict=True))) for pair in tested]


def _flipped(
    effects: Sequence[Array], units: Sequence[Sequence[Hashable]], permutations: int, seed: int
) -> Array:
    """Studentised mean effects under sign flips of whole units, all pairs of senses. `-> draw pair
    layer head`"""
    rng = np.random.default_rng(seed)
    both = zip(effects, units, strict=True)
    return np.stack(
        [resampling.flip_null(*one, draws=permutations, rng=rng) for one in both], axis=1
    )
