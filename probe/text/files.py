"""Readers of sentence files, for all commands.

The formats are JSONL, CSV (with comma, semicolon, tab or bar), TSV, Parquet, word folders of
CoarseWSD-20, folders of these, and tables made in Python. This module checks the format only. A row
that cannot be split into fields has the reason as its flaw, and `probe.text.sentences` reports it
together with rows whose content is wrong. A file without rows or without the columns raises
InputError. Python's own reader of CSV is used, because pandas does not tell in which line a row is
wrong.
"""

import csv
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from probe.errors import InputError

if TYPE_CHECKING:
    import pyarrow
REQUIRED = ("sense", "text")
COLUMNS = (
    "word",
    *REQUIRED,
    "start",
    "end",
    "frame",
    "pair",
    "cue",
    "cue_start",
    "cue_end",
    "distance",
    "split",
)
FORMS = "a JSONL, CSV, TSV or Parquet file, or a CoarseWSD-20 word folder"
COLUMNS_NAMED = 50  # columns that an error may list
SHOWN = 40  # characters of a bad line in its flaw
INDEX_DIGITS = 9  # digits of a word's number in a word folder, at most
UTF16 = (b"\xff\xfe", b"\xfe\xff")  # byte order marks
LINE_END = re.compile("\r\n?|\n")
SEPARATOR_LINE = re.compile('"?sep=.?"?', re.IGNORECASE)
QUOTED = re.compile('"[^"]*"')
# A cell and the tab after it. A cell in quotation marks has doubled quotation marks inside.
TAB_CELL = re.compile(r'(?:"((?:[^"]|"")*)"|([^\t]*))\t')


@dataclass(frozen=True)
class FileRow:
    """One row of a source."""

    where: str  # in the source, e.g. "line 7"
    fields: Mapping[str, object] = field(default_factory=dict)  # by column
    flaw: str | None = None  # why the row could not be split into fields


@dataclass(frozen=True)
class Source:
    """One file, or one CoarseWSD-20 folder."""

    path: Path
    name: str  # in the labels of rows, without the folders of this machine

    def label(self, where: str) -> str:
        """The name of the source and the location of a row, e.g. "mine.jsonl line 7" or
        "bank/train.data.txt line 7".
        """
        return f"{self.name}{'/' if self.path.is_dir() else ' '}{where}"


def sources(paths: Sequence[Path]) -> list[Source]:
    """The sources of some paths, in order. A folder contains its readable files and those of its
    subfolders, by name.

    Raises InputError for a folder without a readable file, and for a path that is not a regular
    file or a folder.
    """
    all_sources = [source for path in paths for source in _sources_in(path)]
    for source in all_sources:
        if not source.path.is_dir() and source.path.exists() and not source.path.is_file():
            raise InputError(
                f"Cannot read sentences from {source.path}: it is not a regular file. Give {FORMS}."
            )
    return all_sources


def _sources_in(path: Path) -> Iterator[Source]:
    if not path.is_dir():
        yield Source(path, path.name)
        return
    is_word = (path / "classes_map.txt").exists() or any(path.glob("*.data.txt"))
    words = [path] if is_word else sorted(p.parent for p in path.glob("*/classes_map.txt"))
    inside = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    files = [] if words else sorted(file for file in inside if file.suffix.lower() in READERS)
    if not words and not files:
        raise InputError(
            f"Cannot read sentences from the folder {path}: no file in it ends in "
            f"{', '.join(READERS)}, and no folder in it is a CoarseWSD-20 word folder. Give "
            f"{FORMS}, or a folder of these."
        )
    for inner in words or files:
        name = last_name(inner) if inner == path else inner.relative_to(path).as_posix()
        yield Source(inner, name)


def last_name(path: Path) -> str:
    """The last component of a path, because a page must not contain the folders of this machine."""
    return path.name or path.resolve().name


def sha256_of(source: Source) -> str:
    """The sha256 of a file's bytes. For a word folder, the sha256 of the names and sums of the
    files that are read.
    """
    if not source.path.is_dir():
        return _file_sha256(source.path)
    names = ["classes_map.txt"]
    names += [f"{split}.{kind}.txt" for split in _splits(source.path) for kind in ("data", "gold")]
    return _sha256_of_sums((name, _file_sha256(source.path / name)) for name in names)


def sha256_of_all(files: Sequence[Source]) -> str:
    """The sha256 of one source, or of the names and sums of several sources."""
    if len(files) == 1:
        return sha256_of(files[0])
    return _sha256_of_sums((source.name, sha256_of(source)) for source in files)


