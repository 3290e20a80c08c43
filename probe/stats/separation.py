"""Held-out separation of every head's write, and the tests of a word: corrected over all its heads and pairs of senses.

One family of tests per word: separation and swap effect each have to beat the largest value that any head reaches in
any pair of the word's senses when senses are reassigned to cue words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from probe.stats import axes, permutation, resampling
from probe.stats.permutation import Labels, MaxT, Sample
from probe.stats.resampling import Array
from probe.text.sentences import Sentence
from probe.text.splits import cue_words


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
    """Corrected tests of one pair of senses, `layer head` each: separation, swap, the wrong way, and effect alone."""

    separation: MaxT
    swap: MaxT
    opposes: MaxT
    alone: MaxT


def measure_separation(
    writes: Tensor,
    sentences: Sequence[Sentence],
    parts: tuple[Sequence[int], Sequence[int]],
    *,
    permutations: int,
    seed: int,
) -> Separation:
    """Held-out AUROC and Hedges' g of every head's write along its own direction, and AUROC under every relabelling.

    `writes: layer head row d_head` · `parts`: the rows of fit and of report, all of two senses; the first sense of fit
    is A. Every sentence is scored once, along a direction fitted on the other part: means over the two parts, weighted
    by their sentences.
    """
    kinds = [[sentences[row] for row in rows] for rows in parts]
    is_a = [np.array([sentence.sense == kinds[0][0].sense for sentence in kind]) for kind in kinds]
    units = [cue_words(kind) for kind in kinds]
    rng = np.random.default_rng(seed)
    turns = zip(is_a, units, strict=True)
    labels = [permutation.relabel(list(given), unit, draws=permutations, rng=rng) for given, unit in turns]
    nulls, draws, gs = [], [], []
    for fit, new in ((0, 1), (1, 0)):
        written = [writes[:, :, list(parts[part])] for part in (fit, new)]
        scores, null = _held_out(written, labels[fit], labels[new])
        crossed = resampling.crossed_factors([sentence.frame for sentence in kinds[new]], units[new])
        weights = resampling.bootstrap_weights(crossed, seed=seed + fit)
        nulls.append(null)
        draws.append(permutation.auroc_draws(scores, list(is_a[new]), weights))
        gs.append(resampling.hedges_g(scores[:, is_a[new]].T, scores[:, ~is_a[new]].T))
    share = len(parts[1]) / (len(parts[0]) + len(parts[1]))  # of the sentences that the first turn scores
    null, g = _mean(nulls, share), _mean(gs, share)
    low, high = resampling.interval(_mean(draws, share))
    auroc, low, high, g = (values.reshape(writes.shape[:2]) for values in (null[0], low, high, g))
    return Separation(auroc, low, high, g, null.reshape(-1, *writes.shape[:2]))


def sense_sample(vectors: Tensor, sentences: Sequence[Sentence]) -> Sample:
    """Vectors of two senses for the gate, `n d_model`; the first sense is A, cue words are exchanged as a whole."""
    is_a = [sentence.sense == sentences[0].sense for sentence in sentences]
    return Sample(vectors.double().numpy(), is_a, cue_words(sentences))


def _held_out(written: Sequence[Tensor], fit_labels: Labels, new_labels: Labels) -> tuple[Array, Array]:
    """Scores of new writes as labelled, and AUROCs under every labelling. `-> head m, draw head`"""
    of_a = int(fit_labels[0].sum())
    reduced = axes.reduced(written[0], written[1], per_sense=min(of_a, fit_labels.shape[1] - of_a))
    fit, new = (part.flatten(0, 1).numpy() for part in reduced)
    null = permutation.separation_null(fit, fit_labels, new, new_labels)
    return permutation.own_scores(fit, fit_labels[:1], new)[0], null


def _mean(turns: Sequence[Array], share: float) -> Array:
    """Weighted mean of the two turns; infinities of opposite sign are no separation."""
    with np.errstate(invalid="ignore"):
        mean = share * turns[0] + (1 - share) * turns[1]
    return np.where(np.isnan(mean), 0.0, mean)


def corrected_tests(
    separations: Sequence[Separation],
    measured: Sequence[tuple[Array, Array]],
    cues: Sequence[Sequence[str]],
    *,
    permutations: int,
    seed: int,
) -> list[Tests]:
    """Corrected tests of all pairs of senses of one word together, a result per pair.

    `measured`: net swap effects and effects alone of each pair of senses, `pair layer head` each; `cues`: the cue word
    of each pair.
    """
    separation = np.stack([each.null for each in separations], axis=1)  # draw pair layer head
    swap, alone = (_flipped(kind, cues, permutations=permutations, seed=seed) for kind in zip(*measured, strict=True))
    families = [permutation.max_t(null[0], null[1:]) for null in (separation, swap, -swap, alone)]
    columns = [[MaxT(*values) for values in zip(family.t, family.p, family.q, strict=True)] for family in families]
    return [Tests(*pair) for pair in zip(*columns, strict=True)]


def _flipped(effects: Sequence[Array], cues: Sequence[Sequence[str]], *, permutations: int, seed: int) -> Array:
    """Studentised mean effects under sign flips of whole cue words, all pairs of senses. `-> draw pair layer head`"""
    rng = np.random.default_rng(seed)
    nulls = [
        permutation.flip_null(effect, chosen[: len(effect)], draws=permutations, rng=rng)
        for effect, chosen in zip(effects, cues, strict=True)
    ]
    return np.stack(nulls, axis=1)
