"""Sentences with one marked word, and the checks that turn the rows of a file into them.

A row that cannot be used raises InputError with its location and the reason. A row that is left out
by a rule (a repetition, another word than the requested one) is recorded with the rule, so that the
rows used and the rows left out always add up to the file.

If a row has no `start` and `end`, `probe.text.spans` finds the word: as a whole word, with or
without capital letters, with -s or -es (and so the possessive: the span of "Bank's" is "Bank"). It
must occur once. A span in the file may mark any form of the word: *mice* for mouse, *carried* for
carry. It must consist of whole letters, and not be a part of another word. The words of a `cue` are
found in the same way if a row has no `cue_start` and `cue_end`.
"""

import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
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
    rows_of,
    sha256_of_all,
    sources,
)
from probe.text.spans import (
    absence,
    covers_letters,
    fold,
    from_utf16,
    may_be_form,
    plain,
    spans_of,
)

REPEATS = "repeats the sentence, span and sense of"
# Characters: longer than the context of any supported model. The check is cheap compared with
# tokenising such a text.
LONGEST_TEXT = 100_000

WORDS_NAMED = 3  # in the repr of a corpus

_WHOLE_NUMBER = re.compile(r"[+-]?\d{1,15}(\.0+)?")
_DECIMAL = re.compile(r"[+-]?\d{1,15}(\.\d{1,17})?([eE][+-]?\d{1,3})?")
_HALF_OF_A_PAIR = re.compile("[\ud800-\udfff]")  # a surrogate, which is no character
_ENDS = ("start", "end", "cue_start", "cue_end")
_WHOLE_NUMBERS = (*_ENDS, "distance")
# Names, which may be whole numbers: a pair of sentences may be called 7.
_NAMES = ("sense", "frame", "pair", "cue")
# Stored in one spelling (`probe.text.spans.plain`), so that equal names are equal strings.
_PLAIN = ("word", "sense", "frame", "pair", "split")


