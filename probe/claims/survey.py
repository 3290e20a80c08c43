"""Many words: which heads move them, and whether that is ambiguity."""

from typing import Any

import pandas as pd

from probe.claims import Frames
from probe.claims.heads import by_rank
from probe.stats.limits import LEVEL, SMALLEST

SHOWN = 6  # heads that are shown word by word
SUGGESTED = 3  # such heads if none moves words significantly
LARGEST_SET = 4  # heads in the set that a sentence describes


def movers_over_words(survey_heads: pd.DataFrame) -> pd.DataFrame:
    """The heads that significantly move words, by rank: their effect is significant and at least
    SMALLEST.
    """
    is_mover = (survey_heads["p"] < LEVEL) & (survey_heads["effect"] >= SMALLEST)
    return by_rank(survey_heads[is_mover])


def top_over_words(survey_heads: pd.DataFrame) -> pd.DataFrame:
    """The heads that are shown word by word: the first SHOWN movers; without movers the first
    SUGGESTED heads whose interval is above 0 and whose effect is at least SMALLEST.
    """
    heads = movers_over_words(survey_heads)[:SHOWN]
    if len(heads):
        return heads
    suggestive = (survey_heads["effect_low"] > 0) & (survey_heads["effect"] >= SMALLEST)
    return by_rank(survey_heads[suggestive])[:SUGGESTED]


def number_of_movers_by_attention(survey_heads: pd.DataFrame) -> int | None:
    """How many of the n movers are among the n heads with the most attention to the cue. None
    without movers or marked cues.
    """
    movers = movers_over_words(survey_heads)
    if movers.empty or survey_heads["attention_cue"].isna().any():
        return None
    by_attention = by_rank(survey_heads).sort_values(
        "attention_cue", ascending=False, kind="stable"
    )
    return int(by_attention.index[: len(movers)].isin(movers.index).sum())


def is_ambiguity(model: Any) -> bool:
    """Whether words significantly change with their meaning, and further than unambiguous nouns in
    their place.

    model: the row of the table `survey_model`
    """
    return bool(model.ranked and model.ambiguity_p < LEVEL and model.general_share < 1)


def carried_set(frames: Frames) -> pd.DataFrame:
    """The row of `survey_carry_over` that a sentence describes: the largest sets of at most
    LARGEST_SET heads. No row if none were measured.

    frames: of a survey
    """
    sets = frames["survey_carry_over"]
    model: Any = next(frames["survey_model"].itertuples())
    # Random sets of more than half of the heads before the read-out are too similar to compare.
    largest = min(LARGEST_SET, model.depth * model.heads // model.layers // 2)
    return sets[sets["k"] <= largest][-1:]
