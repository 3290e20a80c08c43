"""What a walk follows: the word and its tokens, the same word in a second sentence, the head.

Without a head requested, two sentences are compared by swaps: the head is the one that by itself,
given what it has at the word in the second sentence, moves the word furthest to where it stands
there. With one sentence, it is the one that carries most from the other content words into the
word. For a word of the lexicon that is measured along the axis of its senses, fitted on a few of
the lexicon's sentences at the read-out depth that a study would choose; for others by length:
‖Σ_j A[t, j] V[j] W_O‖ / ‖E + Σ ΔE + b_O‖ over those tokens j that the word may look at. Special
tokens such as [CLS], the word itself and function words ("the", "of") are left out of the sum,
because many heads rest there and write the same whatever the text says; divided by the length of
the stream after that layer's attention, because the stream grows with depth. Heads that give most
of their attention to the first token or to special tokens are passed over. It is a choice of where
to look first, not a finding about the head.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NoReturn

import torch
from torch import Tensor

from probe.errors import InputError
from probe.evidence.material import prepare_usable
from probe.model import attention, decomposition
from probe.model.load import read_weights
from probe.model.model import Model
from probe.model.records import TargetStates
from probe.model.tokens import TargetText, Tokens, find_word, positions_of_span, tokenize
from probe.model.trace import target_states
from probe.patching.heads import swap_heads
from probe.stats.axes import Axis, choose_depth, fit_axis, nearest_sense, separation_by_depth
from probe.text import lexicon
from probe.text.sentences import Sentence, forms_of
from probe.walkthrough.scene import AttentionView, WordInText

SENTENCES_PER_SENSE = 16  # that an axis is fitted on: one batch for all senses
# Fraction of a head's attention: one that gives more to the first token and to special tokens
# shows little else.
MAX_RESTING = 0.5
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
    re.findall(
        r"\w+",
        """a an the this that these those and or but nor if than as of in on at by to from with
        without for into onto over under near after before about between through is was were are am
        be been being do does did has have had having can could will would shall should may might
        must not no it its he him his she her hers they them their theirs we us our you your i me
        my who whom which what there here so very too also""",
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


class Sources(StrEnum):
    """Which tokens a head is judged by what it takes from."""

    CONTENT_WORDS = "content_words"
    WORDS = "words"
    ALL = "all"  # where the word may look at no other


@dataclass(frozen=True, eq=False)
class SenseAxis:
    """The axis between two meanings of a word, and what each component adds halfway between them.

    `axis`: sense_a is the meaning that the word is nearest to · `average`: by component, `d_model`
    each (`probe.model.decomposition.average`) · `z: layer head d_head`, of every head at the word,
    halfway · `n_sentences`: on how many it is fitted.
    """

    axis: Axis
    average: Mapping[str, Tensor]
    z: Tensor
    n_sentences: int


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
    return sorted((*span, entry) for entry in entries for span in forms_of(entry, text))


def sense_effects(
    model: Model, view: AttentionView, word: WordInText, sources: Tensor
) -> SenseEffects | None:
    """How far each head moves the word towards its sense by what it takes from `sources: key_pos`.

    None where the lexicon does not have the word, or the model cannot read its sentences.
    """
    sense_axis = lexicon_axis(model, view, word)
    if sense_axis is None:
        return None
    axis = sense_axis.axis
    fractions = torch.zeros(view.weights.shape[:2], dtype=torch.float64)
    terms = decomposition.decompose_resid(
        view.stream, axis.depth, at=word.at, axis=axis, average=sense_axis.average
    )
    for term in terms:
        # MLPs, embeddings and biases are no head's, and have no source token.
        if term.layer is None or term.head is None or term.pos is None:
            continue
        if sources[term.pos]:
            fractions[term.layer, term.head] += term.contribution or 0.0
    return SenseEffects(axis.sense_a, axis.sense_b, sense_axis.n_sentences, fractions)


def lexicon_axis(
    model: Model, view: AttentionView, word: WordInText, second: Tensor | None = None
) -> SenseAxis | None:
    """The axis of the word's senses in the lexicon, from the sense that the word is nearest to, at
    the read-out depth.

    The second sense is that of the word's stream in a second sentence, `second: depth d_model`,
    where that is another one; else the next nearest. None where the lexicon does not have the
    word, or the model cannot read its sentences.
    """
    lexicon_words = lexicon_words_in(word.text)
    if not lexicon_words:
        return None
    entry = lexicon_words[0][-1]
    material, _ = prepare_usable(model, entry, _sentences_to_fit(entry, view, word))
    if material is None or len(set(material.labels)) < 2:
        return None
    states = target_states(model, material.tokens, material.targets)
    labels = material.labels
    cue_words = [sentence.cue_word or sentence.text for sentence in material.sentences]
    depth = choose_depth(separation_by_depth(states.resid, labels, cue_words, seed=0))

    at_depth = states.resid[:, depth]
    vector = view.stream.resid_post[depth - 1, word.at][None]
    (sense,) = nearest_sense(at_depth, labels, vector)
    second_sense = sense
    if second is not None:
        (second_sense,) = nearest_sense(at_depth, labels, second[depth][None])
    if second_sense == sense:
        rows = [row for row, label in enumerate(labels) if label != sense]
        (second_sense,) = nearest_sense(at_depth[rows], [labels[row] for row in rows], vector)

    rows_by_sense = [
        [row for row, label in enumerate(labels) if label == name] for name in (sense, second_sense)
    ]
    return _axis_between(model, states, rows_by_sense, (sense, second_sense), depth)


def sentence_axis(
    model: Model, word: WordInText, second: WordInText, names: tuple[str, str], depth: int
) -> SenseAxis:
    """The axis from the word in one sentence to the word in a second one at a depth: M is +1/2 in
    the first and -1/2 in the second.
    """
    states = target_states(model, [word.tokens, second.tokens], [word.at, second.at])
    return _axis_between(model, states, [[0], [1]], names, depth)


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
    at_depth = states.resid[:, depth]
    return SenseAxis(
        axis=fit_axis(at_depth[first], at_depth[second], names, depth),
        average=decomposition.average(read_weights(model), states, first, second, depth=depth),
        z=(states.z[first].mean(0) + states.z[second].mean(0)) / 2,
        n_sentences=len(states),
    )


def _sentences_to_fit(entry: str, view: AttentionView, word: WordInText) -> Sequence[Sentence]:
    """Up to SENTENCES_PER_SENSE sentences of each sense, spread over the lexicon's frames and cues;
    never the one that is walked.

    Those of a study; natural ones of a word that has no others.
    """
    expand = lexicon.expand if entry in lexicon.words() else lexicon.expand_natural
    by_sense: dict[str, list[Sentence]] = {}
    for sentence in expand(entry, both_sides=not view.causal).sentences:
        if sentence.text != word.tokens.text:
            by_sense.setdefault(sentence.sense, []).append(sentence)
    chosen: list[Sentence] = []
    for sentences in by_sense.values():
        step = -(-len(sentences) // SENTENCES_PER_SENSE)  # rounded up
        chosen += sentences[::step]
    return chosen


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


def word_in_text(
    model: Model, text: str, word: str | None, *, also_in: str | None = None
) -> WordInText:
    """Where `word` stands in `text`; by default the last one that the lexicon has, or else the last
    word of the text.

    `also_in`: another text in which the default has to stand, too. Raises InputError where the
    word is not there, and where no content word stands in both.
    """
    tokens = tokenize(model, text)
    require_word(word, "text", "bank")
    start, end = _default_span(text, also_in) if word is None else find_word(text, word)
    return WordInText(tokens, text[start:end], positions_of_span(tokens, start, end))


def _default_span(text: str, also_in: str | None) -> tuple[int, int]:
    """Start and end of the word to follow where none is requested."""
    words = [match.span() for match in re.finditer(r"\w+", text)]
    if not words:
        raise InputError(
            f"Choosing a word of {text!r}: got no letters or digits; give a text with a word in it."
        )
    candidates = words + [(start, end) for start, end, _ in lexicon_words_in(text)]
    if also_in is None:
        return candidates[-1]
    in_both = [span for span in candidates if count_word(text[slice(*span)], also_in)]
    with_content = [span for span in in_both if text[slice(*span)].casefold() not in FUNCTION_WORDS]
    if not with_content:
        _refuse_without_common_word(text, also_in, [text[slice(*span)] for span in in_both])
    return with_content[-1]


def _refuse_without_common_word(text: str, second_text: str, function_words: list[str]) -> NoReturn:
    common = "no word"
    if function_words:
        quoted = ", ".join(f"“{word}”" for word in dict.fromkeys(function_words))
        common = f"nothing but {quoted}"
    raise InputError(
        f"Comparing a word of {text!r} and {second_text!r}: they have {common} in common, expected "
        "the word whose meaning differs; write both with that word, or name it as word."
    )


def count_word(word: str, text: str) -> int:
    """How often a word stands in a text, as a whole word in any case."""
    return len(re.findall(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE))


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
        for match in re.finditer(r"\w+", tokens.text)
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


def swap_effects(model: Model, word: WordInText, donor_z: Tensor, axis: Axis) -> Tensor:
    """How far each head, given the donor's z at the word by itself, moves the word from the axis's
    first meaning to its second, in fractions of the way: every swap performed. `layer head`

    `donor_z: layer head d_head`. Positive is toward the second meaning, the donor's, as in a
    study's swaps; heads behind the axis's depth move nothing.
    """
    weights = read_weights(model)
    effects = torch.zeros(weights.shape[:2])
    rows = [TargetText(word.tokens.ids, word.at)]
    direction = (-axis.u / axis.gap)[None].to(weights.dtype)
    moved = swap_heads(weights, rows, donor_z[None, : axis.depth], direction)
    effects[: axis.depth] = moved[0, :, :, 0]
    return effects


def swaps_between(model: Model, word: WordInText, second: WordInText) -> Tensor:
    """`swap_effects` of the second sentence's z, between the word's vectors of both sentences
    behind the last layer; 0 where these are one and the same. `layer head`
    """
    weights = read_weights(model)
    axis = sentence_axis(model, word, second, SENTENCE_SENSES, len(weights.blocks)).axis
    if not has_length(axis):
        return torch.zeros(weights.shape[:2])
    donor = target_states(model, [second.tokens], [second.at])
    return swap_effects(model, word, donor.z[0], axis)


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
