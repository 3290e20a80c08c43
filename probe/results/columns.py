"""The study's tables: what they and their columns say (`columns.toml`), order, and the shape that
all share.

Keys in front, one row per head, floats rounded far below their uncertainty.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from probe.experiments.columns import KEYS
from probe.experiments.table import EXPERIMENTS
from probe.inference.nouns import PARTS
from probe.inference.within import RANKS as RANK_COLUMNS
from probe.inference.within import RAW

RANKS = dict.fromkeys(RANK_COLUMNS, "Int64")
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
    *RAW,
)
ATTENTION = ("attention_cue", "attention_previous", "attention_itself")

Described = tuple[dict[str, str], dict[str, dict[str, str]]]


def read_descriptions(path: Path) -> Described:
    """What each table holds, by name; the description of each column, by "column" or
    "table.column"."""
    columns: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return columns.pop("tables"), columns


def of_experiments() -> Described:
    """The same of the tables that experiments have."""
    tables = {}
    columns: dict[str, dict[str, str]] = {}
    for experiment in EXPERIMENTS.values():
        for name, table in experiment.tables.items():
            tables[name] = table.holds
            columns |= {
                f"{name}.{column}": described._asdict()
                for column, described in table.columns.items()
                if described is not None
            }
    return tables, columns


_SHARED = read_descriptions(Path(__file__).with_suffix(".toml"))
_OWN = of_experiments()
TABLES = _SHARED[0] | _OWN[0]
COLUMNS = _SHARED[1] | _OWN[1]


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
