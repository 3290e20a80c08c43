"""The entry point of the walk: from a model and a text to every step, with a certificate.

A model with one stack follows a word of its text through self-attention. An encoder-decoder follows
a position of the target through cross-attention, where keys and values come from the source. A
head's contribution to a word's logit is its write along the direction that reaches the logit,
without any response of later layers. It suggests where to look; only a swap shows that a head
carries a choice (`probe.cross.swap_heads`, `probe.study`).
"""

from dataclasses import dataclass
from typing import Any

import pandas as pd
from torch import Tensor

from probe.display import Displayed
from probe.errors import InputError
from probe.model.check import Certificate, certify, certify_pair
from probe.model.load import ModelSource, load
from probe.model.model import Model, require_heads
from probe.model.parameters import Count, count_tensors
from probe.model.tokens import require_text, target_tokens
from probe.model.trace import trace
from probe.patching import cross
from probe.provenance import Origin, content_key
from probe.walks import axes, choose, sentences
from probe.walks.axes import SenseAxis
from probe.walks.block import Block, page_block, score_rows
from probe.walks.choose import HeadChoice, RequestedHead
from probe.walks.frames import frames
from probe.walks.numbers import from_content, measure
from probe.walks.pair import CausalTrace, trace_pair
from probe.walks.scene import (
    AttentionView,
    LogitTarget,
    Scene,
    SecondSentence,
    WordInText,
    visible,
)


@dataclass(frozen=True, eq=False)
class Walk(Displayed):
    """Every step of one head at one position.

    word: a word of the text; with a target, the word whose logit is read, if one was requested
    at: the word's last token; with a target, the position that predicts the word
    second_text: another text with the word; None with a target
    contrast: whether the two texts are compared side by side
    truncation_change: the largest change of the word's vector, at any depth, if everything after it
        is cut off; None if nothing comes after it
    statements: the sentences of the page by name (`probe.walks.sentences`)
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
    statements: dict[str, Any]
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
    head: (layer, head). By default the head that moves the word furthest toward its sense, if the
        lexicon has the word, otherwise the one with the largest ΔE from other content words. With a
        layer alone, a head of that layer
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
    choose.check_head(model, head)
    word = senses = None
    if target is None:
        word = choose.choose_word(text, at, also_in=against or beside)
        second_text = against or beside
        scene, choice, senses, certificate = _text_scene(
            model, text, word.word, head, second_text=second_text, contrast=against is not None
        )
    else:
        scene, choice, certificate = _translation_scene(model, text, target, at, head)
    quantities, agreement = measure(scene)
    effects, travels = _causal_trace(scene) if causal_trace else (None, None)
    parameters = count_tensors(model)
    second = scene.second.word if scene.second is not None else None
    one_text = scene.view.one_text
    statements = sentences.statements(model, scene, quantities, choice, word, senses)
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
        statements=statements | {"travels": travels},
        frames=frames(model, scene, quantities, agreement, effects, parameters, certificate),
        block=page_block(model, scene, quantities, agreement, effects)
        | {"scores": score_rows(scene)},
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


def _text_scene(
    model: Model,
    text: str,
    word_text: str,
    requested: RequestedHead,
    *,
    second_text: str | None,
    contrast: bool,
) -> tuple[Scene, HeadChoice, SenseAxis | None, Certificate]:
    """The scene of a word in self-attention, with the same word in a second sentence; and the axis
    of its senses, if the head was chosen by it.
    """
    word = choose.word_in_text(model, text, word_text)
    check_length(model, len(word.tokens))
    second_word = choose.second_word(model, word, second_text)
    certificate = certify(model, [text, second_word.tokens.text]).require()
    view = AttentionView.of_self_attention(trace(model, text))
    second_view = AttentionView.of_self_attention(trace(model, second_word.tokens.text))
    swaps: Tensor | None = None
    by_sense = None
    # Both take time: the swaps of all heads, and an axis that is fitted on dozens of sentences.
    if contrast:
        swaps = axes.swaps_between(model, word, second_word)
    elif requested[1] is None and not choose.is_unreadable(word, causal=view.causal):
        by_sense = axes.sense_effects(model, view, word)
    senses, effects = by_sense or (None, swaps)
    reason = "swap" if contrast else "sense"
    choice = choose.choose_head(requested, effects, reason, from_content(view, word))
    second = SecondSentence(second_view, second_word)
    scene = Scene(view, word, choice.layer, choice.head, second, contrast=contrast, swaps=swaps)
    return scene, choice, senses, certificate


def _translation_scene(
    model: Model, source: str, target: str, word: str | None, requested: RequestedHead
) -> tuple[Scene, HeadChoice, Certificate]:
    """The scene of the position of a target that predicts a word, or of its last one, in
    cross-attention.
    """
    at, token = _predicting_position(model, target, word)
    certificate = certify_pair(model, source, target).require()
    pair = trace(model, source, target)
    position = WordInText(pair.target, visible(pair.target.pieces[at]), range(at, at + 1))
    view = AttentionView.of_cross_attention(pair)
    logit = effects = None
    if word is not None and token is not None:
        direction = cross.directions(model, pair, cross.toward(model, token))
        logit = LogitTarget(word, token, cross.by_source(pair, direction))
        effects = logit.contributions[:, :, at].sum(-1)
    choice = choose.choose_head(requested, effects, "logit", from_content(view, position))
    scene = Scene(view, position, choice.layer, choice.head, logit=logit)
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
    """The causal trace of two sentences, and the sentence about it, or why they cannot be traced;
    two None if they are not compared head by head.
    """
    if scene.compared is None:
        return None, None
    try:
        traced = trace_pair(scene.view.weights, scene.word, scene.compared.word)
    except InputError as error:
        # The rest of the walk does not need the trace.
        return None, str(error)
    return traced, sentences.travels(traced)


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
