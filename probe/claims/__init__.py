"""What may be said: the rules that limit the statements of a page, most of them from the rows of a
word in a table to some of these rows or a value. Every rule is a filter of the templates.

heads      which heads may be named, in which order
senses     the gap, what else may explain it, unambiguous nouns
cues       what heads take from the cue
sentences  which are read as another sense, and what calls for caution
sets       how much of the gap a few heads keep
survey     many words
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

Frames = Mapping[str, pd.DataFrame]


def records(rows: pd.DataFrame) -> list[Any]:
    """The rows of a table as dicts."""
    return rows.to_dict("records")
