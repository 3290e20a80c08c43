"""The questions of the explorer's page: records of plain JSON, checked here.

A question has `what` it asks for and the `text`. It may have an `other` text with the same word in
another meaning, the `word`, the head to `follow`, and the heads to swap at the word with what they
get.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from probe.errors import InputError

WHAT = ("sentence", "along", "swap", "write", "trace", "trace_heads", "score", "cues", "save")
# What a swapped head gets: z at the word of the other sentence, z halfway between both meanings, or
# zero.
KINDS = ("other", "mean", "off")
AXES = ("lexicon", "sentences")
MAX_NUMBER = 1e6  # larger layers, heads and positions are errors


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
        _refuse(f"got {type(record).__name__}, expected a record with `what` and `text`. Give one")
    texts: dict[str, str | None] = {}
    for name in ("what", "text", "other", "word", "axis"):
        value = record.get(name)
        if value is not None and not isinstance(value, str):
            _refuse(f"got {name} as {type(value).__name__}, expected a string. Give one")
        texts[name] = value
    what, text, axis = (texts[name] for name in ("what", "text", "axis"))
    if what not in WHAT:
        _refuse(f"got what = {what!r}, expected one of {', '.join(WHAT)}. Give one of these")
    if text is None:
        _refuse("got no text, expected a sentence. Give one")
    if axis not in (None, *AXES):
        _refuse(f"got axis = {axis!r}, expected {' or '.join(AXES)}. Give one of these")
    swaps = record.get("swaps") or []
    if not isinstance(swaps, list) or not all(map(_is_swap, swaps)):
        _refuse("got swaps that are not [layer, head, kind] each. Choose heads on the map")
    follow = record.get("follow")
    pos = record.get("pos", 0)
    if not (follow is None or _is_head(follow)) or not _is_number(pos):
        _refuse("got a head or a position that is not a number. Choose one on the page")
    return Question(
        what=str(what),
        text=str(text),
        against=_not_blank(texts["other"]),
        word=_not_blank(texts["word"]),
        axis=axis,
        follow=None if follow is None else (follow[0], follow[1]),
        pos=pos,
        swaps=tuple(HeadSwap(*swap) for swap in swaps),
    )


def _refuse(problem: str) -> NoReturn:
    raise InputError(f"Cannot read the question: {problem}.")


def _not_blank(text: str | None) -> str | None:
    """The text; None if it is only white space, as in an empty field of the page."""
    return text if text is not None and text.strip() else None


def _is_swap(swap: Any) -> bool:
    is_triple = isinstance(swap, list) and len(swap) == 3
    return is_triple and _is_head(swap[:2]) and isinstance(swap[2], str) and swap[2] in KINDS


def _is_head(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(map(_is_number, pair))


def _is_number(value: object) -> bool:
    # In Python, the JSON value true is an int.
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < MAX_NUMBER
