"""Sentences with one marked word: the record, and what turns a file of rows into checked records.

A row that cannot be used stops the reading with its place and its reason. A row that a rule leaves
out (a repetition, another word than the one asked for) is counted with the rule, so that the rows
used and the rows left out always add up to the file.

Where a row gives no `start` and `end`, `probe.text.spans` finds the word: as a word of its own,
with capital letters or without, with -s or -es (so the possessive too: the span of "Bank's" is
"Bank"). It has to occur once. A span that is given is trusted, whatever form of the word it marks:
*mice* of mouse, *carried* of carry. The words of a `cue` are found in the same way, where a row
gives no `cue_start` and `cue_end`.
"""

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from probe.errors import InputError
from probe.text.files import (
    COLUMNS,
    REQUIRED,
    FileRow,
    Source,
    last_name,
    read_table,
    sha256_of_all,
    sources,
    stream,
)
from probe.text.spans import absence, spans_of

LEXICON = "the lexicon of probe"
NATURAL = "sentences in natural English composed for probe"
REPEATS = "repeats the sentence, span and sense of"
# Longer than any window that is read here, and cheap to refuse before the text is cut into tokens.
LONGEST_TEXT = 100_000

WORDS_NAMED = 3  # in the name of a corpus

_WHOLE_NUMBER = re.compile(r"[+-]?\d{1,15}(\.0+)?")
_DECIMAL = re.compile(r"[+-]?\d{1,15}(\.\d{1,17})?([eE][+-]?\d{1,3})?")
_WHOLE_NUMBERS = ("start", "end", "cue_start", "cue_end", "distance")
# May be whole numbers; a pair of sentences 7 is as good a name as "seven".
_NAMES = ("sense", "frame", "pair", "cue")


