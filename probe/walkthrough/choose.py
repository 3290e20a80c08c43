"""What a walk follows: the word and its tokens, the same word in a second sentence, the head.

Without a head requested, two sentences are compared by swaps: the head is the one that by itself,
given what it has at the word in the second sentence, moves the word furthest to where it stands
there. With one sentence, it is the one that carries most from the other content words into the
word. For a word of the lexicon that is measured along the axis of its senses, fitted on the
sentences that a study takes, at the depth where it reads them; for others by length:
‖Σ_j A[t, j] V[j] W_O‖ / ‖E + Σ ΔE + b_O‖ over those tokens j that the word may look at. Special
tokens such as [CLS], the word itself and function words ("the", "of") are left out of the sum,
because many heads rest there and write the same whatever the text says; divided by the length of
the stream after that layer's attention, because the stream grows with depth. Heads that give most
of their attention to the first token or to special tokens are passed over. It is a choice of where
to look first, not a finding about the head.
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
from probe.model.load import read_weights
from probe.model.model import Model
from probe.model.records import TargetStates
from probe.model.tokens import TargetText, Tokens, positions_of_span, tokenize
from probe.model.trace import target_states
from probe.patching.heads import swap_heads
from probe.stats.axes import Axis, fit_axis, nearest_sense
from probe.text import lexicon
from probe.text.sentences import Sentence
from probe.text.spans import WORD, find_word, spans_of
from probe.walkthrough.scene import AttentionView, WordInText

# Fraction of a head's attention: one that gives more to the first token and to special tokens
# shows little else.
MAX_RESTING = 0.5
LEXICON_SEED = 0  # of how the lexicon's sentences are held out, as in a study
# Fraction of a vector's length below which two are the same, and of the way between two vectors
# below which a swap moved nothing: the order of a sum's terms in float32 makes as much.
SAME_VECTOR = 1e-5
SENTENCE_SENSES = ("this meaning", "that meaning")  # names of the ends of the two sentences' axis
# Fraction of the way from one sense to another: less is no reason to follow a head.
MIN_SENSE_EFFECT = 0.02
# Second sentences for a word that no shipped sentence has: with little before the word, and a
# quotation mark for words that stand at the start of a text.
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

RequestedHead = tuple[int | None, int | None]  # layer and head, None where it is to be chosen


class Criterion(StrEnum):
    """By what a head is chosen."""

    REQUESTED = "requested"
    SWAP = "swap"  # swapped by itself, it moves the word furthest to the second sentence's
    LOGIT = "logit"  # it adds most to the logit of a word
    SENSE = "sense"  # it moves the word furthest towards its sense
    LENGTH = "length"  # the vector that it takes from other words is the longest


class WordCriterion(StrEnum):
    """By what a word is chosen."""

    REQUESTED = "requested"
    LEXICON = "lexicon"  # the last one that the lexicon has
    LAST = "last"  # it knows none, and this is the last word


class Sources(StrEnum):
    """Which tokens a head is judged by what it takes from."""

    CONTENT_WORDS = "content_words"
    WORDS = "words"
    ALL = "all"  # where the word may look at no other


@dataclass(frozen=True, eq=False)
class Reading:
    """The axis between two meanings of a word at one depth, and what each component adds there
    halfway between them.

    `axis`: sense_a is the meaning that the word is nearest to · `average`: by component, `d_model`
    each (`probe.model.decomposition.average`).
    """

    axis: Axis
    average: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class SenseAxis:
    """Where two meanings of a word lie: at the read-out depth, at which heads in front of it are
    read, and at the `last` one, at which those behind it are, as in a study.

    `z: layer head d_head`, of every head at the word, halfway between the meanings ·
    `n_sentences`: on how many it is fitted.
    """

    read_out: Reading
    last: Reading
    z: Tensor
    n_sentences: int

    @property
    def axis(self) -> Axis:
        """The axis at the read-out depth."""
        return self.read_out.axis

    def of_layers(self, layers: Iterable[int]) -> Reading:
        """Where what heads of these layers do is read: at the read-out if all of them stand before
        it.
        """
        return self.read_out if all(layer < self.axis.depth for layer in layers) else self.last


@dataclass(frozen=True, eq=False)
class SenseEffects:
    """What each head writes towards the sense that the word is nearest to, away from
    `other_sense`, the next nearest.

    `fractions: layer head`, of the gap between the two, of what is taken from chosen tokens:
    Σ_j <A[t, j] (V[j] W_O - mean ΔE), u> / gap, as in a study's decomposition. `n_sentences`: of
    the lexicon, on which the axis is fitted.
    """

    sense: str
    other_sense: str
    n_sentences: int
    fractions: Tensor


@dataclass(frozen=True, eq=False)
class HeadChoice:
    """The layer and head to follow, and the facts that chose it.

    `n_heads`: how many heads it is the first of, all of `layer` where `one_layer` · `size`: by
    which it is the first (a fraction of a length or of the way between senses) · `sources`: the
    tokens that counted · `n_resting`: how many heads were passed over, because they give most of
    their attention to `resting_tokens` · `senses`: only by Criterion.SENSE.
    """

    layer: int
    head: int
    criterion: Criterion
    n_heads: int = 1
    one_layer: bool = False
    size: float = 0.0
    sources: Sources = Sources.ALL
    n_resting: int = 0
    resting_tokens: tuple[str, ...] = ()
    senses: SenseEffects | None = None


@dataclass(frozen=True)
class WordToFollow:
    """The word to follow, by what it was chosen, and the other content words that could have been,
    in reading order; none where it was requested. `shared`: another text has it, too.
    """

    word: str
    criterion: WordCriterion
    shared: bool = False
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Caution:
    """Why nothing at the word can tell its sense in a model that reads left to right: its `cue`
    comes after it, or, without a cue, no content word comes before it (`only_function_words`, or
    nothing at all).
    """

    cue: str | None
    only_function_words: bool


def lexicon_words_in(text: str) -> list[tuple[int, int, str]]:
    """Start, end and entry of the words of the lexicon in the text, in any of their forms, in
    reading order.
    """
    entries = dict.fromkeys((*lexicon.words(), *lexicon.natural_words()))
    return sorted((*span, entry) for entry in entries for span in spans_of(entry, text))


def sense_effects(
    model: Model, view: AttentionView, word: WordInText, sources: Tensor
) -> SenseEffects | None:
    """How far each head moves the word towards its sense by what it takes from `sources: key_pos`.

    None where the lexicon does not have the word, or the model cannot read its sentences.
    """
    entry = lexicon_entry(word.text)
    known = None if entry is None else lexicon_states(model, entry)
    if known is None:
        return None
    sense_axis = lexicon_axis(model, known, view, word)
    axis = sense_axis.axis
    fractions = torch.zeros(view.weights.shape[:2], dtype=torch.float64)
    terms = decomposition.decompose_resid(
        view.stream, axis.depth, at=word.at, axis=axis, average=sense_axis.read_out.average
    )
    for term in terms:
        # MLPs, embeddings and biases are no head's, and have no source token.
        if term.layer is None or term.head is None or term.pos is None:
            continue
        if sources[term.pos]:
            fractions[term.layer, term.head] += term.contribution or 0.0
    return SenseEffects(axis.sense_a, axis.sense_b, sense_axis.n_sentences, fractions)


def lexicon_entry(text: str) -> str | None:
    """The lexicon's entry of a word in any of its forms; None where it does not have it."""
    found = lexicon_words_in(text)
    return found[0][-1] if found else None


