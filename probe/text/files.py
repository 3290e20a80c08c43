"""Files of sentences cut into rows: JSONL, CSV, TSV, Parquet, and the word folders of CoarseWSD-20, one or several.

Only the form of the file is judged here. A row that cannot be cut carries the reason as its flaw, and the reader of sentences
reports it beside the rows whose content is wrong. Whatever has no rows at all, or not the columns, is refused at once.

Files of sentences read row by row, in memory that does not grow with the file.

The rows, flaws and sentences of refusal are those of `probe.text.files`, which reads a whole file at once. What could not be
read in little memory is refused: a line of more than LONGEST_LINE characters, and anything that is not a regular file.
"""

import csv
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
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


LONGEST_LINE = 1_000_000
BATCH = 1024


@dataclass(frozen=True)
class Source:
    """One file, or one CoarseWSD-20 folder; `name` is what its rows are placed by, without this machine's folders."""

    place: Path
    name: str


def sources(paths: list[Path]) -> list[Source]:
    """The files behind the paths given, in order: a folder of files gives its readable ones, by name, folders in it too.

    Raises InputError for a path that is not there, a folder without a readable file, and what is no regular file.
    """
    found = [source for path in paths for source in _behind(path)]
    for source in found:
        if not source.place.is_dir() and source.place.exists() and not source.place.is_file():
            raise InputError(
                f"Reading sentences from {source.place}: it is no regular file, expected {FORMS}; give one of these."
            )
    return found


def _behind(path: Path) -> Iterator[Source]:
    if not path.is_dir():
        yield Source(path, path.name)
        return
    words = [path] if (path / "classes_map.txt").exists() else sorted(p.parent for p in path.glob("*/classes_map.txt"))
    inside = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    files = [] if words else sorted(file for file in inside if file.suffix.lower() in STREAMS)
    if not words and not files:
        raise InputError(
            f"Reading sentences from the folder {path}: no file in it ends in {', '.join(STREAMS)}, and no folder in it is a "
            f"CoarseWSD-20 word folder; give {FORMS}, or a folder of these."
        )
    for place in words or files:
        yield Source(place, place.name if place == path else place.relative_to(path).as_posix())


def stream(source: Source) -> Iterator[Row]:
    """The rows of one source, one at a time; a row that cannot be cut carries its flaw. Raises InputError as `read_table` does."""
    place = source.place
    if place.is_dir():
        rows = _stream_folder(place)
    elif place.suffix.lower() in STREAMS:
        rows = STREAMS[place.suffix.lower()](place)
    else:
        got = f"a name ending in {place.suffix!r}" if place.suffix else "a name without an ending"
        raise InputError(f"Reading sentences from {place}: got {got}, expected {FORMS}; give one of these.")
    number = 0
    try:
        for number, row in enumerate(rows, 1):
            yield row if row.where.startswith(source.name) else replace(row, where=f"{source.name} {row.where}")
    except OSError as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        raise InputError(
            f"Reading sentences from {place}: it cannot be opened ({reason}); make it readable or give another."
        ) from error
    if not number:
        raise InputError(f"Reading sentences from {place}: it holds no rows, expected one sentence per row; add some.")


def lines(place: Path, newline: str) -> Iterator[str]:
    """The lines of a UTF-8 file with their ends, as `newline` of `open` has it; raises InputError for too long a line."""
    number = 0
    try:
        with place.open(encoding="utf-8-sig", newline=newline) as opened:
            while line := opened.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise InputError(
                        f"Reading {place}, line {number}: it is longer than {LONGEST_LINE:,} characters, expected one sentence "
                        "per line; split the line and read it again."
                    )
                yield line
    except UnicodeDecodeError as error:
        raise InputError(
            f"Reading {place}, line {_undecodable(place)}: the bytes there are not UTF-8; save the file as UTF-8 and read it again."
        ) from error


def _undecodable(place: Path) -> int:
    """The number of the first line that is not UTF-8: text is decoded ahead of the line that is asked for."""
    with place.open("rb") as opened:
        number = 1
        while line := opened.readline(LONGEST_LINE):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                if error.reason != "unexpected end of data" or line.endswith(b"\n"):
                    return number
            number += line.endswith(b"\n")
    return number


def _stream_jsonl(place: Path) -> Iterator[Row]:
    for number, line in enumerate(lines(place, "\n"), 1):
        if line.strip():
            yield json_row(f"line {number}", line.removesuffix("\n"))


def _stream_csv(place: Path) -> Iterator[Row]:
    return _stream_delimited(place, ",")


def _stream_tsv(place: Path) -> Iterator[Row]:
    return _stream_delimited(place, "\t")


def _stream_delimited(place: Path, delimiter: str) -> Iterator[Row]:
    reader = csv.reader(lines(place, ""), delimiter=delimiter, strict=True)
    columns: list[str] = []
    while True:
        where = f"line {reader.line_num + 1}"
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Row(where, flaw=f"the quotes or the fields cannot be read ({error}), expected a closed field")
            return
        if not columns:
            columns = _columns(place, cells) if cells else []
        elif len(cells) == len(columns):
            yield Row(where, dict(zip(columns, cells, strict=True)))
        elif cells:
            yield Row(where, flaw=f"got {len(cells)} fields, expected the {len(columns)} of the header")


def _columns(place: Path, cells: list[str]) -> list[str]:
    columns = header(place, cells)
    require_columns(place, columns)
    return columns


def _stream_parquet(place: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(place, pre_buffer=False) as opened:
            columns = opened.schema_arrow.names
            require_columns(place, columns)
            number = 0
            for batch in opened.iter_batches(batch_size=BATCH, columns=[c for c in columns if c in KNOWN]):
                for found in batch.to_pylist():
                    number += 1
                    yield Row(f"row {number}", found)
    except FileNotFoundError:
        raise
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(
            f"Reading sentences from {place}: it is not a readable Parquet file ({reason}); write it again."
        ) from error


def _stream_folder(folder: Path) -> Iterator[Row]:
    """A CoarseWSD-20 word folder; its word is the folder's name."""
    senses = class_map(folder)
    splits = [split for split in ("train", "test") if (folder / f"{split}.data.txt").exists()]
    if not splits:
        raise InputError(
            f"Reading the word folder {folder}: neither train.data.txt nor test.data.txt is there, expected at least one; "
            "give a complete CoarseWSD-20 word folder."
        )
    for split in splits:
        both = (lines(folder / f"{split}.{kind}.txt", "\n") for kind in ("data", "gold"))
        for number, (line, label) in enumerate(zip_longest(*both), 1):
            if line is None or label is None:
                raise InputError(
                    f"Reading the word folder {folder}: {split}.{'data' if line is None else 'gold'}.txt ends after line "
                    f"{number - 1} and the other goes on, expected one class per sentence; restore both files."
                )
            line, label = (part.removesuffix("\n").removesuffix("\r") for part in (line, label))
            sense = senses.get(label)
            if sense is None:
                flaw = f"the class is {label!r}, expected one of {', '.join(senses)}"
                yield Row(f"{split}.gold.txt line {number}", flaw=flaw)
                continue
            given = {"word": folder.resolve().name, "sense": sense, "split": split}
            yield folder_row(f"{split}.data.txt line {number}", line, given)


KNOWN = frozenset((*REQUIRED, "frame", "pair", "cue_start", "cue_end", "distance", "split"))
STREAMS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _stream_jsonl,
    ".csv": _stream_csv,
    ".tsv": _stream_tsv,
    ".parquet": _stream_parquet,
}
