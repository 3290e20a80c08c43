"""What may be said: the rules that limit the statements of a report, each from a frame to a frame
or a value."""

from typing import Any

import numpy as np
import pandas as pd

from probe.experiments.columns import KEYS
from probe.stats.limits import LEVEL, SMALLEST
from probe.text.slots import stem_of


def ranked(rows: pd.DataFrame, words: pd.DataFrame) -> pd.DataFrame:
    """The rows of the pairs of senses whose heads are ranked: those with a significant gap.

    words: the table `words`
    """
    return rows.merge(words.loc[words["ranked"], list(KEYS)], on=list(KEYS))


def strongest_cues(
    cues: pd.DataFrame, number: int, value: str = "coordinate"
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The strongest words of each of two senses, at most `number` of each, as `word` and `value`:
    of words that were not fitted, one of each stem.

    cues: the rows of a scan, in which a cue counts once
    value: the column by which words are ordered; the first sense has its largest values
    """
    ordered = cues.drop_duplicates("cue").sort_values(value, ascending=False, kind="stable")
    unseen = ordered[~ordered["seen"]]
    return _strongest(unseen, number, value), _strongest(unseen.iloc[::-1], number, value)


def _strongest(rows: pd.DataFrame, number: int, value: str) -> list[dict[str, Any]]:
    words: dict[str, dict[str, Any]] = {}
    for row in rows.itertuples():
        stem = stem_of(str(row.cue))
        if stem not in words and len(words) == number:
            break
        listed = words.setdefault(stem, {"word": row.cue, "value": getattr(row, value)})
        # "lake" is easier to read than "Lake", where both are among the first.
        if str(row.cue) == str(listed["word"]).lower():
            listed["word"] = row.cue
    return list(words.values())


BIASES = ("query bias", "norm bias")  # the same at every token, so that nothing can replace them


def reason_to_attend(why: pd.Series) -> str:
    """Why a head attends to the cue: "pair" for one part at each of the two tokens, "both" for the
    same part at both, "cue" where the part at the word is a bias. "none" where it does not score
    the cue above other tokens, "apart" where attribution and interventions do not agree.

    A part is a reason only where replacing it lowers the score on both sides.

    why: a row of the table `why_it_attends`
    """
    if not why["p_contrast"] < LEVEL:
        return "none"
    if not why["p_key"] < LEVEL:
        return "apart"
    if why["part_query"] in BIASES:
        return "cue"
    if not why["p_query"] < LEVEL:
        return "apart"
    return "both" if why["part_query"] == why["part_key"] else "pair"


MOST_OF_IT = 0.5  # fraction of an effect: more than everything else together


def credited_part(head_parts: pd.DataFrame, movers: pd.DataFrame) -> str | None:
    """From which words of the sentence a head that moves the word has at least half of its effect:
    "cue_only", else "other_only". None if from neither.

    head_parts: the rows of one word in this table
    movers: the rows of such heads in the table `word_heads`
    """
    parts = head_parts.groupby(["layer", "head"], as_index=False)[["cue_only", "other_only"]].mean()
    # A head without measured parts credits no word.
    measured = movers[["layer", "head", "swap"]].merge(parts, on=["layer", "head"])
    enough = np.maximum(MOST_OF_IT * measured["swap"], SMALLEST)
    for part in ("cue_only", "other_only"):
        if (measured[part] >= enough).any():
            return part
    return None


OVER = 1.05  # fraction of the gap: a set that keeps more than all heads do, beyond noise


def smallest_set(curves: pd.DataFrame) -> "pd.Series | None":
    """The row of the smallest set of top heads that keeps enough of the gap, with the `names` of
    its heads. None if no set does.

    curves: the rows of one word in this table
    """
    rows = curves.sort_values("size")
    enough = rows[rows["size"] == rows["smallest"]]
    if enough.empty:
        return None
    first = enough.iloc[0]
    additions = rows.loc[rows["size"].between(1, first["size"]), "added"]
    return pd.Series({**first, "names": tuple(", ".join(additions).split(", "))})


def random_sets_like(random_sets: pd.DataFrame, size: int) -> pd.DataFrame:
    """The random sets of `size` heads, or of the next larger size; none if all are smaller.

    random_sets: the rows of one word in this table
    """
    large_enough = random_sets[random_sets["size"] >= size]
    return large_enough[large_enough["size"] == large_enough["size"].min()]


def peak(curves: pd.DataFrame) -> "pd.Series | None":
    """The row of the number of top heads that keep the most, if they keep more of the gap than all
    heads do, beyond noise. None if there is none.

    curves: the rows of one word in this table
    """
    if not curves["faithfulness"].max() > OVER:
        return None
    return curves.sort_values("faithfulness", kind="stable").iloc[-1]