def lexicon_states(model: Model, entry: str) -> Observation | None:
    """What a study reads of a word of the lexicon: the states of its sentences, and the depth at
    which the word is read; None where the model can be asked about too few of them.
    """
    corpus = sentences_of(entry, None, model)
    material = prepare_counted(model, entry, corpus.sentences)
    if len(set(material.labels)) < 2:
        return None
    try:
        return observe(model, material, seed=LEXICON_SEED, next_token=False)
    except InputError:
        # Too few to be held out.
        return None


def lexicon_axis(
    model: Model,
    known: Observation,
    view: AttentionView,
    word: WordInText,
    second: Tensor | None = None,
) -> SenseAxis:
    """The axis of the word's senses in the lexicon, from the sense that the word is nearest to, at
    the depth where a study reads it.

    The second sense is that of the word's stream in a second sentence, `second: depth d_model`,
    where that is another one; else the next nearest. The sentence that is walked is never fitted
    on.
    """
    depth = known.depth
    rows = [
        row
        for row, sentence in enumerate(known.material.sentences)
        if sentence.text != word.tokens.text
    ]
    labels = [known.material.labels[row] for row in rows]
    at_depth = known.resid[rows]
    vector = view.stream.resid_post[depth - 1, word.at][None]
    (sense,) = nearest_sense(at_depth, labels, vector)
    second_sense = sense
    if second is not None:
        (second_sense,) = nearest_sense(at_depth, labels, second[depth][None])
    if second_sense == sense:
        is_other = [label != sense for label in labels]
        other_labels = [label for label in labels if label != sense]
        (second_sense,) = nearest_sense(at_depth[is_other], other_labels, vector)

    rows_by_sense = [
        [row for row, label in zip(rows, labels, strict=True) if label == name]
        for name in (sense, second_sense)
    ]
    return _axis_between(model, known.states, rows_by_sense, (sense, second_sense), depth)


