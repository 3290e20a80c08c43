"""The frame `beside`: sentences whose cue comes after the word, in a second model.

The sentences are from the lesson on how the model reads.
"""

from collections.abc import Sequence

import pandas as pd

from probe.experiments.readings import SecondReading, lesson_row
from probe.stats.limits import GATE
from probe.stats.numbers import listed, percent
from probe.tidy import rounded

SECOND_MODEL = (
    "model",
    "text",
    "word",
    "sense",
    "reads_as",
    "coordinate",
    "sense_a",
    "sense_b",
    "shown",
    "difference",
    "source",
    "share",
    "through",
    "cue",
    "cue_share",
    "cue_alone",
    "nothing",
)
NO_HEAD = "no head by itself"


def second_model_frame(name: str = "", readings: Sequence[SecondReading] = ()) -> pd.DataFrame:
    """The frame `beside`: a row for each sentence of the lesson whose cue comes after the word.
    It is empty without a second model.

    name: of the second model
    """
    rows = []
    for reading in readings:
        through = [f"{head} ({percent(cost)})" for head, cost in reading.through]
        rows.append(
            lesson_row(reading.lesson)
            | {
                "model": name,
                "shown": reading.gap_p < GATE,
                "source": reading.source,
                "share": reading.share,
                "through": (listed(through) or NO_HEAD) if reading.source else None,
                "cue_share": reading.cue_share,
                "cue_alone": reading.cue_alone,
                "nothing": reading.word_alone,
            }
        )
    return rounded(pd.DataFrame(rows, columns=list(SECOND_MODEL)))
