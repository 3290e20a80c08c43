"""What the map of heads and the lines of effects share over all words of a page."""

from collections.abc import Mapping

import pandas as pd

from probe import charts
from probe.claims import Frames, named
from probe.experiments.run import LEADERS

SHORTEST_AXIS = 0.05  # of the gap: the axis of effects reaches at least so far


def columns_besides_heads(frames: Frames) -> pd.DataFrame:
    """The columns of a map besides the heads: the mixers of a hybrid, then the MLPs, compared with
    unambiguous nouns where that was measured, else from the trace by position.
    """
    compared = charts.mlps_beside_nouns(frames["mlps"])
    columns = [charts.mixers_at_word(frames["mixers"]), compared]
    traced = charts.mlps_at_word(frames["positions"])
    columns.append(traced[~traced["word"].isin(compared["word"])])
    return pd.concat(columns, ignore_index=True)


def effect_axis(by_word: Mapping[str, Frames]) -> tuple[float, float]:
    """The ends of the axis of effects, the same for every word of a page: the outermost interval
    end or effect on unambiguous nouns of a head that has a card.
    """
    heads = pd.concat([named(rows["word_heads"], LEADERS) for rows in by_word.values()])
    values = heads[["net_low", "net_high", "nouns"]].to_numpy(float)
    values = values[~pd.isna(values)]
    return min([0.0, *values]), max([SHORTEST_AXIS, *values])


def place(value: float, axis: tuple[float, float]) -> str:
    """Where a value lies, in percent of an axis."""
    low, high = axis
    return f"{100 * (value - low) / (high - low):.1f}"
