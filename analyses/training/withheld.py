"""What training must never see: held-out cues beside an ambiguous word, the lexicon's frames, the lesson's own
sentences.

A fifth of the cues are held out: they occur in topic sentences like any other cue, but a text that holds an ambiguous
word never holds one of them, so that resolving them is generalisation and not recall.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from probe.text import lexicon
from training.templates import tables

SHARE = 0.2
WINDOW = 7
IRREGULAR = {"mouse": "mice", "match": "matches"}

_CUE, _WORD = "<", ">"


def plural(word: str) -> str:
    """The plural of one of the lexicon's words."""
    return IRREGULAR.get(word, word + "s")


@cache
def held_out_cues() -> frozenset[str]:
    """A fifth of the cues: met in topic sentences, never in one with an ambiguous word.

    A cue that several senses share is held out for all of them or for none, so those that belong to one sense go first.
    """
    senses = [sense for word in lexicon.words() for sense in lexicon.entry(word).senses]
    listed = [cue for sense in senses for cue in sense.cues]
    held: set[str] = set()
    for sense in senses:
        own = [cue for cue in sense.cues if listed.count(cue) == 1]
        shared = [cue for cue in reversed(sense.cues) if cue not in own]
        fresh = [cue for cue in own[1::3] + own[2::3] + own[0::3] + shared if cue not in held]
        missing = round(SHARE * len(sense.cues)) - len(held.intersection(sense.cues))
        held.update(fresh[: max(missing, 0)])
    return frozenset(held)


def held_out(word: str, sense: str) -> tuple[str, ...]:
    """The cues of one sense that training never shows beside an ambiguous word."""
    (cues,) = (item.cues for item in lexicon.entry(word).senses if item.name == sense)
    return tuple(cue for cue in cues if cue in held_out_cues())


@cache
def _ambiguous_forms() -> frozenset[str]:
    return frozenset(form for word in lexicon.words() for form in (word, plural(word)))


@cache
def _withheld_forms() -> frozenset[str]:
    return frozenset(form for cue in held_out_cues() for form in (cue, cue + "s", cue + "es"))


def windows(texts: Iterable[str]) -> frozenset[tuple[str, ...]]:
    """Every run of WINDOW words of these frames that holds the word's place, cue and word as placeholders."""
    found: set[tuple[str, ...]] = set()
    for text in texts:
        words = _words(text.replace("{cue}", _CUE).replace("{word}", _WORD))
        found.update(run for run in _runs(words) if _WORD in run)
    return frozenset(found)


@cache
def lexicon_windows() -> frozenset[tuple[str, ...]]:
    """The windows of all frames of the lexicon."""
    frames = [frame for word in lexicon.words() for frame in lexicon.entry(word).frames]
    return windows(text for frame in frames for text in frame.versions.values())


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+|[<>]", text.lower())


def _runs(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    size = min(WINDOW, len(words))
    return (tuple(words[start : start + size]) for start in range(len(words) - size + 1))


def echoes(text: str, frames: frozenset[tuple[str, ...]]) -> bool:
    """Whether the text has WINDOW words in a row of one of the frames, any ambiguous word and any cue in their
    places.
    """
    words = [_WORD if word in _ambiguous_forms() else word for word in _words(text)]
    for run in _runs(words):
        if _WORD in run:
            masked = (run[:i] + (_CUE,) + run[i + 1 :] for i in range(len(run)) if run[i] != _WORD)
            if run in frames or any(other in frames for other in masked):
                return True
    return False


def allowed(text: str) -> bool:
    """No held-out cue together with an ambiguous word, none of the lesson's own sentences, and no echo of a frame."""
    low = text.lower()
    found = set(_words(low))
    if found.isdisjoint(_ambiguous_forms()):
        return not any(kept.lower() in low for kept in tables()["kept_out"])
    if not found.isdisjoint(_withheld_forms()) or any(
        kept.lower() in low for kept in tables()["kept_out"]
    ):
        return False
    return not echoes(text, lexicon_windows())
