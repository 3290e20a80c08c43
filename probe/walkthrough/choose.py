"""What a walk follows: the word and its tokens, the same word in a second sentence, and the
head.

If no head is requested and two sentences are compared, each head is swapped: the head is the one
that moves the word furthest toward the second sentence's vector when it alone gets its z from
there. With one sentence, it is the head that carries most from the other content words into the
word. For a word of the lexicon, "most" is measured along the axis of its senses, fitted on the
sentences that a study uses, at the depth where the study reads them. For other words it is a
length:

    ‖Σ_j A[t, j] V[j] W_O‖ / ‖E + Σ ΔE + b_O‖

The sum is over the tokens j that the word can attend to, without special tokens such as [CLS], the
word itself and function words ("the", "of"), because many heads rest there and write the same
whatever the text. It is divided by the length of the stream after that layer's attention, because
the stream grows with depth. Heads that give most of their attention to the first token or to
special tokens are skipped. The result says where to look first; it is not a finding about the head.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NoReturn

import torch
from torch import Tensor

from probe.errors import InputError
from probe.experiments.material import prepare_counted, sentences_of
from probe.experiments.observe import Observation, observe
from probe.model import attention, decomposition
from probe.model.model import Model
from probe.model.records import TargetStates
from probe.model.tokens import Tokens, tokenize, word_positions
from probe.model.trace import target_states
from probe.model.variants import TargetText
from probe.model.weights import weights_of
from probe.patching.heads import swap_heads
from probe.stats.axes import Axis, fit_axis, nearest_sense
from probe.text import lexicon
from probe.text.sentences import Sentence
from probe.text.spans import WORD, find_word, fold, spans_of
from probe.walkthrough.scene import AttentionView, WordInText

# Fraction of a head's attention. A head that gives more to the first token and to special tokens
# shows little else.
MAX_RESTING = 0.5
# Fraction of a head's attention, averaged over the tokens of the text. A head that gives more to
# the token before is a previous-token head: it reads whatever comes there.
MAX_PREVIOUS = 0.5
LEXICON_SEED = 0  # decides how the lexicon's sentences are held out, as in a study
# Fraction of a vector's length below which two vectors are equal, and of the distance between two
# vectors below which a swap moved nothing: about the effect of the order of a sum in float32.
SAME_VECTOR = 1e-5
# Names of the ends of two sentences' axis where no word distinguishes the sentences.
SENTENCE_SENSES = ("this sentence", "that sentence")
# Fraction of the gap between two senses. A head with a smaller effect is not followed.
MIN_SENSE_EFFECT = 0.02
# Second sentences for a word without a shipped sentence: one with little before the word, and one
# with a quotation mark for words at the beginning of a text.
NEUTRAL_FRAMES = ("They had told us nothing about the {}", 'They had told us: "{}')
FUNCTION_WORDS = frozenset(
    WORD.findall(
        """a an the this that these those and or but nor if than as of in on at by to from with
        without for into onto over under near after before about between through is was were are am
        be been being do does did has have had having can could will would shall should may might
        must not no it its he him his she her hers they them their theirs we us our you your i me
        my who whom which what there here so very too also"""
    )
)

RequestedHead = tuple[int | None, int | None]  # layer and head; None to have it chosen


class Criterion(StrEnum):
    """How a head is chosen."""

    REQUESTED = "requested"
    SWAP = "swap"  # swapped alone, it moves the word furthest toward the second sentence's
    LOGIT = "logit"  # it adds most to the logit of a word
    SENSE = "sense"  # it moves the word furthest toward its sense
    LENGTH = "length"  # its write from other words is the longest


class WordCriterion(StrEnum):
    """How a word is chosen."""

    REQUESTED = "requested"
    LEXICON = "lexicon"  # the last word that is in the lexicon
    LAST = "last"  # no word is in the lexicon, and this is the last word


class Sources(StrEnum):
    """The tokens whose contribution to a head's write counts."""

    CONTENT_WORDS = "content_words"
    WORDS = "words"
    ALL = "all"  # if the word can attend to no other word


