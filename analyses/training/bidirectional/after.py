"""Sentences with the cue behind the word: those that train, made from the grammar, and those that measure, the
lexicon's.
"""

from collections.abc import Iterator
from functools import cache
from random import Random

from probe.text import lexicon
from probe.text.sentences import Sentence
from training.grammar import Topic, draw, kept, later, scope, sentence, topics
from training.withheld import echoes, windows

SHARE = 0.35
# Of the sentences that begin with a determiner and the word, how many lose the determiner, as headlines do, and as
# names have none.
HEADLINES = 0.3
DETERMINERS = ("the", "a", "an", "this", "that", "one", "no", "every", "her", "his", "our")


@cache
def frame_windows() -> frozenset[tuple[str, ...]]:
    """The windows of the frames that measure."""
    return windows(text for frame in lexicon.frames_behind() for text in frame.versions.values())


@cache
def sentences(word: str) -> tuple[Sentence, ...]:
    """Every sentence of a word with the cue behind it: frames x distances x senses x cues."""
    return tuple(
        row
        for row in lexicon.expand(word, both_sides=True).sentences
        if (row.cue_start or 0) > row.start
    )


def behind(topic: Topic, rng: Random) -> str:
    """A sentence of the grammar's plans with the places of cue and word exchanged: the word comes first."""
    if rng.random() < 0.2:
        return later(topic, rng)
    slots = scope(topic, "word")
    proper = topic.says.get("proper")
    nouns = proper if proper and rng.random() < 0.3 else [topic.word]
    slots = {**slots, "C": nouns, "W": topic.seen}
    lead = rng.choices(["subject", "object"], [60, 40])[0]
    bare = rng.random() < 0.5
    text = sentence(
        lead, "after_topic" if bare else "relation" if lead == "subject" else "trailing", slots, rng
    )
    return _headline(text, topic.word) if rng.random() < HEADLINES else text


def _headline(text: str, word: str) -> str:
    """The text from the word on where only a determiner stands before it."""
    first, _, rest = text.partition(" ")
    found = first.lower() in DETERMINERS and rest.lower().startswith(word)
    return rest[0].upper() + rest[1:] if found else text


def _make(rng: Random) -> str:
    while True:
        text = behind(rng.choice(topics()), rng) if rng.random() < SHARE else draw(rng, long=False)
        if not echoes(text, frame_windows()):
            return text


def units(n: int, *, seed: int) -> Iterator[str]:
    """n texts, SHARE of them with the cue behind the word; the rest are those of the grammar."""
    return kept(n, _make, seed=seed)
