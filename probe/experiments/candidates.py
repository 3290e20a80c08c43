"""Which unambiguous nouns can take a word's place, and in which of its sentences.

A noun is left out that has another number of tokens than the word, that is in the word's sentences
already, or whose article does not agree in most of them. A sentence is left out in which the word
is not in its dictionary form, or is no noun.
"""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from probe.errors import InputError
from probe.experiments.design import Pairs
from probe.experiments.material import Material
from probe.model.model import Model
from probe.model.tokens import TargetText, positions_of_span, tokenize
from probe.text import lexicon
from probe.text.spans import WORD

# Directly before a noun stand a determiner, an adjective or a preposition, none of these.
SUBJECTS = ("i", "you", "he", "she", "it", "we", "they", "who")
MODALS = ("will", "would", "can", "could", "may", "might", "must", "shall", "should", "cannot")
NEGATED = ("don't", "doesn't", "didn't", "won't", "can't", "not")
BEFORE_A_VERB = frozenset(("to", "do", "does", "did", "let's", *SUBJECTS, *MODALS, *NEGATED))
# "charged" is what a verb becomes, "seed", "weed" and other short words end so by themselves.
PAST = re.compile("[a-z]{3,}[a-df-z]ed", re.IGNORECASE)
SURFACE = "the word does not stand in its dictionary form"
NO_NOUN = "the word is no noun here"
# A text that begins with the word, in a tokenizer whose tokens hold the space before them.
OTHER_TOKENS = "the word is other tokens here than in most of its sentences"


@dataclass(frozen=True)
class Candidates:
    """The nouns that may stand in a word's place, and where they may.

    `ids`: the word's own tokens · `nouns` with their token ids · `left_out`: the reason of every
    other noun · `by_name`: whether the user named them · `article`: by sentence in which the word
    is a noun in its dictionary form the indefinite article before it, "" where there is none ·
    `reasons`: of the other sentences.
    """

    ids: tuple[int, ...]
    nouns: dict[str, tuple[int, ...]]
    left_out: dict[str, str]
    by_name: bool
    article: dict[int, str]
    reasons: dict[int, str]

    @property
    def rows(self) -> tuple[int, ...]:
        """The sentences that can be compared."""
        return tuple(self.article)


def candidates(model: Model, material: Material, nouns: Sequence[str] | None) -> Candidates:
    """The nouns (those that ship for None) and the sentences of a word that can be compared."""
    ids, article, reasons = _comparable_sentences(material)
    usable: dict[str, tuple[int, ...]] = {}
    left_out = {}
    asked = lexicon.one_meaning_nouns() if nouns is None else nouns
    if article:
        first = min(article, key=material.targets.__getitem__)  # the shortest text up to the word
        texts = [material.sentences[row].text for row in article]
        written = {word for text in texts for word in WORD.findall(text)}
        for noun in dict.fromkeys(asked):
            noun_ids = _ids_in_place(model, material, first, noun)
            reason = _why_not(model, material.word, noun, noun_ids, ids)
            if not reason and noun in written:
                reason = "it stands in the word's sentences already"
            if reason:
                left_out[noun] = reason
            else:
                usable[noun] = noun_ids
    return Candidates(ids, usable, left_out, nouns is not None, article, reasons)


def _comparable_sentences(
    material: Material,
) -> tuple[tuple[int, ...], dict[int, str], dict[int, str]]:
    """The word's tokens where most of its sentences have it as a noun in its dictionary form; by
    sentence in which it is these tokens the article before it, and the reason of every other one.
    """
    article: dict[int, str] = {}
    reasons: dict[int, str] = {}
    written = [sentence.form for sentence in material.sentences]
    # "Star", asked for, of sentences with "star"
    form = material.word if material.word in written else material.word.lower()
    for row, sentence in enumerate(material.sentences):
        before = re.findall(r"[\w']+", sentence.text[: sentence.start].lower())
        previous = before[-1] if before else ""
        if written[row] != form:
            reasons[row] = SURFACE
        elif previous in BEFORE_A_VERB or PAST.fullmatch(form):
            reasons[row] = NO_NOUN
        else:
            article[row] = previous if previous in ("a", "an") else ""
    ids_of = {
        row: tuple(material.tokens[row].ids[position] for position in material.words[row])
        for row in article
    }
    ids: tuple[int, ...] = ()
    if ids_of:
        ids = Counter(ids_of.values()).most_common(1)[0][0]
    for row, its in ids_of.items():
        if its != ids:
            reasons[row] = OTHER_TOKENS
            del article[row]
    return ids, article, reasons


