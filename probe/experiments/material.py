"""The sentences of a study in tokens: the words, the positions of word and cue, and the sentences
that are left out.

A causal model cannot use a sentence that begins with the word or whose cue follows the word, nor
sentences of different senses that are identical up to the word. They are left out with the reason
and are not ranked. To such a model, all sentences of a sense that are identical up to the word are
the same sentence. Only the first is used, so that none counts twice.

A sentence whose word or cue is not in the model's vocabulary, or whose word shares its last token
with later letters, is left out with the reason as well. A study refuses any other sentence that the
model cannot read and names its file and row. An evaluation and a survey read tens of thousands of
sentences and leave such a sentence out with the reason. No text is ever truncated.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from probe.errors import InputError, nearest
from probe.model.model import Model
from probe.model.tokens import (
    Tokens,
    UnreadableWord,
    is_one_token,
    positions_of_span,
    require_known,
    tokens_of,
    word_positions,
)
from probe.model.variants import TargetText
from probe.stats.numbers import counted
from probe.text import lexicon
from probe.text.cues import infer_cues
from probe.text.sentences import Corpus, LeftOut, Sentence
from probe.text.spans import fold, plain
from probe.text.splits import CrossFit

WORDS: tuple[str, ...] = ("bank", "mole", "apple")  # the default words of a study
GIVE_SENTENCES = "give sentences with the word (sentences=, on the command line --sentences)"
WORDS_IN_ERROR = 40  # enough for every shipped word; a file may have thousands
# Tokens from cue to word. All larger distances are one class, because there would be few pairs of
# each.
FAR = 4
# Reasons why a sentence is left out.
LATE = "the cue comes after the word, where a causal model cannot have read it yet"
SAME = (
    "identical to a sentence of another sense up to the word: its cue comes after it, where a "
    "causal model cannot have read it yet"
)
REPEATED = (
    "identical to an earlier sentence of its sense up to the word, and a causal model reads no "
    "further"
)
TWO_LABELS = "the same text is also labelled with another sense: one of the labels is wrong"
NOTHING_BEFORE = "no text precedes the word, and this model reads left to right"
ON_NO_TOKEN = "no token of the model covers its word or its cue"

SensePairSplits = Mapping[tuple[str, str], CrossFit]  # by pair of senses of a word


@dataclass(frozen=True)
class Material:
    """The usable sentences of one word, tokenised.

    sentences: the sentences, in the order of the file
    tokens: the tokens of each sentence
    words: the token positions of the word in each sentence
    cues: the token positions of the cue in each sentence; None if the cue is unknown
    left_out: the sentences that cannot be used, with the reason
    """

    word: str
    sentences: tuple[Sentence, ...]
    tokens: tuple[Tokens, ...]
    words: tuple[range, ...]
    cues: tuple[range | None, ...]
    left_out: tuple[LeftOut, ...]

    @cached_property
    def targets(self) -> tuple[int, ...]:
        """The position of the last token of the word in each sentence, where the word is read."""
        return tuple(positions[-1] for positions in self.words)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The sense of each sentence."""
        return tuple(sentence.sense for sentence in self.sentences)

    @cached_property
    def texts(self) -> tuple[TargetText, ...]:
        """The token ids of each sentence, with the position where its word is read."""
        return tuple(
            TargetText(cut.ids, at) for cut, at in zip(self.tokens, self.targets, strict=True)
        )

    @cached_property
    def prefixes(self) -> tuple[tuple[int, ...], ...]:
        """The token ids of each sentence up to its word: all that a causal model has read there."""
        return tuple(ids[: at + 1] for ids, at in self.texts)

    @cached_property
    def distances(self) -> tuple[int | None, ...]:
        """Tokens between cue and word on either side: 1 for neighbours, and at most FAR.

        If the cue is not marked, the distance is that of the file.
        """
        # Only one of the two differences is positive: the cue is either before or after the word.
        return tuple(
            sentence.distance
            if cue is None
            else min(max(word.start - cue[-1], cue.start - word[-1]), FAR)
            for sentence, word, cue in zip(self.sentences, self.words, self.cues, strict=True)
        )

    def __len__(self) -> int:
        return len(self.sentences)

    def keep(self, rows: Sequence[int], left_out: Sequence[LeftOut] = ()) -> "Material":
        """The same word with only these rows; `left_out` is added to the sentences left out."""
        columns = [
            (self.sentences[row], self.tokens[row], self.words[row], self.cues[row]) for row in rows
        ]
        return _material(self.word, columns, [*self.left_out, *left_out])


# A sentence, its tokens, and the positions of its word and of its cue.
Row = tuple[Sentence, Tokens, range, range | None]


def _material(word: str, rows: Sequence[Row], left_out: Sequence[LeftOut] = ()) -> Material:
    """A `Material` from its rows."""
    return Material(
        word=word,
        sentences=tuple(sentence for sentence, _, _, _ in rows),
        tokens=tuple(tokens for _, tokens, _, _ in rows),
        words=tuple(positions for _, _, positions, _ in rows),
        cues=tuple(positions for _, _, _, positions in rows),
        left_out=tuple(left_out),
    )


