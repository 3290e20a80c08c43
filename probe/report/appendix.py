"""The end of the page as plain values: the certificate, the sentences that were used and left out, the tables beside it."""

import pandas as pd

from probe.columns import UNITS, meaning
from probe.report import remarks
from probe.report.sections import Frames, Section, of_word, words_of
from probe.sentences import REPEATS

DOWNLOADS = {
    "words": "is the gap there: one row per word and pair of senses",
    "heads": "every head for every pair of senses: separation, effects, attention, rank",
    "word_heads": "every head for every word, mean over its pairs of senses",
    "depth": "how far apart the senses are at every depth",
    "shares": "who wrote the sense gap, component by component",
    "readings": "what the leading heads read and write on example sentences, token by token",
    "ledger": "the word's vector on example sentences as a sum, term by term",
    "verdicts": "what was shown of every head, and the numbers that led to it",
    "distances": "net effects by the distance from the cue to the word",
    "routes": "swaps of where a head looks and of what it carries, and ablation",
    "curves": "sets of leading heads: what they restore together, and what is lost without them",
    "random_sets": "the same for random sets with as many heads per layer",
    "controls": "separation under permuted labels, at a later token, in an untrained model",
    "showcase": "the sentences that introductions use",
    "beside": "those whose cue comes after the word, in a second model",
    "sentences": "every sentence, the part it was used in, where its word was read",
    "left_out": "what was given and not used, with the reason",
    "certificate": "the hooked model against the from-scratch math, row by row",
    "columns": "what every column of these tables says, and its unit",
}


def certificate(frame: pd.DataFrame) -> Section:
    """The sentence about the worst row, and every row from worst to best."""
    rows = frame.sort_values("error", ascending=False, kind="stable").to_dict("records")
    for row in rows:
        row["where"] = "whole model" if pd.isna(row["layer"]) else f"layer {row['layer']}"
    return {"sentence": remarks.agreement(frame), "rows": rows}


def data_used(frames: Frames) -> Section:
    """How many sentences of each word went where, by what design, and what was left out and why."""
    words, sentences, left_out = frames["words"], frames["sentences"], frames["left_out"]
    rows = []
    for word in words_of(frames):
        mine, first = of_word(sentences, word), of_word(words, word).iloc[0]
        counts = mine["part"].value_counts()
        parts = {part: int(counts.get(part, 0)) for part in ("fit", "select", "report", "neither")}
        tokens = int(of_word(words, word)["tokens_of_word"].max())
        design = {"split": first["split_design"], "pairs": first["pair_design"]}
        rows.append({"word": word, "tokens": tokens, "unpaired": remarks.unpaired(mine), **design, **parts})
    select = any(row["select"] for row in rows)
    return {
        "rows": rows,
        "left_out": _left_out(left_out),
        "number_left_out": len(left_out),
        "select": select,
        "several_tokens": any(row["tokens"] > 1 for row in rows),
    }


def _left_out(left_out: pd.DataFrame) -> list[Section]:
    """How many sentences of each word each rule left out; repetitions count together, and so does what had no word yet."""
    rule = left_out["reason"].where(~left_out["reason"].str.startswith(REPEATS), f"{REPEATS} an earlier row")
    rows = pd.DataFrame({"word": left_out["word"].fillna(""), "reason": rule})
    found = rows.groupby(["word", "reason"], sort=False).size().reset_index(name="count")
    return [{str(name): value for name, value in row.items()} for row in found.to_dict("records")]


def dictionary(frames: Frames) -> pd.DataFrame:
    """Every column of every table with its meaning and its unit, these four columns too."""
    columns = ["table", "column", "meaning", "unit"]
    named = [(name, list(map(str, frame))) for name, frame in frames.items()] + [("columns", columns)]
    rows = [[table, name, meaning(table, name), UNITS.get(name, "")] for table, names in named for name in names]
    return pd.DataFrame(rows, columns=columns)


def downloads(frames: Frames) -> list[Section]:
    """The tables beside the page."""
    return [
        {"name": name, "what": DOWNLOADS.get(name, ""), "rows": len(frame), "columns": frame.shape[1]}
        for name, frame in frames.items()
    ]
