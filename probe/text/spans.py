"""Where a word occurs in a text: the one search behind sentence files, cues and token positions.

Text is compared letter by letter. A letter is a character with the marks that belong to it (an
accent, a vowel sign), so no word can end between the two. Capitals do not matter, composed and
decomposed spellings are equal, and invisible characters such as a soft hyphen are passed over.
"""

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import regex

from probe.errors import InputError, whole_number

WORD = regex.compile(
    r"\w+(?:\u00ad+\w+)*"
)  # a word with its marks; a soft hyphen does not split it
LETTER = regex.compile(r"\X")
# A zero-width space is invisible, too, but it separates words where a script has no spaces.
INVISIBLE = regex.compile(r"(?!\u200b)\p{Cf}")
# Scripts from Thai to Khmer, Japanese and Chinese, which have no spaces between words.
UNSPACED = regex.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
# Endings that a noun takes in English; with none of them first.
ENDINGS = ("", "s", "es")
SHOWN = 60  # characters of a text in an error


class Letter(NamedTuple):
    """One letter of a text.

    start, end: its characters in the text.
    folded: what it is compared by.
    """

    start: int
    end: int
    folded: str


def fold(text: str) -> str:
    """A text as it is compared: without capitals and invisible characters, accents decomposed.

    Example:
        >>> from probe.text.spans import fold
        >>> fold("Ba\u00adnk")
        'bank'
    """
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFD", INVISIBLE.sub("", text))
    return unicodedata.normalize("NFD", decomposed.casefold())


def letters(text: str) -> list[Letter]:
    """The visible letters of a text in order.

    Example:
        >>> from probe.text.spans import letters
        >>> [letter.end - letter.start for letter in letters("cafe\u0301")]  # an e and its accent
        [1, 1, 1, 2]
    """
    found = [
        Letter(match.start(), match.end(), fold(match.group())) for match in LETTER.finditer(text)
    ]
    return [letter for letter in found if letter.folded]


def spans_of(word: str, text: str, *, endings: Sequence[str] = ENDINGS) -> list[tuple[int, int]]:
    """The spans of a word in a text, as a word of its own.

    In a script without spaces between words every occurrence counts, and no ending is added.

    word: compared without regard to capitals; white space around it is ignored.
    endings: what may follow the word and belongs to the span; "" for nothing.
    returns: character spans, in the order of the text.

    Example:
        >>> from probe.text.spans import spans_of
        >>> spans_of("bank", "Two banks and an embankment")
        [(4, 9)]
    """
    bare = word.strip()
    if not bare:
        return []
    unspaced = UNSPACED.search(bare) is not None
    if unspaced:
        endings = ("",)
    of_text = letters(text)
    folded = [letter.folded for letter in of_text]
    spans = []
    for ending in endings:
        wanted = [letter.folded for letter in letters(bare + ending)]
        for first in range(len(folded) - len(wanted) + 1):
            end = first + len(wanted)
            if folded[first:end] != wanted:
                continue
            neighbours = of_text[max(first - 1, 0) : first] + of_text[end : end + 1]
            if unspaced or not any(WORD.match(letter.folded) for letter in neighbours):
                spans.append((of_text[first].start, of_text[end - 1].end))
    return sorted(spans)


def find_word(text: str, word: str, occurrence: int = 1) -> tuple[int, int]:
    """The span of the n-th occurrence of a word; one with -s or -es counts where none is without.

    Raises InputError where the word does not occur that often as a word of its own.

    Example:
        >>> from probe.text.spans import find_word
        >>> find_word("The bank by the bank", "bank", occurrence=2)
        (16, 20)
    """
    if not isinstance(word, str):
        raise InputError(
            f"Looking for {word!r} in {shorten(text)!r}: got {type(word).__name__}, expected a "
            "word; give one that stands in the text."
        )
    spans = spans_of(word, text, endings=("",)) or spans_of(word, text)
    doing = f"Looking for {word!r} in {shorten(text)!r}:"
    if not spans:
        raise InputError(f"{doing} it occurs {absence(word, text)}; give a word of the text.")
    if whole_number(occurrence) is None or not 1 <= occurrence <= len(spans):
        raise InputError(
            f"{doing} got occurrence {occurrence}, expected 1 to {len(spans)}, as often as it "
            "stands there; give one of these."
        )
    return spans[occurrence - 1]


def absence(word: str, text: str) -> str:
    """Where a word occurs that is not in a text as a word of its own."""
    bare = fold(word.strip())
    return "only inside another word" if bare and bare in fold(text) else "nowhere"


def shorten(text: str) -> str:
    """The beginning of a long text, for an error."""
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
