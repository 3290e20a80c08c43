"""The front door of the walk: a model and a text in, a record of every step out, nothing of it
without a certificate.

There is one walk. A model with one stack follows a word of its text through self-attention; an
encoder-decoder follows a position of the target through cross-attention, where keys and values come
from the source. What is added to a word's logit is a head's write along the direction that reaches
it, with nothing downstream answering. It is a place to look; that a head carries a choice, only a
swap shows (`probe.cross.swap_heads`, `probe.study`).
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
from probe.renamed import renamed
from probe.walkthrough import choose
from probe.walkthrough.choose import Caution, HeadChoice, RequestedHead, WordToFollow
from probe.walkthrough.frames import Block, frames, page_block
from probe.walkthrough.numbers import Measured, measure
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
    """The source token from which most of a sum comes: its text, its part of the sum, and that part
    in fractions of the sum (0 where the sum is 0).
    """

    piece: str
    value: float
    fraction: float


@dataclass(frozen=True)
class HeadWrite:
    """What a head adds at a word: the length of ΔE, and the source token of its largest share."""

    length: float
    largest: LargestPart


@dataclass(frozen=True)
class Parting:
    """The first depth at which the word's vectors of two sentences differ: -1 the token embedding,
    l what enters layer l, `n_layers` what leaves the last; None where none does. How many tokens
    the word is, and whether they are the same in both; and what the head adds in the second one.
    """

    depth: int | None
    n_layers: int
    n_tokens: int
    same_tokens: bool
    second_write: HeadWrite


@dataclass(frozen=True)
class LogitFindings:
    """What is added to the logit of a word: by the head that is followed, and from which source
    token; by all `n_heads` heads of cross-attention; the whole logit, against the mean of all
    tokens; the likeliest other token and its logit; how many tokens are likelier.
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
    """What is found at the position and in the head that are followed first: every fact that the
    sentences about a walk tell (`probe.pages.walk_sentences`).

    `word_to_follow`: by what the word was chosen, None where a position is followed ·
    `n_occurrences`: how often the word stands in its text, and in a second one that is compared;
    the first of them is followed · `one_text`: whether the text looks at itself · `parting`: only
    where two sentences are compared head by head · `logit`: only where the logit of a word is
    looked at · `caution`: why nothing there can tell the word's sense, where that is known.
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


@dataclass(frozen=True, eq=False)
class Walk(Displayed):
    """One position and every step of one head at it: `frames` by name, `findings` for what is said
    first.

    `word` is a word of the text and `at` its last token; with a `target`, `word` is one whose logit
    is looked at, if any was requested, and `at` the position of the target that predicts it.
    `second_text` is another text with the word, None with a target; with `contrast` the two are
    compared side by side, and `causal_trace` is where their difference stands, layer by layer, or
    `trace_refusal` why that cannot be traced. `truncation_change` is the largest change of the
    word's vector, at any depth, when everything after it is cut off; None where nothing comes after
    it. `block` is what the page needs to follow the other heads and tokens.
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
        """The hash of the texts that were walked."""
        texts = (self.text, self.target, self.second_text)
        return content_key(*(text for text in texts if text is not None))

    @property
    def options(self) -> dict[str, object]:
        """What was requested, as the manifest keeps it."""
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


