"""Readers of sentence files, for all commands. Memory does not grow with the file.

The formats are JSONL, CSV (with comma, semicolon, tab or bar), TSV, Parquet, word folders of
CoarseWSD-20, folders of these, and tables made in Python. This module checks the format only. A row
that cannot be split into fields has the reason as its flaw, and `probe.text.sentences` reports it
together with rows whose content is wrong. A file without rows or without the columns raises
InputError. So does a file that cannot be read in little memory: one with a line of more than
LONGEST_LINE characters, or one that is not a regular file.
"""

import csv
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, zip_longest
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
# Characters: ten times the longest text that is accepted.
LONGEST_LINE = 1_000_000
BATCH = 1024  # rows of a Parquet file in memory at once
COLUMNS_NAMED = 50  # columns of a JSONL file that an error may list
CHUNK = 1 << 14  # bytes that are read at once to check whether a file is empty
SHOWN = 40  # characters of a bad line in its flaw
INDEX_DIGITS = 9  # digits of a word's number in a word folder, at most
UTF16 = (b"\xff\xfe", b"\xfe\xff")  # byte order marks
SEPARATOR_LINE = re.compile('"?sep=.?"?', re.IGNORECASE)
QUOTED = re.compile('"[^"]*"')
# A cell and the tab after it. A cell in quotation marks has doubled quotation marks inside.
TAB_CELL = re.compile(r'(?:"((?:[^"]|"")*)"|([^\t]*))\t')
NOT_UTF8 = re.compile("[\udc80-\udcff]")  # `surrogateescape` maps bytes that are not UTF-8 to these


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


