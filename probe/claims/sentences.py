"""Which sentences of a word the model reads as another sense, and what calls for caution."""

from typing import Any

import pandas as pd

from probe.text import splits


def read_otherwise(predictions: pd.DataFrame) -> pd.DataFrame:
    """The tested sentences that are read as another sense than their label, the clearest first."""
    wrong = predictions[~predictions["right"].astype(bool)]
    return wrong.sort_values("coordinate", key=abs, ascending=False, kind="stable")


def number_in_pairs(sentences: pd.DataFrame) -> int:
    """How many sentences have a pair that also has a sentence of another sense."""
    return int((sentences.groupby("pair")["sense"].transform("nunique") > 1).sum())


def number_without_partner(sentences: pd.DataFrame) -> int:
    """How many sentences name a pair that no sentence of another sense names, so that they cannot
    be swapped.
    """
    return int((sentences.groupby("pair")["sense"].transform("nunique") == 1).sum())


def number_of_unmarked_pairs(sentences: pd.DataFrame) -> int:
    """How many sentences differ from one of another sense in a single word, although neither a pair
    nor a frame connects them.
    """
    rows: Any = sentences.astype(object).where(sentences.notna(), None).itertuples()
    return splits.unmarked_pairs(list(rows))