@dataclass(frozen=True, eq=False)
class AxisAtDepth:
    """The axis between two meanings of a word at one depth, and the average contribution of each
    component.

    axis: sense_a is the meaning that the word is nearest to
    average: `d_model` for each component, halfway between the meanings
        (`probe.model.decomposition.average`)
    """

    axis: Axis
    average: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class SenseAxis:
    """The axes between two meanings of a word.

    read_out: at the read-out layer, for the heads before it
    last: after the last layer, for the heads after the read-out layer, as in a study
    z: `layer head d_head`, of every head at the word, halfway between the meanings
    n_sentences: the number of sentences on which it is fitted
    """

    read_out: AxisAtDepth
    last: AxisAtDepth
    z: Tensor
    n_sentences: int

    @property
    def axis(self) -> Axis:
        """The axis at the read-out layer."""
        return self.read_out.axis

    def of_layers(self, layers: Iterable[int]) -> AxisAtDepth:
        """The reading of heads of these layers: `read_out` if all of them are before the
        read-out layer, otherwise `last`.
        """
        return self.read_out if all(layer < self.axis.depth for layer in layers) else self.last


@dataclass(frozen=True, eq=False)
class SenseEffects:
    """Each head's write toward the sense that the word is nearest to, and away from
    `other_sense`, the next nearest.

    n_sentences: of the lexicon, on which the axis is fitted
    fractions: `layer head`, of the gap between the two senses, from some source tokens: Σ_j <A[t,
        j] (V[j] W_O - mean ΔE), u> / gap, as in a study's decomposition
    """

    sense: str
    other_sense: str
    n_sentences: int
    fractions: Tensor


@dataclass(frozen=True, eq=False)
class HeadChoice:
    """The layer and head to follow, and the reasons for the choice.

    n_heads: the number of heads among which it is first
    size: its value of the criterion, a fraction of a length or of the gap between senses
    sources: the tokens that counted
    n_resting: the number of heads that were skipped, because they give most of their attention to
        `resting_tokens`
    n_previous: the number of other heads that were skipped, because they are previous-token heads
    senses: only for Criterion.SENSE
    """

    layer: int
    head: int
    criterion: Criterion
    n_heads: int = 1
    size: float = 0.0
    sources: Sources = Sources.ALL
    n_resting: int = 0
    resting_tokens: tuple[str, ...] = ()
    n_previous: int = 0
    senses: SenseEffects | None = None


@dataclass(frozen=True)
class WordToFollow:
    """The word to follow.

    shared: whether another text has it, too
    others: the other content words that could have been chosen, in reading order; empty if the word
        was requested
    """

    word: str
    criterion: WordCriterion
    shared: bool = False
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Caution:
    """Why a model that reads left to right cannot resolve the word's sense at the word.

    cue: the cue, if it comes after the word; None if no content word comes before the word
    """

    cue: str | None


def lexicon_words_in(text: str) -> list[tuple[int, int, str]]:
    """Start, end and entry of the text's words that are in the lexicon, in any form, in reading
    order.
    """
    entries = dict.fromkeys((*lexicon.words(), *lexicon.natural_words()))
    return sorted((*span, entry) for entry in entries for span in spans_of(entry, text))


def sense_effects(
    model: Model, view: AttentionView, word: WordInText, sources: Tensor
) -> SenseEffects | None:
    """How far each head moves the word toward its sense by its write from some tokens.

    sources: `key_pos`, True for these tokens

    None if the lexicon does not have the word, or if the model cannot read the lexicon's sentences.
    """
    entry = lexicon_entry(word.text)
    observation = None if entry is None else lexicon_states(model, entry)
    if observation is None:
        return None
    sense_axis = lexicon_axis(model, observation, view, word)
    axis = sense_axis.axis
    fractions = torch.zeros(view.weights.shape[:2], dtype=torch.float64)
    terms = decomposition.decompose_resid(
        view.stream, axis.depth, at=word.at, axis=axis, average=sense_axis.read_out.average
    )
    for term in terms:
        # The other terms belong to MLPs, embeddings and biases, and have no source token.
        if term.layer is None or term.head is None or term.pos is None:
            continue
        if sources[term.pos]:
            fractions[term.layer, term.head] += term.contribution or 0.0
    return SenseEffects(axis.sense_a, axis.sense_b, sense_axis.n_sentences, fractions)