def _ids_in_place(model: Model, material: Material, row: int, noun: str) -> tuple[int, ...]:
    """All tokens that stand for a noun, and a space before it, where the word's tokens begin in a
    sentence."""
    before = material.sentences[row].text[: material.sentences[row].start]
    tokens = tokenize(model, before + noun)
    last = positions_of_span(tokens, len(before), len(before) + len(noun))[-1]
    return tokens.ids[material.words[row].start : last + 1]


def _why_not(
    model: Model, word: str, noun: str, noun_ids: Sequence[int], ids: Sequence[int]
) -> str:
    """Why a noun cannot take the word's place, "" where it can."""
    unknown = model.tokenizer.unk_token_id
    if noun == word:
        return "it is the word itself"
    if noun in lexicon.words() or noun in lexicon.natural_words():
        return "it has several meanings itself"
    if unknown is not None and unknown in noun_ids:
        return "the model's vocabulary does not hold it"
    if len(noun_ids) != len(ids):
        tokens = "token" if len(noun_ids) == 1 else "tokens"
        return f"it is {len(noun_ids)} {tokens} where the word is {len(ids)}"
    return ""


def as_nouns(controls: Sequence[str] | str | None) -> tuple[str, ...] | None:
    """One-meaning nouns to put in a word's place, each once: None for those that ship, () for none.

    A text is split at its commas, as on the command line; "none" is none.

    Raises InputError for what is neither a noun nor a list of some.
    """
    if controls is None:
        return None
    if controls == "none":
        return ()
    nouns = controls
    if isinstance(controls, str):
        nouns = [noun.strip() for noun in controls.split(",") if noun.strip()]
    if not isinstance(nouns, Collection) or not all(isinstance(noun, str) for noun in nouns):
        raise InputError(
            f"Choosing nouns of one meaning: got controls = {controls!r}, expected nouns; "
            'give ["fence", "window"], say, () for none, or leave it out for those that ship.'
        )
    return tuple(dict.fromkeys(nouns))


def require_usable(model: Model, materials: Sequence[Material], nouns: Sequence[str]) -> None:
    """Raises InputError, with the reason of every noun, where none of those that a user names can
    take the place of any of the words. A word that is a noun in none of its sentences says nothing
    of the nouns."""
    problems = []
    for material in materials:
        among = candidates(model, material, nouns)
        if among.nouns:
            return
        if among.left_out:
            reasons = [f"{noun} ({reason})" for noun, reason in among.left_out.items()]
            problems.append(f"none can take the place of {material.word!r}: {', '.join(reasons)}")
    if problems:
        raise InputError(
            f"Comparing with the one-meaning nouns {', '.join(nouns)}: {'; '.join(problems)}; give "
            "nouns that are as many tokens as the word, or leave them out for those that ship."
        )


def with_tokens(text: TargetText, ids: Sequence[int]) -> TargetText:
    """A text with other tokens in the word's place."""
    start = text.at + 1 - len(ids)
    return TargetText((*text.ids[:start], *ids, *text.ids[text.at + 1 :]), text.at)


def rows_for(among: Candidates, noun: str) -> list[int]:
    """The sentences in which the article before the word is the noun's, too."""
    fitting = ("", lexicon.article_of(noun))
    return [row for row in among.rows if among.article[row] in fitting]


def pairs_inside(pairs: Pairs, rows: Collection[int]) -> list[int]:
    """The numbers of the pairs whose members and same-sense donors are all among some rows."""
    usable = []
    for index in range(len(pairs)):
        members = (pairs.a[index], pairs.b[index], pairs.same_a[index], pairs.same_b[index])
        if all(row in rows for row in members):
            usable.append(index)
    return usable
