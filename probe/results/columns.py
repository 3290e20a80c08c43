"""The tables of a study: their contents, and the meaning and order of their columns.

`probe/experiments/columns.toml` describes what no experiment alone declares. Every
table starts with its key columns, and a table of heads has one row for each head.
"""

import re
from collections.abc import Mapping, Sequence

import pandas as pd

from probe.experiments.columns import SHARED, Descriptions
from probe.experiments.table import every_experiment


def of_experiments() -> Descriptions:
    """The descriptions of the experiments' tables, like `read_descriptions`."""
    tables = {}
    columns: dict[str, dict[str, str]] = {}
    for room in every_experiment().values():
        own = getattr(room, "COLUMNS", {})
        columns |= {name: described._asdict() for name, described in own.items()}
        for name, table in room.TABLES.items():
            tables[name] = table.holds
            columns |= {
                f"{name}.{column}": described._asdict()
                for column, described in table.columns.items()
                if described is not None
            }
    return tables, columns


_EXPERIMENTS = of_experiments()
TABLES = SHARED[0] | _EXPERIMENTS[0]
COLUMNS = SHARED[1] | _EXPERIMENTS[1]


def dictionary(
    frames: Mapping[str, pd.DataFrame],
    described: Mapping[str, Mapping[str, str]] = COLUMNS,
    parts: Sequence[str] = ("meaning", "unit"),
    *,
    name: str = "columns",
) -> pd.DataFrame:
    """A table with a row for every column of every table.

    frames: the tables by name
    described: the description of each column, by "column" or "table.column"
    parts: the parts of a description, each a column of the result
    name: of the result, whose columns are listed as well
    """
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
    """The description of a column: its meaning and, if it has one, its unit.

    Parts of the entry "table.column" override those of the entry "column". An entry "e#" describes
    the columns e0, e1 and so on. Raises KeyError for a column without an entry.
    """
    numbered = re.sub(r"\d+$", "#", column)
    # From the most general entry to the most specific, which overrides it.
    description: dict[str, str] = {}
    for key in (column, numbered, f"{table}.{column}", f"{table}.{numbered}"):
        description |= described.get(key, {})
    if not description:
        raise KeyError(f"{table}.{column}")
    return description
