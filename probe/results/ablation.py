"""The accuracy that words lose without sets of heads, and its table, `evaluation_without`.

Intervals come from bootstrap draws of the sentences. All sets of heads share the draws, so their
differences are paired.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from probe.experiments.ablation import KINDS
from probe.experiments.centroids import (
    Senses,
    macro_f1,
    macro_f1_of_draws,
)
from probe.experiments.material import Material
from probe.experiments.senses import depth_label
from probe.stats import resampling
from probe.stats.resampling import Array
from probe.text.splits import cue_words

# Decimals of a fall in accuracy. Later ones depend on the order of a sum.
DECIMALS = 9
CHOSEN = "depth chosen in training"
COLUMNS = (
    *("word", "kind", "depth", "label", "tested", "accuracy", "accuracy_without"),
    *("fall", "fall_low", "fall_high", "random_sets", "random_fall", "random_least"),
    *("random_most", "p", "beyond_random", "beyond_random_low", "beyond_random_high"),
    *("macro_f1", "macro_f1_without", "macro_f1_fall", "macro_f1_fall_low", "macro_f1_fall_high"),
    "random_macro_f1",
)


class Accuracies(NamedTuple):
    """The accuracy of one word with and without sets of heads, or a sum or mean over words.

    kind: a way of removing heads (`probe.experiments.ablation.KINDS`).
    1 + random: the requested set of heads first, then the random sets.
    depth: the last entry is the depth that was chosen on the training sentences.
    """

    intact: Array  # accuracy with all heads. `depth`
    fall: Array  # accuracy lost without a set. `kind 1 + random depth`
    intact_f1: Array  # macro-F1 with all heads. `depth`
    f1: Array  # macro-F1 without a set. `kind 1 + random depth`
    # Bootstrap draws of three numbers: the requested set's fall in accuracy, its fall minus the
    # mean fall of the random sets, and its fall in macro-F1. `3 draw kind depth`
    draws: Array
    tested: int  # sentences
    units: int  # groups of sentences that are drawn together
    words: int = 1  # in the sum


def compare(
    material: Material,
    gold: Senses,
    intact: Senses,
    without: Senses,
    depths: Senses,
    *,
    seed: int,
) -> Accuracies:
    """The accuracy that the tested sentences of one word lose without each set of heads.

    material: the tested sentences only
    gold: the sense of each sentence. `sentence`
    intact: the predicted senses with all heads. `depth sentence`
    without: the predicted senses without each set. `kind set sentence depth`
    depths: the depth chosen for each sentence. `sentence`

    Every set is tested on the same bootstrap draws, so differences are paired. Frames and cue words
    are drawn as units. Sentences for which the file names neither are drawn singly.
    """
    predicted = _append_chosen_depth(intact.T, depths)  # sentence depth
    predicted_without = _append_chosen_depth(without, depths)  # kind set sentence depth
    right = predicted == gold[:, None]
    lost = right.astype(float) - (predicted_without == gold[:, None])
    units = cue_words(material.sentences)
    factors = resampling.crossed_factors([row.frame for row in material.sentences], units)
    weights = resampling.bootstrap_weights(factors, seed=seed)  # draw sentence
    weights /= weights.sum(1, keepdims=True)
    # The requested set's fall, and its fall minus the mean of the random sets.
    compared = np.stack([lost[:, 0], lost[:, 0] - lost[:, 1:].mean(1)])  # 2 kind sentence depth
    # Weighted means over sentences: (draw sentence), (2 kind sentence depth) -> 2 draw kind depth
    draws = np.einsum("wn,cknd->cwkd", weights, compared, optimize=True)
    intact_f1 = macro_f1_of_draws(gold, predicted.T, weights)  # draw depth
    f1 = macro_f1_of_draws(gold, predicted_without[:, 0].swapaxes(-1, -2), weights)
    return Accuracies(
        intact=right.mean(0),
        fall=lost.mean(2),
        intact_f1=macro_f1(gold, predicted.T),
        f1=macro_f1(gold, predicted_without.swapaxes(-1, -2)),
        draws=np.concatenate([draws, (intact_f1[:, None] - f1)[None]]),
        tested=len(gold),
        units=len(set(units)),
    )


def _append_chosen_depth(predicted: Senses, depths: Senses) -> Senses:
    """The predictions with one more entry at the end: those at the sentence's chosen depth.

    `... sentence depth -> ... sentence depth + 1`
    """
    at = np.broadcast_to(depths[:, None], (*predicted.shape[:-1], 1))
    return np.concatenate([predicted, np.take_along_axis(predicted, at, -1)], axis=-1)


def add(total: Accuracies | None, word: Accuracies) -> Accuracies:
    """The sum over words with one more word.

    Sums are stored instead of words, so memory does not grow with the number of words.
    """
    if total is None:
        return word
    return Accuracies(
        total.intact + word.intact,
        total.fall + word.fall,
        total.intact_f1 + word.intact_f1,
        total.f1 + word.f1,
        total.draws + word.draws,
        total.tested + word.tested,
        total.units + word.units,
        total.words + word.words,
    )


def mean(total: Accuracies) -> Accuracies:
    """The average over words, computed from their sums. Every word has the same weight."""
    return total._replace(
        intact=total.intact / total.words,
        fall=total.fall / total.words,
        intact_f1=total.intact_f1 / total.words,
        f1=total.f1 / total.words,
        draws=total.draws / total.words,
    )


def rows(word: str | None, accuracies: Accuracies) -> list[Mapping[str, object]]:
    """The rows of a word, one for each kind of removal and depth.

    word: None for the mean over words
    """
    fall = accuracies.fall
    f1_fall = accuracies.intact_f1 - accuracies.f1[:, 0]
    # The set's fall, its fall minus the mean of the random sets, and its fall in macro-F1.
    estimate = np.stack([fall[:, 0], fall[:, 0] - fall[:, 1:].mean(1), f1_fall])  # 3 kind depth
    low, high = resampling.interval(
        accuracies.draws.swapaxes(0, 1), estimate, units=accuracies.units
    )
    last = len(accuracies.intact) - 1  # the depth that was chosen on the training sentences
    table: list[Mapping[str, object]] = []
    for number, kind in enumerate(KINDS):
        for depth, intact in enumerate(accuracies.intact):
            here = (number, depth)
            random = fall[number, 1:, depth]
            f1 = accuracies.f1[number, :, depth]
            values = (
                *(word, kind, None if depth == last else depth),
                *(CHOSEN if depth == last else depth_label(depth), accuracies.tested),
                *(intact, intact - estimate[0][here]),
                *(estimate[0][here], low[0][here], high[0][here]),
                *(len(random), random.mean(), random.min(), random.max()),
                p_among(fall[here[0], 0, depth], random),
                *(estimate[1][here], low[1][here], high[1][here]),
                *(accuracies.intact_f1[depth], f1[0]),
                *(estimate[2][here], low[2][here], high[2][here], f1[1:].mean()),
            )
            table.append(dict(zip(COLUMNS, values, strict=True)))
    return table


def p_among(fall: float, random: Array) -> float:
    """p of a set's fall, with random sets as the sample.

    p = (1 + random sets with at least the same fall) / (1 + random sets)

    Falls that differ only by rounding count as equal.
    """
    at_least = np.count_nonzero(random.round(DECIMALS) >= round(fall, DECIMALS))
    return float((1 + at_least) / (1 + len(random)))


def frame(by_word: Sequence[Mapping[str, object]], total: Accuracies) -> pd.DataFrame:
    """The rows of all words, then the rows of their mean."""
    table = pd.DataFrame([*by_word, *rows(None, mean(total))], columns=list(COLUMNS))
    return table.astype({"depth": "Int64"})