@dataclass(frozen=True)
class Sentence:
    """One sentence with the position of the ambiguous word.

    Word, sense, frame, pair and split are stored in one spelling, see `probe.text.spans.plain`.
    Sentences that differ only in `where` and `more` are equal.

    Raises InputError for an empty text, word or sense, or a span outside the text.
    """

    word: str
    sense: str
    text: str
    start: int  # first character of the word, which may be in another form in the text (apples)
    end: int
    frame: str | None = None
    pair: str | None = None  # two sentences with the same pair are aligned: only the cue differs
    cue_start: int | None = None  # first character of the word that determines the sense
    cue_end: int | None = None
    distance: int | None = None  # tokens from the cue to the word; 4 means four or more
    split: str | None = None
    cue_inferred: bool = False  # whether the cue is inferred from the pair instead of marked
    where: str | None = field(default=None, compare=False, repr=False)  # file and row
    # The further columns of the file with their values, numbers or text.
    more: tuple[tuple[str, float | str], ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in _PLAIN:
            if isinstance(value := getattr(self, name), str):
                object.__setattr__(self, name, plain(value))
        if flaw := _text_flaw(vars(self)) or _number_flaw(vars(self)) or _span_flaw(vars(self)):
            raise InputError(f"Cannot make a sentence: {flaw}. Correct it and try again.")

    @property
    def form(self) -> str:
        """The word as it is written in the text: *mice* for mouse."""
        return self.text[self.start : self.end]

    @property
    def cue(self) -> str | None:
        """The cue as it is written in the text. None if it is not marked."""
        return None if self.cue_start is None else self.text[self.cue_start : self.cue_end]

    @cached_property  # choosing donors compares every two sentences of a sense
    def cue_word(self) -> str | None:
        """The cue as it is compared (`probe.text.spans.fold`): the unit of holdouts, the bootstrap
        and permutations.
        """
        return None if self.cue is None else fold(self.cue)

    @property
    def cue_after(self) -> bool:
        """Whether the cue is marked after the word, where a causal model cannot have read it."""
        return self.cue_start is not None and self.cue_start >= self.end


@dataclass(frozen=True)
class LeftOut:
    """A sentence that is left out."""

    where: str  # its location
    reason: str


@dataclass(frozen=True)
class Corpus:
    """Sentences from one source."""

    sentences: tuple[Sentence, ...]
    left_out: tuple[LeftOut, ...]
    source: str  # name
    sha256: str  # of the bytes of the source

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
        """The number of rows that were left out because they repeat another row."""
        return sum(item.reason.startswith(REPEATS) for item in self.left_out)

    def by_word(self) -> dict[str, list[Sentence]]:
        """The sentences of each word, by word in the order of first appearance."""
        of_words: dict[str, list[Sentence]] = {}
        for sentence in self.sentences:
            of_words.setdefault(sentence.word, []).append(sentence)
        return of_words

    @property
    def further_columns(self) -> tuple[str, ...]:
        """The names of the further columns of the source, in the order of first appearance."""
        names = (name for sentence in self.sentences for name, _ in sentence.more)
        return tuple(dict.fromkeys(names))


# The source of a table made in Python.
TABLE = Source(Path("a table made in Python"), "a table made in Python")


def read_sentences(source: Any, *, word: str | None = None, utf16: bool = False) -> Corpus:
    """The sentences of a file, of a folder of files, or of a table made in Python (a DataFrame, a
    list of dicts).

    source: the path of a JSONL, CSV, TSV or Parquet file, of a CoarseWSD-20 word folder, or of a
        folder of these; or a table
    word: if given, only its sentences are returned, and rows without a word are about it
    utf16: whether start, end, cue_start and cue_end count UTF-16 units, as JavaScript does, instead
        of characters

    The columns are word, sense, text, and optionally start and end (characters; without them the
    word is found if it occurs once), cue (its words, which are found in the same way) or cue_start
    and cue_end, frame, pair, distance and split. Numbers and text of further columns are stored in
    `Sentence.more`, and `Corpus.further_columns` has their names.

    Raises InputError with the file, the location and the reason for anything that cannot be read.

    Example:
        >>> rows = [
        ...     {"word": "bank", "sense": "river", "text": "The old tree by the bank"},
        ...     {"word": "bank", "sense": "money", "text": "A loan from the bank"},
        ... ]
        >>> corpus = probe.read_sentences(rows)
        >>> len(corpus.sentences), corpus.sentences[0].start  # the word's first character
        (2, 20)
    """
    return _read(source, word, only=word, utf16=utf16)


def as_corpus(
    source: Any, words: Sequence[str] | str | None = None, *, utf16: bool = False
) -> Corpus:
    """A corpus with all sentences of a source. A Corpus is returned unchanged.

    source: a Corpus, an argument of `read_sentences`, or a list of paths
    words: if it is a single word, rows without a word are about it
    utf16: as in `read_sentences`
    """
    if isinstance(source, Corpus):
        return source
    if isinstance(words, str):
        return _read(source, words, utf16=utf16)
    names = {str(word) for word in words} if isinstance(words, Collection) else set()
    return _read(source, names.pop() if len(names) == 1 else None, utf16=utf16)


def _read(source: Any, word: str | None, *, only: str | None = None, utf16: bool = False) -> Corpus:
    """The sentences of a source.

    word: the word of rows without a word
    only: if given, sentences of other words are left out
    """
    word, only = (plain(name) if isinstance(name, str) else name for name in (word, only))
    if isinstance(source, str | Path):
        source = [source]
    if isinstance(source, list) and source and all(isinstance(p, str | Path) for p in source):
        paths = [Path(path) for path in source]
        files = sources(paths)
        read = [(source, row) for source in files for row in rows_of(source)]
        rows = _checked(read, word, utf16=utf16)
        full_names = " and ".join(map(str, paths))
        sentences, left_out = _select(rows, full_names, only, several=len(files) > 1)
        name = " and ".join(map(last_name, paths))
        return Corpus(sentences, left_out, name, sha256_of_all(files))
    table = read_table(TABLE.name, source)
    checked = _checked([(TABLE, row) for row in table], word, utf16=utf16)
    sentences, left_out = _select(checked, TABLE.name, only)
    content = json.dumps([dict(row.fields) for row in table], default=str).encode()
    return Corpus(sentences, left_out, TABLE.name, hashlib.sha256(content).hexdigest())


def join(corpora: Sequence[Corpus]) -> Corpus:
    """Several corpora as one.

    The source joins their names. The sha256 is that of the sums, if they differ.
    """
    sums = list(dict.fromkeys(corpus.sha256 for corpus in corpora))
    sha256 = sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()
    return Corpus(
        sentences=tuple(sentence for corpus in corpora for sentence in corpus.sentences),
        left_out=tuple(item for corpus in corpora for item in corpus.left_out),
        source=" and ".join(dict.fromkeys(corpus.source for corpus in corpora)),
        sha256=sha256,
    )


Rows = list[tuple[Source, str, Sentence]]  # source, location and sentence


def _select(
    rows: Rows, source_name: str, word: str | None, *, several: bool = False
) -> tuple[tuple[Sentence, ...], tuple[LeftOut, ...]]:
    """The sentences of a word without repetitions, and the sentences that are left out.

    source_name: in error messages
    word: None for all words
    several: whether the rows are from several sources

    Raises InputError if the word has no sentences.
    """
    first: dict[tuple[object, ...], str] = {}  # the location of the first of equal sentences
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
            f"Cannot read sentences with {word!r} from {source_name}: none of the {len(left_out)} "
            f"sentences has it. Give one of the words that occur: {', '.join(sorted(words))}."
        )
    _require_distinct_senses(sentences, source_name)
    return tuple(sentences), tuple(left_out)


