"""Sentences with the cue after the word: from the grammar for training, from the lexicon for evaluation."""

from collections.abc import Iterator
from functools import cache
from random import Random

from probe.text import lexicon
from probe.text.sentences import Sentence
from training.grammar import Topic, draw, first_allowed, later, scope, sentence, topics
from training.withheld import echoes, windows

SHARE = 0.35
# The share of sentences beginning with a determiner and the word that lose the determiner, as in headlines and names.
HEADLINES = 0.3
DETERMINERS = ("the", "a", "an", "this", "that", "one", "no", "every", "her", "his", "our")


@cache
def frame_windows() -> frozenset[tuple[str, ...]]:
    """The windows of the frames for evaluation."""
    return windows(text for frame in lexicon.frames_behind() for text in frame.versions.values())


@cache
def sentences(word: str) -> tuple[Sentence, ...]:
    """Every sentence of a word with the cue after it: frames x distances x senses x cues."""
    return tuple(
        row
        for row in lexicon.expand(word, both_sides=True).sentences
        if (row.cue_start or 0) > row.start
    )


def behind(topic: Topic, rng: Random) -> str:
    """A sentence from the grammar's plans with cue and word exchanged, so that the word comes first."""
    if rng.random() < 0.2:
        return later(topic, rng)
    slots = scope(topic, "word")
    proper = topic.says.get("proper")
    nouns = proper if proper and rng.random() < 0.3 else [topic.word]
    slots = {**slots, "C": nouns, "W": topic.seen_cues}
    lead = rng.choices(["subject", "object"], [60, 40])[0]
    bare = rng.random() < 0.5
    text = sentence(
        lead, "after_topic" if bare else "relation" if lead == "subject" else "trailing", slots, rng
    )
    return _headline(text, topic.word) if rng.random() < HEADLINES else text


def _headline(text: str, word: str) -> str:
    """The text from the word on, if only a determiner comes before it; otherwise the text."""
    first, _, after = text.partition(" ")
    if first.lower() in DETERMINERS and after.lower().startswith(word):
        return after[0].upper() + after[1:]
    return text


def _make(rng: Random) -> str:
    while True:
        text = behind(rng.choice(topics()), rng) if rng.random() < SHARE else draw(rng, long=False)
        if not echoes(text, frame_windows()):
            return text


def units(n: int, *, seed: int) -> Iterator[str]:
    """n texts, a SHARE of them with the cue after the word, the others drawn from the grammar of tiny-senses."""
    return first_allowed(n, _make, seed=seed)
