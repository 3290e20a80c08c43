"""The unambiguous nouns that can replace a word, and the sentences in which they can.

A noun is left out if its number of tokens differs from that of the word, if it already occurs in
the word's sentences, or if its article does not agree in most of them. A sentence is left out if
the word is not in its dictionary form or is not a noun.
"""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from probe.errors import InputError
from probe.experiments.design import Pairs
from probe.experiments.material import Material
from probe.model.model import Model
from probe.model.tokens import positions_of_span, tokenize
from probe.model.variants import TargetText
from probe.text import lexicon
from probe.text.spans import WORD, plain

# A noun directly follows a determiner, an adjective or a preposition, but none of these words.
SUBJECTS = ("i", "you", "he", "she", "it", "we", "they", "who")
MODALS = ("will", "would", "can", "could", "may", "might", "must", "shall", "should", "cannot")
NEGATED = ("don't", "doesn't", "didn't", "won't", "can't", "not")
BEFORE_A_VERB = frozenset(("to", "do", "does", "did", "let's", *SUBJECTS, *MODALS, *NEGATED))
# Past forms of verbs, such as "charged". "seed", "weed" and short words end in "ed" without being
# past forms.
PAST = re.compile("[a-z]{3,}[a-df-z]ed", re.IGNORECASE)
SURFACE = "the word is not in its dictionary form"
NO_NOUN = "the word is not a noun here"
# This happens at the beginning of a text, if the tokens of a tokenizer contain the space before
# them.
OTHER_TOKENS = "the word has other tokens here than in most of its sentences"


@dataclass(frozen=True)
class Candidates:
    """The nouns that can replace a word, and the sentences in which they can.

    ids: the token ids of the word
    nouns: the usable nouns, with their token ids
    left_out: the reason for each other noun
    by_name: whether the user chose the nouns
    article: the indefinite article before the word, "" without one, by row of each sentence with
        the word as a noun in its dictionary form
    reasons: why each other row is left out
    """

    ids: tuple[int, ...]
    nouns: dict[str, tuple[int, ...]]
    left_out: dict[str, str]
    by_name: bool
    article: dict[int, str]
    reasons: dict[int, str]

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows of the sentences that can be compared."""
        return tuple(self.article)


def candidates(model: Model, material: Material, nouns: Sequence[str] | None) -> Candidates:
    """The nouns that can replace a word, and the sentences of the word that can be compared.

    nouns: the nouns to try; the shipped nouns if None
    """
    ids, article, reasons = _comparable_sentences(material)
    usable: dict[str, tuple[int, ...]] = {}
    left_out = {}
    requested = lexicon.one_meaning_nouns() if nouns is None else nouns
    if article:
        # The tokens of a noun are read in the shortest text up to the word, which is the cheapest.
        first = min(article, key=material.targets.__getitem__)
        texts = [material.sentences[row].text for row in article]
        words_in_sentences = {word for text in texts for word in WORD.findall(text)}
        for noun in dict.fromkeys(requested):
            noun_ids = _ids_in_place(model, material, first, noun)
            reason = _why_not(model, material.word, noun, noun_ids, ids)
            if not reason and noun in words_in_sentences:
                reason = "it already occurs in the word's sentences"
            if reason:
                left_out[noun] = reason
            else:
                usable[noun] = noun_ids
    return Candidates(ids, usable, left_out, nouns is not None, article, reasons)


def _comparable_sentences(
    material: Material,
) -> tuple[tuple[int, ...], dict[int, str], dict[int, str]]:
    """The word's token ids in most sentences with the word as a noun in its dictionary form; the
    article before it in each sentence with these tokens; and the reason why each other sentence is
    left out.

    Sentences are given by row.
    """
    article: dict[int, str] = {}
    reasons: dict[int, str] = {}
    forms = [sentence.form for sentence in material.sentences]
    # The user may ask for "Star" if the sentences have "star". Of a composed and a decomposed
    # spelling, which are different tokens, the more frequent one is used.
    of_word = [form for form in forms if plain(form) == material.word]
    of_word = of_word or [form for form in forms if plain(form) == material.word.lower()]
    form = Counter(of_word).most_common(1)[0][0] if of_word else material.word
    for row, sentence in enumerate(material.sentences):
        before = re.findall(r"[\w']+", sentence.text[: sentence.start].lower())
        previous = before[-1] if before else ""
        if forms[row] != form:
            reasons[row] = SURFACE
        elif previous in BEFORE_A_VERB or PAST.fullmatch(form):
            reasons[row] = NO_NOUN
        else:
            article[row] = previous if previous in ("a", "an") else ""
    ids_of = {
        row: tuple(material.tokens[row].ids[position] for position in material.words[row])
        for row in article
    }
    # A noun replaces the same tokens everywhere, so the rare tokenisations of the word are left
    # out.
    ids: tuple[int, ...] = ()
    if ids_of:
        ids = Counter(ids_of.values()).most_common(1)[0][0]
    for row, ids_here in ids_of.items():
        if ids_here != ids:
            reasons[row] = OTHER_TOKENS
            del article[row]
    return ids, article, reasons


def _ids_in_place(model: Model, material: Material, row: int, noun: str) -> tuple[int, ...]:
    """The tokens of a noun, with the space before it, from the position where the word's tokens
    begin in the sentence of a row.
    """
    before = material.sentences[row].text[: material.sentences[row].start]
    tokens = tokenize(model, before + noun)
    last = positions_of_span(tokens, len(before), len(before) + len(noun))[-1]
    return tokens.ids[material.words[row].start : last + 1]


def _why_not(
    model: Model, word: str, noun: str, noun_ids: Sequence[int], ids: Sequence[int]
) -> str:
    """Why a noun cannot replace the word; "" if it can."""
    unknown = model.tokenizer.unk_token_id
    if noun == word:
        return "it is the word itself"
    if noun in lexicon.words() or noun in lexicon.natural_words():
        return "it has several meanings itself"
    if unknown is not None and unknown in noun_ids:
        return "the model's vocabulary does not hold it"
    if len(noun_ids) != len(ids):
        tokens = "token" if len(noun_ids) == 1 else "tokens"
        return f"it has {len(noun_ids)} {tokens} and the word has {len(ids)}"
    return ""


def as_nouns(controls: Sequence[str] | str | None) -> tuple[str, ...] | None:
    """Unambiguous nouns to replace a word, without repetitions; None for the shipped nouns, () for
    no nouns.

    controls: a list of nouns, or a text of nouns separated by commas, as on the command line;
        "none" means no nouns

    Raises InputError for anything else.
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
            f"Cannot choose unambiguous nouns: got controls = {controls!r}, not a list of nouns. "
            'Give ["fence", "window"], for example, () for none, or omit it for the shipped nouns.'
        )
    return tuple(dict.fromkeys(nouns))


