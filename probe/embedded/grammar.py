"""The training text of tiny-senses: English-like sentences about the senses of the lexicon's words, drawn from tables.

A unit is one to many sentences that belong together. Some units are about a topic and hold no ambiguous word; in others an
ambiguous word follows, or precedes, something that tells its sense. A fifth of each sense's cues are held out: they occur in
topic units like any other cue, but a unit that holds an ambiguous word never holds one of them. The lexicon's frames are read
only to refuse what comes near them, and the lesson's own sentences are listed and refused.

The tables stand beside this module: ordinary words, what is said about each sense, sentence plans, and other stories.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from probe import lexicon

HERE = Path(__file__).parent
HELD_OUT_SHARE = 0.2
WINDOW = 7
IRREGULAR = {"mouse": "mice", "match": "matches"}

Slots = Mapping[str, Sequence[str]]

_SLOT = re.compile(r"\{(\w+)(?::(\w+))?\}")
_VOWEL = re.compile(r"\b([Aa]) (?!one|eu|uni(?![mn])|use|usual)(?=[aeiou]|hour)")
_CUE, _WORD = "<", ">"
_QUESTION = re.compile(r"(?:what|who|why|how|can|could|is|did|do|which)\b", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Topic:
    """One sense of one word and everything the grammar says about it."""

    word: str
    sense: str
    cues: tuple[str, ...]
    held_out: tuple[str, ...]
    says: Mapping[str, Sequence[str]]

    @property
    def seen(self) -> tuple[str, ...]:
        """The cues that may stand in a sentence with an ambiguous word."""
        return tuple(cue for cue in self.cues if cue not in self.held_out)


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
        missing = round(HELD_OUT_SHARE * len(sense.cues)) - len(held.intersection(sense.cues))
        held.update(fresh[: max(missing, 0)])
    return frozenset(held)


def held_out(word: str, sense: str) -> tuple[str, ...]:
    """The cues of one sense that training never shows beside an ambiguous word."""
    (cues,) = (item.cues for item in lexicon.entry(word).senses if item.name == sense)
    return tuple(cue for cue in cues if cue in held_out_cues())


@cache
def tables() -> Mapping[str, Any]:
    """All slots of the tables that belong to no sense, by name."""
    found: dict[str, Any] = {}
    for name in ("grammar_words.toml", "grammar_templates.toml", "grammar_stories.toml"):
        table = tomllib.loads((HERE / name).read_text("utf-8"))
        if twice := found.keys() & table.keys():
            raise ValueError(f"{name} defines {', '.join(sorted(twice))} again; every slot has one list, rename it")
        found |= table
    return found


@cache
def topics() -> tuple[Topic, ...]:
    """Every sense of the lexicon with what the grammar says about it."""
    said = tomllib.loads((HERE / "grammar_senses.toml").read_text("utf-8"))
    found = []
    for word in lexicon.words():
        for sense in lexicon.entry(word).senses:
            says = {**said[word][sense.name], "follow": [text.strip() for text in sense.continuations]}
            found.append(Topic(word, sense.name, tuple(sense.cues), held_out(word, sense.name), says))
    return tuple(found)


def fill(template: str, slots: Slots, rng: Random, bound: dict[str, str] | None = None) -> str:
    """The template with every slot filled, slots inside entries too.

    `{name:slot}` binds a choice not bound before in this text, and `{name}` repeats it.
    """
    memory = {} if bound is None else bound

    def choose(match: re.Match[str]) -> str:
        name, source = match.groups()
        if name in memory:
            return memory[name]
        if source is None:
            return fill(rng.choice(slots[name]), slots, rng, memory)
        taken = set(memory.values())
        memory[name] = fill(rng.choice([entry for entry in slots[source] if entry not in taken]), slots, rng, memory)
        return memory[name]

    return _SLOT.sub(choose, template)


def finish(text: str, rng: Random) -> str:
    """Articles, spaces, capitals and end marks put right."""
    text = re.sub(r"\s+", " ", text).replace(" ,", ",").strip()
    text = _VOWEL.sub(r"\1n ", text)
    sentences = [part[:1].upper() + part[1:] for part in re.split(r"(?<=[.?!]) ", text) if part]
    last = sentences[-1]
    if last[-1] not in ".?!":
        quote = '"' if last.count('"') % 2 else ""
        mark = "?" if _QUESTION.match(last) else rng.choices([".", "!", ""], [90, 4, 6])[0]
        sentences[-1] = last + quote + mark
    return " ".join(sentences)


@cache
def _scope(topic: Topic, mode: str) -> Slots:
    """The slots of one topic: with the word itself, or with a neighbouring noun (`kin`) or a cue (`cue`) in its place."""
    scene = [*topic.says["scene"]]
    if mode == "word":
        nouns, cues = [topic.word], [*topic.seen * 3, *scene]
    else:
        cues = [*topic.cues * 3, *scene, *topic.says["kin"]]
        nouns = [*topic.says["kin"]] if mode == "kin" else [*topic.cues * 3, *scene]
    own = {"C": cues, "W": nouns, "Ws": [plural(topic.word)]}
    return {**tables(), **topic.says, **own}


@cache
def _foreign(word: str) -> Sequence[str]:
    """Cues that say something about other words, and nothing about this one."""
    own = {cue for topic in topics() if topic.word == word for cue in topic.cues}
    return sorted({cue for topic in topics() for cue in topic.seen} - own)


def _sentence(lead: str, after: str, slots: Slots, rng: Random) -> str:
    memory: dict[str, str] = {}
    plan = " ".join((rng.choice(slots[lead]), rng.choice(slots[after]), rng.choice(slots["ending"])))
    return finish(fill(plan, slots, rng, memory), rng)


def ambiguous(topic: Topic, rng: Random) -> str:
    """One sentence (some are two) in which a cue comes before the word and what follows depends on the sense."""
    slots = _scope(topic, "word")
    if rng.random() < 0.3:
        slots = {**slots, "thing": _foreign(topic.word)}
    if topic.word == "apple" and topic.sense == "company" and rng.random() < 0.3:
        slots = {**slots, "W": ["Apple"]}
    draw = rng.random()
    if draw < 0.08:
        return _sentence("plural", "after_plural", slots, rng)
    if draw < 0.16:
        return _sentence("activity", "trailing", slots, rng)
    return _sentence("subject", "predicate", slots, rng) if draw < 0.6 else _sentence("object", "trailing", slots, rng)


def about(topic: Topic, rng: Random) -> str:
    """A sentence of the topic in the same plans, without any ambiguous word; held-out cues are as common as the others."""
    kin = rng.random() < 0.4
    slots = _scope(topic, "kin" if kin else "cue")
    direct = kin or rng.random() < 0.4
    lead = rng.choices(["subject", "object", "activity"], [60, 32, 8])[0]
    if lead == "subject":
        return _sentence(lead, "predicate" if direct else "relation", slots, rng)
    return _sentence(lead, "trailing" if direct else "after_topic", slots, rng)


def pair(topic: Topic, rng: Random) -> str:
    """Two ambiguous words in one sentence, each with its cue."""
    other = rng.choice([item for item in topics() if item.word != topic.word])
    theirs = _scope(other, "word")
    second = {
        "D": theirs["C"],
        "X": [other.word],
        "xdoes": theirs["does"],
        "xis": theirs["is"],
        "xseemed": theirs["seemed"],
    }
    slots = {**_scope(topic, "word"), **second}
    if rng.random() < 0.6:
        return _sentence("pair_subject", "predicate", slots, rng)
    return _sentence("pair_object", "trailing", slots, rng)


def later(topic: Topic, rng: Random) -> str:
    """The word with its cue behind it, or with none."""
    slots = _scope(topic, "word")
    return finish(fill(rng.choice(slots["cue_after" if rng.random() < 0.8 else "no_cue"]), slots, rng), rng)


def story(rng: Random) -> str:
    """A sentence of another kind: adjectives that return, masculine and feminine, a film-like character, or anything."""
    kind = rng.choices(["adjectives", "he", "she", "couple", "tells", "filler"], [20, 12, 12, 4, 20, 32])[0]
    slots = tables()
    if kind == "tells":
        who = rng.choice(slots["character"])
        one = {key: [value] if isinstance(value, str) else value for key, value in who.items()}
        slots = {**slots, **one, "short": [who["it"] + "'s"]}
    return finish(fill(rng.choice(slots[kind]), slots, rng), rng)


def paragraph(topic: Topic, rng: Random) -> str:
    """Several sentences that stay with one topic, with a word or two from elsewhere."""
    word = _scope(topic, "word")
    makers = [ambiguous, about, later, pair]
    sentences = [ambiguous(topic, rng)]
    for _ in range(rng.randrange(2, 14)):
        draw = rng.random()
        if draw < 0.2:
            sentences.append(story(rng))
        elif draw < 0.4:
            sentences.append(finish(fill("the {maybe_adjs}{W} " + rng.choice(word["predicate"]), word, rng), rng))
        else:
            sentences.append(rng.choices(makers, [35, 35, 10, 20])[0](topic, rng))
    return " ".join(text if text[-1] in ".?!" else text + "." for text in sentences)


@cache
def _ambiguous_forms() -> frozenset[str]:
    return frozenset(form for word in lexicon.words() for form in (word, plural(word)))


@cache
def _withheld_forms() -> frozenset[str]:
    return frozenset(form for cue in held_out_cues() for form in (cue, cue + "s", cue + "es"))


@cache
def _frame_windows() -> frozenset[tuple[str, ...]]:
    """Every run of WINDOW words of a frame that holds the word's place, cue and word as placeholders."""
    found = set()
    for word in lexicon.words():
        for frame in lexicon.entry(word).frames:
            for text in frame.versions.values():
                words = _words(text.replace("{cue}", _CUE).replace("{word}", _WORD))
                found.update(run for run in _runs(words) if _WORD in run)
    return frozenset(found)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+|[<>]", text.lower())


