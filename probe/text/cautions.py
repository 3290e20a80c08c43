"""Warnings about a user's sentences before a model reads them."""

from collections.abc import Sequence

from probe.errors import nearest
from probe.text.cues import infer_cues
from probe.text.files import COLUMNS
from probe.text.sentences import Corpus, Sentence
from probe.text.spans import WORD

# Words before the ambiguous word. "That note is a B flat" has one, and its cue comes later.
FEW_WORDS = 2


def words_before(sentence: Sentence) -> int:
    """The number of words before the ambiguous word.

    Example:
        >>> from probe.text.cautions import words_before
        >>> [sentence] = probe.read_sentences(
        ...     [{"word": "note", "sense": "music", "text": "That note is a B flat."}]
        ... ).sentences
        >>> words_before(sentence)
        1
    """
    return len(WORD.findall(sentence.text[: sentence.start]))


def cautions(
    corpus: Corpus, *, causal: bool, specials: Sequence[str] = (), keeps_columns: bool = False
) -> list[str]:
    """Warnings about columns that are not read, special tokens in letters, and cues after the word,
    as sentences for the user.

    causal: whether the model reads left to right
    specials: for each text that has a special token of the model in letters, the token
    keeps_columns: whether the command copies further columns into its tables, as a survey does
    """
    warnings = [] if keeps_columns else list(map(_unread_column, corpus.further_columns))
    if specials:
        warnings.append(
            f"In {len(specials)} of {len(corpus.sentences)} sentences, special tokens such as "
            f"{specials[0]!r} are read as letters. To read them as tokens, as in a formatted chat, "
            "give texts from probe.prompt in Python, or load the model with "
            "split_special_tokens=False."
        )
    return warnings + _late_cues(corpus) if causal else warnings


def _unread_column(name: str) -> str:
    suggestion = nearest(name.strip().lower(), COLUMNS)
    hint = f" (did you mean {suggestion!r}?)" if suggestion else ""
    return f"The column {name!r} is not read{hint}."


def _late_cues(corpus: Corpus) -> list[str]:
    """Warnings about cues that a causal model cannot have read at the word."""
    sentences = [
        sentence
        for of_word in corpus.by_word().values()
        for sentence in infer_cues(of_word, both_sides=False)
    ]
    late = sum(sentence.cue_after for sentence in sentences)
    early = sum(
        sentence.cue is None and words_before(sentence) <= FEW_WORDS for sentence in sentences
    )
    warnings = []
    if late:
        warnings.append(
            f"In {late} of {len(sentences)} sentences, the cue is after the word, where this model "
            "cannot have read it yet. They are left out."
        )
    if early:
        warnings.append(
            f"In {early} of {len(sentences)} sentences, at most two words precede the word, and no "
            "cue is marked. This model may have read no cue there. Mark the cues in a column "
            "'cue', so that sentences with a later cue are left out."
        )
    return warnings
