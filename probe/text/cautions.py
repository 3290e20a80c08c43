"""What to know of one's own sentences before a model reads them."""

from probe.errors import nearest
from probe.text.cues import infer_cues
from probe.text.files import COLUMNS
from probe.text.sentences import Corpus, Sentence
from probe.text.spans import WORD

FEW_WORDS = 2  # before the word: "That note is a B flat" has one, and its cue comes later


def words_before(sentence: Sentence) -> int:
    """How many words of a sentence come before the ambiguous word.

    Example:
        >>> from probe.text.cautions import words_before
        >>> [sentence] = probe.read_sentences(
        ...     [{"word": "note", "sense": "music", "text": "That note is a B flat."}]
        ... ).sentences
        >>> words_before(sentence)
        1
    """
    return len(WORD.findall(sentence.text[: sentence.start]))


def cautions(corpus: Corpus, *, causal: bool, keeps_columns: bool = False) -> list[str]:
    """Sentences for a user about columns that nothing reads, and about cues that come too late.

    causal: whether the model reads left to right.
    keeps_columns: whether the command puts further columns into its tables, as a survey does.
    """
    said = [] if keeps_columns else list(map(_unread_column, corpus.further_columns))
    return said + _late_cues(corpus) if causal else said


def _unread_column(name: str) -> str:
    meant = nearest(name.strip().lower(), COLUMNS)
    return f"Nothing reads the column {name!r}{f' (did you mean {meant!r}?)' if meant else ''}."


def _late_cues(corpus: Corpus) -> list[str]:
    sentences = [
        sentence
        for of_word in corpus.by_word().values()
        for sentence in infer_cues(of_word, both_sides=False)
    ]
    late = sum(sentence.cue_after for sentence in sentences)
    early = sum(
        sentence.cue is None and words_before(sentence) <= FEW_WORDS for sentence in sentences
    )
    said = []
    if late:
        said.append(
            f"{late} of {len(sentences)} sentences have their cue after the word, where this model "
            "cannot have read it yet; they are left out."
        )
    if early:
        said.append(
            f"{early} of {len(sentences)} sentences have at most two words before the word, and no "
            "cue is marked: this model may have read no cue there. Mark the cues in a column "
            "'cue', and sentences whose cue comes later are left out."
        )
    return said
