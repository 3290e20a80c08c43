"""The sentences of one word made ready: tokenised, placed, and rid of what the model cannot be asked.

What a causal model cannot know is refused rather than ranked: a sentence whose cue follows the word, and sentences of
different senses that are identical up to the word, are left out with the reason. Nothing is left out silently.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from probe.errors import InputError
from probe.lexicon import Corpus, LeftOut, Sentence
from probe.models import Model
from probe.tokens import Tokens, find_word, positions_of_span, tokenize

LATE = "the cue comes after the word, where a causal model cannot have read it yet"
SAME = "identical to a sentence of another sense up to the word, so a causal model cannot tell them apart there"


@dataclass(frozen=True)
class Material:
    """The usable sentences of one word, tokenised: the target is the last token of the word, the cue may be unknown."""

    word: str
    sentences: tuple[Sentence, ...]
    tokens: tuple[Tokens, ...]
    words: tuple[range, ...]
    cues: tuple[range | None, ...]
    left_out: tuple[LeftOut, ...]

    @cached_property
    def targets(self) -> tuple[int, ...]:
        return tuple(positions[-1] for positions in self.words)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        return tuple(sentence.sense for sentence in self.sentences)

    def keep(self, rows: Sequence[int], left_out: Sequence[LeftOut]) -> "Material":
        """The same word with only these rows, and the reasons of the others added."""
        return Material(
            self.word,
            tuple(self.sentences[row] for row in rows),
            tuple(self.tokens[row] for row in rows),
            tuple(self.words[row] for row in rows),
            tuple(self.cues[row] for row in rows),
            self.left_out + tuple(left_out),
        )


def prepare(model: Model, corpus: Corpus, word: str) -> Material:
    """Tokenise the sentences of one word and leave out, with the reason, what a causal model cannot be asked about."""
    placed = [place(model, sentence) for sentence in corpus.sentences]
    tokens, words, cues = (tuple(part) for part in zip(*placed, strict=True)) if placed else ((), (), ())
    material = Material(word, corpus.sentences, tokens, words, cues, corpus.left_out)
    material = _without_late_cues(material) if model.config.causal else material
    _require_two_senses(material)
    return material


def place(model: Model, sentence: Sentence) -> tuple[Tokens, range, range | None]:
    """The sentence in tokens, with the positions of its word and of its cue; what is wrong is said with its file and row."""
    try:
        tokens = tokenize(model, sentence.text)
        _require_word_in_span(sentence)
        word = positions_of_span(tokens, sentence.start, sentence.end)
        if sentence.cue_start is None or sentence.cue_end is None:
            return tokens, word, None
        return tokens, word, positions_of_span(tokens, sentence.cue_start, sentence.cue_end)
    except InputError as error:
        if sentence.where is None:
            raise
        said = str(error)
        raise InputError(f"In {sentence.where}: {said[0].lower()}{said[1:]}") from error


def _without_late_cues(material: Material) -> Material:
    senses_of: dict[tuple[int, ...], set[str]] = {}
    prefixes = [cut.ids[: target + 1] for cut, target in zip(material.tokens, material.targets, strict=True)]
    for prefix, sense in zip(prefixes, material.labels, strict=True):
        senses_of.setdefault(prefix, set()).add(sense)
    rows, left_out = [], []
    for row, (sentence, cue, target) in enumerate(
        zip(material.sentences, material.cues, material.targets, strict=True)
    ):
        reason = LATE if cue is not None and cue[0] > target else SAME if len(senses_of[prefixes[row]]) > 1 else None
        rows += [row] if reason is None else []
        left_out += [] if reason is None else [LeftOut(sentence.text, reason)]
    return material.keep(rows, left_out)


def _require_word_in_span(sentence: Sentence) -> None:
    covered = sentence.text[sentence.start : sentence.end]
    if sentence.word.casefold() in covered.casefold():
        return
    find_word(sentence.text, sentence.word)
    raise InputError(
        f"Reading the sentence {sentence.text!r}: characters {sentence.start} to {sentence.end} are {covered!r}, expected them to "
        f"cover {sentence.word!r}; correct start and end."
    )


def _require_two_senses(material: Material) -> None:
    found = list(dict.fromkeys(material.labels))
    if len(found) < 2:
        reasons = [row.reason for row in material.left_out]
        lost = f" ({len(reasons)} sentences were left out: {reasons[-1]})" if reasons else ""
        unseen = {LATE, SAME} & set(reasons)
        other = (
            ", with the cue before the word, or take a model that reads both ways, as tiny-senses-bidirectional"
            if unseen
            else ""
        )
        raise InputError(
            f"Comparing the senses of {material.word!r}: got {f'only {found[0]!r}' if found else 'no usable sentence'}{lost}, "
            f"expected sentences of at least two senses; give sentences of another sense{other}."
        )