def lexicon_entry(text: str) -> str | None:
    """The lexicon's entry of a word in any of its forms; None without an entry."""
    matches = lexicon_words_in(text)
    return matches[0][-1] if matches else None


def lexicon_states(model: Model, entry: str) -> Observation | None:
    """The states of a lexicon word's sentences, as a study reads them, and its read-out layer;
    None if the model can read too few sentences.
    """
    corpus = sentences_of(entry, None, model)
    material = prepare_counted(model, entry, corpus.sentences)
    if len(set(material.labels)) < 2:
        return None
    try:
        return observe(model, material, seed=LEXICON_SEED, next_token=False)
    except InputError:
        # There are too few to hold some out.
        return None


def lexicon_axis(
    model: Model,
    observation: Observation,
    view: AttentionView,
    word: WordInText,
    second: Tensor | None = None,
) -> SenseAxis:
    """The axis of the word's senses in the lexicon at the study's read-out layer, from the sense
    that the word is nearest to.

    second: `depth d_model`, the word's stream in a second sentence

    The second sense is the nearest one in the second sentence if that differs, otherwise the next
    nearest. The walked sentence itself is never used for fitting.
    """
    depth = observation.depth
    rows = [
        row
        for row, sentence in enumerate(observation.material.sentences)
        if sentence.text != word.tokens.text
    ]
    labels = [observation.material.labels[row] for row in rows]
    at_depth = observation.resid[rows]
    vector = view.stream.resid_post[depth - 1, word.at][None]
    (sense,) = nearest_sense(at_depth, labels, vector)
    second_sense = sense
    if second is not None:
        (second_sense,) = nearest_sense(at_depth, labels, second[depth][None])
    # An axis needs two senses: the next nearest replaces the one that both sentences share.
    if second_sense == sense:
        is_other = [label != sense for label in labels]
        other_labels = [label for label in labels if label != sense]
        (second_sense,) = nearest_sense(at_depth[is_other], other_labels, vector)

    rows_by_sense = [
        [row for row, label in zip(rows, labels, strict=True) if label == name]
        for name in (sense, second_sense)
    ]
    return _axis_between(model, observation.states, rows_by_sense, (sense, second_sense), depth)


def sentence_axis(model: Model, word: WordInText, second: WordInText) -> SenseAxis:
    """The axis between the word's vectors in two sentences after the last layer: M is +1/2 in
    the first and -1/2 in the second.
    """
    states = target_states(model, [word.tokens, second.tokens], [word.at, second.at])
    n_layers = len(weights_of(model).blocks)
    names = cue_names(word, second, causal=model.config.causal)
    return _axis_between(model, states, [[0], [1]], names, n_layers)


def cue_names(word: WordInText, second: WordInText, *, causal: bool) -> tuple[str, str]:
    """The word that tells the meaning in each of two sentences, to name the ends of their axis;
    SENTENCE_SENSES if a sentence has none, or both have the same.
    """
    here = _cue(word, second.tokens.text, causal=causal)
    there = _cue(second, word.tokens.text, causal=causal)
    if here is None or there is None or fold(here) == fold(there):
        return SENTENCE_SENSES
    return here, there


def _cue(word: WordInText, other_text: str, *, causal: bool) -> str | None:
    """The content word that only this sentence has: a cue of the lexicon, otherwise the one that is
    nearest before the word, otherwise the first one after it; None without such a word.
    """
    text = word.tokens.text
    start, end = find_word(text, word.text)
    in_other = {fold(match.group()) for match in WORD.finditer(other_text)}
    candidates = [
        match
        for match in WORD.finditer(text)
        if fold(match.group()) not in in_other | FUNCTION_WORDS | {fold(word.text)}
    ]
    before = [match.group() for match in candidates if match.end() <= start]
    after = [match.group() for match in candidates if match.start() >= end and not causal]
    by_distance = [*reversed(before), *after]
    lexicon_cues = _lexicon_cues(word.text)
    # sorted is stable, so equal words keep the order of their distance.
    ranked = sorted(by_distance, key=lambda cue: fold(cue) not in lexicon_cues)
    return ranked[0] if ranked else None


