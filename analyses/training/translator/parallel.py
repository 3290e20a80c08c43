"""The parallel grammar of tiny-translator: English sentences and their French translations, drawn together from tables.

Translation alone gives no reason to learn which words belong to one topic, except in sentences with an ambiguous word.
So that cue words that never occur with an ambiguous word can still resolve it, English words are masked in sentences
without one: to restore them in French, the model has to learn which words belong together.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from training.templates import HERE, mend_articles
from training.translator.french import Noun, agree, contract, describe, determine
from training.withheld import allowed, echoes, held_out, windows

FOLDER = HERE / "translator"
AMBIGUOUS, TOPICAL = 0.45, 0.33

_SLOT = re.compile(r"\{(?:(\w+):)?(\w+)\}")
_NOUNS = ("C", "D", "W", "N", "M")
_DETERMINED = {"the": ["the", "le", "la", "l'", "l'"], "a": ["a", "un", "une", "un", "une"]}
_PRONOUNS = {"m": "il", "f": "elle"}

Plan = tuple[str, str]


@dataclass(frozen=True)
class Pair:
    """A sentence and its translation.

    hidable: whether English words may be masked in training
    """

    en: str
    fr: str
    hidable: bool = False


@dataclass(frozen=True, eq=False)
class Topic:
    """One sense of one word: the word in both languages, its cues, related nouns (`kin`), and its verb phrases."""

    name: str
    sense: str
    word: Noun
    cues: tuple[Noun, ...]
    kin: tuple[Noun, ...]
    does: tuple[tuple[str, ...], ...]

    @property
    def seen_cues(self) -> tuple[Noun, ...]:
        """The cues that may occur with the word in training."""
        return tuple(cue for cue in self.cues if cue.en not in held_out(self.name, self.sense))


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / name).read_text("utf-8"))


@cache
def topics() -> tuple[Topic, ...]:
    """Every sense of the grammar."""
    return tuple(
        Topic(
            word,
            sense,
            Noun(*says["word"]),
            tuple(Noun(*row) for row in says["cues"]),
            tuple(Noun(*row) for row in says["kin"]),
            tuple(map(tuple, says["does"])),
        )
        for word, senses in _read("words.toml")["senses"].items()
        for sense, says in senses.items()
    )


@cache
def ordinary() -> Mapping[str, Any]:
    """The words that do not belong to a topic, by list."""
    return _read("words.toml")["ordinary"]


@cache
def plans(file: str) -> Mapping[str, Sequence[Plan]]:
    """The sentence plans of one of the tables."""
    return {name: [(en, fr) for en, fr in rows] for name, rows in _read(file).items()}


def fill(plan: Plan, nouns: Mapping[str, Noun], does: Sequence[Sequence[str]], rng: Random) -> Pair:
    """The plan with every slot filled in the same way in both languages, with English and French spelling corrected."""
    en, fr = plan
    for slot, mode, name in dict.fromkeys(
        (match[0], *match.groups()) for match in _SLOT.finditer(en + fr)
    ):
        here = nouns.get(name)
        both = _about(mode, here, does, rng) if here else rng.choice(ordinary()[name.rstrip("2")])
        en, fr = en.replace(slot, both[0]), fr.replace(slot, both[1])
    mark = "?" if fr.endswith("?") else "."
    return Pair(_sentences(mend_articles(en), mark), _sentences(contract(fr), mark))


def _about(mode: str | None, noun: Noun, does: Sequence[Sequence[str]], rng: Random) -> Plan:
    """The English and French of a slot that is filled with a noun or agrees with one."""
    match mode:
        case None:
            return _phrase(noun, rng)
        case "bare":
            return noun.en, noun.fr
        case "it":
            return noun.pronoun, _PRONOUNS[noun.gender]
        case "does":
            en, *forms = rng.choice(does)
            return en, agree(forms * (3 - len(forms)), noun.gender)
        case "one":
            return noun.en, determine(_DETERMINED["a"][1:], noun.gender, noun.fr)
        case "the" | "a":
            _, *forms = _DETERMINED[mode]
            return f"{mode} {noun.en}", determine(forms, noun.gender, noun.fr)
    adjectives = [*ordinary()["before"], *ordinary()["after"]]
    en, *forms = rng.choice([row for row in adjectives if mode.startswith("adj") or row[0] == mode])
    return en, agree(forms, noun.gender)


def _phrase(noun: Noun, rng: Random) -> Plan:
    """Determiner, noun and at most one adjective on either side; a name has neither."""
    if noun.fr[0].isupper():
        return noun.en, noun.fr
    draw = rng.random()
    before = rng.choice(ordinary()["before"]) if draw > 0.65 else None
    after = rng.choice(ordinary()["after"]) if 0.45 < draw < 0.75 else None
    det, *forms = rng.choice(ordinary()["determiners"])
    adjectives = [row[0] for row in (before, after) if row]
    french = describe(noun, before and before[1:], after and after[1:])
    return " ".join([det, *adjectives, noun.en]), determine(forms, noun.gender, french)


def _sentences(text: str, mark: str) -> str:
    """The text with capitals at the beginnings of sentences and the mark at the end."""
    text = re.sub(r"(^|[.?] )(\w)", lambda match: match[1] + match[2].upper(), text)
    return text if text.endswith(mark) else text + mark


def ambiguous(topic: Topic, rng: Random) -> Pair:
    """A sentence with the word and a cue that may occur with it in training, or with a related noun."""
    company = topic.word.fr == "Apple"
    cue = rng.choice([*topic.seen_cues * 3, *topic.kin])
    second = rng.choice([noun for noun in (*topic.seen_cues, *topic.kin) if noun != cue])
    if rng.random() < 0.3:
        second = rng.choice(
            [cue for item in topics() if item.name != topic.name for cue in item.seen_cues]
        )
    word = topic.word
    if rng.random() < (0.6 if topic.name == "apple" else 0.35):
        kind = "names"
        word = Noun("apple", "Apple", "f") if company and rng.random() < 0.7 else word
    else:
        kind = "company" if company else "phrases"
    return _pair_of_kind(kind, {"C": cue, "D": second, "W": word}, topic.does, rng)


def about(topic: Topic, rng: Random) -> Pair:
    """A sentence about the topic from the same plans, without the word. Held-out cues are as common as the others."""
    first, second, third = rng.sample([*topic.cues, *topic.kin], 3)
    kind = "names" if rng.random() < 0.4 else "phrases"
    pair = _pair_of_kind(kind, {"C": first, "D": second, "W": third}, topic.does, rng)
    return Pair(pair.en, pair.fr, hidable=True)


def plain(rng: Random) -> Pair:
    """A sentence without a topic."""
    pair = _pair_of_kind("plain", {}, (), rng)
    return Pair(pair.en, pair.fr, hidable=True)


def _pair_of_kind(
    kind: str, nouns: Mapping[str, Noun], does: Sequence[Sequence[str]], rng: Random
) -> Pair:
    en, fr = rng.choice(plans("templates.toml")[kind])
    chance = rng.random()
    if en.startswith(("{who}", "there", "{W} was", "{C} was")) and chance < 0.3:
        en, fr = (f"{{time}} {text}" if chance < 0.2 else f"{text} {{time2}}" for text in (en, fr))
    first, second = rng.sample(ordinary()["nouns"], 2)
    return fill((en, fr), {**nouns, "N": Noun(*first), "M": Noun(*second)}, does, rng)


@cache
def frame_windows() -> frozenset[tuple[str, ...]]:
    """The windows of the frames for evaluation, which training must not contain."""
    nouns = {"C": Noun("{cue}", "x", "m"), "W": Noun("{word}", "x", "m")}
    return windows(
        fill(plan, nouns, (), Random(0)).en
        for rows in plans("frames.toml").values()
        for plan in rows
    )


def units(n: int, *, seed: int) -> Iterator[Pair]:
    """n sentences with their translations. The same seed gives the same text."""
    rng = Random(seed)
    count = 0
    while count < n:
        draw, topic = rng.random(), rng.choice(topics())
        if draw < AMBIGUOUS:
            pair = ambiguous(topic, rng)
        else:
            pair = about(topic, rng) if draw < AMBIGUOUS + TOPICAL else plain(rng)
        if allowed(pair.en) and not echoes(pair.en, frame_windows()):
            count += 1
            yield pair
