"""Files of sentences read row by row, in memory that does not grow with the file: the one reader of
every command.

JSONL, CSV (with comma, semicolon, tab or bar), TSV, Parquet, word folders of CoarseWSD-20, folders
of these, and tables made in Python. Only the form is judged here: a row that cannot be cut carries
the reason as its flaw, and `probe.text.sentences` reports it beside rows whose content is wrong. A
file without rows, or without the columns, is refused as a whole, and so is what could not be read
in little memory: a line of more than LONGEST_LINE characters, and anything that is not a regular
file.
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
# Characters, ten times the longest text that is taken: no line of a sentence comes near it.
LONGEST_LINE = 1_000_000
BATCH = 1024  # rows of a Parquet file that are held at once
COLUMNS_NAMED = 50  # other columns of a JSONL file that an error may name
CHUNK = 1 << 14  # bytes that are read at once to see whether a file holds anything
SHOWN = 40  # characters of a bad line in its flaw
INDEX_DIGITS = 9  # of a word folder: a number with more is no word's
UTF16 = (b"\xff\xfe", b"\xfe\xff")  # what such a file begins with
SEPARATOR_LINE = re.compile('"?sep=.?"?', re.IGNORECASE)
QUOTED = re.compile('"[^"]*"')
# A cell and the tab after it: in quotation marks that are doubled inside, or up to the tab.
TAB_CELL = re.compile(r'(?:"((?:[^"]|"")*)"|([^\t]*))\t')
NOT_UTF8 = re.compile("[\udc80-\udcff]")  # what `surrogateescape` makes of bytes that are not UTF-8


@dataclass(frozen=True)
class FileRow:
    """One row: where it stands in its source ("line 7"), its fields by column, and why it could not
    be cut, if so."""

    where: str
    fields: Mapping[str, object] = field(default_factory=dict)
    flaw: str | None = None


@dataclass(frozen=True)
class Source:
    """One file, or one CoarseWSD-20 folder; `name` is what its rows are placed by, without this
    machine's folders."""

    place: Path
    name: str

    def label(self, where: str) -> str:
        """A row's place with the source's name in front: "mine.jsonl line 7", "bank/train.data.txt
        line 7"."""
        return f"{self.name}{'/' if self.place.is_dir() else ' '}{where}"


def sources(paths: Sequence[Path]) -> list[Source]:
    """The files behind the paths given, in order; a folder gives its readable files, by name, those
    of its folders too.

    Raises InputError for a path that is not there, a folder without a readable file, and what is no
    regular file.
    """
    behind = [source for path in paths for source in _behind(path)]
    for source in behind:
        if not source.place.is_dir() and source.place.exists() and not source.place.is_file():
            raise InputError(
                f"Reading sentences from {source.place}: it is no regular file, expected {FORMS}; "
                "give one of these."
            )
    return behind


def _behind(path: Path) -> Iterator[Source]:
    if not path.is_dir():
        yield Source(path, path.name)
        return
    is_word = (path / "classes_map.txt").exists() or any(path.glob("*.data.txt"))
    words = [path] if is_word else sorted(p.parent for p in path.glob("*/classes_map.txt"))
    inside = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    files = [] if words else sorted(file for file in inside if file.suffix.lower() in READERS)
    if not words and not files:
        raise InputError(
            f"Reading sentences from the folder {path}: no file in it ends in {', '.join(READERS)},"
            f" and no folder in it is a CoarseWSD-20 word folder; give {FORMS}, or a folder of "
            "these."
        )
    for place in words or files:
        name = last_name(place) if place == path else place.relative_to(path).as_posix()
        yield Source(place, name)


def last_name(place: Path) -> str:
    """The last name only: a page must not carry the folders of somebody's machine."""
    return place.name or place.resolve().name