def _lexicon_cues(text: str) -> set[str]:
    """The cues of a word of the lexicon, in lower case."""
    name = lexicon_entry(text)
    if name is None or name not in lexicon.words():
        return set()
    return {fold(cue) for sense in lexicon.entry(name).senses for cue in sense.cues}


def has_length(axis: Axis) -> bool:
    """Whether the ends of an axis are two different vectors; equal vectors differ by rounding at
    most.
    """
    # Relative to the vectors' length, because rounding errors grow with it.
    distance = float(axis.gap * axis.u.norm())  # u is 0 without a gap
    return distance > SAME_VECTOR * float(axis.midpoint.norm())


def _axis_between(
    model: Model,
    states: TargetStates,
    rows_by_sense: list[list[int]],
    names: tuple[str, str],
    depth: int,
) -> SenseAxis:
    first, second = rows_by_sense
    weights = weights_of(model)

    def reading(depth: int) -> AxisAtDepth:
        at_depth = states.resid[:, depth]
        return AxisAtDepth(
            axis=fit_axis(at_depth[first], at_depth[second], names, depth),
            average=decomposition.average(weights, states, first, second, depth=depth),
        )

    read_out = reading(depth)
    n_layers = len(weights.blocks)
    return SenseAxis(
        read_out=read_out,
        last=read_out if depth == n_layers else reading(n_layers),
        # The mean of the two means, so a sense with more sentences does not count more.
        z=(states.z[first].mean(0) + states.z[second].mean(0)) / 2,
        n_sentences=len(first) + len(second),
    )


def late_cue(word: WordInText) -> str | None:
    """The cue of the word's sense in a shipped sentence, if it comes after the word; otherwise
    None.
    """
    # Only shipped sentences have a marked cue.
    cues = {row.text: row.cue for row in lexicon.showcase() if row.cue_after}
    for entry in {entry for *_, entry in lexicon_words_in(word.text)}:
        sentences: list[Sentence] = []
        if entry in lexicon.words():
            sentences += lexicon.expand(entry, both_sides=True).sentences
        if entry in lexicon.natural_words():
            sentences += lexicon.expand_natural(entry, both_sides=True).sentences
        cues |= {sentence.text: sentence.cue for sentence in sentences if sentence.cue_after}
    return cues.get(word.tokens.text)


def require_word(word: str | None, whose: str, example: str) -> None:
    """Raises InputError for a word that is empty or not a text."""
    if word is not None and not (isinstance(word, str) and word.strip()):
        got = "an empty one" if isinstance(word, str) else repr(word)
        raise InputError(
            f"Cannot choose a word to follow: got {got}, expected a word of the {whose}. Give "
            f"{example}, say."
        )


def choose_word(text: str, word: str | None, *, also_in: str | None = None) -> WordToFollow:
    """The word of a text to follow: the requested word, otherwise the last word that is in the
    lexicon, otherwise the last word.

    also_in: another text; a word that is chosen by default must occur in both

    Raises InputError for a text without a word, and if no content word occurs in both texts.
    """
    require_word(word, "text", "bank")
    if word is not None:
        return WordToFollow(word, WordCriterion.REQUESTED)
    words = [match.group() for match in WORD.finditer(text)]
    if not words:
        raise InputError(
            f"Cannot choose a word of {text!r}: got no letters or digits. Give a text with a word "
            "in it."
        )
    lexicon_words = [text[start:end] for start, end, _ in lexicon_words_in(text)]
    if also_in is not None:
        in_both = [
            word_of_text
            for word_of_text in words + lexicon_words
            if count_word(word_of_text, also_in)
        ]
        words = [
            word_of_text
            for word_of_text in words
            if word_of_text in in_both and fold(word_of_text) not in FUNCTION_WORDS
        ]
        lexicon_words = [word_of_text for word_of_text in lexicon_words if word_of_text in in_both]
        if not words + lexicon_words:
            _refuse_without_common_word(text, also_in, in_both)
    # Words of the lexicon are at the end of this list, so they have priority.
    choice = (words + lexicon_words)[-1]
    alternatives = [
        word_of_text
        for word_of_text in dict.fromkeys(words)
        if fold(word_of_text) not in {fold(choice), *FUNCTION_WORDS}
    ]
    criterion = WordCriterion.LEXICON if lexicon_words else WordCriterion.LAST
    return WordToFollow(choice, criterion, also_in is not None, tuple(alternatives))


