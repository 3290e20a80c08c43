"""The lexicon that ships with the library: ambiguous words with senses, cues and frames, and the
sentences built from them.

Each word has a TOML file. A frame is a sentence with a slot for a cue and a slot for the word, in
versions with the cue 1, 2, 3 and 4 to 6 tokens before the word. A frame does not hint at the sense,
so sentences of two senses with the same frame, version and cue number differ only in the cue: they
are aligned pairs by construction. For models that read both ways, further frames have the cue after
the word; they are the same for all words (`behind.toml`).

These frames suit models with a small vocabulary. For models trained on ordinary English there are
natural sentences (`natural/*.toml`) of 37 words, homonyms and polysemes.
"""

import hashlib
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

from probe.errors import InputError
from probe.text.sentences import Corpus, LeftOut, Sentence

__all__ = [
    "entry",
    "expand",
    "expand_natural",
    "natural_words",
    "one_meaning_nouns",
    "showcase",
    "words",
]

# Names of the sources.
LEXICON = "the lexicon of probe"
NATURAL = "sentences in natural English composed for probe"

_FOLDER = Path(__file__).with_name("lexicon")
_SHOWCASE = _FOLDER / "showcase.toml"
_BEHIND = _FOLDER / "behind.toml"
_ONE_MEANING = _FOLDER / "one_meaning.toml"
# Words that occur in nearly every English text, and rarely in other languages.
_ENGLISH = frozenset(
    ("the", "and", "with", "from", "for", "this", "that", "there", "they", "she", "he", "it")
)


@dataclass(frozen=True)
class Sense:
    """One sense of a word.

    cues: words that indicate it
    continuations: texts, with their leading space, that could only follow this sense
    """

    name: str
    gloss: str
    cues: tuple[str, ...]
    continuations: tuple[str, ...]


@dataclass(frozen=True)
class Frame:
    """A short story with {cue} and {word}, each once and in this order.

    versions: the texts by the distance between the two in tokens; 4 means four or more
    behind: whether the cue comes after the word instead
    """

    name: str
    versions: Mapping[int, str]
    behind: bool = False


@dataclass(frozen=True)
class Entry:
    """An ambiguous word with its senses and frames.

    All senses have the same number of cues, and no two senses share a cue.
    """

    word: str
    senses: tuple[Sense, ...]
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class Showcase(Sentence):
    """A sentence that introductions to attention use, with a note on its cue."""

    note: str = ""


@cache
def words() -> tuple[str, ...]:
    """The words of the lexicon, in alphabetical order.

    Example:
        >>> probe.lexicon.words()[:3]
        ('apple', 'bank', 'bark')
    """
    # Files in the same folder that do not describe a word.
    other_files = {_SHOWCASE, _BEHIND, _ONE_MEANING}
    return tuple(sorted(file.stem for file in {*_FOLDER.glob("*.toml")} - other_files))


def entry(word: str) -> Entry:
    """The senses and frames of a word. Raises InputError for a word that is not in the lexicon.

    Example:
        >>> [sense.name for sense in probe.lexicon.entry("bank").senses]
        ['river', 'money']
    """
    return _entry_of(_file_of(word))


@cache
def _entry_of(file_path: Path) -> Entry:
    file = tomllib.loads(file_path.read_text("utf-8"))
    senses = tuple(
        Sense(name, sense["gloss"], tuple(sense["cues"]), tuple(sense["continuations"]))
        for name, sense in file["senses"].items()
    )
    return Entry(file["word"], senses, tuple(map(_frame, file["frames"])))


@cache
def frames_behind() -> tuple[Frame, ...]:
    """The frames of all words that put the cue after the word."""
    return tuple(
        _frame(row, behind=True) for row in tomllib.loads(_BEHIND.read_text("utf-8"))["frames"]
    )


def _frame(row: Mapping[str, str], *, behind: bool = False) -> Frame:
    """A frame from its row in the file: a name, and a version of the text for each distance."""
    versions = {int(key): text for key, text in row.items() if key != "name"}
    return Frame(row["name"] + ", cue behind" * behind, versions, behind)


