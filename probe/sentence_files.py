"""Files of sentences cut into rows: JSONL, CSV, TSV, Parquet, and the word folders of CoarseWSD-20, one or several.

Only the form of the file is judged here. A row that cannot be cut carries the reason as its flaw, and the reader of sentences
reports it beside the rows whose content is wrong. Whatever has no rows at all, or not the columns, is refused at once.
"""

import csv
import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from probe.errors import InputError

REQUIRED = ("word", "sense", "text", "start", "end")
FORMS = "a JSONL, CSV, TSV or Parquet file, or a CoarseWSD-20 word folder"


@dataclass(frozen=True)
class Row:
    """One row: where it stands ("line 7"), its fields by column, and why it could not be cut, if so."""

    where: str
    fields: Mapping[str, object] = field(default_factory=dict)
    flaw: str | None = None


@dataclass(frozen=True)
class Table:
    """The rows of one source and the sha256 of its bytes."""

    rows: tuple[Row, ...]
    sha256: str


def read_table(place: Path) -> Table:
    """The rows of a file or folder; raises InputError for one that is missing, empty, unreadable or without the columns."""
    if place.is_dir():
        return _folder_table(place)
    cut = _CUTTERS.get(place.suffix.lower())
    if cut is None:
        got = f"a name ending in {place.suffix!r}" if place.suffix else "a name without an ending"
        raise InputError(f"Reading sentences from {place}: got {got}, expected {FORMS}; give one of these.")
    content = _bytes_of(place)
    columns, rows = cut(place, content)
    if not rows:
        raise InputError(f"Reading sentences from {place}: it holds no rows, expected one sentence per row; add some.")
    if columns:
        require_columns(place, columns)
    return Table(tuple(rows), hashlib.sha256(content).hexdigest())


def require_columns(place: Path, columns: list[str]) -> None:
    """Raises InputError where a table lacks a required column."""
    absent = [column for column in REQUIRED if column not in columns]
    if absent:
        raise InputError(
            f"Reading sentences from {place}: the column{'s' * (len(absent) > 1)} {', '.join(absent)} "
            f"{'is' if len(absent) == 1 else 'are'} missing, got {', '.join(columns)}, "
            f"expected at least {', '.join(REQUIRED)}; add what is missing and read it again."
        )


def _bytes_of(place: Path) -> bytes:
    try:
        content = place.read_bytes()
    except FileNotFoundError:
        raise InputError(f"Reading sentences from {place}: there is no such file; give the path of {FORMS}.") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"Reading sentences from {place}: it cannot be opened ({reason}); make it readable or give another."
        ) from error
    if not content.strip():
        raise InputError(f"Reading sentences from {place}: it is empty, expected one sentence per row; add some.")
    return content


