"""The explorer's page, and the questions that it asks: records of plain JSON, checked.

The page is the walk's template with its own sentences typed, so that steps, scripts and charts are
shared. It is rendered once per model, from the walk of a pair of sentences that ship; every other
text comes as an answer to a question. `what` is asked, the `text`, perhaps an `other` one with the
same word (this meaning, that meaning), the `word`, the head that is followed, the heads that are
swapped at the word and by what.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment
from markupsafe import Markup

from probe.errors import InputError
from probe.model.model import Model
from probe.pages import output
from probe.pages import walk as walk_page
from probe.walkthrough.walk import Walk, walk

TEMPLATES = Path(__file__).parent / "templates"
HOSTS = {"server": "; connect-src 'self'", "notebook": ""}  # what else the page of each may reach
EXAMPLES = (  # a word in two meanings, with as many tokens before it in both
    ("The river rose, so he went to the bank", "The money came, so he went to the bank"),
    ("They saw the river from the bank", "They took the money from the bank"),
    ("In the garden they found a mole", "In the agency they found a mole"),
    ("She baked a pie with the apple", "She sold the shares of the apple"),
)


def opened(model: Model) -> Walk:
    """The walk that the page opens with. Raises as `probe.walk`."""
    text, other = EXAMPLES[0]
    return walk(model, text, against=other, traced=False)


def render(opened: Walk, *, host: str = "server") -> tuple[str, str]:
    """The page for a host of HOSTS and its content security policy, which lets it ask its host and
    nobody else."""
    templates = _templates()
    assets = output.assets(templates, "explore.css.j2", "explore.js")
    assets["policy"] = f"{assets['policy']}{HOSTS[host]}"
    values = walk_page.values(replace(opened, later=None, caution=None))
    page = templates.get_template("explore.html.j2").render(
        values, examples=EXAMPLES, host=host, **assets
    )
    return page, str(assets["policy"])


def choices(tokens: pd.DataFrame) -> Markup:
    """The tokens of a text to choose from, as the walk has them above its steps."""
    parts: Any = _templates().get_template("parts.html.j2").module
    return Markup(parts.choices(walk_page.chips(tokens)))


@cache
def _templates() -> Environment:
    return walk_page.environment(TEMPLATES)


WHAT = ("sentence", "along", "swap", "write", "effects", "trace", "trace_heads", "save")
KINDS = (
    "other",
    "mean",
    "off",
)  # z of the other sentence's word, halfway between both meanings, zero
AXES = ("lexicon", "sentences")


@dataclass(frozen=True)
class Swapped:
    """A head and what it gets at the word: z of the other sentence, its mean, or nothing."""

    layer: int
    head: int
    kind: str


@dataclass(frozen=True)
class Question:
    """A question, checked."""

    what: str
    text: str
    other: str | None = None
    word: str | None = None
    axis: str | None = None
    follow: tuple[int, int] | None = None
    pos: int = 0
    kind: str = "other"
    swaps: tuple[Swapped, ...] = ()


def parse(asked: object) -> Question:
    """The question in a record of JSON. Raises InputError for anything that is not one."""
    if not isinstance(asked, Mapping):
        raise InputError(
            f"Reading a question: got {type(asked).__name__}, expected a record with `what` and `text`."
        )
    what, text = _string(asked, "what"), _string(asked, "text")
    if what not in WHAT:
        raise InputError(
            f"Reading a question: got what = {what!r}, expected one of {', '.join(WHAT)}."
        )
    if text is None:
        raise InputError("Reading a question: got no text, expected a sentence.")
    axis, kind = _string(asked, "axis"), _string(asked, "kind") or "other"
    if axis not in (None, *AXES) or kind not in KINDS:
        raise InputError(
            f"Reading a question: got axis = {axis!r} and kind = {kind!r}, expected {' or '.join(AXES)}, and "
            f"{', '.join(KINDS)}."
        )
    follow, swapped = asked.get("follow"), asked.get("swaps") or []
    if not isinstance(swapped, list) or not all(map(_is_swap, swapped)):
        raise InputError(
            "Reading a question: got swaps that are not [layer, head, kind] each; choose heads on the map."
        )
    given = _string(asked, "other"), _string(asked, "word")
    other, word = (part if part is not None and part.strip() else None for part in given)
    (pos,) = _numbers([asked.get("pos", 0)])
    return Question(
        what=str(what),
        text=text,
        other=other,
        word=word,
        axis=axis,
        follow=None if follow is None else _head(follow),
        pos=pos,
        kind=kind,
        swaps=tuple(Swapped(*_head(one[:2]), one[2]) for one in swapped),
    )


def _string(asked: Mapping[Any, Any], name: str) -> str | None:
    value = asked.get(name)
    if value is not None and not isinstance(value, str):
        raise InputError(
            f"Reading a question: got {name} as {type(value).__name__}, expected a string."
        )
    return value


def _is_swap(one: object) -> bool:
    return isinstance(one, list) and len(one) == 3 and isinstance(one[2], str) and one[2] in KINDS


def _head(pair: object) -> tuple[int, int]:
    layer, head = _numbers(pair if isinstance(pair, list) and len(pair) == 2 else [None, None])
    return layer, head


def _numbers(given: list[Any]) -> list[int]:
    if not all(
        isinstance(number, int) and not isinstance(number, bool) and abs(number) < 1e6
        for number in given
    ):
        raise InputError(
            "Reading a question: got a head or a position that is no number; choose one on the page."
        )
    return given