@dataclass(frozen=True)
class Sentence:
    """One sentence and the position of the ambiguous word in it.

    `start` and `end` are the characters of the word in `text`, which may be a form that contains
    `word` (apples); `cue_start` and `cue_end` those of the word that tells the sense, where it is
    known; `cue_inferred`: it is not marked, its pair shows it. Two sentences with the same `pair`
    are aligned: they differ in the cue only. `distance`
    is the number of tokens from the cue to the word (1: directly before), 4 standing for 4 and
    more. `where` is the file and the row it was read from, `more` the file's further columns with
    their values, numbers or text; sentences that differ in these alone are equal. Raises InputError
    for an empty text, word or sense, or a span outside the text.
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
    cue_inferred: bool = False
    where: str | None = field(default=None, compare=False, repr=False)
    more: tuple[tuple[str, float | str], ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if flaw := _text_flaw(vars(self)) or _number_flaw(vars(self)) or _span_flaw(vars(self)):
            raise InputError(f"Making a sentence: {flaw}; correct it and try again.")

    @property
    def form(self) -> str:
        """The characters of the word, as they are in the text: *mice* for mouse."""
        return self.text[self.start : self.end]

    @property
    def cue(self) -> str | None:
        """The characters of the cue, None where it is not known."""
        return None if self.cue_start is None else self.text[self.cue_start : self.cue_end]

    @property
    def cue_word(self) -> str | None:
        """The cue without regard to capital letters: what is kept apart, resampled and exchanged as
        a whole."""
        return None if self.cue is None else self.cue.casefold()

    @property
    def cue_after(self) -> bool:
        """Whether the cue is known to come after the word, so that a causal model cannot have used
        it there."""
        return self.cue_start is not None and self.cue_start >= self.end


@dataclass(frozen=True)
class LeftOut:
    """A sentence that a rule leaves out: where it stood and which rule."""

    where: str
    reason: str


@dataclass(frozen=True)
class Corpus:
    """Sentences from one source, with those left out; `sha256` is that of the bytes they were read
    from."""

    sentences: tuple[Sentence, ...]
    left_out: tuple[LeftOut, ...]
    source: str
    sha256: str

    def __repr__(self) -> str:
        words = list(self.by_word())
        names = ", ".join(words[:WORDS_NAMED])
        if len(words) > WORDS_NAMED:
            names += f" and {len(words) - WORDS_NAMED} more words"
        return (
            f"<Corpus {self.source}: {len(self.sentences)} sentences of {names}, "
            f"{len(self.left_out)} left out>"
        )

    @property
    def repeated(self) -> int:
        """How many rows were left out because they repeat another one."""
        return sum(item.reason.startswith(REPEATS) for item in self.left_out)

    def by_word(self) -> dict[str, list[Sentence]]:
        """The sentences of each word, words in order of first appearance."""
        of_words: dict[str, list[Sentence]] = {}
        for sentence in self.sentences:
            of_words.setdefault(sentence.word, []).append(sentence)
        return of_words

    @property
    def further_columns(self) -> tuple[str, ...]:
        """The names of columns that a sentence does not have of itself, in order of appearance."""
        names = (name for sentence in self.sentences for name, _ in sentence.more)
        return tuple(dict.fromkeys(names))

    @property
    def is_lexicon(self) -> bool:
        """Whether these are the sentences that ship, whose cues are single words before the
        target."""
        return self.source == LEXICON


# What stands where a file is named.
TABLE = Source(Path("a table made in Python"), "a table made in Python")


def read_sentences(given: Any, *, word: str | None = None) -> Corpus:
    """The sentences of a file, of a folder of files, or of a table made in Python (a DataFrame, a
    list of dicts).

    A file is JSONL, CSV, TSV or Parquet, or a CoarseWSD-20 word folder. Only sentences of `word` if
    given; a row that names no word is about that one. Columns: word, sense, text, and optionally
    start, end (characters; without them the word is found, where it stands in the text once),
    cue (its words, which are found in the same way) or cue_start and cue_end, frame, pair,
    distance, split; numbers and text of others are kept as `more`, and named in
    `further_columns`.
    Raises InputError, naming the file, the place and the reason, when anything cannot be read as it
    stands.

    Example:
        >>> rows = [
        ...     {"word": "bank", "sense": "river", "text": "The old tree by the bank"},
        ...     {"word": "bank", "sense": "money", "text": "A loan from the bank"},
        ... ]
        >>> corpus = probe.read_sentences(rows)
        >>> len(corpus.sentences), corpus.sentences[0].start  # the word's first character
        (2, 20)
    """
    return _read(given, word, only=word)


def as_corpus(given: Any, words: Sequence[str] | str | None = None) -> Corpus:
    """A Corpus as it is, else what `read_sentences` takes or a list of paths, all of it.

    Rows that name no word are about the word of `words`, where that is one.
    """
    if isinstance(given, Corpus):
        return given
    if isinstance(words, str):
        return _read(given, words)
    names = {str(word) for word in words} if isinstance(words, Collection) else set()
    return _read(given, names.pop() if len(names) == 1 else None)


def _read(given: Any, word: str | None, *, only: str | None = None) -> Corpus:
    """`word` is what rows without one are about; sentences of other words than `only`, if given,
    are left out."""
    if isinstance(given, str | Path):
        given = [given]
    if isinstance(given, list) and given and all(isinstance(one, str | Path) for one in given):
        places = [Path(one) for one in given]
        files = sources(places)
        rows = stream_sentences(files, word)
        named = " and ".join(map(str, places))
        sentences, left_out = _select(rows, named, only, several=len(files) > 1)
        source = " and ".join(map(last_name, places))
        return Corpus(sentences, left_out, source, sha256_of_all(files))
    table = read_table(TABLE.name, given)
    checked = _checked(((TABLE, row) for row in table), word)
    sentences, left_out = _select(checked, TABLE.place, only)
    content = json.dumps([dict(row.fields) for row in table], default=str).encode()
    return Corpus(sentences, left_out, TABLE.name, hashlib.sha256(content).hexdigest())


def join(corpora: Sequence[Corpus]) -> Corpus:
    """Several corpora as one: their names, and the sha256 of the one sum, or of the sums of
    several."""
    sums = list(dict.fromkeys(corpus.sha256 for corpus in corpora))
    sha256 = sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()
    return Corpus(
        sentences=tuple(sentence for corpus in corpora for sentence in corpus.sentences),
        left_out=tuple(item for corpus in corpora for item in corpus.left_out),
        source=" and ".join(dict.fromkeys(corpus.source for corpus in corpora)),
        sha256=sha256,
    )


Rows = Iterator[tuple[Source, str, Sentence]]  # source, place and sentence


def _select(
    rows: Rows, place: Path | str, word: str | None, *, several: bool = False
) -> tuple[tuple[Sentence, ...], tuple[LeftOut, ...]]:
    """The sentences of `word` (None: of all), each once, and those left out; InputError where there
    is none."""
    first: dict[tuple[object, ...], str] = {}  # where a sentence stood first
    sentences = []
    left_out = []
    words = set()
    for source, where, sentence in rows:
        where = source.label(where) if several else where
        words.add(sentence.word)
        identity = (sentence.word, sentence.sense, sentence.text, sentence.start, sentence.end)
        if word is not None and sentence.word != word:
            left_out.append(LeftOut(where, f"about another word than {word!r}"))
        elif identity in first:
            left_out.append(LeftOut(where, f"{REPEATS} {first[identity]}"))
        else:
            first[identity] = where
            sentences.append(sentence)
    if not sentences:
        raise InputError(
            f"Reading sentences with {word!r} from {place}: none of the {len(left_out)} sentences "
            f"has it, the words there are {', '.join(sorted(words))}; ask for one of these."
        )
    _require_senses_apart(sentences, place)
    return tuple(sentences), tuple(left_out)


def _require_senses_apart(sentences: Sequence[Sentence], place: Path | str) -> None:
    """Raises InputError for two senses of a word that differ in capital letters alone."""
    spelled: dict[tuple[str, str], str] = {}
    for sentence in sentences:
        first = spelled.setdefault((sentence.word, sentence.sense.casefold()), sentence.sense)
        if first != sentence.sense:
            raise InputError(
                f"Reading sentences from {place}: {sentence.word!r} has the senses {first!r} and "
                f"{sentence.sense!r}, which differ in capital letters alone; write them alike, or "
                "give them other names."
            )


def stream_sentences(files: Sequence[Source], word: str | None = None) -> Rows:
    """Source, place and sentence of every row up to the first bad one, which the InputError at the
    end names."""
    return _checked(((source, row) for source in files for row in stream(source)), word)


def _checked(given: Iterable[tuple[Source, FileRow]], word: str | None) -> Rows:
    """The rows as sentences up to the first bad one; all rows are read, to count the bad ones."""
    first_flaw = None
    bad = 0
    rows = 0
    for source, row in given:
        rows += 1
        values, flaw = check_row(row, word)
        if flaw:
            bad += 1
            first_flaw = first_flaw or f"Reading {source.place}, {row.where}: {flaw}"
        elif not bad:
            where = f"{source.place}, {row.where}"
            del values["cue"]  # found: cue_start and cue_end say where
            yield source, row.where, Sentence(**values, where=where, more=_further(row.fields))
    if first_flaw:
        verb = "is" if bad == 1 else "are"
        raise InputError(
            f"{first_flaw} ({bad} of {rows} rows {verb} bad); correct the file and read it again."
        )


def check_row(row: FileRow, word: str | None = None) -> tuple[dict[str, Any], str | None]:
    """The known fields of a row, written alike whatever the file, and why they are no sentence
    (None: they are one).

    A row that names no word is about `word`; one that places no word, or no cue, has it where it
    stands.
    """
    values = _normal(row.fields)
    values["word"] = word if values["word"] is None else values["word"]
    flaw = row.flaw or _text_flaw(values) or _find(values, "word", ("start", "end"))
    flaw = flaw or _number_flaw(values)
    if not flaw and values["cue"] is not None:
        flaw = _find(values, "cue", ("cue_start", "cue_end"))
    return values, flaw or _span_flaw(values)


def _find(values: dict[str, Any], name: str, ends: tuple[str, str]) -> str | None:
    """Put in where the word or the cue of a row is, unless the row says so; or why that cannot be
    told."""
    if any(values[end] is not None for end in ends):
        return None
    wanted = values[name]
    spans = spans_of(wanted, values["text"])
    if name == "cue" and len(spans) > 1:
        # A cue may be a form of the word itself: "the notes of a note".
        spans = [span for span in spans if not _overlap(span, (values["start"], values["end"]))]
    if len(spans) == 1:
        values[ends[0]], values[ends[1]] = spans[0]
        return None
    found = f"{len(spans)} times" if spans else absence(wanted, values["text"])
    about = "the cue " if name == "cue" else ""
    return (
        f"the text has {about}{wanted!r} {found}, expected it once, as a word of its own (with "
        f"capital letters or without, with -s, -es or 's), or {ends[0]} and {ends[1]} to say where"
    )


def _overlap(span: tuple[int, int], word: tuple[int, int]) -> bool:
    return span[0] < word[1] and word[0] < span[1]


def _normal(values: Mapping[str, object]) -> dict[str, Any]:
    """Only the known columns, numbers written as text read as numbers, empty optional fields as
    missing."""
    normal: dict[str, Any] = {}
    for column in COLUMNS:
        value = values.get(column)
        value = value.item() if isinstance(value, np.generic) else value
        missing = value is None or (isinstance(value, float) and math.isnan(value))
        if missing or (value == "" and column not in REQUIRED):
            normal[column] = None
        elif column in _WHOLE_NUMBERS:
            normal[column] = _number(value)
        elif column in _NAMES:
            normal[column] = _name(value)
        else:
            normal[column] = value
    return normal


def _further(fields: Mapping[str, object]) -> tuple[tuple[str, float | str], ...]:
    """The columns that no sentence has of itself, with what they hold, numbers as numbers; empty
    ones, and those that hold anything else, are not there."""
    further: list[tuple[str, float | str]] = []
    for name, value in fields.items():
        if name == "more" and isinstance(value, tuple):  # of a sentence that was read before
            further.extend(value)
        elif name not in COLUMNS and name != "where":
            kept = _number_or_text(value)
            further += [] if kept is None else [(name, kept)]
    return tuple(further)


def _number_or_text(value: object) -> float | str | None:
    """A finite number, from its text too; other text as it is; None for nothing and all else."""
    if isinstance(value, str):
        text = value.strip()
        if _DECIMAL.fullmatch(text):
            return _number_or_text(float(text))
        return text or None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def _name(value: object) -> object:
    """The text of a whole number or of True, which pandas makes of such a column of a file; text
    without white space around it; anything else as it is."""
    value = _number(value) if isinstance(value, float) else value
    return str(value).strip() if isinstance(value, str | int) else value


def _number(value: object) -> object:
    """A whole number from its text or a float without fraction (tables with gaps store those); else
    what it was."""
    if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value.strip()):
        return int(value.strip().partition(".")[0])
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _text_flaw(values: Mapping[str, Any]) -> str | None:
    if values["word"] is None:
        return "word is missing, expected a column that names it, or one word named for all rows"
    for column in ("word", *REQUIRED, *_NAMES, "split"):
        value = values.get(column)  # a Sentence has no `cue` beside its span
        if value is None:
            if column in REQUIRED:
                return f"{column} is missing, expected text"
        elif not isinstance(value, str):
            expected = "text or a whole number" if column in _NAMES else "text"
            return f"{column} is {value!r}, expected {expected}"
        elif not value.strip():
            return f"{column} is empty, expected text"
        elif any("\ud800" <= character <= "\udfff" for character in value):
            return f"{column} holds half of a surrogate pair ({value!r}), expected whole characters"
    if len(values["text"]) > LONGEST_TEXT:
        return f"the text has {len(values['text']):,} characters, expected at most {LONGEST_TEXT:,}"
    return None


def _number_flaw(values: Mapping[str, Any]) -> str | None:
    for column in _WHOLE_NUMBERS:
        value = values[column]
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            return f"{column} is {value!r}, expected a whole number"
    for start, end in (("start", "end"), ("cue_start", "cue_end")):
        if (values[start] is None) != (values[end] is None):
            present, absent = (end, start) if values[start] is None else (start, end)
            return f"{present} is given without {absent}, expected both or neither"
    distance = values["distance"]
    if distance is None or 1 <= distance <= LONGEST_TEXT:
        return None
    expected = "1 or more" if distance < 1 else "the number of tokens from the cue to the word"
    return f"distance is {distance}, expected {expected}"


def _span_flaw(values: Mapping[str, Any]) -> str | None:
    text = values["text"]
    start = values["start"]
    end = values["end"]
    cue_start = values["cue_start"]
    cue_end = values["cue_end"]
    if start is None:
        return "start and end are missing, expected the characters of the word"
    for name, low, high in (("the word", start, end), ("the cue", cue_start, cue_end)):
        if low is None:
            continue
        span = f"{name} is at characters {low} to {high}"
        if not 0 <= low < high <= len(text):
            return f"{span}, expected a span within the {len(text)} characters of the text"
        if not text[low:high].strip():
            return f"{span}, which are blank, expected the characters of a word"
    if cue_start is not None and _overlap((cue_start, cue_end), (start, end)):
        cue = f"the cue at characters {cue_start} to {cue_end}"
        return f"{cue} overlaps the word, expected another word"
    return None
