"""The text that training must never contain: held-out cues with an ambiguous word, the lexicon's frames, the sentences
of the lesson.

A fifth of the cues are held out: they occur in topic sentences like any other cue, but never in a text with an
ambiguous word, so that a word with a held-out cue can only be resolved by generalisation.
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
    """The plural of a word of the lexicon."""
    return IRREGULAR.get(word, word + "s")


@cache
def held_out_cues() -> frozenset[str]:
    """A fifth of the cues, which occur in topic sentences, but never with an ambiguous word.

    A cue of several senses is held out for all of them or for none, so cues of a single sense are chosen first.
    """
    senses = [sense for word in lexicon.words() for sense in lexicon.entry(word).senses]
    listed = [cue for sense in senses for cue in sense.cues]
    cues: set[str] = set()
    for sense in senses:
        single = [cue for cue in sense.cues if listed.count(cue) == 1]
        shared = [cue for cue in reversed(sense.cues) if cue not in single]
        order = single[1::3] + single[2::3] + single[0::3] + shared
        candidates = [cue for cue in order if cue not in cues]
        missing = round(SHARE * len(sense.cues)) - len(cues.intersection(sense.cues))
        cues.update(candidates[: max(missing, 0)])
    return frozenset(cues)


def held_out(word: str, sense: str) -> tuple[str, ...]:
    """The cues of one sense that never occur with an ambiguous word in training."""
    (cues,) = (item.cues for item in lexicon.entry(word).senses if item.name == sense)
    return tuple(cue for cue in cues if cue in held_out_cues())


@cache
def _ambiguous_forms() -> frozenset[str]:
    return frozenset(form for word in lexicon.words() for form in (word, plural(word)))


@cache
def _withheld_forms() -> frozenset[str]:
    return frozenset(form for cue in held_out_cues() for form in (cue, cue + "s", cue + "es"))


def windows(texts: Iterable[str]) -> frozenset[tuple[str, ...]]:
    """Every run of WINDOW words of these frames that contains the word, with placeholders for cue and word."""
    runs: set[tuple[str, ...]] = set()
    for text in texts:
        words = _words(text.replace("{cue}", _CUE).replace("{word}", _WORD))
        runs.update(run for run in _runs(words) if _WORD in run)
    return frozenset(runs)


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
    """Whether the text has a run of WINDOW words of one of the frames, with any ambiguous word and any cue."""
    words = [_WORD if word in _ambiguous_forms() else word for word in _words(text)]
    for run in _runs(words):
        if _WORD in run:
            masked = (run[:i] + (_CUE,) + run[i + 1 :] for i in range(len(run)) if run[i] != _WORD)
            if run in frames or any(candidate in frames for candidate in masked):
                return True
    return False


def allowed(text: str) -> bool:
    """Whether a text has no held-out cue together with an ambiguous word, no sentence of the lesson, and no run of a
    frame.
    """
    low = text.lower()
    if any(sentence.lower() in low for sentence in tables()["kept_out"]):
        return False
    words = set(_words(low))
    if words.isdisjoint(_ambiguous_forms()):
        return True
    return words.isdisjoint(_withheld_forms()) and not echoes(text, lexicon_windows())