def sentence_axis(model: Model, word: WordInText, second: WordInText) -> SenseAxis:
    """The axis from the word in one sentence to the word in a second one behind the last layer: M
    is +1/2 in the first and -1/2 in the second.
    """
    states = target_states(model, [word.tokens, second.tokens], [word.at, second.at])
    n_layers = len(read_weights(model).blocks)
    return _axis_between(model, states, [[0], [1]], SENTENCE_SENSES, n_layers)


def has_length(axis: Axis) -> bool:
    """Whether the ends of an axis are two vectors; one and the same differ in rounding at most."""
    distance = float(axis.gap * axis.u.norm())  # no direction where there is no gap at all
    return distance > SAME_VECTOR * float(axis.midpoint.norm())


def _axis_between(
    model: Model,
    states: TargetStates,
    rows_by_sense: list[list[int]],
    names: tuple[str, str],
    depth: int,
) -> SenseAxis:
    first, second = rows_by_sense
    weights = read_weights(model)

    def reading(depth: int) -> Reading:
        at_depth = states.resid[:, depth]
        return Reading(
            axis=fit_axis(at_depth[first], at_depth[second], names, depth),
            average=decomposition.average(weights, states, first, second, depth=depth),
        )

    read_out = reading(depth)
    n_layers = len(weights.blocks)
    return SenseAxis(
        read_out=read_out,
        last=read_out if depth == n_layers else reading(n_layers),
        z=(states.z[first].mean(0) + states.z[second].mean(0)) / 2,
        n_sentences=len(first) + len(second),
    )


def late_cue(word: WordInText) -> str | None:
    """The cue that tells the sense of the word in a shipped sentence, where it comes after the
    word; None elsewhere.
    """
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
    """Raises InputError for a word that is given and is none."""
    if word is not None and not (isinstance(word, str) and word.strip()):
        got = "an empty one" if isinstance(word, str) else repr(word)
        raise InputError(
            f"Choosing a word to follow: got {got}, expected a word of the {whose}; give "
            f"{example}, say."
        )


def choose_word(text: str, word: str | None, *, also_in: str | None = None) -> WordToFollow:
    """The word of a text to follow: the requested one, or the last one that the lexicon has, or
    else the last word of the text.

    `also_in`: another text in which the default has to stand, too. Raises InputError for a text
    without a word, and where no content word stands in both.
    """
    require_word(word, "text", "bank")
    if word is not None:
        return WordToFollow(word, WordCriterion.REQUESTED)
    words = [match.group() for match in WORD.finditer(text)]
    if not words:
        raise InputError(
            f"Choosing a word of {text!r}: got no letters or digits; give a text with a word in it."
        )
    known = [text[start:end] for start, end, _ in lexicon_words_in(text)]
    if also_in is not None:
        in_both = [one for one in words + known if count_word(one, also_in)]
        words = [one for one in words if one in in_both and one.casefold() not in FUNCTION_WORDS]
        known = [one for one in known if one in in_both]
        if not words + known:
            _refuse_without_common_word(text, also_in, in_both)
    chosen = (words + known)[-1]
    others = [
        one
        for one in dict.fromkeys(words)
        if one.casefold() not in {chosen.casefold(), *FUNCTION_WORDS}
    ]
    criterion = WordCriterion.LEXICON if known else WordCriterion.LAST
    return WordToFollow(chosen, criterion, also_in is not None, tuple(others))


def word_in_text(model: Model, text: str, word: str | None) -> WordInText:
    """Where `word` stands in `text`, its first place where it stands there more than once, as
    everywhere (`probe.model.tokens.find_word`); by default that of `choose_word`.

    Raises InputError where the word is not there.
    """
    tokens = tokenize(model, text)
    start, end = find_word(text, choose_word(text, word).word)
    return WordInText(tokens, text[start:end], positions_of_span(tokens, start, end))