def choose_words(
    words: Sequence[str] | str | None, corpus: Corpus | None, *, otherwise: str = GIVE_SENTENCES
) -> tuple[str, ...]:
    """The words to study, spelled as in their sentences.

    words: one word or several; all words of the corpus if None, or WORDS without a corpus
    otherwise: without a corpus, what to give for a word that does not ship

    Raises InputError if a word has no sentences; the message lists the known words.
    """
    if corpus is None:
        known_words = tuple(sorted({*lexicon.words(), *lexicon.natural_words()}))
        default = WORDS
    else:
        known_words = tuple(dict.fromkeys(sentence.word for sentence in corpus.sentences))
        default = known_words
    if words is not None and not (isinstance(words, str) or _are_words(words)):
        raise InputError(
            f"Cannot choose words: got {words!r}, not a word or a list of words. Give "
            f"[{default[0]!r}], for example, or omit it for {', '.join(default[:WORDS_IN_ERROR])}."
        )
    requested = (words,) if isinstance(words, str) else default if words is None else words
    further = otherwise if corpus is None else ""
    return tuple(dict.fromkeys(spelled(word, known_words, further) for word in requested))


def _are_words(words: object) -> bool:
    """Whether an argument is a non-empty collection of strings."""
    if not isinstance(words, Collection) or not len(words):
        return False
    return all(isinstance(word, str) for word in words)


def spelled(word: str, known_words: Sequence[str], otherwise: str = "") -> str:
    """The known word that is meant: the word itself, or the only known word that differs in case
    or invisible characters alone.

    otherwise: what the user can give for another word

    Raises InputError if there is no such word.
    """
    if plain(word) in known_words:
        return plain(word)
    alike = [name for name in known_words if fold(name) == fold(plain(word))]
    if len(alike) == 1:
        return alike[0]
    likely = nearest(fold(word), known_words)
    near = " or ".join(map(repr, alike)) or (likely and repr(likely))
    suggestion = f" Did you mean {near}?" if near else ""
    names = ", ".join(known_words[:WORDS_IN_ERROR])
    if len(known_words) > WORDS_IN_ERROR:
        names += f" and {len(known_words) - WORDS_IN_ERROR} more"
    step = f"Give one of these, or {otherwise}" if otherwise else "Give one of these"
    raise InputError(
        f"Cannot find sentences with {word!r}.{suggestion} The known words are {names}. {step}."
    )


def sentences_of(word: str, corpus: Corpus | None, model: Model) -> Corpus:
    """The sentences of a word in the given corpus; by default, the shipped sentences that suit the
    model.

    A shipped model learned the grammar of the lexicon, and each cue must be one of its tokens.
    Every other model learned from people, so it gets natural sentences if the word has some. Cues
    precede the word; if the model reads both ways, they may also follow it.
    """
    if corpus is not None:
        of_word = tuple(sentence for sentence in corpus.sentences if sentence.word == word)
        return replace(corpus, sentences=of_word, left_out=())
    both_sides = not model.config.causal
    if word in lexicon.natural_words() and (
        # A shipped model gets natural sentences only if the lexicon has no others.
        model.origin.kind != "embedded" or word not in lexicon.words()
    ):
        return lexicon.expand_natural(word, both_sides=both_sides)
    return lexicon.keep_one_token_cues(
        lexicon.expand(word, both_sides=both_sides), lambda piece: is_one_token(model, piece)
    )


def prepare(model: Model, word: str, sentences: Sequence[Sentence]) -> Material:
    """The tokenised sentences of one word, without those whose word the model's tokens do not hold
    by itself, and without those that a causal model cannot use.

    If no sentence marks its cue, the cue is the difference within each pair.

    Raises InputError if the model cannot read a sentence, or if fewer than two senses remain.
    """
    material = _located(model, word, sentences, strict=True)
    _require_two_senses(material)
    return material


def prepare_counted(model: Model, word: str, sentences: Sequence[Sentence]) -> Material:
    """The sentences of one word as in `prepare`, without errors: an unusable sentence is left out
    with its reason, and so is one that begins with the word, in a causal model.

    The result may have a single sense, or no sentences.
    """
    return _located(model, word, sentences, strict=False)


def _located(model: Model, word: str, sentences: Sequence[Sentence], *, strict: bool) -> Material:
    """The sentences of one word in tokens, without those that the model cannot use.

    strict: whether a sentence that the model cannot read raises InputError, and is not left out
    """
    rows = []
    left_out = []
    for sentence in infer_cues(sentences, both_sides=not model.config.causal):
        try:
            rows.append((sentence, *locate(model, sentence)))
        except UnreadableWord as error:
            left_out.append(LeftOut(sentence.text, error.reason))
        except InputError:
            if strict:
                raise
            left_out.append(LeftOut(sentence.text, _why_not(model, sentence)))
    material = _material(word, rows, left_out)
    return _as_read_from_left(material) if model.config.causal else material


