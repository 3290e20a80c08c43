"""Files of sentences read row by row, in memory that does not grow with the file.

The rows, flaws and sentences of refusal are those of `probe.sentence_files`, which reads a whole file at once. What could not be
read in little memory is refused: a line of more than LONGEST_LINE characters, and anything that is not a regular file.
"""

import csv
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from probe import sentence_files
from probe.errors import InputError
from probe.sentence_files import FORMS, REQUIRED, Row

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
            yield sentence_files.json_row(f"line {number}", line.removesuffix("\n"))


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
    columns = sentence_files.header(place, cells)
    sentence_files.require_columns(place, columns)
    return columns


def _stream_parquet(place: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(place, pre_buffer=False) as opened:
            columns = opened.schema_arrow.names
            sentence_files.require_columns(place, columns)
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
    senses = sentence_files.class_map(folder)
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
            yield sentence_files.folder_row(f"{split}.data.txt line {number}", line, given)


KNOWN = frozenset((*REQUIRED, "frame", "pair", "cue_start", "cue_end", "distance", "split"))
STREAMS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _stream_jsonl,
    ".csv": _stream_csv,
    ".tsv": _stream_tsv,
    ".parquet": _stream_parquet,
}
