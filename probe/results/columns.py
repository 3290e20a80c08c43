"""The study's tables: what they and their columns say (`columns.toml`), order, and the shape that
all share.

Keys in front, one row per head, floats rounded far below their uncertainty.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from probe.experiments.head_parts import KINDS
from probe.experiments.noun_parts import PARTS
from probe.experiments.word import PairResult, WordResult
from probe.stats.resampling import Array

KEYS = ("word", "sense_a", "sense_b")
RANKS = dict.fromkeys(("rank", "rank_low", "rank_high"), "Int64")
CAUSAL = (
    "direct",
    "direct_low",
    "direct_high",
    "denoise",
    "noise",
    "swap",
    "swap_low",
    "swap_high",
    "same_sense",
    "self_repair",
    "net",
    "net_low",
    "net_high",
    *RANKS,
)
# A contract: columns may be added.
HEADS = (
    *KEYS,
    "layer",
    "head",
    "auroc",
    "auroc_low",
    "auroc_high",
    "hedges_g",
    "direct",
    "denoise",
    "noise",
    "swap",
    "swap_low",
    "swap_high",
    "same_sense",
    "self_repair",
    "p_auroc",
    "q_auroc",
    "p_swap",
    "q_swap",
    "attention_cue",
    "attention_previous",
    "verdict",
    *RANKS,
    "net",
    "net_low",
    "net_high",
    "next_token",
    "p_next_token",
    "continuation",
    "p_continuation",
    "read_depth",
    "rerouted",
    *PARTS,
    "comparison",
)
ATTENTION = ("attention_cue", "attention_previous", "attention_itself")
CURVES = (
    "word",
    "area",
    "smallest",
    "pairs",
    "size",
    "added",
    "faithfulness",
    "faithfulness_low",
    "faithfulness_high",
    "necessity",
    "necessity_low",
    "necessity_high",
)
HEAD_PARTS = tuple(f"{kind}{end}" for kind in KINDS for end in ("", "_low", "_high"))
DIGITS = 6  # significant ones of a float, far below its uncertainty
LEADERS = 3  # heads of a word that are looked at closely
METHODS = {
    "nearest": "nearest sense centroid",
    "frequent": "most frequent sense in training",
    "bag": "bag of words",
    "left": "bag of words left of the word",
    "position": "the word's place alone",
    "length": "the text's length alone",
}


def read_descriptions(path: Path) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """What each table holds, by name; the description of each column, by "column" or
    "table.column"."""
    columns: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return columns.pop("tables"), columns


TABLES, COLUMNS = read_descriptions(Path(__file__).with_suffix(".toml"))


def dictionary(
    frames: Mapping[str, pd.DataFrame],
    described: Mapping[str, Mapping[str, str]] = COLUMNS,
    parts: Sequence[str] = ("meaning", "unit"),
    *,
    name: str = "columns",
) -> pd.DataFrame:
    """Every column of every table with its description, part by part, and the columns of this
    table, `name`, too."""
    header = ["table", "column", *parts]
    tables = {table: [str(column) for column in frame] for table, frame in frames.items()}
    tables[name] = header
    rows = []
    for table, columns in tables.items():
        for column in columns:
            description = about(table, column, described)
            rows.append([table, column, *(description.get(part, "") for part in parts)])
    return pd.DataFrame(rows, columns=header)


def about(
    table: str, column: str, described: Mapping[str, Mapping[str, str]] = COLUMNS
) -> dict[str, str]:
    """The description of a column: the entry of its name, and over it, part by part, that of
    "table.column".

    An entry "e#" is of e0, e1, ... KeyError for a column without an entry.
    """
    numbered = re.sub(r"\d+$", "#", column)
    description: dict[str, str] = {}
    for key in (column, numbered, f"{table}.{column}", f"{table}.{numbered}"):
        description |= described.get(key, {})
    if not description:
        raise KeyError(f"{table}.{column}")
    return description


def rounded(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with floats at DIGITS significant digits."""
    return frame.apply(lambda column: _significant(column) if column.dtype.kind == "f" else column)


def _significant(column: pd.Series) -> pd.Series:
    values = column.to_numpy(dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        magnitude = np.where(values == 0, 0, np.floor(np.log10(np.abs(values))))
        scale = 10.0 ** (DIGITS - 1 - np.nan_to_num(magnitude, posinf=0, neginf=0))
    return pd.Series(np.round(values * scale) / scale, index=column.index)


def sense_pairs_of(results: Sequence[WordResult]) -> Iterable[tuple[WordResult, PairResult]]:
    """Every pair of senses with the word that it is of."""
    return ((result, pair) for result in results for pair in result.pairs)


def key_of(result: WordResult, pair: PairResult) -> dict[str, object]:
    """The values of KEYS: the word and its two senses."""
    return dict(zip(KEYS, (result.material.word, *pair.senses), strict=True))


def with_key(frame: pd.DataFrame, key: dict[str, object]) -> pd.DataFrame:
    """The frame with columns of one value each in front."""
    columns = pd.DataFrame({name: [value] * len(frame) for name, value in key.items()})
    return pd.concat([columns, frame], axis=1)


def by_head(arrays: dict[str, Array]) -> pd.DataFrame:
    """A row per layer and head, a column per array. `layer head`"""
    layers, heads = next(iter(arrays.values())).shape
    layer, head = np.divmod(np.arange(layers * heads), heads)
    return pd.DataFrame(
        {"layer": layer, "head": head} | {name: values.ravel() for name, values in arrays.items()}
    )


def leading_heads(word_heads: pd.DataFrame, word: str) -> list[tuple[int, int]]:
    """Layer and head of a word's first heads, by rank."""
    rows = word_heads[word_heads["word"] == word].sort_values("rank").head(LEADERS)
    return [
        (int(layer), int(head)) for layer, head in zip(rows["layer"], rows["head"], strict=True)
    ]


def stacked(parts: Sequence[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    """The frames below each other; without any, an empty one with these columns."""
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(columns))