def word_in_text(model: Model, text: str, word: str | None) -> WordInText:
    """The first occurrence of `word` in `text` (`probe.model.tokens.find_word`); by default of
    the word of `choose_word`.

    Raises InputError if the word does not occur.
    """
    tokens = tokenize(model, text)
    start, end = find_word(text, choose_word(text, word).word)
    return WordInText(tokens, text[start:end], word_positions(tokens, start, end))


def _refuse_without_common_word(text: str, second_text: str, function_words: list[str]) -> NoReturn:
    common = "no word"
    if function_words:
        quotations = ", ".join(f"“{word}”" for word in dict.fromkeys(map(fold, function_words)))
        common = f"only {quotations}"
    raise InputError(
        f"Cannot compare a word of {text!r} and {second_text!r}: the two sentences share {common}, "
        "expected an ambiguous word. Write both with the same one, or name the word to compare."
    )


def count_word(word: str, text: str) -> int:
    """How often a word occurs in a text, as a whole word in any case."""
    return len(spans_of(word, text, endings=("",)))


def second_word(model: Model, word: WordInText, text: str | None) -> WordInText:
    """The same word in a second sentence: in `text`, or in a shipped sentence, with the same
    tokens if possible.

    Raises InputError if the word does not occur in `text`.
    """
    if text is not None:
        return word_in_text(model, text, word.text)
    # Shipped sentences come first. The neutral frames accept any word, so one is always left.
    texts = [row.text for row in lexicon.showcase() if row.text != word.tokens.text]
    texts += [frame.format(word.text) for frame in NEUTRAL_FRAMES]
    candidates = [
        word_in_text(model, candidate, word.text)
        for candidate in texts
        if _is_usable(model, candidate, word.text)
    ]
    for candidate in candidates:
        if candidate.ids == word.ids and _has_another_context(model, candidate, word):
            return candidate
    return candidates[-1]


def _has_another_context(model: Model, candidate: WordInText, word: WordInText) -> bool:
    """Whether at most half of the readable context of the word is the same in both."""
    causal = model.config.causal
    context = candidate.context_ids(causal=causal)
    walked_context = word.context_ids(causal=causal)
    return context != walked_context and 2 * len(context & walked_context) <= len(context)


def _is_usable(model: Model, text: str, word: str) -> bool:
    """Whether the word occurs in the text, and the text with its special tokens fits the context
    window.
    """
    encoded = model.tokenizer(text, add_special_tokens=model.config.adds_special_tokens)
    return len(encoded["input_ids"]) < model.config.n_ctx and count_word(word, text) > 0


def content_words(tokens: Tokens) -> Tensor:
    """Which tokens are part of a content word, i.e. not of an English function word, punctuation
    or a special token.

    `pos`
    """
    words = [
        match.span()
        for match in WORD.finditer(tokens.text)
        if fold(match.group()) not in FUNCTION_WORDS
    ]
    overlaps = [
        any(token_start < end and token_end > start for start, end in words)
        for token_start, token_end in tokens.spans
    ]
    return torch.tensor(overlaps, dtype=torch.bool)


def relative_writes(view: AttentionView, layer: int, sources: Tensor) -> Tensor:
    """How far each head moves each token by its write from some tokens. `-> head query_pos`

        ‖Σ A V W_O‖ / ‖E + Σ ΔE + b_O‖, both as they are added

    sources: `query_pos key_pos`, True for these tokens
    """
    trace = view.attention
    # E + Σ ΔE + b_O, before a norm of this sum
    after = trace.resid_pre[layer] + view.as_added(layer, trace.attn_out[layer])
    # Σ_j A[t, j] V[j] over the sources alone
    z = attention.mix(trace.pattern[layer] * sources, trace.v[layer])
    write = attention.write(z, view.weights.blocks[layer].w_o)
    return view.as_added(layer, write).norm(dim=-1) / after.norm(dim=-1)


