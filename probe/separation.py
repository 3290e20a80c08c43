"""Held-out separation of every head's write, and the tests of a word: corrected over all its heads and pairs of senses.

One family of tests per word: separation and swap effect each have to beat the largest value that any head reaches in any pair
of the word's senses when senses are reassigned to cue words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from probe import inference, senses, statistics
from probe.effects import Pairs
from probe.inference import MaxT
from probe.sentences import Sentence
from probe.splits import cue_units
from probe.statistics import Array


@dataclass(frozen=True, eq=False)
class Separation:
    """How well each head's write tells two senses apart, held out. `layer head`; `null: 1 + permutations layer head` of AUROCs."""

    auroc: Array
    auroc_low: Array
    auroc_high: Array
    hedges_g: Array
    null: Array


@dataclass(frozen=True, eq=False)
class Tests:
    """Corrected tests of one pair of senses, `layer head` each: separation, swap effect, the wrong way, and effect alone."""

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
    """Fit every head's own direction on the fit rows, score the report rows, and again under every relabelling.

    `writes: layer head row d_head` · `parts`: the rows of fit and of report, all of two senses; the first sense of fit is A.
    """
    labels = [[sentences[row].sense == sentences[parts[0][0]].sense for row in rows] for rows in parts]
    units = [cue_units([sentences[row] for row in rows]) for rows in parts]
    rng = np.random.default_rng(seed)
    fit_labels, report_labels = (
        inference.relabel(is_a, unit, draws=permutations, rng=rng) for is_a, unit in zip(labels, units, strict=True)
    )
    per_sense = min(sum(labels[0]), len(labels[0]) - sum(labels[0]))
    reduced = senses.reduced(*(writes[:, :, list(rows)] for rows in parts), per_sense=per_sense)
    fit, report = (part.flatten(0, 1).numpy() for part in reduced)
    null = inference.separation_null(fit, fit_labels, report, report_labels)
    scores = inference.own_scores(fit, fit_labels[:1], report)[0]  # head row
    crossed = statistics.crossed_factors([sentences[row].frame for row in parts[1]], units[1])
    weights = statistics.bootstrap_weights(crossed, seed=seed)
    low, high = statistics.interval(inference.auroc_draws(scores, labels[1], weights))
    of_a = np.asarray(labels[1])
    g = statistics.hedges_g(scores[:, of_a].T, scores[:, ~of_a].T)
    shape = writes.shape[:2]
    auroc, low, high, g = (values.reshape(shape) for values in (null[0], low, high, g))
    return Separation(auroc, low, high, g, null.reshape(-1, *shape))


def corrected_tests(
    separations: Sequence[Separation],
    measured: Sequence[tuple[Array, Array]],
    pairs: Sequence[Pairs],
    *,
    permutations: int,
    seed: int,
) -> list[Tests]:
    """Corrected tests of all pairs of senses of one word together, a result per pair.

    `measured`: net swap effects and effects alone of each pair of senses, `pair layer head` each.
    """
    separation = np.stack([found.null for found in separations], axis=1)  # draw pair layer head
    swap, alone = (_flipped(kind, pairs, permutations=permutations, seed=seed) for kind in zip(*measured, strict=True))
    families = [inference.max_t(null[0], null[1:]) for null in (separation, swap, -swap, alone)]
    return [
        Tests(*(MaxT(family.t[which], family.p[which], family.q[which]) for family in families))
        for which in range(len(pairs))
    ]


def _flipped(effects: Sequence[Array], pairs: Sequence[Pairs], *, permutations: int, seed: int) -> Array:
    """Studentised means of effects under sign flips of whole cue words, all pairs of senses. `-> draw pair layer head`"""
    rng = np.random.default_rng(seed)
    nulls = [
        inference.flip_null(effect, chosen.cues[: len(effect)], draws=permutations, rng=rng)
        for effect, chosen in zip(effects, pairs, strict=True)
    ]
    return np.stack(nulls, axis=1)
