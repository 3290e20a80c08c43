"""What may be said: the rules that limit the statements of a report, each from a frame to a frame
or a value."""

import pandas as pd

from probe.experiments.columns import KEYS


def ranked(rows: pd.DataFrame, words: pd.DataFrame) -> pd.DataFrame:
    """The rows of the pairs of senses whose heads are ranked: those with a significant gap.

    words: the table `words`
    """
    return rows.merge(words.loc[words["ranked"], list(KEYS)], on=list(KEYS))