def swap_effects(model: Model, word: WordInText, donor_z: Tensor, sense_axis: SenseAxis) -> Tensor:
    """How far each head moves the word from the axis's first meaning to its second, as a
    fraction of the gap, if it alone gets the donor's z at the word.

    `layer head`

    donor_z: `layer head d_head`

    Every swap is performed. Positive is toward the second meaning, the donor's, as in a study's
    swaps. As there, heads after the read-out layer are read after the last layer.
    """
    weights = weights_of(model)
    rows = [TargetText(word.tokens.ids, word.at)]
    n_layers = len(weights.blocks)
    axes = [sense_axis.of_layers([layer]).axis for layer in range(n_layers)]
    # Stage d - 1 is after block d - 1, where depth d is.
    directions = torch.zeros(1, n_layers, weights.shape[2], dtype=weights.dtype)
    for axis in axes:
        directions[0, axis.depth - 1] = (-axis.u / axis.gap).to(weights.dtype)
    shifts = swap_heads(weights, rows, donor_z[None], directions)[0]
    return torch.stack([shifts[layer, :, axis.depth - 1] for layer, axis in enumerate(axes)])


def swaps_between(model: Model, word: WordInText, second: WordInText) -> Tensor:
    """`swap_effects` of the second sentence's z, between the word's vectors of both sentences
    after the last layer.

    `layer head`

    0 if the two vectors are equal.
    """
    between = sentence_axis(model, word, second)
    if not has_length(between.axis):
        return torch.zeros(weights_of(model).shape[:2])
    donor = target_states(model, [second.tokens], [second.at])
    return swap_effects(model, word, donor.z[0], between)


def choose_by_swap(effects: Tensor | None, requested: RequestedHead) -> HeadChoice | None:
    """The head whose swap moves the word furthest toward the other meaning; None if no swap
    moves it or a head is requested.

    effects: `layer head`
    """
    layer, head = requested
    if effects is None or head is not None:
        return None
    layers = range(len(effects)) if layer is None else [layer]
    choice = _first_head(effects, layers, Criterion.SWAP)
    return choice if choice.size > SAME_VECTOR else None


def choose_head(
    view: AttentionView,
    word: WordInText,
    requested: RequestedHead,
    *,
    logits: Tensor | None = None,
    senses: SenseEffects | None = None,
) -> HeadChoice:
    """The head to follow; a requested head must exist.

    logits: `layer head`, each head's contribution to the logit of a word; the largest is chosen
    senses: the head that moves the word furthest toward its sense is chosen, if one moves it
    """
    layer, head = requested
    if layer is not None and head is not None:
        return HeadChoice(layer, head, Criterion.REQUESTED)
    layers = range(len(view.attention.pattern)) if layer is None else [layer]
    if logits is not None:
        return _first_head(logits, layers, Criterion.LOGIT)
    by_sense = None if senses is None else _choose_by_sense(view, word, layers, senses)
    return by_sense or _choose_by_length(view, word, layers)


def _first_head(
    values: Tensor,
    layers: Sequence[int],
    criterion: Criterion,
    *,
    sources: Sources = Sources.ALL,
    senses: SenseEffects | None = None,
) -> HeadChoice:
    """The head with the largest value in these layers. `layer head`"""
    n_heads = values.shape[1]
    # argmax counts through all heads of the layers: index · n_heads + head.
    index, head = divmod(int(values[list(layers)].argmax()), n_heads)
    layer = layers[index]
    return HeadChoice(
        layer=layer,
        head=head,
        criterion=criterion,
        n_heads=n_heads * len(layers),
        size=float(values[layer, head]),
        sources=sources,
        senses=senses,
    )


def source_tokens(view: AttentionView, word: WordInText) -> Tensor:
    """The tokens whose contribution to the head's write counts at the word. `key_pos`"""
    return _sources(view, word)[0][word.at]


