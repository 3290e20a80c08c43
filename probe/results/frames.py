"""The tables of a report: tidy pandas frames of the measurements. What uses them needs no torch.

Each frame answers one question and has one row for each observation. `probe.results.columns` has
the meaning and unit of every column. Numbers that were not measured are missing (NaN), never zero.
Effects are missing if the model does not separate the senses at the word, because no head is
swapped then. Numbers are rounded to DIGITS significant digits (`probe.tidy`), far below their
uncertainty, so that the same command writes the same bytes on one machine with one set of versions.
With others the last digit may differ.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from probe.experiments.columns import Table
from probe.experiments.record import WordRecord
from probe.experiments.table import Experiment, every_experiment
from probe.model.check import Certificate, Row
from probe.text.sentences import LeftOut
from probe.tidy import rounded, stacked


def frames(
    records: Sequence[WordRecord],
    certificate: Certificate,
    unread: Mapping[str | None, Sequence[LeftOut]],
) -> dict[str, pd.DataFrame]:
    """Every frame that follows from the measurements alone, rounded.

    certificate: the comparison of the hooked model with the raw weights
    unread: sentences that were left out before the measurements, by word; None for sentences
        without a word

    Tables of experiments that were not run for any word are left out.
    """
    tables = of_experiments(records) | {
        "left_out": left_out(unread, {record.word: _left_out(record) for record in records}),
        "certificate": certificate_rows(certificate),
    }
    has_heads = records[0].has_heads
    return {name: rounded(_of_heads(frame, has_heads)) for name, frame in tables.items()}


def _of_heads(frame: pd.DataFrame, has_heads: Sequence[bool]) -> pd.DataFrame:
    """The frame without rows of heads in the layers of a hybrid that have no heads."""
    if all(has_heads) or not {"layer", "head"} <= set(frame):
        return frame
    exists = [
        pd.isna(head) or has_heads[layer]
        for layer, head in zip(frame["layer"], frame["head"], strict=True)
    ]
    return frame[np.array(exists, dtype=bool)].reset_index(drop=True)


def of_experiments(records: Sequence[WordRecord]) -> dict[str, pd.DataFrame]:
    """The tables of the experiments that were run for any of the words, by name."""
    tables: dict[str, pd.DataFrame] = {}
    for experiment, room in every_experiment().items():
        run = [record for record in records if experiment in record.measured]
        parts: dict[str, list[pd.DataFrame]] = {name: [] for name in room.TABLES if run}
        for record in run:  # word by word, because the tables of a word share work
            for name in parts:
                result = of_table(room, record.measured[experiment], name)
                parts[name] += rows_of(room.TABLES[name], record, result)
        tables |= {name: in_columns(room.TABLES[name], each) for name, each in parts.items()}
    return tables


def of_table(room: Experiment, result: Any, name: str) -> Any:
    """The part of an experiment's result that belongs to one of its tables: the dataset of this
    name if its datasets have the names of its tables, else the whole result. None without rows.
    """
    if not isinstance(result, dict):
        return result
    by_table = not room.TABLES.keys().isdisjoint(result)
    return result.get(name) if by_table else result or None


def without_rows() -> dict[str, pd.DataFrame]:
    """The tables of all experiments without rows, for experiments that were not run."""
    return {
        name: of_experiment(table, [])
        for room in every_experiment().values()
        for name, table in room.TABLES.items()
    }


def of_experiment(table: Table, results: Sequence[tuple[WordRecord, Any]]) -> pd.DataFrame:
    """One table of an experiment.

    results: the words in which the experiment was run, with its results
    """
    parts = [part for record, result in results for part in rows_of(table, record, result)]
    return in_columns(table, parts)


def rows_of(table: Table, record: WordRecord, result: Any) -> list[pd.DataFrame]:
    """The rows of one word, if it has a result."""
    return [] if result is None else [table.rows(record, result)]


def in_columns(table: Table, parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The rows of all words, with the columns of the table in their order."""
    columns = list(table.columns)
    frame = stacked([part for part in parts if len(part)], columns)[columns]
    return frame.astype(dict.fromkeys(table.missing, "Int64"))


def _left_out(record: WordRecord) -> list[LeftOut]:
    """The sentences that were not used, and the user's nouns that were not compared for any pair of
    senses.
    """
    measured = [each for each in record.of_pairs("nouns") if each is not None]
    compared = {noun for each in measured for noun in each.noun.values.tolist()}
    reasons: dict[str, str] = {}
    for each in measured:
        reasons |= dict(
            zip(each.unused_noun.values.tolist(), each.why_unused.values.tolist(), strict=True)
        )
    nouns = [LeftOut(noun, reason) for noun, reason in reasons.items() if noun not in compared]
    return [*record.left_out, *nouns]


def left_out(
    unread: Mapping[str | None, Sequence[LeftOut]], by_word: Mapping[str, Sequence[LeftOut]]
) -> pd.DataFrame:
    """The frame `left_out`: the input that was not used, with the reason.

    unread: as in `frames`
    by_word: the sentences and nouns of each word that were not used
    """
    rows = [
        (word, item.where, item.reason)
        for word in (None, *by_word)
        for item in (*unread.get(word, ()), *by_word.get(word or "", ()))
    ]
    return pd.DataFrame(rows, columns=["word", "where", "reason"])


def certificate_rows(certificate: Certificate) -> pd.DataFrame:
    """The frame `certificate`. `layer` is missing in rows about the whole model."""
    columns = [*Row.__annotations__, "ok"]
    rows = [[getattr(row, name) for name in columns] for row in certificate.rows]
    return pd.DataFrame(rows, columns=columns).astype({"layer": "Int64"})