def _refuse_without_common_word(text: str, second_text: str, function_words: list[str]) -> NoReturn:
    common = "no word"
    if function_words:
        quoted = ", ".join(f"“{word}”" for word in dict.fromkeys(map(str.casefold, function_words)))
        common = f"only {quoted}"
    raise InputError(
        f"Comparing a word of {text!r} and {second_text!r}: the two sentences share {common}, "
        "expected an ambiguous word; write both with the same one, or name the word to compare."
    )


def count_word(word: str, text: str) -> int:
    """How often a word stands in a text, as a whole word in any case."""
    return len(spans_of(word, text, endings=("",)))


def second_word(model: Model, word: WordInText, text: str | None) -> WordInText:
    """The same word in a second sentence: in `text`, or in one that ships, as the same tokens where
    that can be had.

    Raises InputError when the word does not stand in `text`.
    """
    if text is not None:
        return word_in_text(model, text, word.text)
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
    """Whether at most half of what the model can read around the word is the same in both."""
    causal = model.config.causal
    context = candidate.context_ids(causal=causal)
    walked_context = word.context_ids(causal=causal)
    return context != walked_context and 2 * len(context & walked_context) <= len(context)


def _is_usable(model: Model, text: str, word: str) -> bool:
    """Whether the word stands in the text, and the text in the context window with the special
    tokens that go around it.
    """
    encoded = model.tokenizer(text, add_special_tokens=model.config.special_tokens)
    return len(encoded["input_ids"]) < model.config.n_ctx and count_word(word, text) > 0


def content_words(tokens: Tokens) -> Tensor:
    """Which tokens are part of a word that is no English function word; punctuation and special
    tokens are of none. `pos`
    """
    words = [
        match.span()
        for match in WORD.finditer(tokens.text)
        if match.group().casefold() not in FUNCTION_WORDS
    ]
    overlaps = [
        any(token_start < end and token_end > start for start, end in words)
        for token_start, token_end in tokens.spans
    ]
    return torch.tensor(overlaps, dtype=torch.bool)


def relative_writes(view: AttentionView, layer: int, sources: Tensor) -> Tensor:
    """How far each head moves each token by what it takes from `sources: query_pos key_pos`.

    ‖Σ A V W_O‖ / ‖E + Σ ΔE + b_O‖, both as they are added. `-> head query_pos`
    """
    trace = view.attention
    after = trace.resid_pre[layer] + view.as_added(layer, trace.attn_out[layer])
    mixed = attention.mix(trace.pattern[layer] * sources, trace.v[layer])
    written = attention.write(mixed, view.weights.blocks[layer].w_o)
    return view.as_added(layer, written).norm(dim=-1) / after.norm(dim=-1)


def swap_effects(model: Model, word: WordInText, donor_z: Tensor, sense_axis: SenseAxis) -> Tensor:
    """How far each head, given the donor's z at the word by itself, moves the word from the axis's
    first meaning to its second, in fractions of the way: every swap performed. `layer head`

    `donor_z: layer head d_head`. Positive is toward the second meaning, the donor's, as in a
    study's swaps; heads behind the read-out are read at the last depth, as there.
    """
    weights = read_weights(model)
    rows = [TargetText(word.tokens.ids, word.at)]
    n_layers = len(weights.blocks)
    axes = [sense_axis.of_layers([layer]).axis for layer in range(n_layers)]
    # Stage d - 1 is behind block d - 1, where depth d is.
    directions = torch.zeros(1, n_layers, weights.shape[2], dtype=weights.dtype)
    for axis in axes:
        directions[0, axis.depth - 1] = (-axis.u / axis.gap).to(weights.dtype)
    moved = swap_heads(weights, rows, donor_z[None], directions)[0]
    return torch.stack([moved[layer, :, axis.depth - 1] for layer, axis in enumerate(axes)])


def swaps_between(model: Model, word: WordInText, second: WordInText) -> Tensor:
    """`swap_effects` of the second sentence's z, between the word's vectors of both sentences
    behind the last layer; 0 where these are one and the same. `layer head`
    """
    between = sentence_axis(model, word, second)
    if not has_length(between.axis):
        return torch.zeros(read_weights(model).shape[:2])
    donor = target_states(model, [second.tokens], [second.at])
    return swap_effects(model, word, donor.z[0], between)


