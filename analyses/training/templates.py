"""Templates to text: slots filled from tables, then the spelling that English asks for put right.

The tables stand beside this module: ordinary words, sentence plans, and other stories; each key is a slot.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).parent

Slots = Mapping[str, Sequence[str]]

_SLOT = re.compile(r"\{(\w+)(?::(\w+))?\}")
_VOWEL = re.compile(r"\b([Aa]) (?!one|[Ee]u|uni(?![mn])|use|usual)(?=[aeiouAEIOU]|hour)")
_QUESTION = re.compile(r"(?:what|who|why|how|can|could|is|did|do|which)\b", re.IGNORECASE)


@cache
def tables() -> Mapping[str, Any]:
    """All slots of the tables that belong to no sense, by name."""
    found: dict[str, Any] = {}
    for name in ("grammar_words.toml", "grammar_templates.toml", "grammar_stories.toml"):
        table = tomllib.loads((HERE / name).read_text("utf-8"))
        if twice := found.keys() & table.keys():
            raise ValueError(
                f"{name} defines {', '.join(sorted(twice))} again; every slot has one list, rename it"
            )
        found |= table
    return found


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
        memory[name] = fill(
            rng.choice([entry for entry in slots[source] if entry not in taken]), slots, rng, memory
        )
        return memory[name]

    return _SLOT.sub(choose, template)


def finish(text: str, rng: Random) -> str:
    """Articles, spaces, capitals and end marks put right."""
    text = re.sub(r"\s+", " ", text).replace(" ,", ",").replace(" .", ".").strip()
    text = mend_articles(text)
    sentences = [part[:1].upper() + part[1:] for part in re.split(r"(?<=[.?!]) ", text) if part]
    last = sentences[-1]
    if last[-1] not in ".?!":
        quote = '"' if last.count('"') % 2 else ""
        mark = "?" if _QUESTION.match(last) else rng.choices([".", "!", ""], [90, 4, 6])[0]
        sentences[-1] = last + quote + mark
    return " ".join(sentences)


def mend_articles(text: str) -> str:
    """English "a" made "an" where it must be."""
    return _VOWEL.sub(r"\1n ", text)
