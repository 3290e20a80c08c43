"""What taking heads out costs in accuracy, with draws of the sentences: for one word, and on
average over words.

The same sentences are drawn for every set of heads, so differences are paired.
"""

from typing import NamedTuple

import numpy as np

from probe.experiments.centroids import (
    Senses,
    macro_f1,
    macro_f1_of_draws,
)
from probe.experiments.material import Material
from probe.stats import resampling
from probe.stats.resampling import Array
from probe.text.splits import cue_words


class Accuracies(NamedTuple):
    """What taking sets of heads out costs at one word, or on average over words. The last depth is
    the one chosen in training.

    `intact: depth` and `fall: kind 1 + random depth`, the accuracy and what is lost of it ·
    `intact_f1: depth` and `f1: kind 1 + random depth`, macro-F1 · `draws: 3 draw kind depth`,
    bootstrap draws of the fall of the set asked for, of what it is beyond the mean random set, and
    of the fall in macro-F1 · `tested` sentences, `units` of them that are drawn as a whole, `words`
    added up.
    """

    intact: Array
    fall: Array
    intact_f1: Array
    f1: Array
    draws: Array
    tested: int
    units: int
    words: int = 1


def compare(
    material: Material,
    gold: Senses,
    intact: Senses,
    without: Senses,
    depths: Senses,
    *,
    seed: int,
) -> Accuracies:
    """The accuracy that each set of heads costs the tested sentences of one word. `gold depths:
    sentence` · `intact: depth sentence` · `without: kind set sentence depth`; `depths`: the depth
    chosen for each sentence. `material` holds the tested sentences alone.

    The same sentences are drawn for every set, so differences are paired. Frames and cue words are
    drawn as a whole where the file has them, sentences where it does not.
    """
    predicted = _with_chosen(intact.T, depths)  # sentence depth
    predicted_without = _with_chosen(without, depths)  # kind set sentence depth
    right = predicted == gold[:, None]
    lost = right.astype(float) - (predicted_without == gold[:, None])
    units = cue_words(material.sentences)
    factors = resampling.crossed_factors([row.frame for row in material.sentences], units)
    drawn = resampling.bootstrap_weights(factors, seed=seed)
    drawn /= drawn.sum(1, keepdims=True)
    compared = np.stack([lost[:, 0], lost[:, 0] - lost[:, 1:].mean(1)])  # 2 kind sentence depth
    draws = np.einsum("wn,cknd->cwkd", drawn, compared, optimize=True)
    intact_f1 = macro_f1_of_draws(gold, predicted.T, drawn)  # draw depth
    f1 = macro_f1_of_draws(gold, predicted_without[:, 0].swapaxes(-1, -2), drawn)
    return Accuracies(
        intact=right.mean(0),
        fall=lost.mean(2),
        intact_f1=macro_f1(gold, predicted.T),
        f1=macro_f1(gold, predicted_without.swapaxes(-1, -2)),
        draws=np.concatenate([draws, (intact_f1[:, None] - f1)[None]]),
        tested=len(gold),
        units=len(set(units)),
    )


def _with_chosen(predicted: Senses, depths: Senses) -> Senses:
    """With one more depth behind the last, that of each sentence. `... sentence depth -> ...
    sentence depth + 1`"""
    at = np.broadcast_to(depths[:, None], (*predicted.shape[:-1], 1))
    return np.concatenate([predicted, np.take_along_axis(predicted, at, -1)], axis=-1)


def add(total: Accuracies | None, one: Accuracies) -> Accuracies:
    """Sums over words, so that no word's draws are kept."""
    if total is None:
        return one
    return Accuracies(
        total.intact + one.intact,
        total.fall + one.fall,
        total.intact_f1 + one.intact_f1,
        total.f1 + one.f1,
        total.draws + one.draws,
        total.tested + one.tested,
        total.units + one.units,
        total.words + one.words,
    )


def mean(total: Accuracies) -> Accuracies:
    """The average over words from their sums, each counting once."""
    return total._replace(
        intact=total.intact / total.words,
        fall=total.fall / total.words,
        intact_f1=total.intact_f1 / total.words,
        f1=total.f1 / total.words,
        draws=total.draws / total.words,
    )