def sha256_of(source: Source) -> str:
    """The sha256 of a file's bytes; of a word folder, that of the names and sums of the files that
    are read."""
    if not source.place.is_dir():
        return _file_sha256(source.place)
    names = ["classes_map.txt"]
    names += [f"{split}.{kind}.txt" for split in _splits(source.place) for kind in ("data", "gold")]
    return _sha256_of_sums((name, _file_sha256(source.place / name)) for name in names)


def sha256_of_all(files: Sequence[Source]) -> str:
    """The sha256 of one source, or of the names and sums of several."""
    if len(files) == 1:
        return sha256_of(files[0])
    return _sha256_of_sums((source.name, sha256_of(source)) for source in files)


def _sha256_of_sums(sums: Iterator[tuple[str, str]]) -> str:
    listed = "".join(f"{name}\0{sha256}\n" for name, sha256 in sums)
    return hashlib.sha256(listed.encode("utf-8", "surrogateescape")).hexdigest()


def _file_sha256(place: Path) -> str:
    try:
        with place.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(place, error) from error


def stream(source: Source) -> Iterator[FileRow]:
    """The rows of one source, one at a time; a row that cannot be cut carries its flaw.

    Raises InputError for a source that is missing, empty, unreadable or without the columns.
    """
    place = source.place
    read = _read_word_folder if place.is_dir() else READERS.get(place.suffix.lower())
    if read is None:
        got = f"a name ending in {place.suffix!r}" if place.suffix else "a name without an ending"
        raise InputError(
            f"Reading sentences from {place}: got {got}, expected {FORMS}; give one of these."
        )
    rows = read(place)
    first = next(rows, None)
    if first is None:
        raise InputError(_no_rows(place))
    yield first
    yield from rows


