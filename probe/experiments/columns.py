"""The tables of an experiment: its measurements as columns, and the meaning of each column."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from probe.experiments.record import SensePair, WordRecord

# The columns that identify the pair of senses of a row.
KEYS = ("word", "sense_a", "sense_b")
Columns = Mapping[str, Any]  # values by name


class Column(NamedTuple):
    """The meaning of a column, and its unit; the unit is "" for text, names, yes and no."""

    meaning: str
    unit: str = ""


class Table(NamedTuple):
    """A table of an experiment.

    holds: its content, in one line
    columns: in order; None for a column whose name has the same meaning in every table
        (`probe/results/columns.toml`)
    parts: the rows of a word in parts: the values of each column, or a single value for all rows of
        the part; an array `layer head` has a row for each head
    missing: columns of whole numbers that may be missing
    """

    holds: str
    columns: Mapping[str, Column | None]
    parts: Callable[[WordRecord], Iterator[Columns]]
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


def key_of(record: WordRecord, pair: SensePair) -> dict[str, object]:
    """The values of KEYS: the word and its two senses."""
    return dict(zip(KEYS, (record.word, *pair.senses), strict=True))
