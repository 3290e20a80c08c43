"""The tables of an experiment: what it measured as columns, and what each column means."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from probe.experiments.record import SensePair, WordRecord

KEYS = ("word", "sense_a", "sense_b")
Columns = Mapping[str, Any]


class Column(NamedTuple):
    """What a column means, and its unit: "" for text, names, yes and no."""

    meaning: str
    unit: str = ""


class Table(NamedTuple):
    """One table of an experiment.

    holds: what it holds, in a line.
    columns: in order; None for a column whose name means the same in every table
        (`probe/results/columns.toml`).
    parts: the rows of a word, some at a time: by column its values, or one value for all these
        rows. An array `layer head` stands for a row per head.
    missing: columns of whole numbers that may be missing.
    """

    holds: str
    columns: Mapping[str, Column | None]
    parts: Callable[[WordRecord], Iterator[Columns]]
    missing: tuple[str, ...] = ()


def as_elsewhere(*names: str) -> dict[str, None]:
    """Columns that mean the same in every table."""
    return dict.fromkeys(names)


def with_ends(name: str, column: Column) -> dict[str, Column]:
    """A column, and the ends of its interval."""
    ends = {
        f"{name}_{end}": Column(f"{side} end of the 95 % bootstrap interval of {name}", column.unit)
        for end, side in (("low", "lower"), ("high", "upper"))
    }
    return {name: column} | ends


def key_of(record: WordRecord, pair: SensePair) -> dict[str, object]:
    """The values of KEYS: the word and its two senses."""
    return dict(zip(KEYS, (record.word, *pair.senses), strict=True))
