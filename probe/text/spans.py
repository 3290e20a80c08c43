"""The positions of a word in a text, for sentence files, cues and tokens.

Text is compared letter by letter. A letter is a character with its marks (an accent, a vowel sign),
so a word cannot end between the two. The comparison ignores capital letters and characters of no
width such as a soft hyphen. Composed and decomposed spellings are equal. Names (words, senses,
frames, pairs) are stored in one such spelling, with their capital letters.
"""

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import regex

from probe.errors import InputError, whole_number

# A word with its marks; a soft hyphen does not split it.
WORD = regex.compile(r"\w+(?:\u00ad+\w+)*")
LETTER = regex.compile(r"\X")
INSIDE_WORD = regex.compile(r"\w\w")
# Characters of no width: joiners, soft hyphens, byte order marks, variation selectors, fillers.
# Visible signs that Unicode calls format characters, such as U+0600, are not among them.
INVISIBLE = regex.compile(r"\p{Default_Ignorable_Code_Point}")
JOINERS = "\u200c\u200d"  # inside a word they belong to its spelling, in Persian and in emoji
SEPARATOR = "\u200b"  # the zero-width space separates words in scripts without spaces
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
    """The form in which a text is compared: in lower case, without characters of no width, and with
    composed accents (NFC).

    Example:
        >>> from probe.text.spans import fold
        >>> fold("Ba\u00adnk")
        'bank'
    """
    if text.isascii():
        return text.lower()
    # Decomposed first, because case folding changes some composed letters only then.
    decomposed = unicodedata.normalize("NFD", INVISIBLE.sub("", text))
    return unicodedata.normalize("NFC", decomposed.casefold())


def plain(name: str) -> str:
    """The form in which a name is stored: without white space and joiners around it and without
    other characters of no width, and with composed accents (NFC).

    Example:
        >>> from probe.text.spans import plain
        >>> plain("\ufeffcote\u0301 ") == "cot\u00e9"
        True
    """
    if name.isascii():
        return name.strip()
    visible = INVISIBLE.sub(lambda match: match[0] if match[0] in JOINERS else "", name)
    edges = JOINERS + "".join(filter(str.isspace, visible))
    return unicodedata.normalize("NFC", visible.strip(edges))


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

    word: white space and characters of no width around it are ignored
    endings: endings that may follow the word and belong to the span; "" for no ending

    Only whole words count. In a script without spaces between words every occurrence counts, and
    no ending is added.

    Example:
        >>> from probe.text.spans import spans_of
        >>> spans_of("bank", "Two banks and an embankment")
        [(4, 9)]
    """
    bare = plain(word)
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
            in_other_word = _is_joined(text, of_text, first - 1, first) or _is_joined(
                text, of_text, end, end
            )
            if unspaced or not in_other_word:
                spans.append((of_text[first].start, of_text[end - 1].end))
    return sorted(spans)


def _is_joined(text: str, of_text: Sequence[Letter], neighbour: int, border: int) -> bool:
    """Whether a word is continued by the neighbouring letter at one of its borders.

    neighbour: the number of that letter
    border: the number of the letter after the border
    """
    if not 0 < border < len(of_text) or not WORD.match(of_text[neighbour].folded):
        return False
    return SEPARATOR not in text[of_text[border - 1].end : of_text[border].start]


def covers_letters(text: str, start: int, end: int) -> bool:
    """Whether characters begin and end with a whole letter, and not with white space."""
    covered = text[start:end]
    borders = {0, *(match.end() for match in LETTER.finditer(text))}
    return covered == covered.strip() and {start, end} <= borders


def may_be_form(word: str, text: str, start: int, end: int) -> bool:
    """Whether characters of a text may be a word or a form of it, such as *mice* for mouse.

    Any whole words are a form, but not a part of the word where it occurs. A part of another word
    is a form only if it contains the word or begins with the same letter.
    """
    bare = fold(plain(word))
    covered = fold(text[start:end])
    if bare in covered:
        return True
    if any(low < end and start < high for low, high in spans_of(word, text)):
        return False
    cuts_word = any(INSIDE_WORD.match(text, border - 1) for border in (start, end) if border)
    return not cuts_word or UNSPACED.search(covered) is not None or covered[:1] == bare[:1]


def from_utf16(text: str, units: int) -> int:
    """The number of characters in the first `units` UTF-16 units of a text, in which JavaScript and
    Java count: a character beyond U+FFFF is two.

    A number outside the text is returned unchanged.

    Example:
        >>> from probe.text.spans import from_utf16
        >>> from_utf16("😀 bank", 3)  # the b
        2
    """
    encoded = text.encode("utf-16-le")
    if not 0 <= 2 * units <= len(encoded):
        return units
    return len(encoded[: 2 * units].decode("utf-16-le", "ignore"))


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
    bare = fold(plain(word))
    return "only inside another word" if bare and bare in fold(text) else "nowhere"


def shorten(text: str) -> str:
    """The beginning of a long text, for an error."""
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
