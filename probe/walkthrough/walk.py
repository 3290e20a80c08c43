"""The entry point of the walk: from a model and a text to a record of every step, with a
certificate.

A model with one stack follows a word of its text through self-attention. An encoder-decoder follows
a position of the target through cross-attention, where keys and values come from the source. A
head's contribution to a word's logit is its write along the direction that reaches the logit,
without any response of later layers. It suggests where to look; only a swap shows that a head
carries a choice (`probe.cross.swap_heads`, `probe.study`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from probe.display import Displayed
from probe.errors import InputError, whole_number
from probe.model.check import Certificate, certify, certify_pair
from probe.model.load import ModelSource, load
from probe.model.model import Model, require_heads
from probe.model.parameters import Count, count_tensors
from probe.model.tokens import Tokens, require_text, target_tokens
from probe.model.trace import trace
from probe.patching import cross
from probe.provenance import Origin, content_key
from probe.walkthrough import choose
from probe.walkthrough.choose import Caution, HeadChoice, RequestedHead, WordToFollow
from probe.walkthrough.frames import Block, frames, page_block
from probe.walkthrough.numbers import MeasuredText, measure
from probe.walkthrough.scene import (
    AttentionView,
    CausalTrace,
    LogitTarget,
    Scene,
    SecondSentence,
    WordInText,
    trace_pair,
)
from probe.walkthrough.score_parts import score_rows


@dataclass(frozen=True)
class LargestPart:
    """The source token with the largest part of a sum.

    piece: the token's text
    value: its part
    fraction: the part divided by the sum; 0 if the sum is 0
    """

    piece: str
    value: float
    fraction: float


@dataclass(frozen=True)
class HeadWrite:
    """A head's write at a word.

    relative: the length of ΔE, as a fraction of the vector's length after the layer's attention
    largest: the source token with the largest share of ΔE
    """

    relative: float
    largest: LargestPart


@dataclass(frozen=True)
class Parting:
    """Where the word's vectors of two sentences part.

    depth: the first depth at which they differ: -1 is the token embedding, l the stream that enters
        layer l, `n_layers` the stream after the last layer; None if they never differ
    same_tokens: whether the word has the same tokens in both sentences
    second_write: the head's write in the second sentence
    """

    depth: int | None
    n_layers: int
    same_tokens: bool
    second_write: HeadWrite


@dataclass(frozen=True)
class LogitFindings:
    """The contributions to the logit of a word.

    first_token: the word's first token
    of_head: from the head that is followed; `largest` is the source token with the largest part
    of_all_heads: from all `n_heads` heads of cross-attention
    whole: the logit minus the mean over all tokens
    rival: the most likely other token; `rival_logit` is its logit
    n_likelier: how many tokens are more likely
    """

    word: str
    first_token: str
    of_head: float
    largest: LargestPart
    n_heads: int
    of_all_heads: float
    whole: float
    rival: str
    rival_logit: float
    n_likelier: int


@dataclass(frozen=True, eq=False)
class WalkFindings:
    """The facts about the position and the head that are followed first, for the sentences of
    the page (`probe.pages.walk_sentences`).

    word_to_follow: how the word was chosen; None if a position is followed
    n_occurrences: how often the word occurs in its text, and in a second text if two are compared;
        the first occurrence is followed
    one_text: whether the text attends to itself
    parting: only if two sentences are compared head by head
    logit: only if a word's logit is read
    caution: why no head can resolve the word's sense there, if that is certain
    previous: the head's attention to the token before, averaged over the text; None for two texts
    """

    model_name: str
    word: str
    word_to_follow: WordToFollow | None
    n_occurrences: tuple[int, ...]
    causal: bool
    one_text: bool
    choice: HeadChoice
    write: HeadWrite
    parting: Parting | None
    logit: LogitFindings | None
    caution: Caution | None
    previous: float | None


@dataclass(frozen=True, eq=False)
class Walk(Displayed):
    """Every step of one head at one position.

    word: a word of the text; with a target, the word whose logit is read, if one was requested
    at: the word's last token; with a target, the position that predicts the word
    second_text: another text with the word; None with a target
    contrast: whether the two texts are compared side by side
    causal_trace: then, where they differ, layer by layer; None if it cannot be traced
    trace_refusal: then, why it cannot be traced
    truncation_change: the largest change of the word's vector, at any depth, if everything after it
        is cut off; None if nothing comes after it
    findings: facts for the sentences
    frames: the tables by name
    block: the data with which the page follows the other heads and tokens
    """

    model_name: str
    origin: Origin
    certificate: Certificate
    parameters: Count
    text: str
    target: str | None
    second_text: str | None
    word: str | None
    at: int
    layer: int
    head: int
    same_tokens: bool
    contrast: bool
    truncation_change: float | None
    findings: WalkFindings
    causal_trace: CausalTrace | None
    trace_refusal: str | None
    frames: dict[str, pd.DataFrame]
    block: Block

    @property
    def data_sha256(self) -> str:
        """The hash of the texts."""
        texts = (self.text, self.target, self.second_text)
        return content_key(*(text for text in texts if text is not None))

    @property
    def options(self) -> dict[str, object]:
        """The options of the walk, for the manifest."""
        options: dict[str, object] = {"text": self.text}
        if self.target is not None:
            options["target"] = self.target
        options["word"] = self.word
        if self.second_text is not None:
            options["against" if self.contrast else "beside"] = self.second_text
        return options | {"layer": self.layer, "head": self.head}

    def __repr__(self) -> str:
        head = f"L{self.layer}H{self.head}"
        return (
            f"<Walk at {self.word!r} through {head} of {self.model_name}: "
            f"{len(self.frames)} tables>"
        )


def walk(
    model: ModelSource,
    text: str,
    target: str | None = None,
    *,
    at: str | None = None,
    head: RequestedHead = (None, None),
    beside: str | None = None,
    against: str | None = None,
    causal_trace: bool = True,
) -> Walk:
    """Every step of attention in one head at the word `at` of `text`, with the real numbers.

    text: for an encoder-decoder, the source
    target: only for an encoder-decoder: its translation so far
    at: a word, by default one in the lexicon, otherwise the last one; its first occurrence is
        followed. With a target, a word of the target or one that could follow it; the position that
        predicts it is followed, and without a word the last position
    head: (layer, head). By default the head that moves the word most by what it reads from other
        content words (toward its sense, if the lexicon has the word). With a layer alone, a head of
        that layer
    beside: another text with the same word; by default a sentence that ships with the library
    against: a text to compare with head by head, side by side. The default head is then the one
        that moves the word furthest toward the other sentence's, when it alone gets its z from
        there
    causal_trace: with `against`, whether to put the residual stream, attention and MLP of that
        sentence into this one at every layer and position, to locate the difference

    Raises InputError for an empty or over-long text, a word that does not occur in a text or cannot
    follow the target, two sentences without a common content word, a layer or head that the model
    does not have, a head without its layer, and a target that is missing or cannot be used. Raises
    CrossCheckError if hooks and formulas disagree.

    Example:
        >>> walk = probe.walk("tiny-senses", "The old tree by the bank", at="bank")
        >>> walk.word
        'bank'
        >>> len(walk.frames["attention"])  # one row for each query and key: 7 x 7 tokens
        49
    """
    model = load(model)
    require_heads(model.config, "a walk", "read its tensors with trace, and its heads with report")
    check_texts(model, text, target, beside, against)
    check_pair(head)
    if target is None:
        second_text = against or beside
        word_to_follow = choose.choose_word(text, at, also_in=second_text)
        scene, choice, certificate = _text_scene(
            model,
            text,
            word_to_follow.word,
            head,
            second_text=second_text,
            contrast=against is not None,
        )
    else:
        word_to_follow = None
        scene, choice, certificate = _translation_scene(model, text, target, at, head)
    measured = measure(scene)
    effects, refusal = _causal_trace(scene) if causal_trace else (None, None)
    parameters = count_tensors(model)
    second = scene.second.word if scene.second is not None else None
    one_text = scene.view.one_text
    return Walk(
        model_name=model.name,
        origin=model.origin,
        certificate=certificate,
        parameters=parameters,
        text=scene.view.source.text,
        target=None if one_text else scene.view.tokens.text,
        second_text=None if second is None else second.tokens.text,
        word=scene.word.text if one_text else at,
        at=scene.at,
        layer=scene.layer,
        head=scene.head,
        same_tokens=second is not None and second.ids == scene.word.ids,
        contrast=scene.contrast,
        truncation_change=_truncation_change(model, scene) if one_text else None,
        findings=walk_findings(model, scene, measured, choice, word_to_follow),
        causal_trace=effects,
        trace_refusal=refusal,
        frames=frames(
            model, scene, measured, effects, parameters=parameters, certificate=certificate
        ),
        block=page_block(model, scene, measured, effects) | {"scores": score_rows(scene)},
    )


def check_texts(
    model: Model, text: str, target: str | None, beside: str | None, against: str | None
) -> None:
    """Raises InputError for texts that do not fit together.

    These are anything but a text, a target without a decoder, a decoder without a target, a second
    text where none is compared, two second texts, and the same text twice.
    """
    for value in (text, target, beside, against):
        if value is not None:
            require_text(value)
    is_encoder_decoder = model.config.start_token is not None
    if is_encoder_decoder and target is None:
        problem = "it is an encoder-decoder. Give the translation so far as target"
    elif target is not None and not is_encoder_decoder:
        problem = (
            "it has no decoder for a target. Give a word to follow as at=, or take an "
            "encoder-decoder such as tiny-translator"
        )
    elif target is not None and (beside or against) is not None:
        problem = (
            "a walk through two texts compares no word with another sentence. Omit beside and "
            "against"
        )
    elif beside is not None and against is not None:
        problem = "got both beside and against, expected one other sentence. Give one of them"
    elif against is not None and against == text:
        problem = (
            "got the same sentence twice, where nothing can differ. Give a second one with the "
            "same word"
        )
    else:
        return
    raise InputError(f"Cannot walk a text through {model.name}: {problem}.")


def check_length(model: Model, n_tokens: int) -> None:
    """Raises InputError for a text that is longer than the window of the layers with sliding
    windows.
    """
    window = model.config.window
    if any(model.config.local) and n_tokens > window:
        raise InputError(
            f"Cannot walk a text through {model.name}: it has {n_tokens} tokens, and some layers "
            f"have a window of {window}, so one mask would not do. Give a text of at most "
            f"{window} tokens."
        )


def check_pair(head: object) -> None:
    """Raises InputError for a head that is not (layer, head)."""
    if not isinstance(head, Sequence) or len(head) != 2:
        raise InputError(
            f"Cannot follow a head: got head = {head!r}, expected its layer and its number. Give "
            "(4, 1), say, or (4, None) for one of layer 4."
        )


def check_head(model: Model, layer: int | None, head: int | None) -> None:
    """Raises InputError for a layer or head that the model (its decoder, if it has one) does not
    have, and for a head without its layer.
    """
    n_layers = model.config.n_decoder_layers or model.config.n_layers
    n_heads = model.config.n_heads
    if layer is not None and (whole_number(layer) is None or not 0 <= layer < n_layers):
        raise InputError(
            f"Cannot follow layer {layer!r} of {model.name}: it has {n_layers} layers. Give a "
            f"layer from 0 to {n_layers - 1}."
        )
    if head is not None and (whole_number(head) is None or not 0 <= head < n_heads):
        raise InputError(
            f"Cannot follow head {head!r} of {model.name}: it has {n_heads} heads per layer. Give "
            f"a head from 0 to {n_heads - 1}."
        )
    if head is not None and layer is None:
        raise InputError(
            f"Cannot follow head {head}: got a head without its layer, expected both. Give the "
            f"layer from 0 to {n_layers - 1} too."
        )


def _text_scene(
    model: Model,
    text: str,
    word: str,
    requested: RequestedHead,
    *,
    second_text: str | None,
    contrast: bool,
) -> tuple[Scene, HeadChoice, Certificate]:
    """The scene of a word in self-attention, with the same word in a second sentence."""
    word_here = choose.word_in_text(model, text, word)
    check_length(model, len(word_here.tokens))
    second_word = choose.second_word(model, word_here, second_text)
    check_head(model, *requested)
    certificate = certify(model, [text, second_word.tokens.text]).require()
    # The swaps of all heads take time, and only a comparison head by head uses them.
    swaps = choose.swaps_between(model, word_here, second_word) if contrast else None
    view = AttentionView.of_self_attention(trace(model, text))
    second_view = AttentionView.of_self_attention(trace(model, second_word.tokens.text))
    second = SecondSentence(second_view, second_word)
    choice = _choose(model, view, word_here, requested, swaps)
    scene = Scene(
        view, word_here, choice.layer, choice.head, second, contrast=contrast, swaps=swaps
    )
    return scene, choice, certificate


def _choose(
    model: Model,
    view: AttentionView,
    word: WordInText,
    requested: RequestedHead,
    swaps: Tensor | None,
) -> HeadChoice:
    """The head to follow: by its swap, by the senses of the word, or by its reading from content
    words.
    """
    by_swap = choose.choose_by_swap(swaps, requested)
    if by_swap is not None:
        return by_swap
    # Fitting the axis reads dozens of sentences, so it is done only if it chooses the head.
    if None not in requested or choose.caution(view, word) is not None:
        return choose.choose_head(view, word, requested)
    senses = choose.sense_effects(model, view, word, choose.source_tokens(view, word))
    return choose.choose_head(view, word, requested, senses=senses)


def _translation_scene(
    model: Model, source: str, target: str, word: str | None, requested: RequestedHead
) -> tuple[Scene, HeadChoice, Certificate]:
    """The scene of the position of a target that predicts a word, or of its last one, in
    cross-attention.
    """
    check_head(model, *requested)
    at, token = _predicting_position(model, target, word)
    certificate = certify_pair(model, source, target).require()
    pair = trace(model, source, target)
    word_here = WordInText(pair.target, visible(pair.target.pieces[at]), range(at, at + 1))
    view = AttentionView.of_cross_attention(pair)
    logit = None
    logits = None
    if word is not None and token is not None:
        direction = cross.directions(model, pair, cross.toward(model, token))
        logit = LogitTarget(word, token, cross.by_source(pair, direction))
        logits = logit.contributions[:, :, at].sum(-1)
    choice = choose.choose_head(view, word_here, requested, logits=logits)
    scene = Scene(view, word_here, choice.layer, choice.head, logit=logit)
    return scene, choice, certificate


def _predicting_position(model: Model, target: str, word: str | None) -> tuple[int, int | None]:
    """The position that predicts the word, which is in the target or follows it, and the word's
    first token.
    """
    tokens = target_tokens(model, target)
    choose.require_word(word, "translation", "rive")
    if word is None:
        return len(tokens) - 1, None
    if choose.count_word(word, target):
        first = tokens.positions_of(word)[0]
        # A position predicts the token after it.
        return first - 1, tokens.ids[first]
    return len(tokens) - 1, cross.first_token(model, target, word)


def _causal_trace(scene: Scene) -> tuple[CausalTrace | None, str | None]:
    """The causal trace of two sentences, or why they cannot be traced; two None if they are not
    compared head by head.
    """
    if scene.second is None or not scene.contrast:
        return None, None
    try:
        return trace_pair(scene.view.weights, scene.word, scene.second.word), None
    except InputError as error:
        # The rest of the walk does not need the trace.
        return None, str(error)


def _truncation_change(model: Model, scene: Scene) -> float | None:
    """The largest change of the word's vector if everything after it is cut off, relative to its
    largest coordinate; None if nothing comes after it.
    """
    tokens = scene.word.tokens
    at = scene.at
    # In a causal model, the cut changes the word's vector by rounding at most.
    text = tokens.text[: tokens.spans[at][1]]
    if text == tokens.text:
        return None
    truncated_trace = trace(model, text)
    # A cut inside a token gives another text, not the beginning of this one.
    if truncated_trace.tokens.ids[: at + 1] != tokens.ids[: at + 1]:
        return None
    stream = scene.view.stream.resid_post[:, at]
    change = (stream - truncated_trace.resid_post[:, at]).abs().max()
    return float(change / stream.abs().max())


def walk_findings(
    model: Model,
    scene: Scene,
    measured: MeasuredText,
    choice: HeadChoice,
    word_to_follow: WordToFollow | None,
) -> WalkFindings:
    """The facts for the sentences about a walk."""
    view = scene.view
    quantities = measured.quantities
    index = scene.head_index
    one_text = view.one_text
    compared = [scene.word]
    if scene.second is not None and scene.contrast:
        compared.append(scene.second.word)
    return WalkFindings(
        model_name=model.name,
        word=scene.word.text,
        word_to_follow=word_to_follow,
        n_occurrences=tuple(choose.count_word(word.text, word.tokens.text) for word in compared),
        causal=view.causal,
        one_text=one_text,
        choice=choice,
        write=_head_write(
            view.source,
            quantities["added"][scene.layer, scene.head, scene.at],
            quantities["share"][index, scene.at],
        ),
        parting=_parting(scene, measured),
        logit=_logit_findings(model, scene),
        caution=choose.caution(view, scene.word) if one_text else None,
        previous=_previous(scene) if one_text else None,
    )


def _parting(scene: Scene, measured: MeasuredText) -> Parting | None:
    if scene.second is None or not scene.contrast:
        return None
    quantities = measured.quantities
    first_depth = None
    for depth, distance in enumerate(quantities["apart"].tolist(), start=-1):
        # Equal vectors of two runs can differ by rounding.
        if distance > choose.SAME_VECTOR:
            first_depth = depth
            break
    second_write = _head_write(
        scene.second.word.tokens,
        quantities["second_added"][scene.head_index],
        quantities["second_share"][scene.head_index],
    )
    return Parting(
        depth=first_depth,
        n_layers=scene.sizes[0],
        same_tokens=scene.second.word.ids == scene.word.ids,
        second_write=second_write,
    )


def _logit_findings(model: Model, scene: Scene) -> LogitFindings | None:
    """The heads' contributions to the logit of a word, and the largest logit of any other token."""
    target = scene.logit
    if target is None:
        return None
    decode = model.tokenizer.decode
    by_source = target.contributions[scene.layer, scene.head, scene.at]
    logits = scene.view.stream.logits[scene.at]
    # A softmax ignores a constant in all logits, so only the difference from their mean counts.
    centred = logits - logits.mean()
    without_target = centred.clone()
    without_target[target.token] = -torch.inf
    rival = int(without_target.argmax())
    return LogitFindings(
        word=target.word,
        first_token=decode([target.token]).strip(),
        of_head=float(by_source.sum()),
        largest=_largest_part(scene.view.source, by_source),
        n_heads=target.contributions[:, :, 0, 0].numel(),
        of_all_heads=float(target.contributions[:, :, scene.at].sum()),
        whole=float(centred[target.token]),
        rival=decode([rival]).strip(),
        rival_logit=float(centred[rival]),
        n_likelier=int((centred > centred[target.token]).sum()),
    )


def _previous(scene: Scene) -> float:
    """The followed head's attention to the token before, averaged over the text."""
    return float(choose.previous_attention(scene.view)[scene.layer, scene.head])


def _head_write(source: Tokens, relative: Tensor, shares: Tensor) -> HeadWrite:
    return HeadWrite(float(relative), _largest_part(source, shares))


def _largest_part(source: Tokens, parts: Tensor) -> LargestPart:
    """The token with the largest absolute part."""
    largest = int(parts.abs().argmax())
    total = float(parts.sum())
    value = float(parts[largest])
    fraction = value / total if total else 0.0
    return LargestPart(visible(source.pieces[largest]), value, fraction)


def visible(piece: str) -> str:
    """A token's text without surrounding white space; white space alone is shown with its
    escapes.
    """
    return piece.strip() or repr(piece)
