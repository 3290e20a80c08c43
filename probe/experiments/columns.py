"""The tables of an experiment: the meaning of each column, and the rows of a word.

The result of an experiment is an `xarray.Dataset` whose dims have the axis words of the package,
such as `pair layer head`. A row of a table is an element of the dataset, so most tables are
`rows(data)`. A column is declared once, in the table of its experiment; the variables of a dataset
take their meaning and unit from there.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from probe.experiments.record import WordRecord
from probe.stats.resampling import Array
from probe.tidy import with_key

if TYPE_CHECKING:
    import xarray as xr

# The columns that identify the pair of senses of a row.
KEYS = ("word", "sense_a", "sense_b")
Variables = Mapping[str, tuple[str, Any]]  # by name: dims, separated by spaces, and values


# The contents of each table, and the description of each column.
Descriptions = tuple[dict[str, str], dict[str, dict[str, str]]]


def read_descriptions(path: Path) -> Descriptions:
    """The contents of each table by name, and the description of each column by "column" or
    "table.column", from a TOML file.
    """
    columns: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return columns.pop("tables"), columns


SHARED = read_descriptions(Path(__file__).with_suffix(".toml"))


class Column(NamedTuple):
    """The meaning of a column, and its unit; the unit is "" for text, names, yes and no."""

    meaning: str
    unit: str = ""


# The columns that mean the same in several tables.
OF_SEVERAL = {name: Column(**about) for name, about in SHARED[1].items() if "." not in name}


class Table(NamedTuple):
    """A table of an experiment.

    holds: its content, in one line
    columns: in order; None for a column whose name has the same meaning in every table
        (`columns.toml`)
    rows: the rows of a word, from its record and the dataset of the experiment, or the table's own
        dataset if the experiment has one for each table
    missing: columns of whole numbers that may be missing
    """

    holds: str
    columns: Mapping[str, Column | None]
    rows: Callable[[WordRecord, Any], pd.DataFrame]
    missing: tuple[str, ...] = ()


def as_elsewhere(*names: str) -> dict[str, None]:
    """Columns that have the same meaning in every table."""
    return dict.fromkeys(names)


def with_ends(name: str, column: Column) -> dict[str, Column]:
    """A column, with columns for the limits of its interval."""
    ends = {
        f"{name}_{end}": Column(f"{side} end of the 95 % bootstrap interval of {name}", column.unit)
        for end, side in (("low", "lower"), ("high", "upper"))
    }
    return {name: column} | ends


def dataset(
    tables: Mapping[str, Table],
    variables: Variables,
    *,
    senses: Sequence[tuple[str, str]] | None = None,
    coordinates: Variables | None = None,
    more: Mapping[str, Column] | None = None,
) -> "xr.Dataset":
    """The result of an experiment as a dataset.

    tables: those of the experiment, for the meaning and unit of the variables
    variables, coordinates: dims and values by name, as ("pair layer head", array)
    senses: the senses of each element of the dim `pair`, if there is one
    more: the meaning and unit of variables that are no columns
    """
    import xarray as xr

    described: dict[str, Column | None] = dict(OF_SEVERAL)
    for table in tables.values():
        described |= {name: column for name, column in table.columns.items() if column}
    described |= more or {}
    pairs = {
        name: ("pair", [pair[number] for pair in senses or ()])
        for number, name in enumerate(("sense_a", "sense_b") if senses else ())
    }

    def with_meaning(name: str, dims: str, values: Any) -> tuple[list[str], Any, dict[str, str]]:
        column = described.get(name)
        array = np.asarray(values)
        if array.dtype == object:  # text, which is stored without Python objects
            array = array.astype(str)
        return dims.split(), array, column._asdict() if column else {}

    return xr.Dataset(
        {name: with_meaning(name, *variable) for name, variable in variables.items()},
        coords={
            name: with_meaning(name, *variable)
            for name, variable in (pairs | dict(coordinates or {})).items()
        },
    )


def listed(
    tables: Mapping[str, Table],
    frame: pd.DataFrame,
    dim: str,
    more: Mapping[str, Column] | None = None,
) -> "xr.Dataset":
    """The rows of a frame as a dataset with one dim, for results that are no product of axes, such
    as the tokens of several sentences. Missing text is "".

    more: as in `dataset`
    """
    filled = frame.apply(
        lambda column: column if column.dtype.kind in "biuf" else column.fillna("")
    )
    variables = {str(name): (dim, column.to_numpy()) for name, column in filled.items()}
    return dataset(tables, variables, more=more)


def tables_of(
    tables: Mapping[str, Table], parts: Mapping[str, Sequence[pd.DataFrame]]
) -> "dict[str, xr.Dataset]":
    """A dataset of listed rows for each table, for tables with different rows.

    parts: frames of rows by table; a table without any is left out
    """
    return {
        name: listed(tables, pd.concat(frames, ignore_index=True), "row")
        for name, frames in parts.items()
        if frames
    }


def or_missing(numbers: Sequence[int | None]) -> list[float]:
    """Numbers of which some are missing, as a dataset holds them: NaN for None."""
    return [np.nan if number is None else number for number in numbers]


def padded(parts: Sequence[Array], missing: float = np.nan) -> Array:
    """Arrays of different lengths as one, with `missing` after the end of the shorter ones.
    `-> part n ...`
    """
    filled = np.full((len(parts), max(map(len, parts)), *parts[0].shape[1:]), missing)
    for part, values in zip(filled, parts, strict=True):
        part[: len(values)] = values
    return filled


def each_pair(record: WordRecord, data: "xr.Dataset") -> "Iterator[tuple[xr.Dataset, xr.Dataset]]":
    """The pairs of senses with a result: the dataset of the experiment "senses", and this one's
    part.
    """
    by_senses = {(each.sense_a.item(), each.sense_b.item()): each for each in record.senses}
    for number in range(data.sizes["pair"]):
        of_pair = data.isel(pair=number)
        yield by_senses[of_pair.sense_a.item(), of_pair.sense_b.item()], of_pair


def rows(record: WordRecord, data: "xr.Dataset") -> pd.DataFrame:
    """A row for each element of a dataset, with its coordinates and the word, in the order of its
    dims.

    Example:
        >>> from types import SimpleNamespace
        >>> from probe.experiments.columns import dataset, rows
        >>> shares = {"share": ("pair layer", [[0.25, 0.75]])}
        >>> data = dataset({}, shares, senses=[("river", "money")])
        >>> rows(SimpleNamespace(word="bank"), data).columns.tolist()
        ['word', 'pair', 'layer', 'share', 'sense_a', 'sense_b']
    """
    frame = data.to_dataframe(dim_order=list(data.sizes)).reset_index()
    for name, column in frame.items():
        if column.dtype.kind not in "biuf":
            # As `listed` stores missing text.
            missing = column == ""
            frame[name] = column.astype(object).where(~missing, None) if missing.any() else column
    return frame if "word" in frame else with_key(frame, {"word": record.word})


def key_of(record: WordRecord, senses: "xr.Dataset") -> dict[str, Any]:
    """The values of KEYS: the word and the two senses of a dataset."""
    return {"word": record.word, **{name: senses[name].item() for name in KEYS[1:]}}
