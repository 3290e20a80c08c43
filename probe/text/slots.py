"""Frames of a cue scan: short texts with the word and one slot, `_`, for a cue.

In the frames that ship, the cue is 1 to 4 words before the word. For models that read both ways,
two more have it after the word.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from probe.errors import InputError
from probe.text.spans import fold, spans_of

SLOT = "_"
BEFORE = (
    "The _ {word}",
    "With the _ the {word}",
    "The _ and the {word}",
    "The _ next to the {word}",
)
AFTER = ("The {word} and the _", "The {word} next to the _")
FEWEST_FRAMES = 2  # for a split into halves
_SLOT = re.compile(r"(?<=\S\s)_(?!\w)")
_WORD = re.compile(r"[^\W\d_]+")
# The first of these endings that fits is removed from a word. At least SHORTEST_STEM letters must
# remain. Stems only need to be equal for words with the same root; they are never shown.
ENDINGS = ("ings", "ing", "edly", "ed", "ers", "er", "ies", "es", "ly", "s", "y", "e")
SHORTEST_STEM = 3


@dataclass(frozen=True)
class Slotted:
    """A frame with the character positions of its slot and its word."""

    text: str  # with the slot
    slot: int
    start: int  # of the word
    end: int

    @property
    def before(self) -> str:
        """The text before the slot and its space."""
        return self.text[: self.slot - 1]

    @property
    def cue_after(self) -> bool:
        """Whether the cue comes after the word."""
        return self.slot > self.start

    def filled(self, cue: str) -> tuple[str, int, int]:
        """The text with a cue in the slot, and the first character of the cue and of the word."""
        text = self.text[: self.slot] + cue + self.text[self.slot + len(SLOT) :]
        # A cue before the word moves the word by the difference in length.
        shift = 0 if self.cue_after else len(cue) - len(SLOT)
        return text, self.slot, self.start + shift


def frames_for(word: str, *, both_sides: bool) -> tuple[str, ...]:
    """The frames that ship, with a word filled in.

    both_sides: whether to include the frames with the cue after the word

    Example:
        >>> from probe.text.slots import frames_for
        >>> frames_for("bank", both_sides=False)[0]
        'The _ bank'
    """
    texts = BEFORE + AFTER if both_sides else BEFORE
    return tuple(text.format(word=word) for text in texts)


def read_frames(texts: Sequence[str], word: str, *, both_sides: bool) -> tuple[Slotted, ...]:
    """Frames from their texts.

    both_sides: whether the slot may come after the word

    Raises InputError for fewer than two frames, for a frame without exactly one slot and one
    occurrence of the word, for a frame that begins with the slot, and without `both_sides` for a
    slot after the word.
    """
    if len(set(texts)) < FEWEST_FRAMES:
        raise InputError(
            f"Cannot scan cues: got {len(set(texts))} frames, expected at least {FEWEST_FRAMES} to "
            f'compare. Give texts such as "The {SLOT} {word}".'
        )
    return tuple(_read(text, word, both_sides=both_sides) for text in dict.fromkeys(texts))


def _read(text: str, word: str, *, both_sides: bool) -> Slotted:
    slots = [match.start() for match in _SLOT.finditer(text)]
    words = spans_of(word, text)
    if len(slots) != 1 or len(words) != 1:
        raise InputError(
            f"Cannot scan cues in the frame {text!r}: got {len(slots)} slots and {word!r} "
            f"{len(words)} times, expected each once, and the slot after another word. Give a "
            f'frame such as "The {SLOT} {word}".'
        )
    [[start, end]] = words
    frame = Slotted(text, slots[0], start, end)
    if frame.cue_after and not both_sides:
        raise InputError(
            f"Cannot scan cues in the frame {text!r}: its slot comes after {word!r}, where a model "
            "that reads left to right cannot have read it. Put the slot before the word."
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
    """An approximate stem: "loans", "loan" and "loaned" have the same stem.

    Example:
        >>> from probe.text.slots import stem_of
        >>> {stem_of(word) for word in ("Loan", "loans", "loaned")}
        {'loan'}
    """
    folded = fold(word)
    for ending in ENDINGS:
        if folded.endswith(ending) and len(folded) - len(ending) >= SHORTEST_STEM:
            folded = folded.removesuffix(ending)
            break
    # The doubled letter belongs to the ending: "shopping" and "shop" have the same stem.
    if len(folded) > SHORTEST_STEM and folded[-1] == folded[-2]:
        folded = folded[:-1]
    return folded
