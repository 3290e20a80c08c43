"""Everything a user can be told to mend: one sentence each, saying what was done, got, expected,
and the next step.

The command line prints the sentence and exits with the class's `exit_code`; nothing else in the
library catches these. What every package asks of a number that it is given stands here, too.
"""

import operator
from collections.abc import Sequence
from difflib import SequenceMatcher, get_close_matches

NEAREST = 3  # of which the one with the same letters is meant
MOST = 2**63 - 1  # what every library counts up to


class ProbeError(Exception):
    """A failure that the user can act on; its message is one complete sentence."""

    exit_code = 2


class InputError(ProbeError):
    """A text, word, span, sentence file, option or output folder cannot be used as given."""


class ModelError(ProbeError):
    """A model cannot be found, or what was found must not be trusted."""


class UnsupportedModel(ModelError):
    """The architecture is not one whose numbers are certified."""


class CrossCheckError(ProbeError):
    """The hooked model and the from-scratch computation disagree beyond the tolerance."""

    exit_code = 1


def nearest(word: str, known: Sequence[str]) -> str | None:
    """The known word that a misspelled one is likely to mean, if any: the most alike, and of these
    the one with the same letters.

    Example:
        >>> from probe.errors import nearest
        >>> nearest("bnak", ["bark", "bank", "mole"])
        'bank'
    """

    def likeness(name: str) -> tuple[bool, float]:
        return sorted(name) == sorted(word), SequenceMatcher(None, word, name).ratio()

    return max(get_close_matches(word, known, n=NEAREST), key=likeness, default=None)


def whole_number(value: object) -> int | None:
    """What counts something: a whole number of any library; None for all else, True among it."""
    try:
        return None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def require_flag(value: object, name: str, *, doing: str) -> None:
    """Raises InputError for an option `name` that is neither True nor False."""
    if not isinstance(value, bool):
        raise InputError(
            f"{doing}: got {name} = {value!r}, expected True or False; give one of these."
        )


def require_at_least(least: int, value: object, name: str, *, doing: str, usual: object) -> None:
    """Raises InputError for an option `name` that is no whole number from `least` on, or above
    MOST; `usual` is what it is when it is not given."""
    number = whole_number(value)
    if number is None or not least <= number <= MOST:
        end = "on" if number is None or number < least else f"to {MOST}"
        raise InputError(
            f"{doing}: got {name} = {value!r}, expected a whole number from {least} {end}; leave "
            f"it out for {usual}."
        )
