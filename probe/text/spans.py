"""The positions of a word in a text, for sentence files, cues and tokens.

Text is compared letter by letter. A letter is a character with its marks (an accent, a vowel sign),
so a word cannot end between the two. The comparison ignores capital letters and invisible
characters such as a soft hyphen. Composed and decomposed spellings are equal.
"""

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import regex

from probe.errors import InputError, whole_number

# A word with its marks; a soft hyphen does not split it.
WORD = regex.compile(r"\w+(?:\u00ad+\w+)*")
LETTER = regex.compile(r"\X")
# Without the zero-width space, which separates words in scripts without spaces.
INVISIBLE = regex.compile(r"(?!\u200b)\p{Cf}")
# Scripts from Thai to Khmer, Japanese and Chinese, which have no spaces between words.
UNSPACED = regex.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
# English endings of nouns, in the order in which they are tried.
ENDINGS = ("", "s", "es")
SHOWN = 60  # characters of a text in an error


class Letter(NamedTuple):
    """One letter of a text."""

    start: int  # first character
    end: int
    folded: str  # as it is compared, see `fold`


def fold(text: str) -> str:
    """The form in which a text is compared: in lower case, without invisible characters, and with
    decomposed accents.

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
    """The visible letters of a text, in order.

    Example:
        >>> from probe.text.spans import letters
        >>> [letter.end - letter.start for letter in letters("cafe\u0301")]  # an e and its accent
        [1, 1, 1, 2]
    """
    all_letters = [
        Letter(match.start(), match.end(), fold(match.group())) for match in LETTER.finditer(text)
    ]
    return [letter for letter in all_letters if letter.folded]


def spans_of(word: str, text: str, *, endings: Sequence[str] = ENDINGS) -> list[tuple[int, int]]:
    """The character spans of a word in a text, in the order of the text.

    word: white space around it is ignored
    endings: endings that may follow the word and belong to the span; "" for no ending

    Only whole words count. In a script without spaces between words every occurrence counts, and
    no ending is added.

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
        target = [letter.folded for letter in letters(bare + ending)]
        for first in range(len(folded) - len(target) + 1):
            end = first + len(target)
            if folded[first:end] != target:
                continue
            neighbours = of_text[max(first - 1, 0) : first] + of_text[end : end + 1]
            if unspaced or not any(WORD.match(letter.folded) for letter in neighbours):
                spans.append((of_text[first].start, of_text[end - 1].end))
    return sorted(spans)


def find_word(text: str, word: str, occurrence: int = 1) -> tuple[int, int]:
    """The span of the n-th occurrence of a word.

    occurrence: counted from 1

    Occurrences with -s or -es count only if there are none without. Raises InputError if the word
    does not occur that often as a whole word.

    Example:
        >>> from probe.text.spans import find_word
        >>> find_word("The bank by the bank", "bank", occurrence=2)
        (16, 20)
    """
    if not isinstance(word, str):
        raise InputError(
            f"Cannot find {word!r} in {shorten(text)!r}: got {type(word).__name__}, expected a "
            "word. Give a word of the text."
        )
    spans = spans_of(word, text, endings=("",)) or spans_of(word, text)
    problem = f"Cannot find {word!r} in {shorten(text)!r}:"
    if not spans:
        raise InputError(f"{problem} it occurs {absence(word, text)}. Give a word of the text.")
    if whole_number(occurrence) is None or not 1 <= occurrence <= len(spans):
        raise InputError(
            f"{problem} got occurrence {occurrence}, expected 1 to {len(spans)} (how often the "
            "word occurs). Give one of these numbers."
        )
    return spans[occurrence - 1]


def absence(word: str, text: str) -> str:
    """Where a word occurs that is not a whole word of a text, in words."""
    bare = fold(word.strip())
    return "only inside another word" if bare and bare in fold(text) else "nowhere"


def shorten(text: str) -> str:
    """The beginning of a long text, for an error."""
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
