"""Sentences with one marked word: the record, and what turns a file of rows into checked records.

A row that cannot be used stops the reading with its place and its reason. A row that a rule leaves out (a repetition, another
word than the one asked for) is counted with the rule, so that the rows used and the rows left out always add up to the file.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from probe.errors import InputError
from probe.text import files
from probe.text.files import REQUIRED, Row

LEXICON = "the lexicon of probe"
REPEATS = "repeats the sentence, span and sense of"

_WHOLE_NUMBER = re.compile(r"[+-]?\d{1,15}(\.0+)?")
_WHOLE_NUMBERS = ("start", "end", "cue_start", "cue_end", "distance")


@dataclass(frozen=True)
class Sentence:
    """One sentence and the place of the ambiguous word in it.

    `start` and `end` are the characters of the word in `text`, which may be a form that contains `word` (apples); `cue_start` and
    `cue_end` those of the word that tells the sense, where it is known. Two sentences with the same `pair` are aligned: they
    differ in the cue only. `distance` is the number of tokens from the cue to the word (1: directly before), 4 standing for
    4 and more. `where` is the file and the row it was read from; sentences that differ in it alone are equal. Raises InputError for an empty text, word or sense, or a span outside the text.
    """

    word: str
    sense: str
    text: str
    start: int
    end: int
    frame: str | None = None
    pair: str | None = None
    cue_start: int | None = None
    cue_end: int | None = None
    distance: int | None = None
    split: str | None = None
    where: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        flaw = _flaw(vars(self))
        if flaw:
            raise InputError(f"Making a sentence: {flaw}; correct it and try again.")


# A row's place is not written in the row.
_COLUMNS = tuple(column.name for column in fields(Sentence) if column.compare)


@dataclass(frozen=True)
class LeftOut:
    """A sentence that a rule leaves out: where it stood and which rule."""

    where: str
    reason: str


@dataclass(frozen=True)
class Corpus:
    """Sentences from one source, with those left out; `sha256` is that of the bytes they were read from."""

    sentences: tuple[Sentence, ...]
    left_out: tuple[LeftOut, ...]
    source: str
    sha256: str

    @property
    def is_lexicon(self) -> bool:
        """Whether these are the sentences that ship, whose cues are single words before the target."""
        return self.source == LEXICON


def read_sentences(path: str | Path, *, word: str | None = None) -> Corpus:
    """The sentences of a JSONL, CSV, TSV or Parquet file, or of a CoarseWSD-20 word folder; only those of `word` if given.

    Columns: word, sense, text, start, end (characters), and optionally frame, pair, cue_start, cue_end, distance, split; others
    are ignored. Raises InputError, naming the file, the place and the reason, when anything cannot be read as it stands.
    """
    place = Path(path)
    table = files.read_table(place)
    sentences = _checked(place, table.rows)
    kept, left_out = _apply_rules(sentences, [row.where for row in table.rows], word)
    if not kept:
        found = ", ".join(sorted({sentence.word for sentence in sentences}))
        raise InputError(
            f"Reading sentences with {word!r} from {place}: none of the {len(sentences)} sentences has it, "
            f"the words there are {found}; ask for one of these."
        )
    return Corpus(kept, left_out, _source_of(place), table.sha256)


def check_row(row: Row) -> tuple[dict[str, Any], str | None]:
    """The known fields of a row, written alike whatever the file, and why they are no sentence (None: they are one)."""
    values = _normal(row.fields)
    return values, row.flaw or _flaw(values)


def bad_rows(place: object, where: str, flaw: str, *, bad: int, rows: int) -> InputError:
    """The refusal of a file with bad rows, which names the first of them."""
    count = f"{bad} of {rows} rows {'is' if bad == 1 else 'are'} bad"
    return InputError(f"Reading {place}, {where}: {flaw} ({count}); correct the file and read it again.")


def _checked(place: Path, rows: Sequence[Row]) -> list[Sentence]:
    found = [check_row(row) for row in rows]
    bad = [(row.where, flaw) for row, (_, flaw) in zip(rows, found, strict=True) if flaw]
    if bad:
        raise bad_rows(place, *bad[0], bad=len(bad), rows=len(rows))
    return [Sentence(**values, where=f"{place}, {row.where}") for (values, _), row in zip(found, rows, strict=True)]


def _apply_rules(
    sentences: Sequence[Sentence], places: Sequence[str], word: str | None
) -> tuple[tuple[Sentence, ...], tuple[LeftOut, ...]]:
    first: dict[tuple[object, ...], str] = {}
    kept, left_out = [], []
    for sentence, where in zip(sentences, places, strict=True):
        identity = (sentence.word, sentence.sense, sentence.text, sentence.start, sentence.end)
        if word is not None and sentence.word != word:
            left_out.append(LeftOut(where, f"about another word than {word!r}"))
        elif identity in first:
            left_out.append(LeftOut(where, f"{REPEATS} {first[identity]}"))
        else:
            first[identity] = where
            kept.append(sentence)
    return tuple(kept), tuple(left_out)


def _source_of(place: Path) -> str:
    """The last name only: a page must not carry the folders of somebody's machine."""
    return place.name or place.resolve().name


