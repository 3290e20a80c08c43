"""The explorer's page, and its questions: records of plain JSON, checked here.

The page extends the walk's template, so steps, scripts and charts are shared. It is rendered once
per model, from the walk of a pair of sentences that ship with the library; every other text arrives
as the answer to a question.

A question has `what` it asks for and the `text`. It may have an `other` text with the same word in
another meaning, the `word`, the head to `follow`, and the heads to swap at the word with what they
get.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment
from markupsafe import Markup

from probe.errors import InputError
from probe.model.model import Model
from probe.pages import folder, html
from probe.pages import walk as walk_page
from probe.walkthrough.walk import Walk, walk

TEMPLATES = Path(__file__).parent / "templates"
Recording = dict[str, Any]  # plain JSON: the answers of a saved page and its first state
EXAMPLES = (  # a word in two meanings, with equally many tokens before it
    ("The river rose, so he went to the bank", "The money came, so he went to the bank"),
    ("They saw the river from the bank", "They took the money from the bank"),
    ("In the garden they found a mole", "In the agency they found a mole"),
    ("She baked a pie with the apple", "She sold the shares of the apple"),
)
WHAT = ("sentence", "along", "swap", "write", "trace", "trace_heads", "score", "cues", "save")
# What a swapped head gets: z at the word of the other sentence, z halfway between both meanings, or
# zero.
KINDS = ("other", "mean", "off")
AXES = ("lexicon", "sentences")
MAX_NUMBER = 1e6  # larger layers, heads and positions are errors


def opening_walk(
    model: Model,
    text: str = EXAMPLES[0][0],
    against: str | None = EXAMPLES[0][1],
    *,
    word: str | None = None,
    head: tuple[int, int] | None = None,
) -> Walk:
    """The walk that the page opens with. Raises the errors of `probe.walk`."""
    # The page asks for the causal trace when somebody opens it.
    return walk(
        model, text, at=word, head=head or (None, None), against=against, causal_trace=False
    )


@html.without_validation
def render(opening: Walk, *, recording: Recording | None = None) -> tuple[str, str]:
    """The page and its content security policy.

    recording: the answers of a saved page, which reaches nothing; by default the page may ask the
        server that it comes from
    """
    # Each page has new templates, because they number its charts from 1.
    templates = walk_page.environment(TEMPLATES)
    assets = html.assets(templates, "explore.css.j2", "explore.js")
    policy = assets["policy"]
    if recording is None:
        policy += "; connect-src 'self'"
    # Both are about the opening sentences only, and the reader types others.
    values = walk_page.values(opening) | {"truncation_change": None, "caution": None}
    values |= assets | {"policy": policy, "examples": EXAMPLES}
    values |= {"recorded": None, "manifest": None, "swapped_heads": False}
    if recording is not None:
        values["recorded"] = html.as_json(recording)
        values["swapped_heads"] = bool(recording["swap"])
        values["manifest"] = folder.made_by(opening, recording["command"])
    return templates.get_template("explore.html.j2").render(values), policy


def choices(tokens: pd.DataFrame) -> Markup:
    """The tokens of a text to choose from, as HTML."""
    parts: Any = _templates().get_template("parts.html.j2").module
    return Markup(parts.choices(walk_page.chips(tokens)))


@cache
def _templates() -> Environment:
    return walk_page.environment(TEMPLATES)


@dataclass(frozen=True)
class HeadSwap:
    """A head, and what it gets at the word: one of KINDS."""

    layer: int
    head: int
    kind: str


@dataclass(frozen=True)
class Question:
    """A checked question."""

    what: str
    text: str
    against: str | None = None
    word: str | None = None
    axis: str | None = None
    follow: tuple[int, int] | None = None
    pos: int = 0
    swaps: tuple[HeadSwap, ...] = ()


def parse(record: object) -> Question:
    """The question in a JSON record. Raises InputError for any other value."""
    if not isinstance(record, Mapping):
        raise InputError(
            f"Cannot read the question: got {type(record).__name__}, expected a record with `what` "
            "and `text`. Give one."
        )
    what = _string(record, "what")
    text = _string(record, "text")
    if what is None or what not in WHAT:
        raise InputError(
            f"Cannot read the question: got what = {what!r}, expected one of {', '.join(WHAT)}. "
            "Give one of these."
        )
    if text is None:
        raise InputError("Cannot read the question: got no text, expected a sentence. Give one.")
    axis = _string(record, "axis")
    if axis not in (None, *AXES):
        raise InputError(
            f"Cannot read the question: got axis = {axis!r}, expected {' or '.join(AXES)}. Give "
            "one of these."
        )
    swaps = _swaps(record.get("swaps") or [])
    follow = record.get("follow")
    (pos,) = _whole_numbers([record.get("pos", 0)])
    return Question(
        what=what,
        text=text,
        against=_not_blank(_string(record, "other")),
        word=_not_blank(_string(record, "word")),
        axis=axis,
        follow=None if follow is None else _head(follow),
        pos=pos,
        swaps=swaps,
    )


def _string(record: Mapping[Any, Any], name: str) -> str | None:
    value = record.get(name)
    if value is not None and not isinstance(value, str):
        raise InputError(
            f"Cannot read the question: got {name} as {type(value).__name__}, expected a string. "
            "Give one."
        )
    return value


def _not_blank(text: str | None) -> str | None:
    """The text; None if it is only white space, as in an empty field of the page."""
    return text if text is not None and text.strip() else None


def _swaps(swaps: object) -> tuple[HeadSwap, ...]:
    if not isinstance(swaps, list) or not all(map(_is_swap, swaps)):
        raise InputError(
            "Cannot read the question: got swaps that are not [layer, head, kind] each. Choose "
            "heads on the map."
        )
    return tuple(HeadSwap(*_head(swap[:2]), swap[2]) for swap in swaps)


def _is_swap(swap: object) -> bool:
    return (
        isinstance(swap, list) and len(swap) == 3 and isinstance(swap[2], str) and swap[2] in KINDS
    )


def _head(pair: object) -> tuple[int, int]:
    is_pair = isinstance(pair, list) and len(pair) == 2
    layer, head = _whole_numbers(pair if is_pair else [None, None])
    return layer, head


def _whole_numbers(values: Any) -> list[int]:
    for value in values:
        # In Python, the JSON value true is an int.
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or abs(value) >= MAX_NUMBER:
            raise InputError(
                "Cannot read the question: got a head or a position that is not a number. Choose "
                "one on the page."
            )
    return list(values)