def choose_by_swap(effects: Tensor | None, requested: RequestedHead) -> HeadChoice | None:
    """The head whose swap moves the word furthest toward the other meaning, `effects: layer head`;
    None where none does, or one is requested.
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
    """The head to follow; a requested one is known to be there.

    With `logits: layer head`, what each head adds to the logit of a word, it is the one that adds
    most; with `senses`, the one that moves the word furthest towards its sense, where any does.
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
    """The head of the largest value in these layers. `layer head`"""
    n_heads = values.shape[1]
    index, head = divmod(int(values[list(layers)].argmax()), n_heads)
    layer = layers[index]
    return HeadChoice(
        layer=layer,
        head=head,
        criterion=criterion,
        n_heads=n_heads * len(layers),
        one_layer=len(layers) == 1,
        size=float(values[layer, head]),
        sources=sources,
        senses=senses,
    )


def source_tokens(view: AttentionView, word: WordInText) -> Tensor:
    """The tokens that a head is chosen by at the word. `key_pos`"""
    return _sources(view, word)[0][word.at]


def _sources(view: AttentionView, word: WordInText) -> tuple[Tensor, Sources]:
    """The tokens that count, `query_pos key_pos`: the other content words, else all other words,
    else all tokens.
    """
    others = view.other_words(word)
    content = others & content_words(view.source)
    if content[word.at].any():
        return content, Sources.CONTENT_WORDS
    if others[word.at].any():
        return others, Sources.WORDS
    return view.allowed, Sources.ALL


def _choose_by_sense(
    view: AttentionView, word: WordInText, layers: Sequence[int], senses: SenseEffects
) -> HeadChoice | None:
    """By the axis of the word's senses; None where no head moves it by MIN_SENSE_EFFECT."""
    is_resting = resting_attention(view, word.at) > MAX_RESTING
    fractions = senses.fractions.masked_fill(is_resting, 0.0)
    _, sources = _sources(view, word)
    choice = _first_head(fractions, layers, Criterion.SENSE, sources=sources, senses=senses)
    return choice if choice.size >= MIN_SENSE_EFFECT else None


def _choose_by_length(view: AttentionView, word: WordInText, layers: Sequence[int]) -> HeadChoice:
    """By the length of what is taken from other words, relative to the stream."""
    tokens, sources = _sources(view, word)
    all_layers = range(len(view.attention.pattern))
    sizes = torch.stack([relative_writes(view, layer, tokens)[:, word.at] for layer in all_layers])
    is_resting = resting_attention(view, word.at) > MAX_RESTING
    n_resting = int(is_resting[list(layers)].sum())
    # Where every head rests, or there is nothing else to take from, the rule would leave none.
    every_head_rests = bool(is_resting[list(layers)].all())
    if sources is Sources.ALL or every_head_rests or n_resting == 0:
        return _first_head(sizes, layers, Criterion.LENGTH, sources=sources)
    choice = _first_head(
        sizes.masked_fill(is_resting, -1.0), layers, Criterion.LENGTH, sources=sources
    )
    return replace(choice, n_resting=n_resting, resting_tokens=_resting_tokens(view, word.at))


def resting_attention(view: AttentionView, at: int) -> Tensor:
    """How much of its attention each head gives to the first token of the same text and to special
    tokens. `-> layer head`
    """
    return view.attention.pattern[:, :, at, _is_resting_token(view, at)].sum(-1)


def _is_resting_token(view: AttentionView, at: int) -> Tensor:
    """`key_pos`: the special tokens, and the first token of the same text for a later one."""
    is_resting = view.special_tokens.clone()
    is_resting[0] |= view.one_text and at > 0
    return is_resting


def _resting_tokens(view: AttentionView, at: int) -> tuple[str, ...]:
    """The texts of the tokens that heads rest on, each once."""
    positions = _is_resting_token(view, at).nonzero()[:, 0].tolist()
    return tuple(dict.fromkeys(view.source.pieces[pos].strip() for pos in positions))


def caution(view: AttentionView, word: WordInText) -> Caution | None:
    """Why nothing at the word can tell its sense in a model that reads left to right; None where
    something may.
    """
    if not view.causal:
        return None
    cue = late_cue(word)
    if cue is not None:
        return Caution(cue, only_function_words=False)
    if content_words(word.tokens)[: word.positions[0]].any():
        return None
    return Caution(None, only_function_words=bool(word.context_ids(causal=True)))
