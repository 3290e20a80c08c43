"""Sentences with the cue behind the word: those that train, made from the grammar, and those that measure, made from frames."""

import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

from probe import lexicon
from probe.embedded.grammar import Topic, draw, kept, later, scope, sentence, topics
from probe.embedded.withheld import echoes, windows
from probe.lexicon import Sense, Sentence

SHARE = 0.35


@cache
def frames() -> dict[str, dict[int, str]]:
    """The frames that measure: name, distance from word to cue, text with {word} and {cue}."""
    found = tomllib.loads(Path(__file__).with_name("after.toml").read_text("utf-8"))["frames"]
    return {frame["name"]: {int(key): text for key, text in frame.items() if key != "name"} for frame in found}


@cache
def frame_windows() -> frozenset[tuple[str, ...]]:
    """The windows of the frames that measure."""
    return windows(text for versions in frames().values() for text in versions.values())


@cache
def sentences(word: str) -> tuple[Sentence, ...]:
    """Every sentence of a word: frames x distances x senses x cues."""
    return tuple(
        _fill(word, sense, cue, (name, distance))
        for name, versions in frames().items()
        for distance in versions
        for sense in lexicon.entry(word).senses
        for cue in sense.cues
    )


def _fill(word: str, sense: Sense, cue: str, place: tuple[str, int]) -> Sentence:
    name, distance = place
    before, _, rest = frames()[name][distance].partition("{word}")
    between, _, end = rest.partition("{cue}")
    start = len(before) + len(word) + len(between)
    return Sentence(
        word=word,
        sense=sense.name,
        text=before + word + between + cue + end,
        start=len(before),
        end=len(before) + len(word),
        frame=name,
        cue_start=start,
        cue_end=start + len(cue),
        distance=distance,
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
    return sentence(lead, "after_topic" if bare else "relation" if lead == "subject" else "trailing", slots, rng)


def _make(rng: Random) -> str:
    while True:
        text = behind(rng.choice(topics()), rng) if rng.random() < SHARE else draw(rng, long=False)
        if not echoes(text, frame_windows()):
            return text


def units(n: int, *, seed: int) -> Iterator[str]:
    """n texts, SHARE of them with the cue behind the word; the rest are those of the grammar."""
    return kept(n, _make, seed=seed)