def _sources(view: AttentionView, word: WordInText) -> tuple[Tensor, Sources]:
    """The tokens that count: the other content words, otherwise all other words, otherwise all
    tokens.

    `query_pos key_pos`
    """
    other_words = view.other_words(word)
    content = other_words & content_words(view.source)
    if content[word.at].any():
        return content, Sources.CONTENT_WORDS
    if other_words[word.at].any():
        return other_words, Sources.WORDS
    return view.allowed, Sources.ALL


def _choose_by_sense(
    view: AttentionView, word: WordInText, layers: Sequence[int], senses: SenseEffects
) -> HeadChoice | None:
    """The head that moves the word most along the axis of its senses; None if no head moves it
    by MIN_SENSE_EFFECT.
    """
    is_resting = resting_attention(view, word.at) > MAX_RESTING
    fractions = senses.fractions.masked_fill(is_resting, 0.0)
    _, sources = _sources(view, word)
    choice = _first_head(fractions, layers, Criterion.SENSE, sources=sources, senses=senses)
    return choice if choice.size >= MIN_SENSE_EFFECT else None


def _choose_by_length(view: AttentionView, word: WordInText, layers: Sequence[int]) -> HeadChoice:
    """The head with the longest write from other words, relative to the stream."""
    tokens, sources = _sources(view, word)
    all_layers = range(len(view.attention.pattern))
    sizes = torch.stack([relative_writes(view, layer, tokens)[:, word.at] for layer in all_layers])
    is_resting = resting_attention(view, word.at) > MAX_RESTING
    is_previous = (previous_attention(view) > MAX_PREVIOUS) & ~is_resting
    is_skipped = is_resting | is_previous
    # The rule would leave no head if all of them are skipped, or if there is nothing else to read.
    if sources is Sources.ALL or bool(is_skipped[list(layers)].all()):
        return _first_head(sizes, layers, Criterion.LENGTH, sources=sources)
    choice = _first_head(
        sizes.masked_fill(is_skipped, -1.0), layers, Criterion.LENGTH, sources=sources
    )
    n_resting = int(is_resting[list(layers)].sum())
    return replace(
        choice,
        n_resting=n_resting,
        resting_tokens=_resting_tokens(view, word.at) if n_resting else (),
        n_previous=int(is_previous[list(layers)].sum()),
    )


def previous_attention(view: AttentionView) -> Tensor:
    """The attention that each head gives to the token before, averaged over the text; 0 where two
    texts attend to each other, and in a text of fewer than three tokens.

    `-> layer head`
    """
    pattern = view.attention.pattern
    if not view.one_text or pattern.shape[-1] < 3:
        return torch.zeros(pattern.shape[:2])
    # The second token is left out, because the first one is also where heads rest.
    return pattern.diagonal(offset=-1, dim1=-2, dim2=-1)[..., 1:].mean(-1)


def resting_attention(view: AttentionView, at: int) -> Tensor:
    """The attention that each head gives to the first token of the same text and to special
    tokens.

    `-> layer head`
    """
    return view.attention.pattern[:, :, at, _is_resting_token(view, at)].sum(-1)


def _is_resting_token(view: AttentionView, at: int) -> Tensor:
    """The special tokens, and the first token of the same text for a later query. `key_pos`"""
    is_resting = view.special_tokens.clone()
    # The first token itself can attend to nothing else, so it is not a resting token there.
    is_resting[0] |= view.one_text and at > 0
    return is_resting


def _resting_tokens(view: AttentionView, at: int) -> tuple[str, ...]:
    """The different texts of the tokens that heads rest on."""
    positions = _is_resting_token(view, at).nonzero()[:, 0].tolist()
    return tuple(dict.fromkeys(view.source.pieces[pos].strip() for pos in positions))


def caution(view: AttentionView, word: WordInText) -> Caution | None:
    """Why a model that reads left to right cannot resolve the sense at the word; None if it
    might.
    """
    if not view.causal:
        return None
    cue = late_cue(word)
    if cue is not None:
        return Caution(cue)
    if content_words(word.tokens)[: word.positions[0]].any():
        return None
    return Caution(None)