def sha256(selection: Sequence[str], *, both_sides: bool = False) -> str:
    """The sha256 of the files of these words, in this order; with `both_sides` also of the
    frames with the cue after the word.
    """
    # The frames of `behind.toml` belong to no word, and are hashed once.
    files = [_file_of(word) for word in selection] + [_BEHIND] * both_sides
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _file_of(word: str) -> Path:
    if word not in words():
        raise InputError(
            f"Cannot look up {word!r} in the lexicon: it has only {', '.join(words())}. Give one "
            "of these, or a file with your sentences."
        )
    return _FOLDER / f"{word}.toml"


def expand(word: str, *, both_sides: bool = False) -> Corpus:
    """Every sentence of a word: frames x versions x cues x senses, with the pair
    "word/frame/distance/number of the cue".

    both_sides: whether to include sentences with the cue after the word, which a causal model
        cannot use

    Example:
        >>> len(probe.lexicon.expand("bank").sentences)
        864
    """
    return _expanded(_file_of(word), both_sides)


@cache
def _expanded(file_path: Path, both_sides: bool) -> Corpus:
    of_word = _entry_of(file_path)
    word = of_word.word
    frames = of_word.frames
    if both_sides:
        frames += frames_behind()
    sentences = tuple(
        _filled(
            text,
            word,
            cue,
            sense=sense.name,
            frame=frame.name,
            pair=f"{word}/{frame.name}/{distance}/{number}",
            distance=distance,
        )
        for frame in frames
        for distance, text in frame.versions.items()
        for sense in of_word.senses
        for number, cue in enumerate(sense.cues)
    )
    return Corpus(sentences, (), LEXICON, sha256([word], both_sides=both_sides))


def _filled(text: str, word: str, cue: str, **fields: Any) -> Sentence:
    """The sentence of a frame with {word} and {cue} filled in; `fields` are the others."""
    text_of = {"{word}": word, "{cue}": cue}
    spans = {}
    # In the order of the slots, because filling the first one moves the second.
    for slot in sorted(text_of, key=text.index):
        start = text.index(slot)
        text = text.replace(slot, text_of[slot], 1)
        spans[slot] = (start, start + len(text_of[slot]))
    start, end = spans["{word}"]
    cue_start, cue_end = spans["{cue}"]
    return Sentence(
        text=text, word=word, start=start, end=end, cue_start=cue_start, cue_end=cue_end, **fields
    )


@cache
def _one_meaning_by_article() -> dict[str, list[str]]:
    """The unambiguous nouns of the lexicon, by their article, "a" or "an"."""
    return tomllib.loads(_ONE_MEANING.read_text("utf-8"))


@cache
def one_meaning_nouns() -> tuple[str, ...]:
    """Unambiguous count nouns that can replace an ambiguous word.

    Nouns with "a" and nouns with "an" alternate, so that the first few contain both.

    Example:
        >>> probe.lexicon.one_meaning_nouns()[:2]
        ('ladder', 'umbrella')
    """
    lists = _one_meaning_by_article()
    in_turn = zip_longest(lists["a"], lists["an"])
    return tuple(noun for pair in in_turn for noun in pair if noun is not None)


def is_english(texts: Sequence[str]) -> bool:
    """Whether at least half of some sentences contain one of the most frequent English words."""
    # Half is enough, because a short English sentence may have none of these words.
    english = [not _ENGLISH.isdisjoint(re.findall(r"\w+", text.lower())) for text in texts]
    return 2 * sum(english) >= len(english)


def article_of(noun: str) -> str:
    """The indefinite article of a noun: from the list of nouns, otherwise by its first letter."""
    for article, nouns in _one_meaning_by_article().items():
        if noun in nouns:
            return article
    # An approximation: "hour" and "unit" would have to be in the list.
    return "an" if noun[:1].lower() in "aeiou" else "a"


@cache
def natural_words() -> tuple[str, ...]:
    """The words with natural sentences, in alphabetical order.

    Example:
        >>> "seal" in probe.lexicon.natural_words()
        True
    """
    return tuple(sorted(file.stem for file in (_FOLDER / "natural").glob("*.toml")))


