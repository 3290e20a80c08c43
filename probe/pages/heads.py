"""What the map of heads and the lines of effects share over all words of a page."""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from probe import charts
from probe.claims import Frames
from probe.claims.heads import named
from probe.claims.senses import leading_mlp
from probe.claims.sets import random_sets_like, smallest_set
from probe.experiments.run import LEADERS

MARGIN = 0.04  # of the axis of lines, at both ends


def columns_besides_heads(frames: Frames) -> pd.DataFrame:
    """The columns of a map besides the heads: the mixers of a hybrid, then the MLPs, compared with
    unambiguous nouns where that was measured, else from the trace by position.
    """
    columns = [charts.mixers_at_word(frames["mixers"])]
    mlps, positions = frames["mlps"], frames["positions"]
    if len(mlps):
        columns.append(charts.mlps_beside_nouns(mlps))
    if len(positions):
        compared = set(mlps["word"]) if len(mlps) else set()
        columns.append(charts.mlps_at_word(positions[~positions["word"].isin(compared)]))
    return pd.concat(columns, ignore_index=True)


def effect_axis(by_word: Mapping[str, Frames]) -> tuple[float, float]:
    """The ends of the axis of effects, the same for every word of a page: from no movement to the
    whole gap, or further where a mark or an interval of the first pictures is beyond.
    """
    values = [0.0, 1.0]
    for rows in by_word.values():
        heads = named(rows["word_heads"], LEADERS)
        values += heads[["net_low", "net_high", "nouns"]].to_numpy(float).ravel().tolist()
        kept = smallest_set(rows["curves"])
        if kept is not None:
            values += kept[["faithfulness_low", "faithfulness_high"]].tolist()
            random = random_sets_like(rows["random_sets"], kept["size"])
            values += random["faithfulness"].nlargest(1).tolist()
        mlp = leading_mlp(rows["mlps"], rows["word_heads"], int(rows["words"]["depth"].iloc[0]))
        if mlp is not None:
            values += mlp[["net", "nouns"]].tolist()
    return float(np.nanmin(values)), float(np.nanmax(values))


def axis_of_lines(survey_heads: pd.DataFrame) -> tuple[tuple[float, float], list[float]]:
    """The ends of the axis that the lines of these heads share, and its ticks: with every effect,
    its interval, the effect on nouns, and one standard deviation between words around it.
    """
    if survey_heads.empty:
        return (0.0, 1.0), []
    spread = survey_heads["between_words"]
    ends = [
        *(survey_heads[name] for name in ("effect_low", "effect_high")),
        *(survey_heads["effect"] - spread, survey_heads["effect"] + spread),
        survey_heads.loc[survey_heads["comparison"] != "", "nouns"],
    ]
    values = np.concatenate([[0.0], *ends])
    low, high = float(values.min()), float(values.max())
    width = high - low
    # About four numbers.
    step = next((step for step in (0.05, 0.1, 0.2, 0.5, 1.0) if width / step <= 4.5), 2.0)
    ticks = [step * number for number in range(math.ceil(low / step), int(high / step) + 1)]
    return (low - MARGIN * width, high + MARGIN * width), ticks


def place(value: float, axis: tuple[float, float], digits: int = 1) -> str:
    """Where a value lies, in percent of an axis."""
    low, high = axis
    return f"{100 * (value - low) / (high - low):.{digits}f}"