def _why_unread(sentence: Sentence) -> str:
    """Why a causal model has read nothing about the meaning at the word. "" if it may have."""
    if sentence.cue_after:
        return LATE
    if not sentence.text[: sentence.start].strip():
        # All such vectors are identical. Many models also use the first token as an attention sink
        # with a vector of enormous norm, so one such sentence decides the effects of whole heads.
        return NOTHING_BEFORE
    return ""


def _why_not(model: Model, sentence: Sentence) -> str:
    """Why `locate` refuses a sentence, without its text."""
    try:
        tokens_of(model, sentence.text)
    except InputError:
        # A Sentence has a readable text that is not empty, so the text can only be too long.
        return f"it has more tokens than the context window of {model.config.n_ctx}"
    return ON_NO_TOKEN


def locate(model: Model, sentence: Sentence) -> tuple[Tokens, range, range | None]:
    """The sentence in tokens, with the positions of its word and cue.

    Raises UnreadableWord if the tokens do not hold its word or its cue, and InputError if the model
    cannot read it otherwise; that message names its file and row.
    """
    try:
        tokens = tokens_of(model, sentence.text)
        word = word_positions(tokens, sentence.start, sentence.end)
        return tokens, word, cue_positions(tokens, sentence)
    except UnreadableWord:
        raise
    except InputError as error:
        if sentence.where is None:
            raise
        message = str(error)
        raise InputError(f"In {sentence.where}: {message[0].lower()}{message[1:]}") from error


def cue_positions(tokens: Tokens, sentence: Sentence) -> range | None:
    """The token positions of the cue; None if it is not marked.

    Raises UnreadableWord if the vocabulary does not hold it.
    """
    if sentence.cue_start is None or sentence.cue_end is None:
        return None
    cue = positions_of_span(tokens, sentence.cue_start, sentence.cue_end)
    require_known(tokens, cue, sentence.cue_start, sentence.cue_end)
    return cue


def _as_read_from_left(material: Material) -> Material:
    """The sentences that a causal model can use; the reasons of the others are added to
    `left_out`.
    """
    prefixes = material.prefixes
    # Senses by prefix (token ids), and by whole text with the position of the word, which may occur
    # in it in two senses.
    senses_of: defaultdict[Hashable, set[str]] = defaultdict(set)
    for sentence, prefix in zip(material.sentences, prefixes, strict=True):
        senses_of[prefix].add(sentence.sense)
        senses_of[sentence.text, sentence.start].add(sentence.sense)
    rows = []
    left_out = []
    earlier = set()  # prefixes; all other sentences with one have the same sense
    for row, (sentence, prefix) in enumerate(zip(material.sentences, prefixes, strict=True)):
        unread = _why_unread(sentence)
        if unread:
            left_out.append(LeftOut(sentence.text, unread))
        elif len(senses_of[sentence.text, sentence.start]) > 1:
            left_out.append(LeftOut(sentence.text, TWO_LABELS))
        elif len(senses_of[prefix]) > 1:
            left_out.append(LeftOut(sentence.text, SAME))
        elif prefix in earlier:
            left_out.append(LeftOut(sentence.text, REPEATED))
        else:
            earlier.add(prefix)
            rows.append(row)
    return material.keep(rows, left_out)


def _require_two_senses(material: Material) -> None:
    """Raise InputError if the usable sentences have fewer than two senses."""
    senses = list(dict.fromkeys(material.labels))
    if len(senses) >= 2:
        return
    reasons = [item.reason for item in material.left_out]
    usable = f"got only the sense {senses[0]!r}" if senses else "got no usable sentence"
    if reasons:
        left_out = counted(len(reasons), "sentence")
        usable += f" ({left_out} left out: {reasons[-1]})"
    step = "Give sentences of at least two senses"
    if {LATE, SAME, NOTHING_BEFORE} & set(reasons):
        step += (
            " with the cue before the word, or choose a model that reads both ways, such as "
            "tiny-senses-bidirectional"
        )
    raise InputError(f"Cannot compare the senses of {material.word!r}: {usable}. {step}.")


def unused(material: Material, splits: Collection[CrossFit]) -> list[LeftOut]:
    """The sentences of a word that no pair of senses uses, with the reason.

    The sentences that `prepare` left out come first.
    """
    used = {row for split in splits for row in split.rows}
    reasons: dict[int, str] = {}
    for split in splits:
        # A sentence that one pair of senses leaves out may be used by another.
        reasons |= {row: reason for row, reason in split.left_out.items() if row not in used}
    by_splits = [LeftOut(material.sentences[row].text, reason) for row, reason in reasons.items()]
    return [*material.left_out, *by_splits]


def continuations(model: Model, word: str, senses: Iterable[str]) -> dict[str, list[int]] | None:
    """The token ids of the lexicon's continuations of each sense, if they are one token of the
    model.

    None if the lexicon does not have the word, or if one of its senses has no such continuation.
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
        # Each continuation is a single token, so its row has a single id.
        token_ids[sense] = [row[0] for row in rows]
    return token_ids
