"""The words, senses, frames and cues that ship, one TOML file per word beside this module, and the sentences made of them.

A frame is a sentence with a place for a cue and one for the word, in versions that hold the cue 1, 2, 3 and 4 to 6 tokens
before the word. The frame says nothing about the sense, so the sentences of two senses with the same frame, version and place
in the list of cues differ in the cue alone: that makes them aligned pairs by construction.
"""

import hashlib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from probe.errors import InputError
from probe.sentences import LEXICON, Corpus, LeftOut, Sentence, read_sentences

__all__ = [
    "Corpus",
    "Entry",
    "Frame",
    "LeftOut",
    "Sense",
    "Sentence",
    "Showcase",
    "entry",
    "expand",
    "keep_one_token_cues",
    "read_sentences",
    "sha256",
    "showcase",
    "words",
]

_FOLDER = Path(__file__).with_name("lexicon")
_SHOWCASE = "showcase"


@dataclass(frozen=True)
class Sense:
    """One sense of a word: words that tell it, and continuations (with their leading space) that only it would have."""

    name: str
    gloss: str
    cues: tuple[str, ...]
    continuations: tuple[str, ...]


@dataclass(frozen=True)
class Frame:
    """One small story with {cue} and {word}, by the distance from cue to word in tokens (4: four to six)."""

    name: str
    versions: Mapping[int, str]

    def __post_init__(self) -> None:
        for distance, text in self.versions.items():
            if not re.fullmatch(r"[^{}]*\{cue\}[^{}]*\{word\}[^{}]*", text):
                raise InputError(
                    f"Reading frame {self.name!r} at distance {distance}: got {text!r}, "
                    "expected {cue} once and then {word} once; correct the frame."
                )


@dataclass(frozen=True)
class Entry:
    """An ambiguous word with its senses, which have equally many cues and share none, and its frames."""

    word: str
    senses: tuple[Sense, ...]
    frames: tuple[Frame, ...]

    def __post_init__(self) -> None:
        cues = [cue for sense in self.senses for cue in sense.cues]
        if len(self.senses) < 2 or len({len(sense.cues) for sense in self.senses}) > 1 or len(set(cues)) < len(cues):
            raise InputError(
                f"Reading the lexicon's word {self.word!r}: got senses with {[len(sense.cues) for sense in self.senses]} cues, "
                f"{len(set(cues))} of them different, expected two or more senses with equally many cues and none in common; "
                "correct its file."
            )


@dataclass(frozen=True)
class Showcase:
    """A sentence that introductions to attention use, with the characters of the word and of what tells its sense."""

    text: str
    word: str
    sense: str
    start: int
    end: int
    cue: str | None
    cue_start: int | None
    cue_end: int | None
    cue_after: bool
    note: str


@cache
def words() -> tuple[str, ...]:
    """The words that ship, in alphabetical order."""
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.toml") if file.stem != _SHOWCASE))


@cache
def entry(word: str) -> Entry:
    """The senses and frames of one word; raises InputError for a word that is not there."""
    found = tomllib.loads(_file_of(word).read_text("utf-8"))
    senses = [
        Sense(name, sense["gloss"], tuple(sense["cues"]), tuple(sense["continuations"]))
        for name, sense in found["senses"].items()
    ]
    frames = [
        Frame(frame["name"], {int(key): text for key, text in frame.items() if key != "name"})
        for frame in found["frames"]
    ]
    return Entry(found["word"], tuple(senses), tuple(frames))


def sha256(chosen: Sequence[str]) -> str:
    """The sha256 of the files of these words, in the order given."""
    return hashlib.sha256(b"".join(_file_of(word).read_bytes() for word in chosen)).hexdigest()


def _file_of(word: str) -> Path:
    if word not in words():
        raise InputError(
            f"Looking up {word!r} in the lexicon: it is not there, the lexicon has {', '.join(words())}; "
            "give one of these, or a file of your own sentences."
        )
    return _FOLDER / f"{word}.toml"


@cache
def expand(word: str) -> Corpus:
    """Every sentence of a word: frames x versions x cues x senses, with the pair "word/frame/distance/place of the cue"."""
    found = entry(word)
    sentences = tuple(
        sentence
        for frame in found.frames
        for distance in frame.versions
        for sense in found.senses
        for sentence in _fill(found, sense, frame, distance)
    )
    return Corpus(sentences, (), LEXICON, sha256([word]))


def _fill(found: Entry, sense: Sense, frame: Frame, distance: int) -> Iterator[Sentence]:
    before, _, rest = frame.versions[distance].partition("{cue}")
    between, _, after = rest.partition("{word}")
    for place, cue in enumerate(sense.cues):
        start = len(before) + len(cue) + len(between)
        yield Sentence(
            word=found.word,
            sense=sense.name,
            text=before + cue + between + found.word + after,
            start=start,
            end=start + len(found.word),
            frame=frame.name,
            pair=f"{found.word}/{frame.name}/{distance}/{place}",
            cue_start=len(before),
            cue_end=len(before) + len(cue),
            distance=distance,
        )


def keep_one_token_cues(corpus: Corpus, is_one_token: Callable[[str], bool]) -> Corpus:
    """The sentences whose cue, with its leading space, is one token for this tokenizer; the others are counted as left out.

    A longer cue would shift the word to another position than in the other sentence of its pair.
    """
    kept, left_out = [], list(corpus.left_out)
    for sentence in corpus.sentences:
        cue = None if sentence.cue_start is None else sentence.text[sentence.cue_start : sentence.cue_end]
        if cue is None or is_one_token(f" {cue}"):
            kept.append(sentence)
        else:
            where = f"{sentence.pair} ({sentence.sense})" if sentence.pair else sentence.text
            left_out.append(LeftOut(where, f"the cue {cue!r} is more than one token here"))
    return Corpus(tuple(kept), tuple(left_out), corpus.source, corpus.sha256)


@cache
def showcase() -> tuple[Showcase, ...]:
    """The sentences that introductions to attention use; in some the cue comes after the word, and `cue_after` says so."""
    found = tomllib.loads((_FOLDER / f"{_SHOWCASE}.toml").read_text("utf-8"))
    return tuple(_shown(row) for row in found["sentences"])


def _shown(row: Mapping[str, Any]) -> Showcase:
    # The word is read as it stands, with its capital letter or its plural ending.
    start, end = _find(row["text"], rf"\b{row['word']}\w*", row["occurrence"])
    cue_start, cue_end = _find(row["text"], rf"\b{row['cue']}\b", row["cue_occurrence"])
    return Showcase(
        text=row["text"],
        word=row["word"],
        sense=row["sense"],
        start=start,
        end=end,
        cue=row["text"][cue_start:cue_end],
        cue_start=cue_start,
        cue_end=cue_end,
        cue_after=cue_start >= end,
        note=row["note"],
    )


def _find(text: str, pattern: str, occurrence: int) -> tuple[int, int]:
    return list(re.finditer(pattern, text, re.IGNORECASE))[occurrence - 1].span()