def read_table(name: str, given: object) -> list[FileRow]:
    """The rows of a DataFrame, or of what pandas makes one of: a list of dicts, say, or of
    sentences.

    Raises InputError for anything else, and for a table without rows or without the columns.
    """
    import pandas as pd

    if hasattr(given, "to_pandas"):  # a pyarrow.Table, or what other libraries call a table
        given = given.to_pandas()
    try:
        table = pd.DataFrame(given, dtype=object)  # type: ignore[call-overload]
    except (TypeError, ValueError) as error:
        raise InputError(
            f"Reading sentences from {name}: got {type(given).__name__} ({error}), expected a path,"
            " a DataFrame, a list of dicts or of sentences; give one of these."
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
    return (
        f"Reading sentences from {source}: it holds no rows, expected one sentence per row; "
        "add some."
    )


def _require_columns(place: Path | str, columns: Sequence[str]) -> None:
    """Raises InputError where a table lacks a required column."""
    absent = [column for column in REQUIRED if column not in columns]
    if not absent:
        return
    names = ", ".join(absent)
    missing = f"the column {names} is" if len(absent) == 1 else f"the columns {names} are"
    raise InputError(
        f"Reading sentences from {place}: {missing} missing, got {', '.join(columns)}, expected at "
        f"least {' and '.join(REQUIRED)}; rename or add what is missing and read it again."
    )


def _require_content(place: Path) -> None:
    """Raises InputError for a file that is missing, cannot be opened, or holds nothing but white
    space."""
    try:
        with place.open("rb") as opened:
            while part := opened.read(CHUNK):
                if part.strip():
                    return
    except OSError as error:
        raise _unreadable(place, error) from error
    raise InputError(
        f"Reading sentences from {place}: it is empty, expected one sentence per row; add some."
    )


def _unreadable(place: Path, error: OSError) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(
            f"Reading sentences from {place}: there is no such file; give the path of {FORMS}."
        )
    return InputError(
        f"Reading sentences from {place}: it cannot be opened ({error.strerror or error}); make it "
        "readable or give another."
    )


def _lines(place: Path, newline: str) -> Iterator[str]:
    """The lines of a UTF-8 or UTF-16 file with their ends, `newline` as in `open`; raises
    InputError for too long a line."""
    _require_content(place)
    number = 0
    try:
        with place.open("rb") as opened_as_bytes:
            is_utf16 = opened_as_bytes.read(2) in UTF16
        encoding = "utf-16" if is_utf16 else "utf-8-sig"
        # Text is decoded ahead of the line that is asked for, so bytes that are not UTF-8 are
        # marked, not refused.
        with place.open(encoding=encoding, errors="surrogateescape", newline=newline) as opened:
            for number, line in enumerate(iter(partial(opened.readline, LONGEST_LINE + 1), ""), 1):
                if not line.isascii() and NOT_UTF8.search(line):
                    raise InputError(_other_encoding(place, number, is_utf16=is_utf16))
                if len(line) > LONGEST_LINE:
                    raise InputError(
                        f"Reading {place}, line {number}: it is longer than {LONGEST_LINE:,} "
                        "characters, expected one sentence per line; split the line and read it "
                        "again."
                    )
                yield line
    except UnicodeDecodeError as error:  # of UTF-16: bytes below 80 cannot be marked
        raise InputError(_other_encoding(place, number + 1, is_utf16=True)) from error
    except OSError as error:
        raise _unreadable(place, error) from error


def _other_encoding(place: Path, line: int, *, is_utf16: bool) -> str:
    return (
        f"Reading {place}, line {line}: the bytes there are not {'UTF-16' if is_utf16 else 'UTF-8'}"
        "; save the file as UTF-8 (in a spreadsheet: CSV UTF-8) and read it again."
    )


def _read_jsonl(place: Path) -> Iterator[FileRow]:
    columns: dict[str, None] = {}  # of all rows, for a column may be absent in one of them
    for number, line in enumerate(_lines(place, "\n"), 1):
        if line.strip():
            row = _json_row(f"line {number}", line.removesuffix("\n"))
            may_name_more = len(columns) < COLUMNS_NAMED
            columns |= {name: None for name in row.fields if name in REQUIRED or may_name_more}
            yield row
    if columns:
        _require_columns(place, list(columns))


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


def _read_delimited(place: Path, *, usual: str) -> Iterator[FileRow]:
    """The rows of a table in text.

    The header has most of the character between cells: a comma, semicolon, tab or bar; where it has
    none of them, it is the `usual` one of the file's ending. A first line such as "sep=;", which
    spreadsheets write, is skipped.
    """
    lines = _lines(place, "")
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
            _require_once(place, columns)
        elif any(cells) or flaw:  # a spreadsheet ends in rows of empty cells
            if is_first:  # a table without any row says so, whatever its columns are
                _require_columns(place, columns)
                is_first = False
            yield FileRow(where, flaw=flaw) if flaw else _delimited_row(where, columns, cells)


CutRow = tuple[str, list[str], str | None]  # place, cells, and why it could not be cut


def _csv_rows(lines: Iterable[str], delimiter: str) -> Iterator[CutRow]:
    """The rows of a CSV file: a cell in quotation marks may go on over several lines."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    where = "line 1"
    try:
        for cells in reader:
            yield where, cells, None
            where = f"line {reader.line_num + 1}"
    except csv.Error as error:
        reason = f"the quotes or the fields cannot be read ({error}), expected a closed field"
        yield where, [], reason


def _tab_rows(lines: Iterable[str]) -> Iterator[CutRow]:
    """The rows of a TSV file, a line each.

    Quotation marks are ordinary characters, except a pair that encloses a whole cell. A cell that
    opens with one and closes none would have to go on in the next line: it is reported.
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
    """A known column as it is spelled here; any other as it is."""
    known = name.strip().lower()
    return known if known in COLUMNS else name


def _delimited_row(where: str, columns: Sequence[str], cells: Sequence[str]) -> FileRow:
    if len(cells) == len(columns):
        return FileRow(where, dict(zip(columns, cells, strict=True)))
    flaw = (
        f"got {len(cells)} fields, expected the {len(columns)} of the header (a text that holds "
        "the character between fields stands in quotation marks)"
    )
    return FileRow(where, flaw=flaw)


def _require_once(place: Path | str, columns: Sequence[str]) -> None:
    for name in sorted(REQUIRED):
        if columns.count(name) > 1:
            raise InputError(
                f"Reading sentences from {place}: the header has {name!r} twice, expected it once; "
                "rename one of them."
            )


def _read_parquet(place: Path) -> Iterator[FileRow]:
    import pyarrow
    import pyarrow.parquet

    _require_content(place)
    try:
        with pyarrow.parquet.ParquetFile(place, pre_buffer=False) as opened:
            columns = [_column(name) for name in opened.schema_arrow.names]
            _require_columns(place, columns)
            _require_once(place, columns)
            number = 0
            read = [field.name for field in opened.schema_arrow if _is_read(field)]
            for batch in opened.iter_batches(batch_size=BATCH, columns=read):
                for values in batch.to_pylist():
                    number += 1
                    yield FileRow(f"row {number}", {_column(name): values[name] for name in values})
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(
            f"Reading sentences from {place}: it is not a readable Parquet file ({reason}); write "
            "it again."
        ) from error


def _is_read(column: "pyarrow.Field") -> bool:
    """Whether a column is one of a sentence's, or holds numbers or text."""
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
    """A CoarseWSD-20 word folder: the word is the folder's name, the senses are the values of its
    class map."""
    senses = _class_map(folder)
    for split in _splits(folder):
        files = [folder / f"{split}.{kind}.txt" for kind in ("data", "gold")]
        for number, (line, label) in enumerate(zip_longest(*map(lines_of, files)), 1):
            if line is None or label is None:
                sentences, labels = [sum(1 for _ in lines_of(file)) for file in files]
                raise InputError(
                    f"Reading the word folder {folder}: {split}.data.txt has {sentences} lines and "
                    f"{split}.gold.txt {labels}, expected one class per sentence; restore both "
                    "files."
                )
            if label in senses:
                fields = {"word": folder.resolve().name, "sense": senses[label], "split": split}
                yield _folder_row(f"{split}.data.txt line {number}", line, fields)
            else:
                flaw = f"the class is {label!r}, expected one of {', '.join(senses)}"
                yield FileRow(f"{split}.gold.txt line {number}", flaw=flaw)


def _splits(folder: Path) -> list[str]:
    """The parts of a word folder that are there; raises InputError where there is neither."""
    splits = [split for split in ("train", "test") if (folder / f"{split}.data.txt").exists()]
    if not splits:
        raise InputError(
            f"Reading the word folder {folder}: neither train.data.txt nor test.data.txt is there, "
            "expected at least one; give a complete CoarseWSD-20 word folder."
        )
    return splits


def lines_of(place: Path) -> Iterator[str]:
    """The lines of a text file, without their ends; InputError for a file that cannot be read."""
    return (line.removesuffix("\n").removesuffix("\r") for line in _lines(place, "\n"))


def _class_map(folder: Path) -> dict[str, str]:
    place = folder / "classes_map.txt"
    if not place.exists():
        raise InputError(
            f"Reading the folder {folder}: classes_map.txt is not there, expected a CoarseWSD-20 "
            "word folder; give such a folder, or a JSONL, CSV, TSV or Parquet file."
        )
    try:
        senses = json.loads("".join(_lines(place, "\n")))
    except (ValueError, RecursionError):
        senses = None
    if not isinstance(senses, dict) or not all(isinstance(sense, str) for sense in senses.values()):
        raise InputError(
            f'Reading {place}: got no class map, expected a JSON object such as {{"0": '
            '"bank_bank"}; restore the file.'
        )
    return senses


def _folder_row(where: str, line: str, fields: Mapping[str, object]) -> FileRow:
    """A line with the number of a word, a tab and the sentence, its words divided by one space."""
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
