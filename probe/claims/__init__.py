"""What may be said: the rules that limit the statements of a page, most of them from the rows of a
word in a table to some of these rows or a value. Every rule is a filter of the templates.

heads      which heads may be named, in which order
senses     the gap, what else may explain it, unambiguous nouns
cues       what heads take from the cue
sentences  which are read as another sense, and what calls for caution
sets       how much of the gap a few heads keep
survey     many words
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pandas as pd

Frames = Mapping[str, pd.DataFrame]


def or_empty(frames: Frames) -> dict[str, pd.DataFrame]:
    """The tables, where a table that is absent has no rows and no columns: a page reads tables of
    experiments that may have been removed.
    """
    return defaultdict(pd.DataFrame, frames)


def rows_by_word(frames: Frames) -> dict[str, dict[str, pd.DataFrame]]:
    """The rows of each word, by word and table, for every table with a column `word`.

    Example:
        >>> import pandas as pd
        >>> from probe.claims import rows_by_word
        >>> words = pd.DataFrame({"word": ["bank", "mole", "mole"], "gap": [0.9, 0.8, 0.7]})
        >>> {word: len(rows["words"]) for word, rows in rows_by_word({"words": words}).items()}
        {'bank': 1, 'mole': 2}
    """
    return {
        str(word): or_empty(
            {
                name: frame[(frame["word"] == word).to_numpy()]
                for name, frame in frames.items()
                if "word" in frame
            }
        )
        for word in frames["words"]["word"].unique()
    }


def records(rows: pd.DataFrame) -> list[Any]:
    """The rows of a table as dicts."""
    return rows.to_dict("records")