def _runs(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    size = min(WINDOW, len(words))
    return (tuple(words[start : start + size]) for start in range(len(words) - size + 1))


def echoes_frame(text: str) -> bool:
    """Whether the text has WINDOW words in a row of one of the lexicon's frames, any ambiguous word and any cue in their places."""
    words = [_WORD if word in _ambiguous_forms() else word for word in _words(text)]
    for run in _runs(words):
        if _WORD in run:
            masked = (run[:i] + (_CUE,) + run[i + 1 :] for i in range(len(run)) if run[i] != _WORD)
            if run in _frame_windows() or any(other in _frame_windows() for other in masked):
                return True
    return False


def allowed(text: str) -> bool:
    """No held-out cue together with an ambiguous word, none of the lesson's own sentences, and no echo of a frame."""
    low = text.lower()
    found = set(_words(low))
    if found.isdisjoint(_ambiguous_forms()):
        return not any(kept.lower() in low for kept in tables()["kept_out"])
    if not found.isdisjoint(_withheld_forms()) or any(kept.lower() in low for kept in tables()["kept_out"]):
        return False
    return not echoes_frame(text)


def _draw(rng: Random, *, long: bool) -> str:
    topic = rng.choice(topics())
    if long:
        return paragraph(topic, rng)
    draw = rng.random()
    for share, make in ((0.44, ambiguous), (0.70, about), (0.79, pair), (0.83, later)):
        if draw < share:
            text = make(topic, rng)
            return text if rng.random() < 0.9 else finish(story(rng) + " " + text, rng)
    return story(rng)


def units(n: int, *, seed: int, long: bool = False) -> Iterator[str]:
    """n units of training text; with `long`, paragraphs of up to a dozen sentences. The same seed gives the same text."""
    rng = Random(seed)
    made = 0
    while made < n:
        text = _draw(rng, long=long)
        if allowed(text):
            made += 1
            yield text