def _sha256_of_sums(sums: Iterator[tuple[str, str]]) -> str:
    listed = "".join(f"{name}\0{sha256}\n" for name, sha256 in sums)
    return hashlib.sha256(listed.encode("utf-8", "surrogateescape")).hexdigest()


def _file_sha256(path: Path) -> str:
    try:
        with path.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from error


def rows_of(source: Source) -> list[FileRow]:
    """The rows of one source. A row that cannot be split into fields has a flaw.

    Raises InputError for a source that is missing, empty, unreadable or without the columns.
    """
    path = source.path
    read = _read_word_folder if path.is_dir() else READERS.get(path.suffix.lower())
    if read is None:
        got = f"a name ending in {path.suffix!r}" if path.suffix else "a name without an ending"
        raise InputError(
            f"Cannot read sentences from {path}: got {got}, expected {FORMS}. Give one of these."
        )
    rows = read(path)
    if not rows:
        raise InputError(_no_rows(path))
    return rows


def read_table(name: str, content: object) -> list[FileRow]:
    """The rows of a table.

    name: of the table in error messages
    content: a DataFrame, or anything that pandas converts to one, e.g. a list of dicts or sentences

    Raises InputError for anything else, and for a table without rows or without the columns.
    """
    import pandas as pd

    if hasattr(content, "to_pandas"):  # a pyarrow.Table, or a table of another library
        content = content.to_pandas()
    try:
        table = pd.DataFrame(content, dtype=object)  # type: ignore[call-overload]
    except (TypeError, ValueError) as error:
        raise InputError(
            f"Cannot read sentences from {name}: got {type(content).__name__} ({error}), expected a"
            " path, a DataFrame, or a list of dicts or sentences. Give one of these."
        ) from error
    if table.empty:
        raise InputError(_no_rows(name))
    columns = [_column(str(column)) for column in table.columns]
    _require_columns(name, columns)
    _require_once(name, columns)
    table.columns = pd.Index(columns)
    table = table.loc[:, ~table.columns.duplicated(keep="last")]
    rows = table.where(table.notna(), None).to_dict("records")
    return [FileRow(f"row {number}", row) for number, row in enumerate(rows, 1)]


def _no_rows(source: Path | str) -> str:
    return f"Cannot read sentences from {source}: it has no rows. Add one sentence per row."


def _require_columns(path: Path | str, columns: Sequence[str]) -> None:
    """Raises InputError for a table without a required column."""
    absent = [column for column in REQUIRED if column not in columns]
    if not absent:
        return
    names = ", ".join(absent)
    missing = f"the column {names} is" if len(absent) == 1 else f"the columns {names} are"
    raise InputError(
        f"Cannot read sentences from {path}: {missing} missing, got "
        f"{', '.join(columns[:COLUMNS_NAMED])}, expected at least {' and '.join(REQUIRED)}. Rename "
        "a column or add the missing one."
    )