def require_usable(model: Model, materials: Sequence[Material], nouns: Sequence[str]) -> None:
    """Raise InputError, with the reason for each noun, if no noun that a user chose can replace any
    of the words.

    A word without a sentence in which it is a noun does not count against the nouns.
    """
    problems = []
    for material in materials:
        among = candidates(model, material, nouns)
        if among.nouns:
            return
        if among.left_out:
            reasons = [f"{noun} ({reason})" for noun, reason in among.left_out.items()]
            problems.append(f"none can replace {material.word!r}: {', '.join(reasons)}")
    if problems:
        raise InputError(
            f"Cannot compare with the unambiguous nouns {', '.join(nouns)}: {'; '.join(problems)}. "
            "Give nouns with the same number of tokens as the word, or omit them for the shipped "
            "nouns."
        )


def with_tokens(text: TargetText, ids: Sequence[int]) -> TargetText:
    """A text in which other tokens replace the word.

    ids: the new tokens, equal in number to the word's tokens
    """
    start = text.at + 1 - len(ids)
    return TargetText((*text.ids[:start], *ids, *text.ids[text.at + 1 :]), text.at)


def rows_for(among: Candidates, noun: str) -> list[int]:
    """The rows of the sentences in which the article before the word, if any, is also that of the
    noun.
    """
    fitting = ("", lexicon.article_of(noun))
    return [row for row in among.rows if among.article[row] in fitting]


def pairs_inside(pairs: Pairs, rows: Collection[int]) -> list[int]:
    """The indices of the pairs whose members and same-sense donors are all in `rows`."""
    usable = []
    for index in range(len(pairs)):
        members = (pairs.a[index], pairs.b[index], pairs.same_a[index], pairs.same_b[index])
        if all(row in rows for row in members):
            usable.append(index)
    return usable
