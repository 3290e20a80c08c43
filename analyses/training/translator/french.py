"""The French that the parallel grammar needs: articles, agreement, the position of adjectives, elision and
contraction.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_VOWELS = "aàâæeéèêëiîïoôœuùûh"
# Words with an initial h that prevents elision.
_ASPIRATED = ("haie", "héron", "hérisson")


@dataclass(frozen=True)
class Noun:
    """A noun in both languages.

    gender: m or f, in French
    pronoun: in English
    """

    en: str
    fr: str
    gender: str
    pronoun: str = "it"


def begins_with_vowel(text: str) -> bool:
    """Whether a word before this French text is elided."""
    return text[0].lower() in _VOWELS and not text.lower().startswith(_ASPIRATED)


def agree(forms: Sequence[str], gender: str, before: str = "") -> str:
    """The form of an adjective.

    forms: [masculine, feminine(, masculine before a vowel)]
    before: the word after the adjective, if any
    """
    masculine, feminine, *special = forms
    if gender == "f":
        return feminine
    return special[0] if special and before and begins_with_vowel(before) else masculine


def determine(forms: Sequence[str], gender: str, phrase: str) -> str:
    """The phrase with its determiner.

    forms: [masculine, feminine, masculine before a vowel, feminine before a vowel]
    """
    form = forms[(gender == "f") + 2 * begins_with_vowel(phrase)]
    return form + phrase if form.endswith("'") else f"{form} {phrase}"


def describe(noun: Noun, before: Sequence[str] | None, after: Sequence[str] | None) -> str:
    """The noun with an adjective before it, after it, both or none."""
    front = [agree(before, noun.gender, noun.fr)] if before else []
    back = [agree(after, noun.gender)] if after else []
    return " ".join([*front, noun.fr, *back])


def contract(text: str) -> str:
    """The text with contractions (de + le = du, à + le = au), and with de and que elided before a vowel."""
    text = re.sub(r"\bde le\b", "du", text)
    text = re.sub(r"\bà le\b", "au", text)

    def elide(match: re.Match[str]) -> str:
        return f"{match[1]}'{match[2]}" if begins_with_vowel(match[2]) else match[0]

    return re.sub(r"\b(d|qu)e (\w+)", elide, text)
