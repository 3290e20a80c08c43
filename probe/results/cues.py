"""The result of a cue scan as frames."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from probe.display import Displayed
from probe.experiments.cues import Auroc, Baselines, Scan, Shares
from probe.model.check import Certificate
from probe.provenance import Origin
from probe.tidy import rounded

HEADS_SHOWN = 3  # names in the repr of a scan


@dataclass(frozen=True, eq=False)
class Cues(Displayed):
    """A cue scan of one word as frames (`probe.results.columns` describes every column)."""

    model_name: str
    origin: Origin
    options: dict[str, object]  # word, cues, frames, seed, how the axis was fitted
    certificate: Certificate  # the hooked model compared with the raw weights
    # `cues`: a row for each cue and top head. `cues_heads`: a row for each head up to the read-out
    # layer. `cues_nouns`: a row for each head and unambiguous noun. `cues_summary`: one row.
    frames: dict[str, pd.DataFrame]
    data_sha256: str

    @property
    def cues(self) -> pd.DataFrame:
        """A row for each cue and top head."""
        return self.frames["cues"]

    @property
    def heads(self) -> pd.DataFrame:
        """A row for each head up to the read-out layer, the largest share first."""
        return self.frames["cues_heads"]

    @property
    def summary(self) -> dict[str, Any]:
        """The numbers of the scan as a whole."""
        [row] = self.frames["cues_summary"].to_dict("records")
        return {str(name): value for name, value in row.items()}

    @property
    def senses(self) -> tuple[str, str]:
        """The two senses, the first with positive coordinates."""
        return self.summary["sense_a"], self.summary["sense_b"]

    def __repr__(self) -> str:
        row = self.summary
        top = self.heads.head(HEADS_SHOWN)
        names = ", ".join(f"L{head.layer}H{head.head}" for head in top.itertuples())
        return (
            f"<Cues of {row['word']} in {self.model_name}: {row['cues']} cues, "
            f"{row['sense_a']} against {row['sense_b']}; largest shares: {names}>"
        )


def cue_rows(words: Sequence[str], is_fitted: Sequence[bool], scan: Scan) -> pd.DataFrame:
    """The frame `cues`: a row for each cue and head, with means over frames.

    words: the cues
    is_fitted: whether each cue occurs in the texts to which the axis was fitted

    Numbers are float32, which holds all of their digits, because there can be many rows.
    """
    coordinate = scan.coordinate.mean(1)
    spread = scan.coordinate.std(1, ddof=1)
    count = max(1, len(scan.heads))
    rows = {
        "cue": np.repeat(np.array(words, dtype=object), count),
        "seen": np.repeat(np.array(is_fitted, dtype=bool), count),
        "frames": scan.coordinate.shape[1],
        "coordinate": np.repeat(coordinate, count),
        "coordinate_sd": np.repeat(spread, count),
    }
    frame = pd.DataFrame(rows)
    columns = {"layer": [layer for layer, _ in scan.heads], "head": [h for _, h in scan.heads]}
    for name, numbers in columns.items():
        # A model may have no heads up to its read-out layer.
        column = list(numbers) * len(words) if numbers else [None] * len(words)
        frame[name] = pd.array(column, dtype="Int64")
    for name in ("attention", "score", "write"):
        values = getattr(scan, name).mean(1)
        frame[name] = values.ravel() if scan.heads else np.nan
    floats = frame.select_dtypes("float").columns
    return rounded(frame).astype(dict.fromkeys(floats, "float32"))


def head_rows(shares: Shares, scan: Scan, auroc: Auroc | None) -> pd.DataFrame:
    """The frame `cues_heads`: a row for each head, the largest share first.

    auroc: of the coordinate, then of each scanned head; None without held-out cue words
    """
    frame = pd.DataFrame(
        {
            "layer": [layer for layer, _ in shares.heads],
            "head": [head for _, head in shares.heads],
            "share": shares.share,
            "share_low": shares.low,
            "share_high": shares.high,
            "nouns_r": shares.r.mean(0) if len(shares.r) else np.nan,
            "nouns_slope": shares.slope.mean(0) if len(shares.slope) else np.nan,
        }
    )
    for name in Auroc._fields:
        values = np.full(len(frame), np.nan)
        if auroc is not None:
            for number, head in enumerate(scan.heads, start=1):
                values[shares.heads.index(head)] = getattr(auroc, name)[number]
        frame[_auroc_column(name)] = values
    frame = frame.sort_values(["share", "layer", "head"], ascending=[False, True, True])
    return rounded(frame.reset_index(drop=True))


def noun_rows(shares: Shares) -> pd.DataFrame:
    """The frame `cues_nouns`: a row for each noun and head."""
    frame = pd.DataFrame(
        [
            (noun, layer, head, shares.r[row, column], shares.slope[row, column])
            for row, noun in enumerate(shares.nouns)
            for column, (layer, head) in enumerate(shares.heads)
        ],
        columns=["noun", "layer", "head", "r", "slope"],
    )
    return rounded(frame)


def summary_row(
    word: str,
    senses: tuple[str, str],
    depth: int,
    scan: Scan,
    shares: Shares,
    auroc: Auroc | None,
    baselines: Baselines | None,
    held_out: int,
    beginnings: int,
) -> pd.DataFrame:
    """The frame `cues_summary`: one row for the whole scan.

    auroc: of the coordinate, then of each scanned head; None without held-out cue words
    baselines: of the same cue words
    held_out: the number of held-out cue words
    beginnings: the number of tokens that were left out because they begin longer words
    """
    row: dict[str, object] = {
        "word": word,
        "sense_a": senses[0],
        "sense_b": senses[1],
        "depth": depth,
        "cues": len(scan.coordinate),
        "beginnings": beginnings,
        "frames": scan.coordinate.shape[1],
        "reliability": scan.reliability,
        "texts": shares.texts,
        "nouns": len(shares.nouns),
        "held_out": held_out,
    }
    for name in Auroc._fields:
        row[_auroc_column(name)] = np.nan if auroc is None else getattr(auroc, name)[0]
    baselines = baselines or Baselines(np.array([]), np.nan, np.nan)
    at_nouns = baselines.nouns if len(baselines.nouns) else np.array([np.nan])
    row |= {
        "auroc_nouns": at_nouns.mean(),
        "auroc_nouns_min": at_nouns.min(),
        "auroc_nouns_max": at_nouns.max(),
        "auroc_embedding": baselines.embedding,
        "auroc_whitened": baselines.whitened,
    }
    return rounded(pd.DataFrame([row]))


def _auroc_column(name: str) -> str:
    return name if name == "auroc" else f"auroc_{name}"
