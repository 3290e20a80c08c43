"""The training text of tiny-senses: English-like sentences about the senses of the lexicon's words, drawn from tables.

A unit is one or more sentences that belong together. Some units are about a topic, without an ambiguous word. In others
an ambiguous word comes after, or before, a cue to its sense, and the continuation depends on the sense. Text similar to
the lexicon's frames, and the sentences of the lesson, are excluded.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from probe.text import lexicon
from training.templates import HERE, Slots, fill, finish, tables
from training.withheld import allowed, held_out, plural

_STUTTER = re.compile(r"\b(\w{3,}) (?:and |or |nor |of |by |to |the |its |every )+\1\b")


@dataclass(frozen=True, eq=False)
class Topic:
    """One sense of a word, with everything that the grammar has about it.

    says: lists of phrases, by slot
    """

    word: str
    sense: str
    cues: tuple[str, ...]
    held_out: tuple[str, ...]
    says: Mapping[str, Sequence[str]]

    @property
    def seen_cues(self) -> tuple[str, ...]:
        """The cues that may occur in a sentence with an ambiguous word."""
        return tuple(cue for cue in self.cues if cue not in self.held_out)


@cache
def topics() -> tuple[Topic, ...]:
    """A topic for every sense of the lexicon."""
    phrases = tomllib.loads((HERE / "grammar_senses.toml").read_text("utf-8"))
    all_topics = []
    for word in lexicon.words():
        for sense in lexicon.entry(word).senses:
            says = {
                **phrases[word][sense.name],
                "follow": [text.strip() for text in sense.continuations],
            }
            all_topics.append(
                Topic(word, sense.name, tuple(sense.cues), held_out(word, sense.name), says)
            )
    return tuple(all_topics)


@cache
def scope(topic: Topic, mode: str) -> Slots:
    """The slots of one topic.

    mode: "word" for the word itself; "kin" for a related noun or "cue" for a cue instead of it
    """
    scene = [*topic.says["scene"]]
    if mode == "word":
        nouns, cues = [topic.word], [*topic.seen_cues * 3, *scene]
    else:
        cues = [*topic.cues * 3, *scene, *topic.says["kin"]]
        nouns = [*topic.says["kin"]] if mode == "kin" else [*topic.cues * 3, *scene]
    slots = {"C": cues, "W": nouns, "Ws": [plural(topic.word)]}
    return {**tables(), **topic.says, **slots}


@cache
def _foreign(word: str) -> Sequence[str]:
    """The cues of other words that are not cues of this word."""
    cues = {cue for topic in topics() if topic.word == word for cue in topic.cues}
    return sorted({cue for topic in topics() for cue in topic.seen_cues} - cues)


def sentence(lead: str, after: str, slots: Slots, rng: Random) -> str:
    """A sentence that begins with a plan of one slot and continues with a plan of another."""
    opening = rng.choice(slots[lead])
    then = rng.choice(slots["clause" if opening.endswith(" that") else after])
    plan = f"{opening} {then}{rng.choice(slots['again'])} {rng.choice(slots['ending'])}"
    return finish(fill(plan, slots, rng), rng)


def ambiguous(topic: Topic, rng: Random) -> str:
    """One sentence, or two, in which a cue comes before the word and the continuation depends on the sense."""
    slots = scope(topic, "word")
    if rng.random() < 0.3:
        slots = {**slots, "thing": _foreign(topic.word)}
    proper = topic.says.get("proper")
    if proper and rng.random() < 0.3:
        slots = {**slots, "W": proper}
    chance = rng.random()
    if chance < 0.12:
        return sentence(
            "activity" if proper else "plural", "trailing" if proper else "after_plural", slots, rng
        )
    if chance < 0.20:
        return sentence("activity", "trailing", slots, rng)
    return (
        sentence("subject", "predicate", slots, rng)
        if chance < 0.62
        else sentence("object", "trailing", slots, rng)
    )


def about(topic: Topic, rng: Random) -> str:
    """A sentence about the topic from the same plans, without any ambiguous word. Held-out cues are as common as the
    others.
    """
    kin = rng.random() < 0.4
    slots = scope(topic, "kin" if kin else "cue")
    direct = kin or rng.random() < 0.4
    lead = rng.choices(["subject", "object", "activity"], [60, 32, 8])[0]
    if lead == "subject":
        return sentence(lead, "predicate" if direct else "relation", slots, rng)
    return sentence(lead, "trailing" if direct else "after_topic", slots, rng)


def pair(topic: Topic, rng: Random) -> str:
    """Two ambiguous words in one sentence, each with its cue."""
    second_topic = rng.choice([item for item in topics() if item.word != topic.word])
    second_scope = scope(second_topic, "word")
    second = {
        "D": second_scope["C"],
        "X": [second_topic.word],
        "xdoes": second_scope["does"],
        "xis": second_scope["is"],
        "xseemed": second_scope["seemed"],
    }
    slots = {**scope(topic, "word"), **second}
    if rng.random() < 0.6:
        return sentence("pair_subject", "predicate", slots, rng)
    return sentence("pair_object", "trailing", slots, rng)


def later(topic: Topic, rng: Random) -> str:
    """A sentence with the word and its cue after it, or without a cue."""
    slots = scope(topic, "word")
    return finish(
        fill(rng.choice(slots["cue_after" if rng.random() < 0.8 else "no_cue"]), slots, rng), rng
    )


def story(rng: Random) -> str:
    """A sentence of another kind: repeated adjectives, masculine and feminine, a film-like character, or any other."""
    kind = rng.choices(
        ["adjectives", "he", "she", "couple", "tells", "filler"], [33, 11, 11, 3, 16, 26]
    )[0]
    slots = tables()
    if kind == "tells":
        who = rng.choice(slots["character"])
        traits = {key: [value] if isinstance(value, str) else value for key, value in who.items()}
        slots = {**slots, **traits, "short": [who["it"] + "'s"]}
    return finish(fill(rng.choice(slots[kind]), slots, rng), rng)


def paragraph(topic: Topic, rng: Random) -> str:
    """Several sentences about one topic, mixed with other sentences. Two paragraphs in five have no ambiguous word."""
    plain = rng.random() < 0.4
    slots = scope(topic, "kin" if plain else "word")
    makers = [about] if plain else [ambiguous, ambiguous, about, about, pair, later]
    sentences = [makers[0](topic, rng)]
    for _ in range(rng.randrange(2, 14)):
        chance = rng.random()
        if chance < 0.2:
            text = story(rng)
        elif chance < 0.4:
            text = finish(
                fill("the {maybe_adjs}{W} " + rng.choice(slots["predicate"]), slots, rng), rng
            )
        else:
            text = rng.choice(makers)(topic, rng)
        if allowed(_joined([*sentences, text])):
            sentences.append(text)
    return _joined(sentences)


def _joined(sentences: Sequence[str]) -> str:
    return " ".join(text if text[-1] in ".?!" else text + "." for text in sentences)


def draw(rng: Random, *, long: bool) -> str:
    """One unit, before the check that training may contain it."""
    topic = rng.choice(topics())
    if long:
        return paragraph(topic, rng)
    chance = rng.random()
    for share, make in ((0.35, ambiguous), (0.65, about), (0.73, pair), (0.77, later)):
        if chance < share:
            text = make(topic, rng)
            return text if rng.random() < 0.9 else _joined([story(rng), text])
    return story(rng)


def units(n: int, *, seed: int, long: bool = False) -> Iterator[str]:
    """n units of training text; with `long`, paragraphs of up to a dozen sentences.

    The same seed gives the same text.
    """
    return first_allowed(n, lambda rng: draw(rng, long=long), seed=seed)


def first_allowed(n: int, make: Callable[[Random], str], *, seed: int) -> Iterator[str]:
    """The first n texts of `make` without a repeated word and without text that training must not contain."""
    rng = Random(seed)
    count = 0
    while count < n:
        text = make(rng)
        if not _STUTTER.search(text) and allowed(text):
            count += 1
            yield text
