"""Frames of a cue scan: short texts that hold the word and one slot, `_`, for a cue.

The frames that ship put the cue 1 to 4 words before the word. A model that reads both ways also
gets two that put it after the word.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from probe.errors import InputError
from probe.text.spans import spans_of

SLOT = "_"
BEFORE = (
    "The _ {word}",
    "With the _ the {word}",
    "The _ and the {word}",
    "The _ next to the {word}",
)
AFTER = ("The {word} and the _", "The {word} next to the _")
FEWEST_FRAMES = 2  # the halves of a split
_SLOT = re.compile(r"(?<=\S\s)_(?!\w)")
_WORD = re.compile(r"[^\W\d_]+")
# Endings that are taken off a word, the first that fits; what is left has at least SHORTEST_STEM
# letters. Only words that share a root need to meet: a stem is never shown.
ENDINGS = ("ings", "ing", "edly", "ed", "ers", "er", "ies", "es", "ly", "s", "y", "e")
SHORTEST_STEM = 3


@dataclass(frozen=True)
class Slotted:
    """A frame: its text, and the character positions of the slot and of the word.

    text: with the slot.
    slot: where the slot is.
    start, end: the word.
    """

    text: str
    slot: int
    start: int
    end: int

    @property
    def before(self) -> str:
        """What is written before the slot and its space."""
        return self.text[: self.slot - 1]

    @property
    def cue_after(self) -> bool:
        """Whether the cue comes after the word."""
        return self.slot > self.start

    def filled(self, cue: str) -> tuple[str, int, int]:
        """The text with a cue in the slot, and the first character of the cue and of the word."""
        text = self.text[: self.slot] + cue + self.text[self.slot + len(SLOT) :]
        moved = 0 if self.cue_after else len(cue) - len(SLOT)
        return text, self.slot, self.start + moved


def frames_for(word: str, *, both_sides: bool) -> tuple[str, ...]:
    """The frames that ship with a word put in; with `both_sides` also those with the cue after it.

    Example:
        >>> from probe.text.slots import frames_for
        >>> frames_for("bank", both_sides=False)[0]
        'The _ bank'
    """
    texts = BEFORE + AFTER if both_sides else BEFORE
    return tuple(text.format(word=word) for text in texts)


def read_frames(texts: Sequence[str], word: str, *, both_sides: bool) -> tuple[Slotted, ...]:
    """Frames from their texts.

    Raises InputError for fewer than two, for one without exactly one slot and one occurrence of the
    word, for one that begins with the slot and, where a model does not read both ways, for one
    whose slot comes after the word.
    """
    if len(set(texts)) < FEWEST_FRAMES:
        raise InputError(
            f"Scanning cues: got {len(set(texts))} frames, expected at least {FEWEST_FRAMES} to "
            f'compare with each other; give texts such as "The {SLOT} {word}".'
        )
    return tuple(_read(text, word, both_sides=both_sides) for text in dict.fromkeys(texts))


def _read(text: str, word: str, *, both_sides: bool) -> Slotted:
    slots = [match.start() for match in _SLOT.finditer(text)]
    words = spans_of(word, text)
    if len(slots) != 1 or len(words) != 1:
        raise InputError(
            f"Scanning cues in the frame {text!r}: got {len(slots)} slots and {word!r} "
            f"{len(words)} times, expected each once, the slot after another word; write "
            f'"The {SLOT} {word}", say.'
        )
    [[start, end]] = words
    frame = Slotted(text, slots[0], start, end)
    if frame.cue_after and not both_sides:
        raise InputError(
            f"Scanning cues in the frame {text!r}: its slot comes after {word!r}, where a model "
            "that reads left to right cannot have read it; put the slot first."
        )
    return frame


def words_of(text: str) -> list[str]:
    """The words of a text that consist of letters.

    Example:
        >>> from probe.text.slots import words_of
        >>> words_of("The bank's 2 loans")
        ['The', 'bank', 's', 'loans']
    """
    return _WORD.findall(text)


def stem_of(word: str) -> str:
    """What a word shares with its other forms, roughly: "loans", "loan" and "loaned" have one stem.

    Example:
        >>> from probe.text.slots import stem_of
        >>> {stem_of(word) for word in ("Loan", "loans", "loaned")}
        {'loan'}
    """
    folded = word.casefold()
    for ending in ENDINGS:
        if folded.endswith(ending) and len(folded) - len(ending) >= SHORTEST_STEM:
            folded = folded.removesuffix(ending)
            break
    # "shopping" and "shop": the doubled letter belongs to the ending.
    if len(folded) > SHORTEST_STEM and folded[-1] == folded[-2]:
        folded = folded[:-1]
    return folded