def stream(source: Source) -> Iterator[FileRow]:
    """The rows of one source, one at a time. A row that cannot be split into fields has a flaw.

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
    first = next(rows, None)
    if first is None:
        raise InputError(_no_rows(path))
    yield first
    yield from rows


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
        f"Cannot read sentences from {path}: {missing} missing, got {', '.join(columns)}, "
        f"expected at least {' and '.join(REQUIRED)}. Rename a column or add the missing one."
    )


def _require_content(path: Path) -> None:
    """Raises InputError for a file that is missing, cannot be opened, or has only white space."""
    try:
        with path.open("rb") as opened:
            while part := opened.read(CHUNK):
                if part.strip():
                    return
    except OSError as error:
        raise _unreadable(path, error) from error
    raise InputError(f"Cannot read sentences from {path}: it is empty. Add one sentence per row.")


def _unreadable(path: Path, error: OSError) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(
            f"Cannot read sentences from {path}: there is no such file. Give the path of {FORMS}."
        )
    return InputError(
        f"Cannot read sentences from {path}: it cannot be opened ({error.strerror or error}). "
        "Make it readable, or give another file."
    )


def _lines(path: Path, newline: str) -> Iterator[str]:
    """The lines of a UTF-8 or UTF-16 file with their line ends.

    newline: as in `open`

    Raises InputError for a line that is too long.
    """
    _require_content(path)
    number = 0
    try:
        with path.open("rb") as opened_as_bytes:
            is_utf16 = opened_as_bytes.read(2) in UTF16
        encoding = "utf-16" if is_utf16 else "utf-8-sig"
        # Python decodes ahead of the current line, so an error at once would name the wrong line.
        # Bytes that are not UTF-8 are marked instead.
        with path.open(encoding=encoding, errors="surrogateescape", newline=newline) as opened:
            for number, line in enumerate(iter(partial(opened.readline, LONGEST_LINE + 1), ""), 1):
                # In the first line a NUL is half a character of UTF-16 without a byte order mark.
                half = number == 1 and "\0" in line
                if half or (not line.isascii() and NOT_UTF8.search(line)):
                    raise InputError(_other_encoding(path, number, is_utf16=is_utf16))
                if len(line) > LONGEST_LINE:
                    raise InputError(
                        f"Cannot read {path}, line {number}: it is longer than {LONGEST_LINE:,} "
                        "characters, expected one sentence per line. Split the line."
                    )
                yield line
    except UnicodeDecodeError as error:  # in UTF-16, bytes below 0x80 cannot be marked
        raise InputError(_other_encoding(path, number + 1, is_utf16=True)) from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _other_encoding(path: Path, line: int, *, is_utf16: bool) -> str:
    encoding = "UTF-16" if is_utf16 else "UTF-8"
    return (
        f"Cannot read {path}, line {line}: its bytes are not {encoding}. Save the file as UTF-8 "
        "(in a spreadsheet: CSV UTF-8)."
    )


def _read_jsonl(path: Path) -> Iterator[FileRow]:
    columns: dict[str, None] = {}  # of all rows, because a row may lack a column
    for number, line in enumerate(_lines(path, "\n"), 1):
        if line.strip():
            row = _json_row(f"line {number}", line.removesuffix("\n"))
            may_name_more = len(columns) < COLUMNS_NAMED
            columns |= {name: None for name in row.fields if name in REQUIRED or may_name_more}
            yield row
    if columns:
        _require_columns(path, list(columns))


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


def _read_delimited(path: Path, *, usual: str) -> Iterator[FileRow]:
    """The rows of a CSV or TSV file.

    usual: the delimiter for the file's ending

    The delimiter is the most frequent of comma, semicolon, tab and bar in the header, or the usual
    one if the header has none of them. A first line such as "sep=;", which spreadsheets write, is
    skipped.
    """
    lines = _lines(path, "")
    head = [""]
    while not head[-1].strip() and (line := next(lines, None)) is not None:
        head.append("\n" if SEPARATOR_LINE.fullmatch(line.strip()) else line)
    delimiter = max((usual, *",;\t|"), key=QUOTED.sub("", head[-1]).count)
    all_lines = chain(head[1:], lines)
    rows = _tab_rows(all_lines) if delimiter == "\t" else _csv_rows(all_lines, delimiter)
    columns: list[str] = []
    is_first = True
    for where, cells, flaw in rows:
        if any(cells) and not columns:
            columns = [_column(name) for name in cells]
            _require_once(path, columns)
        elif any(cells) or flaw:  # tables from spreadsheets end in rows of empty cells
            if is_first:  # later than the header, so that an empty table has the error for no rows
                _require_columns(path, columns)
                is_first = False
            yield FileRow(where, flaw=flaw) if flaw else _delimited_row(where, columns, cells)


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


def _read_parquet(path: Path) -> Iterator[FileRow]:
    import pyarrow
    import pyarrow.parquet

    _require_content(path)
    try:
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as opened:
            columns = [_column(name) for name in opened.schema_arrow.names]
            _require_columns(path, columns)
            _require_once(path, columns)
            number = 0
            read = [field.name for field in opened.schema_arrow if _is_read(field)]
            for batch in opened.iter_batches(batch_size=BATCH, columns=read):
                for values in batch.to_pylist():
                    number += 1
                    yield FileRow(f"row {number}", {_column(name): values[name] for name in values})
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(
            f"Cannot read sentences from {path}: it is not a readable Parquet file ({reason}). "
            "Write it again."
        ) from error


def _is_read(column: "pyarrow.Field") -> bool:
    """Whether a column is one of COLUMNS, or has numbers or text."""
    from pyarrow import types

    of_type = (types.is_integer, types.is_floating, types.is_string, types.is_large_string)
    return _column(column.name) in COLUMNS or any(check(column.type) for check in of_type)


READERS: dict[str, Callable[[Path], Iterator[FileRow]]] = {
    ".jsonl": _read_jsonl,
    ".csv": partial(_read_delimited, usual=","),
    ".tsv": partial(_read_delimited, usual="\t"),
    ".parquet": _read_parquet,
}


def _read_word_folder(folder: Path) -> Iterator[FileRow]:
    """The rows of a CoarseWSD-20 word folder.

    The word is the name of the folder, and the senses are the values of its class map.
    """
    senses = _class_map(folder)
    for split in _splits(folder):
        files = [folder / f"{split}.{kind}.txt" for kind in ("data", "gold")]
        for number, (line, label) in enumerate(zip_longest(*map(lines_of, files)), 1):
            if line is None or label is None:
                sentences, labels = [sum(1 for _ in lines_of(file)) for file in files]
                raise InputError(
                    f"Cannot read the word folder {folder}: {split}.data.txt has {sentences} lines "
                    f"and {split}.gold.txt {labels}, expected one class per sentence. Restore both "
                    "files."
                )
            if label in senses:
                fields = {"word": folder.resolve().name, "sense": senses[label], "split": split}
                yield _folder_row(f"{split}.data.txt line {number}", line, fields)
            else:
                flaw = f"the class is {label!r}, expected one of {', '.join(senses)}"
                yield FileRow(f"{split}.gold.txt line {number}", flaw=flaw)


def _splits(folder: Path) -> list[str]:
    """The parts of a word folder, "train" and "test". Raises InputError if both are missing."""
    splits = [split for split in ("train", "test") if (folder / f"{split}.data.txt").exists()]
    if not splits:
        raise InputError(
            f"Cannot read the word folder {folder}: it has neither train.data.txt nor "
            "test.data.txt, expected at least one. Give a complete CoarseWSD-20 word folder."
        )
    return splits


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a text file without their line ends. Raises InputError for a file that cannot be
    read.
    """
    return (line.removesuffix("\n").removesuffix("\r") for line in _lines(path, "\n"))


def _class_map(folder: Path) -> dict[str, str]:
    path = folder / "classes_map.txt"
    if not path.exists():
        raise InputError(
            f"Cannot read the folder {folder}: classes_map.txt is missing, expected a CoarseWSD-20 "
            "word folder. Give such a folder, or a JSONL, CSV, TSV or Parquet file."
        )
    try:
        senses = json.loads("".join(_lines(path, "\n")))
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
