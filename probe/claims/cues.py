"""The cue of a word: what a head takes from it, why it attends to it, and which words move it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from probe.claims import records
from probe.stats.limits import LEVEL, SMALLEST
from probe.text.slots import stem_of

SINK = 0.3  # of a head's attention: a first token with less is not a sink
PUNCTUATION = ".,;:!?\"'()"
BIASES = ("query bias", "norm bias")  # the same at every token, so that nothing can replace them
MOST_OF_IT = 0.5  # fraction of an effect: more than everything else together


def strongest_cues(
    cues: pd.DataFrame, number: int, value: str = "coordinate", *, zero: float | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The strongest words of each of two senses, at most `number` of each, as `word` and `value`:
    of words that were not fitted, one of each stem.

    cues: the rows of a scan, in which a cue counts once
    value: the column by which words are ordered; the first sense has its largest values
    zero: from where values are counted. The first sense then has positive values only, and the
        second negative ones
    """
    ordered = cues.drop_duplicates("cue").sort_values(value, ascending=False, kind="stable")
    first = second = ordered[~ordered["seen"]]
    if zero is not None:
        first = first.assign(**{value: first[value] - zero})
        first, second = first[first[value] > 0], first[first[value] < 0]
    return _strongest(first, number, value), _strongest(second.iloc[::-1], number, value)


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


def attention_to_sink(readings: pd.DataFrame) -> float | None:
    """The mean attention of a head to the first token of its sentences, if that token is a sink:
    the head attends to it much and writes little from it. None otherwise.

    readings: the rows of one head in this table
    """
    if readings.empty:
        return None
    first = readings[(readings["pos"] == 0) & ~readings["role"].isin(["cue", "word"])]
    if first.empty:
        return None
    attention = float(first["attention"].mean())
    written = float(first["contribution"].abs().sum() / readings["contribution"].abs().sum())
    return None if attention < SINK or written > attention / 2 else attention


def clearest_of_senses(readings: pd.DataFrame, senses: Sequence[str]) -> list[int]:
    """The numbers of the sentences in which a head attends most to the cue, one of each sense, in
    the order of the senses.

    readings: the rows of one head in this table
    """
    if readings.empty:
        return []
    on_cue = readings["attention"].where(readings["role"] == "cue", 0.0)
    rows = readings.assign(on_cue=on_cue.groupby(readings["sentence"]).transform("sum"))
    rows = rows.sort_values("on_cue", ascending=False, kind="stable").drop_duplicates("sense")
    return rows.sort_values("sense", key=lambda sense: sense.map(senses.index))["sentence"].tolist()


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


def credited_part(head_parts: pd.DataFrame, movers: pd.DataFrame) -> str | None:
    """From which words of the sentence a head that moves the word has at least half of its effect:
    "cue_only", else "other_only". None if from neither.

    head_parts: the rows of one word in this table
    movers: the rows of such heads in the table `word_heads`
    """
    if head_parts.empty:
        return None
    parts = head_parts.groupby(["layer", "head"], as_index=False)[["cue_only", "other_only"]].mean()
    # A head without measured parts credits no word.
    measured = movers[["layer", "head", "swap"]].merge(parts, on=["layer", "head"])
    enough = np.maximum(MOST_OF_IT * measured["swap"], SMALLEST)
    for part in ("cue_only", "other_only"):
        if (measured[part] >= enough).any():
            return part
    return None


def example_cues(
    sentences: pd.DataFrame, senses: tuple[str, str], *, marked: bool
) -> tuple[str, str] | None:
    """The cues of the first pair of tested sentences. None if no pair has any.

    marked: False for another word in which the two sentences differ
    """
    tested = sentences[sentences["part"].eq("tested")]
    for _, group in tested.groupby("pair", sort=False):
        first, second = (records(group[group["sense"] == sense])[:1] for sense in senses)
        if not first or not second:
            continue
        word_a = _differing_word(first[0], second[0], marked=marked)
        word_b = _differing_word(second[0], first[0], marked=marked)
        if word_a and word_b:
            return word_a, word_b
    return None


def _differing_word(row: Any, partner: Any, *, marked: bool) -> str:
    """The cue of a sentence. "" without a cue.

    marked: False for the first word other than the cue that its partner does not have at the same
        position
    """
    text = str(row["text"])
    cue = ""
    if pd.notna(row["cue_start"]):
        cue = text[int(row["cue_start"]) : int(row["cue_end"])]
    if marked:
        return cue
    for word, word_of_partner in zip(text.split(), str(partner["text"]).split(), strict=False):
        bare = word.strip(PUNCTUATION)
        if word != word_of_partner and bare != cue:
            return bare
    return ""
