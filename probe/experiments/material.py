"""The sentences of a study in tokens: which words, the positions of word and cue, and what is left
out.

What a causal model cannot know is left out with the reason instead of being ranked: a sentence
whose cue follows the word, and sentences of different senses that are identical up to the word. To
such a model all sentences of a sense that are identical up to the word are one: the first stands
for them, so that none of them counts twice.

A study refuses a sentence that the model cannot read, with its file and row. An evaluation and a
survey, which take sentences by the ten thousand, leave it out with the reason; a text is never cut.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from probe.errors import InputError, nearest
from probe.model.model import Model
from probe.model.tokens import (
    TargetText,
    Tokens,
    is_one_token,
    positions_of_span,
    tokenize,
)
from probe.text import lexicon
from probe.text.cues import infer_cues
from probe.text.sentences import Corpus, LeftOut, Sentence
from probe.text.splits import CrossFit

WORDS: tuple[str, ...] = ("bank", "mole", "apple")  # of a study that names none
WORDS_IN_ERROR = 40  # all that ship; a file may have thousands
# Tokens from cue to word: what is further away is one class, or there would be few pairs of each.
FAR = 4
# Reasons why a sentence is left out.
LATE = "the cue comes after the word, where a causal model cannot have read it yet"
SAME = (
    "identical to a sentence of another sense up to the word: its cue comes after it, where a "
    "causal model cannot have read it yet"
)
REPEATED = "up to the word it is an earlier sentence of its sense, and a causal model reads no more"
TWO_LABELS = "the same text stands under another sense, too: one of the labels is wrong"
NOTHING_BEFORE = "nothing stands before the word, and this model reads left to right"
ON_NO_TOKEN = "its word or its cue is on no token of the model"

SensePairSplits = Mapping[tuple[str, str], CrossFit]  # of one word, by its pairs of senses


@dataclass(frozen=True)
class Material:
    """The usable sentences of one word, tokenised: the target is the last token of the word, the
    cue may be unknown."""

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

    @cached_property
    def texts(self) -> tuple[TargetText, ...]:
        """The token ids of every sentence and where its word is read."""
        return tuple(
            TargetText(cut.ids, at) for cut, at in zip(self.tokens, self.targets, strict=True)
        )

    @cached_property
    def prefixes(self) -> tuple[tuple[int, ...], ...]:
        """The token ids of every sentence up to its word: what a causal model has read there."""
        return tuple(ids[: at + 1] for ids, at in self.texts)

    @cached_property
    def distances(self) -> tuple[int | None, ...]:
        """Tokens from the cue to the word, 1 where they are neighbours, FAR for that many and more;
        on either side.

        Counted where the cue is marked; else as the file says.
        """
        return tuple(
            sentence.distance
            if cue is None
            else min(max(word.start - cue[-1], cue.start - word[-1]), FAR)
            for sentence, word, cue in zip(self.sentences, self.words, self.cues, strict=True)
        )

    def __len__(self) -> int:
        return len(self.sentences)

    def keep(self, rows: Sequence[int], left_out: Sequence[LeftOut] = ()) -> "Material":
        """The same word with only these rows, and the reasons of the others added."""
        kept = [
            (self.sentences[row], self.tokens[row], self.words[row], self.cues[row]) for row in rows
        ]
        return _material(self.word, kept, [*self.left_out, *left_out])


Row = tuple[Sentence, Tokens, range, range | None]  # the positions of the word and of the cue


def _material(word: str, rows: Sequence[Row], left_out: Sequence[LeftOut] = ()) -> Material:
    return Material(
        word=word,
        sentences=tuple(sentence for sentence, _, _, _ in rows),
        tokens=tuple(tokens for _, tokens, _, _ in rows),
        words=tuple(positions for _, _, positions, _ in rows),
        cues=tuple(positions for _, _, _, positions in rows),
        left_out=tuple(left_out),
    )


@dataclass(frozen=True, eq=False)
class SecondModel:
    """A model that reads both ways, and its sentences of the words that stand before their cue in
    the lesson."""

    model: Model
    materials: tuple[Material, ...]


def late_cues(second: Model, studied: Sequence[Material]) -> SecondModel:
    """The lexicon's sentences, for the second model, of each studied word that stands before its
    cue in the lesson."""
    senses = {material.word: set(material.labels) for material in studied}
    words = [
        item.word
        for item in lexicon.showcase()
        if item.cue_after and item.sense in senses.get(item.word, ())
    ]
    materials = [
        prepare(second, word, sentences_of(word, None, second).sentences)
        for word in dict.fromkeys(words)
    ]
    return SecondModel(second, tuple(materials))


def choose_words(words: Sequence[str] | str | None, corpus: Corpus | None) -> tuple[str, ...]:
    """The words to study as they are spelled where their sentences are; InputError names the known
    ones otherwise."""
    if corpus is None:
        known = tuple(sorted({*lexicon.words(), *lexicon.natural_words()}))
        default = WORDS
    else:
        known = tuple(dict.fromkeys(sentence.word for sentence in corpus.sentences))
        default = known
    if words is not None and not (isinstance(words, str) or _are_words(words)):
        raise InputError(
            f"Choosing words: got {words!r}, expected a word or a list of some; give "
            f"[{default[0]!r}], say, or leave it out for {', '.join(default[:WORDS_IN_ERROR])}."
        )
    asked = (words,) if isinstance(words, str) else default if words is None else words
    return tuple(dict.fromkeys(spelled(word, known, own=corpus is not None) for word in asked))


def _are_words(words: object) -> bool:
    if not isinstance(words, Collection) or not len(words):
        return False
    return all(isinstance(word, str) for word in words)


def spelled(word: str, known: Sequence[str], *, own: bool) -> str:
    """The known word that is meant: the same, or the only one that differs in case alone."""
    if word in known:
        return word
    alike = [name for name in known if name.casefold() == word.casefold()]
    if len(alike) == 1:
        return alike[0]
    likely = nearest(word.casefold(), known)
    near = " or ".join(map(repr, alike)) or (likely and repr(likely))
    meant = f" (did you mean {near}?)" if near else ""
    names = ", ".join(known[:WORDS_IN_ERROR])
    if len(known) > WORDS_IN_ERROR:
        names += f" and {len(known) - WORDS_IN_ERROR} more"
    step = "give one of these"
    if not own:
        step += ", or your own sentences (sentences=, on the command line --sentences)"
    raise InputError(
        f"Looking for sentences with {word!r}: there are none{meant}; known words are {names}; "
        f"{step}."
    )


def sentences_of(word: str, corpus: Corpus | None, model: Model) -> Corpus:
    """The given corpus's sentences of a word; by default those that ship and suit the model.

    A model that ships learned the lexicon's grammar, whose cues must be one token of it; every
    other one learned from people, so it gets natural sentences where the word has some. Cues stand
    before the word or, where the model reads both ways, on either side.
    """
    if corpus is not None:
        chosen = tuple(sentence for sentence in corpus.sentences if sentence.word == word)
        return replace(corpus, sentences=chosen, left_out=())
    both_sides = not model.config.causal
    if word in lexicon.natural_words() and (
        model.origin.kind != "embedded" or word not in lexicon.words()
    ):
        return lexicon.expand_natural(word, both_sides=both_sides)
    return lexicon.keep_one_token_cues(
        lexicon.expand(word, both_sides=both_sides), lambda piece: is_one_token(model, piece)
    )


def prepare(model: Model, word: str, sentences: Sequence[Sentence]) -> Material:
    """Tokenise the sentences of one word and leave out, with the reason, what a causal model cannot
    be asked about; cues that none of them marks are what the pairs differ in."""
    marked = infer_cues(sentences, both_sides=not model.config.causal)
    material = _material(word, [(sentence, *place(model, sentence)) for sentence in marked])
    material = _as_read_from_left(material) if model.config.causal else material
    _require_two_senses(material)
    return material


def prepare_usable(
    model: Model, word: str, sentences: Sequence[Sentence]
) -> tuple[Material, dict[int, str]]:
    """The sentences of one word that the model can be asked about, and why each of the others
    cannot, by row; cues that none of them marks are what the pairs differ in."""
    rows = []
    reasons = {}
    marked = infer_cues(sentences, both_sides=not model.config.causal)
    for row, sentence in enumerate(marked):
        try:
            placed = (sentence, *place(model, sentence))
        except InputError:
            reasons[row] = _why_not(model, sentence)
            continue
        if model.config.causal and not sentence.text[: sentence.start].strip():
            # All such vectors are one and the same, and a first token's is often a huge one.
            reasons[row] = NOTHING_BEFORE
        elif model.config.causal and sentence.cue_after:
            reasons[row] = LATE
        else:
            rows.append(placed)
    return _material(word, rows), reasons


def prepare_counted(model: Model, word: str, sentences: Sequence[Sentence]) -> Material:
    """The sentences of one word as in `prepare`, but every one that cannot be used is left out with
    its reason, and nothing is refused; there may be one sense, or none."""
    material, reasons = prepare_usable(model, word, sentences)
    left_out = [LeftOut(sentences[row].text, reason) for row, reason in reasons.items()]
    material = material.keep(range(len(material)), left_out)
    return _as_read_from_left(material) if model.config.causal else material


def one_of_each_prefix(material: Material) -> tuple[list[int], dict[int, str]]:
    """Of all sentences of a sense that are identical up to the word the row of the first, and why
    each of the others is left out.

    To a causal model they are one sentence, whatever follows the word.
    """
    rows = []
    repeated = {}
    seen = set()
    for row, (sense, prefix) in enumerate(zip(material.labels, material.prefixes, strict=True)):
        if (sense, prefix) in seen:
            repeated[row] = REPEATED
        else:
            seen.add((sense, prefix))
            rows.append(row)
    return rows, repeated


def _why_not(model: Model, sentence: Sentence) -> str:
    """Why `place` refuses a sentence, without its text."""
    try:
        tokenize(model, sentence.text)
    except InputError:
        # A Sentence has a readable text that is not empty: only its length can be refused.
        return f"it has more tokens than the context window of {model.config.n_ctx}"
    return ON_NO_TOKEN


def place(model: Model, sentence: Sentence) -> tuple[Tokens, range, range | None]:
    """The sentence in tokens, with the positions of its word and cue; an InputError names its file
    and row."""
    try:
        tokens = tokenize(model, sentence.text)
        word = positions_of_span(tokens, sentence.start, sentence.end)
        return tokens, word, cue_positions(tokens, sentence)
    except InputError as error:
        if sentence.where is None:
            raise
        message = str(error)
        raise InputError(f"In {sentence.where}: {message[0].lower()}{message[1:]}") from error


def cue_positions(tokens: Tokens, sentence: Sentence) -> range | None:
    """The token positions of the cue, None where it is not known."""
    if sentence.cue_start is None or sentence.cue_end is None:
        return None
    return positions_of_span(tokens, sentence.cue_start, sentence.cue_end)


def _as_read_from_left(material: Material) -> Material:
    """The sentences that a causal model can be asked about, the reasons of the others added."""
    prefixes = material.prefixes
    senses_of: defaultdict[tuple[int, ...] | str, set[str]] = defaultdict(set)
    for sentence, prefix in zip(material.sentences, prefixes, strict=True):
        senses_of[prefix].add(sentence.sense)
        senses_of[sentence.text].add(sentence.sense)
    rows = []
    left_out = []
    for row, (sentence, prefix) in enumerate(zip(material.sentences, prefixes, strict=True)):
        if sentence.cue_after:
            left_out.append(LeftOut(sentence.text, LATE))
        elif len(senses_of[sentence.text]) > 1:
            left_out.append(LeftOut(sentence.text, TWO_LABELS))
        elif len(senses_of[prefix]) > 1:
            left_out.append(LeftOut(sentence.text, SAME))
        else:
            rows.append(row)
    material = material.keep(rows, left_out)
    rows, repeated = one_of_each_prefix(material)
    return material.keep(
        rows, [LeftOut(material.sentences[row].text, reason) for row, reason in repeated.items()]
    )


def _require_two_senses(material: Material) -> None:
    senses = list(dict.fromkeys(material.labels))
    if len(senses) >= 2:
        return
    reasons = [item.reason for item in material.left_out]
    usable = f"only {senses[0]!r}" if senses else "no usable sentence"
    if reasons:
        usable += f" ({len(reasons)} sentences were left out: {reasons[-1]})"
    step = "give sentences of another sense"
    if {LATE, SAME} & set(reasons):
        step += (
            ", with the cue before the word, or take a model that reads both ways, as "
            "tiny-senses-bidirectional"
        )
    raise InputError(
        f"Comparing the senses of {material.word!r}: got {usable}, expected sentences of at least "
        f"two senses; {step}."
    )


def unused(material: Material, splits: Collection[CrossFit]) -> list[LeftOut]:
    """The sentences of a word that no pair of senses uses, with the reason; first those that
    `prepare` left out."""
    used = {row for split in splits for row in split.rows}
    reasons: dict[int, str] = {}
    for split in splits:
        reasons |= {row: reason for row, reason in split.left_out.items() if row not in used}
    by_splits = [LeftOut(material.sentences[row].text, reason) for row, reason in reasons.items()]
    return [*material.left_out, *by_splits]


def continuations(model: Model, word: str, senses: Iterable[str]) -> dict[str, list[int]] | None:
    """Token ids of the lexicon's continuations of each sense, those that are one token of the
    model.

    None where the lexicon does not have the word, or has no such continuation of one of its senses.
    """
    in_lexicon = lexicon.entry(word).senses if word in lexicon.words() else ()
    texts = {
        sense.name: [text for text in sense.continuations if is_one_token(model, text)]
        for sense in in_lexicon
    }
    if not all(texts.get(sense) for sense in senses):
        return None
    token_ids = {}
    for sense in dict.fromkeys(senses):
        rows = model.tokenizer(texts[sense], add_special_tokens=False)["input_ids"]
        token_ids[sense] = [row[0] for row in rows]
    return token_ids