def _require_distinct_senses(sentences: Sequence[Sentence], source_name: str) -> None:
    """Raises InputError for two senses of a word that differ in capital letters or joiners only."""
    spellings: dict[tuple[str, str], str] = {}
    for sentence in sentences:
        first = spellings.setdefault((sentence.word, fold(sentence.sense)), sentence.sense)
        if first != sentence.sense:
            raise InputError(
                f"Cannot read sentences from {source_name}: {sentence.word!r} has the senses "
                f"{first!r} and {sentence.sense!r}, which differ in capital letters or joiners "
                "only. Use one spelling, or different names."
            )


def _checked(rows: Sequence[tuple[Source, FileRow]], word: str | None, *, utf16: bool) -> Rows:
    """The source, location and sentence of every row.

    word: the word of rows without a word
    utf16: as in `read_sentences`

    Raises InputError with the first bad row and the number of bad rows.
    """
    checked = [(source, row, *check_row(row, word, utf16=utf16)) for source, row in rows]
    bad = [(source, row, flaw) for source, row, _, flaw in checked if flaw]
    if bad:
        source, row, flaw = bad[0]
        verb = "is" if len(bad) == 1 else "are"
        step = "Correct the file and read it again."
        if not utf16 and not any(check_row(row, word, utf16=True)[1] for _, row in rows):
            step = (
                "The spans look like JavaScript's, which count characters beyond U+FFFF twice. "
                "Read the file with utf16=True (on the command line --utf16)."
            )
        raise InputError(
            f"Cannot read {source.path}, {row.where}: {flaw} ({len(bad)} of {len(rows)} rows "
            f"{verb} bad). {step}"
        )
    sentences = []
    for source, row, values, _ in checked:
        del values["cue"]  # a Sentence has cue_start and cue_end instead
        where = f"{source.path}, {row.where}"
        sentence = Sentence(**values, where=where, more=_further(row.fields))
        sentences.append((source, row.where, sentence))
    return sentences


def check_row(
    row: FileRow, word: str | None = None, *, utf16: bool = False
) -> tuple[dict[str, Any], str | None]:
    """The fields of a row in a standard form, and why they are not a sentence (None if they are).

    word: the word of a row without a word
    utf16: as in `read_sentences`

    The spans of the word and of the cue are found if the row does not have them.
    """
    values = _normal(row.fields)
    values["word"] = word if values["word"] is None else values["word"]
    flaw = row.flaw or _text_flaw(values) or _number_flaw(values)
    if flaw:
        return values, flaw
    if utf16:
        for end in _ENDS:
            if values[end] is not None:
                values[end] = from_utf16(values["text"], values[end])
    flaw = _find(values, "word", ("start", "end"))
    if not flaw and values["cue"] is not None:
        flaw = _find(values, "cue", ("cue_start", "cue_end"))
    flaw = flaw or _span_flaw(values)
    return values, flaw or _form_flaw(values, utf16=utf16)