def _content(path: Path) -> bytes:
    """The content of a file. Raises InputError for a file that is missing, cannot be opened, or has
    only white space.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error
    if not content.strip():
        raise InputError(
            f"Cannot read sentences from {path}: it is empty. Add one sentence per row."
        )
    return content


def _unreadable(path: Path, error: OSError) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(
            f"Cannot read sentences from {path}: there is no such file. Give the path of {FORMS}."
        )
    return InputError(
        f"Cannot read sentences from {path}: it cannot be opened ({error.strerror or error}). "
        "Make it readable, or give another file."
    )


def _text(path: Path) -> str:
    """The text of a UTF-8 or UTF-16 file, with the line ends as they are.

    Raises InputError for a file in another encoding.
    """
    content = _content(path)
    encoding = "UTF-16" if content.startswith(UTF16) else "UTF-8"
    is_whole = True
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        is_whole = False
        text = content[: error.start].decode(encoding)
    # Without a byte order mark, a NUL in the first line is half a character of UTF-16.
    has_half = "\0" in LINE_END.split(text, 1)[0]
    if is_whole and not has_half:
        return text.removeprefix("\ufeff")
    line = 1 if has_half else len(LINE_END.split(text))
    raise InputError(
        f"Cannot read {path}, line {line}: its bytes are not {encoding}. Save the file as UTF-8 "
        "(in a spreadsheet: CSV UTF-8)."
    )


def lines_of(path: Path) -> list[str]:
    """The lines of a text file without their line ends. Raises InputError for a file that cannot be
    read.
    """
    return [line.removesuffix("\r") for line in _text(path).removesuffix("\n").split("\n")]


def _read_jsonl(path: Path) -> list[FileRow]:
    rows = [
        _json_row(f"line {number}", line)
        for number, line in enumerate(lines_of(path), 1)
        if line.strip()
    ]
    # A row may lack a column.
    if columns := list(dict.fromkeys(name for row in rows for name in row.fields)):
        _require_columns(path, columns)
    return rows


def _json_row(where: str, line: str) -> FileRow:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", error)
        flaw = f"it is not JSON ({reason}), expected an object on one line"
        return FileRow(where, flaw=flaw)
    if not isinstance(value, dict):
        return FileRow(where, flaw=f"got {line.strip()[:SHOWN]!r}, expected a JSON object")
    return FileRow(where, {_column(name): value[name] for name in value})


def _read_delimited(path: Path, *, usual: str) -> list[FileRow]:
    """The rows of a CSV or TSV file.

    usual: the delimiter for the file's ending

    The delimiter is the most frequent of comma, semicolon, tab and bar in the header, or the usual
    one if the header has none of them. A first line such as "sep=;", which spreadsheets write, is
    skipped.
    """
    # With their line ends, for quoted cells; a byte order mark alone has no line.
    lines = list(io.StringIO(_text(path), newline="")) or [""]
    skipped = [bool(SEPARATOR_LINE.fullmatch(line.strip())) for line in lines]
    first = next((at for at, line in enumerate(lines) if line.strip() and not skipped[at]), 0)
    delimiter = max((usual, *",;\t|"), key=QUOTED.sub("", lines[first]).count)
    # Skipped lines count in the numbers of lines.
    all_lines = ["\n"] * first + lines[first:]
    split = _tab_rows(all_lines) if delimiter == "\t" else _csv_rows(all_lines, delimiter)
    # Tables from spreadsheets end in rows of empty cells.
    header, *rows = [row for row in split if any(row[1]) or row[2]] or [("line 1", [], None)]
    where, names, flaw = header
    if flaw and not names:
        raise InputError(f"Cannot read {path}, {where}: {flaw}. Correct the header.")
    columns = [_column(name) for name in names]
    _require_once(path, columns)
    if rows:
        _require_columns(path, columns)
    return [
        FileRow(where, flaw=flaw) if flaw else _delimited_row(where, columns, cells)
        for where, cells, flaw in rows
    ]


SplitRow = tuple[str, list[str], str | None]  # the location, the cells, and the flaw


def _csv_rows(lines: Iterable[str], delimiter: str) -> Iterator[SplitRow]:
    """The rows of a CSV file. A cell in quotation marks may have several lines."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    where = "line 1"
    try:
        for cells in reader:
            yield where, cells, None
            where = f"line {reader.line_num + 1}"
    except csv.Error as error:
        reason = f"the quotes or the fields cannot be read ({error}), expected a closed field"
        yield where, [], reason


def _tab_rows(lines: Iterable[str]) -> Iterator[SplitRow]:
    """The rows of a TSV file, one for each line.

    Quotation marks are ordinary characters, except a pair that encloses a whole cell. A cell that
    begins with a quotation mark that is never closed is a flaw.
    """
    for number, line in enumerate(lines, 1):
        cells = []
        flaw = None
        for cell in TAB_CELL.finditer(line.rstrip("\r\n") + "\t"):
            enclosed, plain = cell.groups()
            if enclosed is None and plain.startswith('"') and plain.count('"') % 2:
                flaw = (
                    f"the quotation mark before {plain[1:SHOWN]!r} is not closed in its line, "
                    "expected a closed one or none"
                )
            cells.append(plain if enclosed is None else enclosed.replace('""', '"'))
        yield f"line {number}", cells, flaw


def _column(name: str) -> str:
    """The name of a column as in COLUMNS, if it is one of them except for capitals and spaces."""
    standard = name.strip().lower()
    return standard if standard in COLUMNS else name


def _delimited_row(where: str, columns: Sequence[str], cells: Sequence[str]) -> FileRow:
    if len(cells) == len(columns):
        return FileRow(where, dict(zip(columns, cells, strict=True)))
    flaw = (
        f"got {len(cells)} fields, expected the {len(columns)} of the header (a text that contains "
        "the delimiter must be in quotation marks)"
    )
    return FileRow(where, flaw=flaw)


def _require_once(path: Path | str, columns: Sequence[str]) -> None:
    for name in sorted(REQUIRED):
        if columns.count(name) > 1:
            raise InputError(
                f"Cannot read sentences from {path}: the header has {name!r} twice, expected it "
                "once. Rename one of them."
            )