def _normal(values: Mapping[str, object]) -> dict[str, Any]:
    """Only the known columns, numbers written as text read as numbers, empty optional fields as missing."""
    normal: dict[str, Any] = {}
    for column in _COLUMNS:
        value = values.get(column)
        missing = value is None or (isinstance(value, float) and math.isnan(value))
        if missing or (value == "" and (column not in REQUIRED or column in _WHOLE_NUMBERS)):
            normal[column] = None
        else:
            normal[column] = _number(value) if column in _WHOLE_NUMBERS else value
    return normal


def _number(value: object) -> object:
    """A whole number from its text or from a float without fraction (tables with gaps store those); else what it was."""
    if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value.strip()):
        return int(value.strip().partition(".")[0])
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _flaw(values: Mapping[str, Any]) -> str | None:
    """Why these fields are no sentence, or None: what was got and what was expected."""
    return _text_flaw(values) or _number_flaw(values) or _span_flaw(values)


def _text_flaw(values: Mapping[str, Any]) -> str | None:
    for column in ("word", "sense", "text", "frame", "pair", "split"):
        value = values[column]
        if value is None:
            if column in REQUIRED:
                return f"{column} is missing, expected text"
        elif not isinstance(value, str):
            return f"{column} is {value!r}, expected text"
        elif not value.strip():
            return f"{column} is empty, expected text"
        elif any("\ud800" <= character <= "\udfff" for character in value):
            return f"{column} holds half of a surrogate pair ({value!r}), expected whole characters"
    return None


def _number_flaw(values: Mapping[str, Any]) -> str | None:
    for column in _WHOLE_NUMBERS:
        value = values[column]
        if value is None:
            if column in REQUIRED:
                return f"{column} is missing, expected a whole number"
        elif not isinstance(value, int) or isinstance(value, bool):
            return f"{column} is {value!r}, expected a whole number"
    if values["distance"] is not None and values["distance"] < 1:
        return f"distance is {values['distance']}, expected 1 or more"
    if (values["cue_start"] is None) != (values["cue_end"] is None):
        given, absent = ("cue_end", "cue_start") if values["cue_start"] is None else ("cue_start", "cue_end")
        return f"{given} is given without {absent}, expected both or neither"
    return None


def _span_flaw(values: Mapping[str, Any]) -> str | None:
    text, start, end = values["text"], values["start"], values["end"]
    for name, low, high in (("the word", start, end), ("the cue", values["cue_start"], values["cue_end"])):
        if low is None:
            continue
        if not 0 <= low < high <= len(text):
            return f"{name} is at characters {low} to {high}, expected a span within the {len(text)} characters of the text"
        if not text[low:high].strip():
            return f"{name} is at characters {low} to {high}, which are blank, expected the characters of a word"
    if values["cue_start"] is not None and values["cue_start"] < end and start < values["cue_end"]:
        return f"the cue at characters {values['cue_start']} to {values['cue_end']} overlaps the word, expected another word"
    return None