def _text_of(place: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError(
            f"Reading {place}, line {line}: the bytes there are not UTF-8; save the file as UTF-8 and read it again."
        ) from error


Cut = tuple[list[str], list[Row]]


def _cut_jsonl(place: Path, content: bytes) -> Cut:
    # Not splitlines: a sentence may hold characters, such as U+2028, that it would take for the end of a line.
    lines = _text_of(place, content).split("\n")
    rows = [json_row(f"line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    return list(dict.fromkeys(column for row in rows for column in row.fields)), rows


def json_row(where: str, line: str) -> Row:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Row(where, flaw=f"it is not JSON ({getattr(error, 'msg', error)}), expected an object on one line")
    if not isinstance(found, dict):
        return Row(where, flaw=f"got {line.strip()[:40]!r}, expected a JSON object")
    return Row(where, found)


def _cut_csv(place: Path, content: bytes) -> Cut:
    return _cut_delimited(place, content, ",")


def _cut_tsv(place: Path, content: bytes) -> Cut:
    return _cut_delimited(place, content, "\t")


def _cut_delimited(place: Path, content: bytes, delimiter: str) -> Cut:
    reader = csv.reader(io.StringIO(_text_of(place, content), newline=""), delimiter=delimiter, strict=True)
    columns: list[str] = []
    rows: list[Row] = []
    while True:
        where = f"line {reader.line_num + 1}"
        try:
            cells = next(reader)
        except StopIteration:
            return columns, rows
        except csv.Error as error:
            return columns, [
                *rows,
                Row(where, flaw=f"the quotes or the fields cannot be read ({error}), expected a closed field"),
            ]
        if not columns:
            columns = header(place, cells) if cells else []
        elif len(cells) == len(columns):
            rows.append(Row(where, dict(zip(columns, cells, strict=True))))
        elif cells:
            rows.append(Row(where, flaw=f"got {len(cells)} fields, expected the {len(columns)} of the header"))


def header(place: Path, cells: list[str]) -> list[str]:
    twice = sorted({cell for cell in cells if cells.count(cell) > 1} & set(REQUIRED))
    if twice:
        raise InputError(
            f"Reading sentences from {place}: the header has {twice[0]!r} twice, expected it once; rename one of them."
        )
    return cells


def _cut_parquet(place: Path, content: bytes) -> Cut:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(io.BytesIO(content))
        rows = [Row(f"row {number}", found) for number, found in enumerate(table.to_pylist(), 1)]
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(
            f"Reading sentences from {place}: it is not a readable Parquet file ({reason}); write it again."
        ) from error
    return list(table.column_names), rows


_CUTTERS: dict[str, Callable[[Path, bytes], Cut]] = {
    ".jsonl": _cut_jsonl,
    ".csv": _cut_csv,
    ".tsv": _cut_tsv,
    ".parquet": _cut_parquet,
}


def _folder_table(folder: Path) -> Table:
    """A CoarseWSD-20 word folder, or a folder that holds several: their rows one word after the other."""
    maps = [] if (folder / "classes_map.txt").exists() else sorted(folder.glob("*/classes_map.txt"))
    if not maps:
        return _word_table(folder)
    tables = [(place.parent.name, _word_table(place.parent)) for place in maps]
    rows = [replace(row, where=f"{name}/{row.where}") for name, table in tables for row in table.rows]
    identity = "".join(f"{name}\0{table.sha256}\n" for name, table in tables)
    return Table(tuple(rows), hashlib.sha256(identity.encode()).hexdigest())


def _word_table(folder: Path) -> Table:
    """One word folder: the word is the folder's name, the senses are the values of its class map."""
    senses = class_map(folder)
    splits = [split for split in ("train", "test") if (folder / f"{split}.data.txt").exists()]
    if not splits:
        raise InputError(
            f"Reading the word folder {folder}: neither train.data.txt nor test.data.txt is there, expected at least one; "
            "give a complete CoarseWSD-20 word folder."
        )
    rows = [row for split in splits for row in _split_rows(folder, split, senses)]
    digest = hashlib.sha256()
    for name in ["classes_map.txt", *(f"{split}.{kind}.txt" for split in splits for kind in ("data", "gold"))]:
        digest.update(f"{name}\0{hashlib.sha256((folder / name).read_bytes()).hexdigest()}\n".encode())
    return Table(tuple(rows), digest.hexdigest())


def class_map(folder: Path) -> dict[str, str]:
    place = folder / "classes_map.txt"
    if not place.exists():
        raise InputError(
            f"Reading the folder {folder}: classes_map.txt is not there, expected a CoarseWSD-20 word folder; "
            "give such a folder, or a JSONL, CSV, TSV or Parquet file."
        )
    try:
        found = json.loads(_text_of(place, _bytes_of(place)))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(sense, str) for sense in found.values()):
        raise InputError(
            f'Reading {place}: got no class map, expected a JSON object such as {{"0": "bank_bank"}}; restore the file.'
        )
    return found


def _split_rows(folder: Path, split: str, senses: Mapping[str, str]) -> list[Row]:
    data, gold = (_lines(folder / f"{split}.{kind}.txt") for kind in ("data", "gold"))
    if len(data) != len(gold):
        raise InputError(
            f"Reading the word folder {folder}: {split}.data.txt has {len(data)} lines and {split}.gold.txt {len(gold)}, "
            "expected one class per sentence; restore both files."
        )
    rows = []
    for number, (line, label) in enumerate(zip(data, gold, strict=True), 1):
        sense = senses.get(label)
        if sense is None:
            flaw = f"the class is {label!r}, expected one of {', '.join(senses)}"
            rows.append(Row(f"{split}.gold.txt line {number}", flaw=flaw))
        else:
            given = {"word": folder.resolve().name, "sense": sense, "split": split}
            rows.append(folder_row(f"{split}.data.txt line {number}", line, given))
    return rows


def folder_row(where: str, line: str, given: Mapping[str, object]) -> Row:
    index, tab, text = line.partition("\t")
    if not tab or not index.isdecimal():
        return Row(where, flaw=f"got {line[:40]!r}, expected the number of a word, a tab and the sentence")
    words = text.split(" ")
    at = int(index)
    if at >= len(words):
        return Row(
            where,
            flaw=f"the word is number {at} counted from 0, expected one of the {len(words)} words of the sentence",
        )
    start = sum(len(word) + 1 for word in words[:at])
    return Row(where, {**given, "text": text, "start": start, "end": start + len(words[at])})


def _lines(place: Path) -> list[str]:
    lines = [line.removesuffix("\r") for line in _text_of(place, _bytes_of(place)).split("\n")]
    return lines[:-1] if lines[-1] == "" else lines
