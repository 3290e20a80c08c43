"""From templates to text: slots are filled from tables, then English spelling is corrected.

The tables are in the folder of this module: ordinary words, sentence plans, and other stories. Each key is a slot.
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
    """All slots that do not belong to a sense, by name. Raises ValueError for a slot with two lists."""
    slots: dict[str, Any] = {}
    for name in ("grammar_words.toml", "grammar_templates.toml", "grammar_stories.toml"):
        table = tomllib.loads((HERE / name).read_text("utf-8"))
        if twice := slots.keys() & table.keys():
            raise ValueError(
                f"{name} defines {', '.join(sorted(twice))} again; every slot has one list, rename it"
            )
        slots |= table
    return slots


def fill(template: str, slots: Slots, rng: Random, bound: dict[str, str] | None = None) -> str:
    """The template with every slot filled, including slots inside entries.

    `{name:slot}` chooses an entry that this text has not bound yet and binds it to `name`; `{name}` repeats it.
    """
    memory = {} if bound is None else bound

    def choose(match: re.Match[str]) -> str:
        name, source = match.groups()
        if name in memory:
            return memory[name]
        if source is None:
            return fill(rng.choice(slots[name]), slots, rng, memory)
        bound_entries = set(memory.values())
        free = [entry for entry in slots[source] if entry not in bound_entries]
        memory[name] = fill(rng.choice(free), slots, rng, memory)
        return memory[name]

    return _SLOT.sub(choose, template)


def finish(text: str, rng: Random) -> str:
    """The text with correct articles, spaces, capitals and end marks."""
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
    """The text with "an" instead of "a" before a vowel."""
    return _VOWEL.sub(r"\1n ", text)