@renamed(word="at")
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

    `at` is by default a word that the lexicon has, or else the last one; where it occurs more than
    once, its first place is followed. `head` is (layer, head);
    without them the head is chosen that moves the word most by what it takes from other content
    words (towards its sense, where the lexicon knows it), with a layer alone among the heads of
    that layer. `beside` is another text with the same word, by default one that ships. `against` is
    one to compare with head by head, side by side: the head is then the one that by itself, given
    what it has at the word there, moves the word furthest to the other sentence's. With it the
    residual stream, attention and MLP of that sentence are also put into this one at every layer
    and position, to see where the difference stands; `causal_trace=False` leaves this out.

    For an encoder-decoder `text` is the source, `target` its translation so far, and `at`, if
    any, a word that stands in the target or could follow it: followed is the position that predicts
    it, and without a word the last one.

    Raises InputError for an empty or over-long text, a word that does not stand in a text or cannot
    follow the target, two sentences without a common content word, a layer or head that the model
    does not have, a head without its layer, a target that is missing or cannot be used;
    CrossCheckError when hooks and formulas disagree.

    Example:
        >>> walk = probe.walk("tiny-senses", "The old tree by the bank", at="bank")
        >>> walk.word
        'bank'
        >>> len(walk.frames["attention"])  # one row a query and key: 7 x 7 tokens
        49
    """
    model = load(model)
    require_heads(model.config, "a walk", "read its tensors with trace, and its heads with report")
    _require_no_hooks(model)
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
        block=page_block(model, scene, measured, effects)
        # What hooks write is no part of the stream.
        | {"scores": None if model.origin.hooks else score_rows(scene)},
    )


def _require_no_hooks(model: Model) -> None:
    """Raises InputError for a model whose hooks stay on."""
    if model.origin.hooks:
        raise InputError(
            f"Walking a text through {model.name}: it is {model.origin.hooked}, and every step of "
            "a walk is recomputed from the weights alone. Load it without hooks, or ask "
            "probe.trace or probe.patch."
        )


def check_texts(
    model: Model, text: str, target: str | None, beside: str | None, against: str | None
) -> None:
    """Raises InputError for what is no text, a target without a decoder, a decoder without a
    target, another text where none is compared, two of them, and the same text twice.
    """
    for given in (text, target, beside, against):
        if given is not None:
            require_text(given)
    is_encoder_decoder = model.config.start_token is not None
    if is_encoder_decoder and target is None:
        problem = "it is an encoder-decoder; give the translation so far as target"
    elif target is not None and not is_encoder_decoder:
        problem = (
            "it has no decoder for a target; leave the target away, or take an encoder-decoder, as "
            "tiny-translator"
        )
    elif target is not None and (beside or against) is not None:
        problem = (
            "a walk through two texts compares no word with another sentence; leave beside and "
            "against away"
        )
    elif beside is not None and against is not None:
        problem = "got both beside and against, expected one other sentence; give one of them"
    elif against is not None and against == text:
        problem = (
            "got the same sentence twice, where nothing can differ; give a second one with the "
            "same word"
        )
    else:
        return
    raise InputError(f"Walking a text through {model.name}: {problem}.")


def check_length(model: Model, n_tokens: int) -> None:
    """Raises InputError for a text that is longer than the window of the layers that have one."""
    window = model.config.window
    if any(model.config.local) and n_tokens > window:
        raise InputError(
            f"Walking a text through {model.name}: it has {n_tokens} tokens, and some layers look "
            f"back over {window} only, so that one mask would not do; give a text of at most "
            f"{window} tokens."
        )


def check_pair(head: object) -> None:
    """Raises InputError for a head that is not (layer, head)."""
    if not isinstance(head, Sequence) or len(head) != 2:
        raise InputError(
            f"Following a head: got head = {head!r}, expected its layer and its number; give "
            "(4, 1), say, or (4, None) for one of layer 4."
        )


def check_head(model: Model, layer: int | None, head: int | None) -> None:
    """Raises InputError for a layer or head that the model (its decoder, if it has one) lacks, and
    for a head without its layer.
    """
    n_layers = model.config.n_decoder_layers or model.config.n_layers
    n_heads = model.config.n_heads
    if layer is not None and (whole_number(layer) is None or not 0 <= layer < n_layers):
        raise InputError(
            f"Following layer {layer!r} of {model.name}: it has {n_layers} layers; give a layer "
            f"from 0 to {n_layers - 1}."
        )
    if head is not None and (whole_number(head) is None or not 0 <= head < n_heads):
        raise InputError(
            f"Following head {head!r} of {model.name}: it has {n_heads} heads per layer; give "
            f"a head from 0 to {n_heads - 1}."
        )
    if head is not None and layer is None:
        raise InputError(
            f"Following head {head}: got a head without its layer, expected both; give the layer "
            f"from 0 to {n_layers - 1} too."
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
    """A word of one text in self-attention, with the same word in a second sentence."""
    followed = choose.word_in_text(model, text, word)
    check_length(model, len(followed.tokens))
    second_word = choose.second_word(model, followed, second_text)
    check_head(model, *requested)
    certificate = certify(model, [text, second_word.tokens.text]).require()
    # Swapping every head is only worth it where two sentences are compared head by head.
    swaps = choose.swaps_between(model, followed, second_word) if contrast else None
    view = AttentionView.of_self_attention(trace(model, text))
    second_view = AttentionView.of_self_attention(trace(model, second_word.tokens.text))
    second = SecondSentence(second_view, second_word)
    choice = _choose(model, view, followed, requested, swaps)
    scene = Scene(view, followed, choice.layer, choice.head, second, contrast=contrast, swaps=swaps)
    return scene, choice, certificate


def _choose(
    model: Model,
    view: AttentionView,
    word: WordInText,
    requested: RequestedHead,
    swaps: Tensor | None,
) -> HeadChoice:
    """The head by what its swap moves, by the senses of the word, or by what it takes from content
    words.
    """
    by_swap = choose.choose_by_swap(swaps, requested)
    if by_swap is not None:
        return by_swap
    # Fitting the axis reads dozens of sentences: only where a head is to be chosen by it.
    if None not in requested or choose.caution(view, word) is not None:
        return choose.choose_head(view, word, requested)
    senses = choose.sense_effects(model, view, word, choose.source_tokens(view, word))
    return choose.choose_head(view, word, requested, senses=senses)


def _translation_scene(
    model: Model, source: str, target: str, word: str | None, requested: RequestedHead
) -> tuple[Scene, HeadChoice, Certificate]:
    """The position of a target that predicts a word, or its last one, in cross-attention."""
    check_head(model, *requested)
    at, token = _predicting_position(model, target, word)
    certificate = certify_pair(model, source, target).require()
    pair = trace(model, source, target)
    followed = WordInText(pair.target, visible(pair.target.pieces[at]), range(at, at + 1))
    view = AttentionView.of_cross_attention(pair)
    logit = None
    logits = None
    if word is not None and token is not None:
        direction = cross.directions(model, pair, cross.toward(model, token))
        logit = LogitTarget(word, token, cross.by_source(pair, direction))
        logits = logit.contributions[:, :, at].sum(-1)
    choice = choose.choose_head(view, followed, requested, logits=logits)
    scene = Scene(view, followed, choice.layer, choice.head, logit=logit)
    return scene, choice, certificate


def _predicting_position(model: Model, target: str, word: str | None) -> tuple[int, int | None]:
    """The position that predicts the word, where it stands in the target or else behind it; the
    word's first token.
    """
    tokens = target_tokens(model, target)
    choose.require_word(word, "translation", "rive")
    if word is None:
        return len(tokens) - 1, None
    if choose.count_word(word, target):
        first = tokens.positions_of(word)[0]
        return first - 1, tokens.ids[first]
    return len(tokens) - 1, cross.first_token(model, target, word)


def _causal_trace(scene: Scene) -> tuple[CausalTrace | None, str | None]:
    """Where the difference of two sentences stands, layer by layer, or why that cannot be traced;
    neither where they are not compared head by head.
    """
    if scene.second is None or not scene.contrast:
        return None, None
    try:
        return trace_pair(scene.view.weights, scene.word, scene.second.word), None
    except InputError as error:
        # All else of the walk can be read without it.
        return None, str(error)


def _truncation_change(model: Model, scene: Scene) -> float | None:
    """Largest change of the word's vector when all behind it is cut off, relative to its largest
    coordinate; None where nothing is behind it.
    """
    tokens = scene.word.tokens
    at = scene.at
    text = tokens.text[: tokens.spans[at][1]]
    if text == tokens.text:
        return None
    truncated = trace(model, text)
    # A cut inside a token leaves another text, not the same one without its end.
    if truncated.tokens.ids[: at + 1] != tokens.ids[: at + 1]:
        return None
    whole = scene.view.stream.resid_post[:, at]
    change = (whole - truncated.resid_post[:, at]).abs().max()
    return float(change / whole.abs().max())


def walk_findings(
    model: Model,
    scene: Scene,
    measured: Measured,
    choice: HeadChoice,
    word_to_follow: WordToFollow | None,
) -> WalkFindings:
    """The facts that the sentences about a walk tell."""
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
        n_occurrences=tuple(choose.count_word(one.text, one.tokens.text) for one in compared),
        causal=view.causal,
        one_text=one_text,
        choice=choice,
        write=_head_write(
            view.source,
            quantities["delta_norm"][index, scene.at],
            quantities["share"][index, scene.at],
        ),
        parting=_parting(scene, measured),
        logit=_logit_findings(model, scene),
        caution=choose.caution(view, scene.word) if one_text else None,
    )


def _parting(scene: Scene, measured: Measured) -> Parting | None:
    if scene.second is None or not scene.contrast:
        return None
    quantities = measured.quantities
    first_depth = None
    for depth, distance in enumerate(quantities["apart"].tolist(), start=-1):
        if distance > choose.SAME_VECTOR:
            first_depth = depth
            break
    second_write = _head_write(
        scene.second.word.tokens,
        quantities["second_norm"][scene.head_index],
        quantities["second_share"][scene.head_index],
    )
    return Parting(
        depth=first_depth,
        n_layers=scene.sizes[0],
        n_tokens=len(scene.word.ids),
        same_tokens=scene.second.word.ids == scene.word.ids,
        second_write=second_write,
    )


def _logit_findings(model: Model, scene: Scene) -> LogitFindings | None:
    """What heads add to the logit of a word, and the largest logit of any other token."""
    target = scene.logit
    if target is None:
        return None
    decode = model.tokenizer.decode
    by_source = target.contributions[scene.layer, scene.head, scene.at]
    logits = scene.view.stream.logits[scene.at]
    centred = logits - logits.mean()
    of_others = centred.clone()
    of_others[target.token] = -torch.inf
    rival = int(of_others.argmax())
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


def _head_write(source: Tokens, norm: Tensor, shares: Tensor) -> HeadWrite:
    return HeadWrite(float(norm), _largest_part(source, shares))


def _largest_part(source: Tokens, parts: Tensor) -> LargestPart:
    """The token of the part that is largest, whatever its sign."""
    largest = int(parts.abs().argmax())
    whole = float(parts.sum())
    value = float(parts[largest])
    fraction = value / whole if whole else 0.0
    return LargestPart(visible(source.pieces[largest]), value, fraction)


def visible(piece: str) -> str:
    """A token's text without the white space around it; a token that is only white space with its
    escapes.
    """
    return piece.strip() or repr(piece)