def _read_parquet(path: Path) -> list[FileRow]:
    import pyarrow
    import pyarrow.parquet

    content = io.BytesIO(_content(path))
    try:
        schema = pyarrow.parquet.read_schema(content)
        columns = [_column(name) for name in schema.names]
        _require_columns(path, columns)
        _require_once(path, columns)
        read = [field.name for field in schema if _is_read(field)]
        rows = pyarrow.parquet.read_table(content, columns=read).to_pylist()
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(
            f"Cannot read sentences from {path}: it is not a readable Parquet file ({reason}). "
            "Write it again."
        ) from error
    return [
        FileRow(f"row {number}", {_column(name): row[name] for name in row})
        for number, row in enumerate(rows, 1)
    ]


def _is_read(column: "pyarrow.Field") -> bool:
    """Whether a column is one of COLUMNS, or has numbers or text."""
    from pyarrow import types

    of_type = (types.is_integer, types.is_floating, types.is_string, types.is_large_string)
    return _column(column.name) in COLUMNS or any(check(column.type) for check in of_type)


READERS: dict[str, Callable[[Path], list[FileRow]]] = {
    ".jsonl": _read_jsonl,
    ".csv": partial(_read_delimited, usual=","),
    ".tsv": partial(_read_delimited, usual="\t"),
    ".parquet": _read_parquet,
}


def _read_word_folder(folder: Path) -> list[FileRow]:
    """The rows of a CoarseWSD-20 word folder.

    The word is the name of the folder, and the senses are the values of its class map.
    """
    senses = _class_map(folder)
    rows = []
    for split in _splits(folder):
        lines, labels = (lines_of(folder / f"{split}.{kind}.txt") for kind in ("data", "gold"))
        if len(lines) != len(labels):
            raise InputError(
                f"Cannot read the word folder {folder}: {split}.data.txt has {len(lines)} lines "
                f"and {split}.gold.txt {len(labels)}, expected one class per sentence. Restore "
                "both files."
            )
        for number, (line, label) in enumerate(zip(lines, labels, strict=True), 1):
            if label in senses:
                fields = {"word": folder.resolve().name, "sense": senses[label], "split": split}
                rows.append(_folder_row(f"{split}.data.txt line {number}", line, fields))
            else:
                flaw = f"the class is {label!r}, expected one of {', '.join(senses)}"
                rows.append(FileRow(f"{split}.gold.txt line {number}", flaw=flaw))
    return rows


def _splits(folder: Path) -> list[str]:
    """The parts of a word folder, "train" and "test". Raises InputError if both are missing."""
    splits = [split for split in ("train", "test") if (folder / f"{split}.data.txt").exists()]
    if not splits:
        raise InputError(
            f"Cannot read the word folder {folder}: it has neither train.data.txt nor "
            "test.data.txt, expected at least one. Give a complete CoarseWSD-20 word folder."
        )
    return splits


def _class_map(folder: Path) -> dict[str, str]:
    path = folder / "classes_map.txt"
    if not path.exists():
        raise InputError(
            f"Cannot read the folder {folder}: classes_map.txt is missing, expected a CoarseWSD-20 "
            "word folder. Give such a folder, or a JSONL, CSV, TSV or Parquet file."
        )
    try:
        senses = json.loads(_text(path))
    except (ValueError, RecursionError):
        senses = None
    if not isinstance(senses, dict) or not all(isinstance(sense, str) for sense in senses.values()):
        raise InputError(
            f'Cannot read {path}: it is not a class map, expected a JSON object such as {{"0": '
            '"bank_bank"}. Restore the file.'
        )
    return senses


def _folder_row(where: str, line: str, fields: Mapping[str, object]) -> FileRow:
    """The row of a line with the number of the word, a tab, and the sentence with single spaces."""
    index, tab, text = line.partition("\t")
    if not tab or not index.isdecimal() or len(index) > INDEX_DIGITS:
        flaw = f"got {line[:SHOWN]!r}, expected the number of a word, a tab and the sentence"
        return FileRow(where, flaw=flaw)
    words = text.split(" ")
    number = int(index)
    if number >= len(words):
        flaw = (
            f"the word is number {number} counted from 0, expected one of the {len(words)} words "
            "of the sentence"
        )
        return FileRow(where, flaw=flaw)
    start = sum(len(word) + 1 for word in words[:number])
    end = start + len(words[number])
    return FileRow(where, {**fields, "text": text, "start": start, "end": end})
