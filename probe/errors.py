"""The errors that a user can fix, and the checks of numbers that every package shares.

A message is "Cannot X: reason. Next step." The command line prints it and exits with the class's
`exit_code`. Nothing else in the library catches these errors.
"""

import operator
from collections.abc import Sequence
from difflib import SequenceMatcher, get_close_matches

NEAREST = 3  # similar words to choose from
MOST = 2**63 - 1  # the largest number that every library can count to


class ProbeError(Exception):
    """A failure that the user can fix. The message gives the problem and the next step."""

    exit_code = 2


class InputError(ProbeError):
    """A text, word, span, sentence file, option or output folder cannot be used as given."""


class ModelError(ProbeError):
    """A model cannot be found, or cannot be trusted."""


class UnsupportedModel(ModelError):
    """The numbers of this architecture cannot be certified."""


class CrossCheckError(ProbeError):
    """The hooked model and the forward pass from scratch disagree beyond the tolerance."""

    exit_code = 1


def nearest(word: str, candidates: Sequence[str]) -> str | None:
    """The candidate that a misspelled word most likely means; None if no candidate is similar.

    A candidate with the same letters comes first, then the most similar one.

    Example:
        >>> from probe.errors import nearest
        >>> nearest("bnak", ["bark", "bank", "mole"])
        'bank'
    """

    def likeness(name: str) -> tuple[bool, float]:
        return sorted(name) == sorted(word), SequenceMatcher(None, word, name).ratio()

    return max(get_close_matches(word, candidates, n=NEAREST), key=likeness, default=None)


def whole_number(value: object) -> int | None:
    """The value as an int, if it is a whole number of any library; None for anything else,
    including True."""
    try:
        return None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def require_flag(value: object, name: str, *, doing: str) -> None:
    """Raises InputError for an option `name` that is neither True nor False."""
    if not isinstance(value, bool):
        raise InputError(
            f"{doing}: got {name} = {value!r}, expected True or False. Give one of these."
        )


def require_at_least(least: int, value: object, name: str, *, doing: str, usual: object) -> None:
    """Raises InputError for an option `name` that is not a whole number from `least` to MOST.

    doing: what fails, such as "Cannot study words"
    usual: the default of the option
    """
    number = whole_number(value)
    # Above MOST, libraries fail in different ways, with various messages.
    if number is None or not least <= number <= MOST:
        end = "on" if number is None or number < least else f"to {MOST}"
        raise InputError(
            f"{doing}: got {name} = {value!r}, expected a whole number from {least} {end}. Omit it "
            f"for {usual}."
        )
