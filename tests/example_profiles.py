"""The profiles of a made-up study: every head in both kinds of texts, and what its top heads write
elsewhere."""

import numpy as np
import pandas as pd

SHARES = ("previous", "first", "itself", "entropy", "cue_share", "even_share")


def profiles(word_heads: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """A causal model, in which L3H2 is a previous-token and an induction head."""
    parts = []
    for texts in ("natural", "repeated"):
        rows = word_heads[["word", "layer", "head"]].assign(texts=texts, next=np.nan)
        rows[[*SHARES]] = rng.uniform(0, 0.4, (len(rows), len(SHARES)))
        rows["distance"] = rng.uniform(1, 6, len(rows))
        rows[["induction", "duplicate"]] = rng.uniform(0, 0.2, (len(rows), 2))
        if texts == "natural":
            rows[["induction", "duplicate"]] = np.nan
        else:
            rows[["cue_share", "even_share"]] = np.nan
        parts.append(rows)
    frame = pd.concat(parts, ignore_index=True)
    frame.loc[frame.eval("texts == 'natural' and layer == 3 and head == 2"), "previous"] = 0.61
    frame.loc[frame.eval("texts == 'repeated' and layer == 3 and head == 2"), "induction"] = 0.72
    columns = ["previous", "next", "first", "itself", "induction", "duplicate", "entropy"]
    columns += ["distance", "cue_share", "even_share"]
    return frame[["word", "texts", "layer", "head", *columns]]


def elsewhere(readings: pd.DataFrame) -> pd.DataFrame:
    """The sentences of the table `readings`, as if they were natural ones about other words."""
    columns = ["word", "layer", "head", "sense_a", "sense_b", "text", "pos", "piece", "attention"]
    parts = []
    for number, chosen in enumerate(("length", "axis")):
        rows = readings[columns].assign(chosen=chosen, number=readings["sentence"], length=0.31)
        rows["role"] = np.where(readings["role"] == "word", "word", "context")
        parts.append(rows.assign(write=(-1) ** number * 0.12))
    order = ["word", "layer", "head", "chosen", "number", "sense_a", "sense_b", "text", "length"]
    order += ["write", "pos", "piece", "attention", "role"]
    return pd.concat(parts, ignore_index=True)[order]


def directions(readings: pd.DataFrame, tokens: tuple[str, ...]) -> pd.DataFrame:
    """One direction of each matrix for each head with sentences, with these tokens on every side."""
    rows = [
        {"word": word, "layer": layer, "head": head, "matrix": matrix, "number": 0}
        | {
            "share": 0.07,
            "share_random": 0.04,
            "side": side,
            "end": end,
            "rank": rank,
            "token": token,
        }
        for word, layer, head in readings[["word", "layer", "head"]].drop_duplicates().to_numpy()
        for matrix, sides in {"OV": ("reads", "writes"), "QK": ("query", "key")}.items()
        for side in sides
        for end in "+-"
        for rank, token in enumerate(tokens)
    ]
    return pd.DataFrame(rows)
