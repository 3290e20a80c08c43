"""The frame `evaluation_without`: the accuracy that is lost without sets of heads."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from probe.experiments.ablation import KINDS
from probe.experiments.senses import depth_label
from probe.inference.ablation import Accuracies, mean
from probe.stats import resampling
from probe.stats.resampling import Array

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
