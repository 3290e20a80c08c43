"""Held-out separation of every head's write, and the tests of a word: corrected over all its heads and pairs of senses.

One family of tests per word: separation and swap effect each have to beat the largest value that any head reaches in
any pair of the word's senses when senses are reassigned to cue words.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from probe.stats import axes, permutation, resampling
from probe.stats.permutation import Labelled, MaxT
from probe.stats.resampling import Array
from probe.text.splits import CrossFit


@dataclass(frozen=True, eq=False)
class Separation:
    """Held-out separation of two senses by each head's write. `layer head`; `null: 1 + permutations layer head`."""

    auroc: Array
    auroc_low: Array
    auroc_high: Array
    hedges_g: Array
    null: Array


@dataclass(frozen=True, eq=False)
class Tests:
    """Corrected tests of one pair of senses, `layer head` each: separation, swap, the wrong way, what is said next, and
    the logits of known continuations.

    `said` is None for a model that predicts no tokens, `continued` where no continuations are known.
    """

    separation: MaxT
    swap: MaxT
    opposes: MaxT
    said: MaxT | None = None
    continued: MaxT | None = None


def measure_separation(
    writes: Tensor,
    split: CrossFit,
    *,
    permutations: int,
    seed: int,
) -> Separation:
    """Held-out AUROC and Hedges' g of every head's write along its own direction, and AUROC under every relabelling.

    `writes: layer head row d_head`. Every sentence is scored once, along a direction fitted on the sentences that its
    holdout learns from, and compared with those of the other sense in its holdout.
    """
    is_a = np.array(split.is_a)
    rng = np.random.default_rng(seed)
    labels = permutation.relabel(split.is_a, split.exchanged, draws=permutations, rng=rng)
    together, _ = resampling.as_numbers(list(zip(split.exchanged, split.is_a, strict=True)))
    crossed = resampling.crossed_factors(split.frames, split.units)
    weights = resampling.bootstrap_weights(crossed, seed=seed)
    heads = int(np.prod(writes.shape[:2]))
    wins, compared = np.zeros((1 + permutations, heads)), np.zeros(1 + permutations)
    drawn, drawn_compared = np.zeros((len(weights), heads)), np.zeros(len(weights))
    scores = np.full((heads, len(is_a)), np.nan)
    for holdout in split.holdouts:
        train, test = list(holdout.train), list(holdout.test)
        per_sense = int(min(is_a[train].sum(), (~is_a[train]).sum()))
        reduced = axes.reduced(writes[:, :, train], writes[:, :, test], per_sense=per_sense)
        fit, new = (part.flatten(0, 1).numpy() for part in reduced)
        first, group = np.unique(together[train], return_index=True, return_inverse=True)[1:]
        learned = Labelled(labels[:, train][:, first], group)
        here, pairs = permutation.separation_null(fit, learned, new, labels[:, test])
        wins, compared = wins + here, compared + pairs
        own = permutation.own_scores(learned.summed(fit), learned.labels[:1], np.concatenate([fit, new], axis=1))[0]
        scores[:, test] = _calibrated(own, is_a[train])
        here, pairs = permutation.won_draws(scores[:, test], list(is_a[test]), weights[:, test])
        drawn, drawn_compared = drawn + here, drawn_compared + pairs
    null = np.divide(wins, compared[:, None], out=np.full_like(wins, 0.5), where=compared[:, None] > 0)
    draws = np.divide(drawn, drawn_compared[:, None], out=np.full_like(drawn, 0.5), where=drawn_compared[:, None] > 0)
    low, high = resampling.interval(draws, null[0], units=len(set(split.units)))
    tested = ~np.isnan(scores[0])
    g = resampling.hedges_g(scores[:, tested & is_a].T, scores[:, tested & ~is_a].T)
    auroc, low, high, g = (values.reshape(writes.shape[:2]) for values in (null[0], low.clip(0), high.clip(max=1), g))
    return Separation(auroc, low, high, g, null.reshape(-1, *writes.shape[:2]))


def _calibrated(scores: Array, is_a: NDArray[np.bool_]) -> Array:
    """New scores, about +1/2 for A and -1/2 for B, as the fitted ones in front of them say. `head n + m -> head m`"""
    fitted = scores[:, : len(is_a)]
    mean_a, mean_b = fitted[:, is_a].mean(1, keepdims=True), fitted[:, ~is_a].mean(1, keepdims=True)
    gap = mean_a - mean_b
    return (scores[:, len(is_a) :] - (mean_a + mean_b) / 2) / np.where(gap > 0, gap, 1.0)


def corrected_tests(
    separations: Sequence[Separation],
    swaps: Sequence[Array],
    said: Sequence[Array],
    continued: Sequence[Array],
    units: Sequence[Sequence[Hashable]],
    *,
    permutations: int,
    seed: int,
) -> list[Tests]:
    """Corrected tests of all pairs of senses of one word together, a result per pair.

    `swaps`, `said`, `continued`: net swap effects of each pair of senses on the sense coordinate, on what is said next
    (empty for a model that predicts no tokens) and on known continuations (empty without any), `pair layer head` each ·
    `units`: the cue words of each pair.
    """
    separation = np.stack([each.null for each in separations], axis=1)  # draw pair layer head
    swap = _flipped(swaps, units, permutations=permutations, seed=seed)
    nulls = {"separation": separation, "swap": swap, "opposes": -swap}
    for name, kind in (("said", said), ("continued", continued)):
        if kind:
            nulls[name] = _flipped(kind, units, permutations=permutations, seed=seed)
    families = {name: permutation.max_t(null[0], null[1:]) for name, null in nulls.items()}
    columns = [
        [MaxT(*values) for values in zip(family.t, family.p, family.q, strict=True)] for family in families.values()
    ]
    return [Tests(**dict(zip(families, pair, strict=True))) for pair in zip(*columns, strict=True)]


def _flipped(effects: Sequence[Array], units: Sequence[Sequence[Hashable]], *, permutations: int, seed: int) -> Array:
    """Studentised mean effects under sign flips of whole units, all pairs of senses. `-> draw pair layer head`"""
    rng = np.random.default_rng(seed)
    nulls = [
        permutation.flip_null(effect, chosen, draws=permutations, rng=rng)
        for effect, chosen in zip(effects, units, strict=True)
    ]
    return np.stack(nulls, axis=1)