def _form_flaw(values: Mapping[str, Any], *, utf16: bool) -> str | None:
    """Why the word's span is not the word or a form of it, or the cue's span not whole letters;
    None if they are.
    """
    word, text, start, end = (values[name] for name in ("word", "text", "start", "end"))
    cue = (values["cue_start"], values["cue_end"])
    if cue[0] is not None and not covers_letters(text, *cue):
        return (
            f"the cue is at characters {cue[0]} to {cue[1]}, which are {text[slice(*cue)]!r}, "
            "expected whole letters without white space around them"
        )
    is_form = covers_letters(text, start, end) and may_be_form(word, text, start, end)
    if is_form and not utf16 and fold(word) not in fold(text[start:end]):
        # Another word, where the span of the word is meant and counted in UTF-16 units.
        in_utf16 = (from_utf16(text, start), from_utf16(text, end))
        is_form = in_utf16 == (start, end) or in_utf16 not in spans_of(word, text)
    if is_form:
        return None
    return (
        f"the word is at characters {start} to {end}, which are {text[start:end]!r}, expected "
        f"{word!r} or a form of it, in whole letters"
    )


def _find(values: dict[str, Any], name: str, ends: tuple[str, str]) -> str | None:
    """Set the span of the word or the cue in `values`, unless the row has it. Returns the flaw if
    the span is not unique.

    name: "word" or "cue"
    ends: the names of the two fields
    """
    if any(values[end] is not None for end in ends):
        return None
    target = values[name]
    spans = spans_of(target, values["text"])
    if name == "cue" and len(spans) > 1:
        # The cue may be a form of the word: "the notes of a note".
        spans = [span for span in spans if not _overlap(span, (values["start"], values["end"]))]
    if len(spans) == 1:
        values[ends[0]], values[ends[1]] = spans[0]
        return None
    count = f"{len(spans)} times" if spans else absence(target, values["text"])
    about = "the cue " if name == "cue" else ""
    return (
        f"the text has {about}{target!r} {count}, expected it once as a whole word (with or "
        f"without capital letters, with -s, -es or 's), or its {ends[0]} and {ends[1]}"
    )


def _overlap(span: tuple[int, int], word: tuple[int, int]) -> bool:
    return span[0] < word[1] and word[0] < span[1]


def _normal(values: Mapping[str, object]) -> dict[str, Any]:
    """The columns COLUMNS in a standard form: whole numbers in text become numbers, and empty
    optional fields become None.
    """
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
        if column in _PLAIN and isinstance(normal[column], str):
            normal[column] = plain(normal[column])
    return normal


def _further(fields: Mapping[str, object]) -> tuple[tuple[str, float | str], ...]:
    """The further columns with their values, numbers or text. Columns with other values are left
    out, and so are empty ones.
    """
    further: list[tuple[str, float | str]] = []
    for name, value in fields.items():
        if name == "more" and isinstance(value, tuple):  # of a Sentence
            further.extend(value)
        elif name not in COLUMNS and name != "where":
            standard = _number_or_text(value)
            further += [] if standard is None else [(name, standard)]
    return tuple(further)


def _number_or_text(value: object) -> float | str | None:
    """A finite number, also from its text, or other text. None for an empty text and for anything
    else.
    """
    if isinstance(value, str):
        text = value.strip()
        if _DECIMAL.fullmatch(text):
            return _number_or_text(float(text))
        return text or None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def _name(value: object) -> object:
    """A name as text without white space around it. Whole numbers and booleans, to which pandas
    converts such columns, become text. Anything else is returned unchanged.
    """
    value = _number(value) if isinstance(value, float) else value
    return str(value).strip() if isinstance(value, str | int) else value


def _number(value: object) -> object:
    """A whole number, from its text or from a float without a fraction, as in columns with missing
    values. Anything else is returned unchanged.
    """
    if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value.strip()):
        return int(value.strip().partition(".")[0])
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _text_flaw(values: Mapping[str, Any]) -> str | None:
    if values["word"] is None:
        return "word is missing, expected a column 'word', or one word for all rows"
    for column in ("word", *REQUIRED, *_NAMES, "split"):
        value = values.get(column)  # a Sentence has no field `cue`
        if value is None:
            if column in REQUIRED:
                return f"{column} is missing, expected text"
        elif not isinstance(value, str):
            expected = "text or a whole number" if column in _NAMES else "text"
            return f"{column} is {value!r}, expected {expected}"
        elif not value.strip():
            return f"{column} is empty, expected text"
        elif _HALF_OF_A_PAIR.search(value):
            return f"{column} has half of a surrogate pair ({value!r}), expected whole characters"
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