def expand_natural(word: str, *, both_sides: bool = False) -> Corpus:
    """The natural sentences of a word: ordinary English in minimal pairs, with the cue one to
    twelve words before the word.

    both_sides: whether to include sentences with the cue after the word

    Two sentences of a pair differ only in the cue, and a cue of one sense always has the same
    partner. Raises InputError for a word without natural sentences.

    Example:
        >>> len(probe.lexicon.expand_natural("bank").sentences)
        152
    """
    if word not in natural_words():
        raise InputError(
            f"Cannot look up natural sentences with {word!r}: only {', '.join(natural_words())} "
            "have some. Give one of these, or a file with your sentences."
        )
    content = (_FOLDER / "natural" / f"{word}.toml").read_bytes()
    file = tomllib.loads(content.decode("utf-8"))
    cues = {row[0]: row for row in file["cues"]}  # one cue of each sense, by the first sense's
    sides = ("before", "behind") if both_sides else ("before",)
    sentences = tuple(
        _filled(
            frame["text"],
            file["word"],
            cues[first][number],
            sense=sense,
            frame=f"{side} {frame_number}",
            pair=f"{file['word']}/{side} {frame_number}/{first}",
            distance=_words_from_cue(frame["text"]),
            more=(("kind", file["kind"]),),
        )
        for side in sides
        for frame_number, frame in enumerate(file[side])
        for first in frame["cues"]
        for number, sense in enumerate(file["senses"])
    )
    return Corpus(sentences, (), NATURAL, hashlib.sha256(content).hexdigest())


def _words_from_cue(text: str) -> int | None:
    """How many words after the cue the word comes in a frame; 1 means directly after it, None
    before it.
    """
    _, cue, between = text.partition("{word}")[0].partition("{cue}")
    # "{cue}" is missing from the text before {word} if the cue comes after it.
    return len(re.findall(r"[\w'’-]+", between)) + 1 if cue else None


def keep_one_token_cues(corpus: Corpus, is_one_token: Callable[[str], bool]) -> Corpus:
    """The sentences whose cue, with its leading space, is a single token for this tokenizer.

    The others are listed as left out. A longer cue would put the word at another position than in
    the other sentence of its pair.
    """
    sentences = []
    left_out = list(corpus.left_out)
    for sentence in corpus.sentences:
        if sentence.cue is None or is_one_token(f" {sentence.cue}"):
            sentences.append(sentence)
        else:
            where = f"{sentence.pair} ({sentence.sense})" if sentence.pair else sentence.text
            left_out.append(LeftOut(where, f"the cue {sentence.cue!r} is more than one token here"))
    return Corpus(tuple(sentences), tuple(left_out), corpus.source, corpus.sha256)


@cache
def showcase() -> tuple[Showcase, ...]:
    """The sentences that introductions to attention use; `cue_after` is True if the cue comes
    after the word.

    Example:
        >>> probe.lexicon.showcase()[0].text
        'Make a deposit at the bank'
    """
    sentences = []
    for row in tomllib.loads(_SHOWCASE.read_text("utf-8"))["sentences"]:
        # The word as written, with a capital letter or a plural ending.
        start, end = _span(rf"\b{row['word']}\w*", row["text"], row["occurrence"])
        cue_start, cue_end = _span(rf"\b{row['cue']}\b", row["text"], row["cue_occurrence"])
        sentences.append(
            Showcase(
                word=row["word"],
                sense=row["sense"],
                text=row["text"],
                start=start,
                end=end,
                cue_start=cue_start,
                cue_end=cue_end,
                note=row["note"],
            )
        )
    return tuple(sentences)


def _span(pattern: str, text: str, occurrence: int) -> tuple[int, int]:
    """The start and end of the first, second, ... match of a pattern in a text."""
    # Occurrences count from 1 in the file.
    return list(re.finditer(pattern, text, re.IGNORECASE))[occurrence - 1].span()
