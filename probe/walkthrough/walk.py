"""The front door of the walk: a model and a text in, a record of every step out, nothing of it
without a certificate.

There is one walk. A model with one stack follows a word of its text through self-attention; an
encoder-decoder follows a position of the target through cross-attention, where keys and values come
from the source. What is added to a word's logit is a head's write along the direction that reaches
it, with nothing downstream answering. It is a place to look; that a head carries a choice, only a
swap shows (`probe.cross.swap_heads`, `probe.study`).
"""

from dataclasses import dataclass
from html import escape

import pandas as pd
from torch import Tensor

from probe.errors import InputError
from probe.model.check import Certificate, certify, certify_pair
from probe.model.load import ModelSource, load
from probe.model.model import Model
from probe.model.parameters import Count, count_tensors
from probe.model.tokens import Tokens, target_tokens
from probe.model.trace import trace
from probe.patching import cross
from probe.provenance import Origin, content_key
from probe.stats.numbers import decimal, percent
from probe.walkthrough import choose
from probe.walkthrough.choose import Head
from probe.walkthrough.frames import Block, carried, frames
from probe.walkthrough.numbers import Measured, measure
from probe.walkthrough.scene import Asked, Elsewhere, Place, Scene, Seen, TwoTraced, trace_two


@dataclass(frozen=True, eq=False)
class Walk:
    """One position and every step of one head at it: `answer` in a sentence, `frames` by name,
    `because` says why that head.

    `word` is a word of the text and `at` its last token; with a `target`, `word` is one whose logit
    is looked at, if any was asked for, and `at` the position of the target that predicts it.
    `other` is another text with the word, None with a target; with `contrast`, one that is shown
    side by side. `later` is the largest change of the word's vector, at any depth, when everything
    after it is cut off; None where nothing comes after it. `caution` says why nothing there can
    tell the word's sense, where that is known. `travels`: with `contrast`, where the difference
    stands, layer by layer, or why that cannot be traced; None where nobody asked. `block` is what
    the page needs to follow the other heads and tokens.
    """

    model_name: str
    origin: Origin
    certificate: Certificate
    parameters: Count
    text: str
    target: str | None
    other: str | None
    word: str | None
    at: int
    layer: int
    head: int
    because: str
    answer: str
    caution: str | None
    same_tokens: bool
    contrast: bool
    later: float | None
    travels: str | None
    frames: dict[str, pd.DataFrame]
    block: Block

    @property
    def data_sha256(self) -> str:
        return content_key(
            *(text for text in (self.text, self.target, self.other) if text is not None)
        )

    @property
    def options(self) -> dict[str, object]:
        """What was asked for, as the manifest keeps it."""
        other = "against" if self.contrast else "beside"
        asked: dict[str, object] = {
            "text": self.text,
            "target": self.target,
            "word": self.word,
            other: self.other,
        }
        asked = {
            name: value for name, value in asked.items() if name == "word" or value is not None
        }
        return asked | {"layer": self.layer, "head": self.head}

    def __repr__(self) -> str:
        return f"<Walk at {self.word!r} through L{self.layer}H{self.head} of {self.model_name}: {len(self.frames)} frames>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(name)}</td><td>{len(frame)} rows</td></tr>"
            for name, frame in self.frames.items()
        )
        texts = f"“{escape(self.text)}”" + (
            "" if self.target is None else f" into “{escape(self.target)}”"
        )
        told = f"{escape(self.answer)} {escape(self.because)}"
        return f"<div><p><b>Walk</b> of {texts} through {escape(self.model_name)}. {told}</p><table>{rows}</table></div>"


def walk(
    model: ModelSource,
    text: str,
    target: str | None = None,
    *,
    word: str | None = None,
    head: Head = (None, None),
    beside: str | None = None,
    against: str | None = None,
    traced: bool = True,
) -> Walk:
    """Follow `word` of `text` through every step of attention in one head, with the real numbers.

    `word` is by default one that the lexicon has, or else the last one. `head` is (layer, head);
    without them the head is chosen that moves the word most by what it takes from other content
    words (towards its sense, where the lexicon knows it), with a layer alone among the heads of
    that layer. `beside` is another text with the same word, by default one that ships. `against` is
    one to compare with head by head: both are shown side by side, and the head is the one whose ΔE
    at the word differs most. With it the residual stream, attention and MLP of that sentence are
    also put into this one at every layer and position, to see where the difference stands;
    `traced=False` leaves this out.

    For an encoder-decoder `text` is the source, `target` its translation so far, and `word`, if
    any, one that stands in the target or could follow it: followed is the position that predicts
    it, and without a word the last one.

    Raises InputError for an empty or over-long text, a word that does not stand in a text or cannot
    follow the target, a layer or head that the model does not have, a head without its layer, a
    target that is missing or cannot be used; CrossCheckError when hooks and formulas disagree.
    """
    model = load(model)
    check_texts(model, text, target, beside, against)
    if target is not None:
        return _walk_pair(model, text, target, word, head)
    return _walk_text(
        model, text, word, head, against or beside, contrast=against is not None, traced=traced
    )


def check_texts(
    model: Model, text: str, target: str | None, beside: str | None, against: str | None
) -> None:
    """Raises InputError for a target without a decoder, a decoder without a target, another text
    where none is compared, two of them, and the same text twice.
    """
    two = model.config.start_token is not None
    if two and target is None:
        problem = "it is an encoder-decoder; give the translation so far with --target"
    elif target is not None and not two:
        problem = "it has no decoder for a target; leave --target away, or take an encoder-decoder, as tiny-translator"
    elif target is not None and (beside or against) is not None:
        problem = "a walk through two texts compares no word with another sentence; leave --beside and --against away"
    elif beside is not None and against is not None:
        problem = "got --beside and --against, expected one other sentence; give one of them"
    elif against is not None and against == text:
        problem = "got the same sentence with --against, where nothing can differ; give another with the same word"
    else:
        return
    raise InputError(f"Walking a text through {model.name}: {problem}.")


def check_steps(model: Model, length: int) -> None:
    """Raises InputError for a text that is longer than what local layers look back over."""
    config, window = model.config, model.config.window
    if any(config.local) and length > window:
        raise InputError(
            f"Walking a text through {model.name}: it has {length} tokens, and some layers look back over {window} "
            f"only, so that one mask would not do; give a text of at most {window} tokens."
        )


def check_head(model: Model, layer: int | None, head: int | None) -> None:
    """Raises InputError for a layer or head that the model (its decoder, if it has one) lacks, and
    for a head without its layer.
    """
    layers, heads = model.config.n_decoder_layers or model.config.n_layers, model.config.n_heads
    for name, got, number in (("layer", layer, layers), ("head", head, heads)):
        if got is not None and not 0 <= got < number:
            raise InputError(
                f"Following {name} {got} of {model.name}: it has {number} {name}s{' per layer' * (name == 'head')}; "
                f"give --{name} from 0 to {number - 1}."
            )
    if head is not None and layer is None:
        raise InputError(
            f"Following head {head}: got a head without its layer, expected both; give --layer from 0 to {layers - 1} "
            f"too."
        )


def _walk_text(
    model: Model,
    text: str,
    word: str | None,
    head: Head,
    other: str | None,
    *,
    contrast: bool,
    traced: bool,
) -> Walk:
    """A word of one text, through self-attention, with the same word in another sentence."""
    here = choose.place(model, text, word, also_in=other)
    check_steps(model, len(here.tokens))
    there = choose.other_sentence(model, here, other)
    check_head(model, *head)
    certificate = certify(model, [text, there.tokens.text]).require()
    seen, elsewhere = (
        Seen.within(trace(model, text)),
        Elsewhere(Seen.within(trace(model, there.tokens.text)), there),
    )
    layer, number, because = _choose(model, seen, here, head, elsewhere if contrast else None)
    scene = Scene(seen, here, layer, number, elsewhere, contrast=contrast)
    measured = measure(scene)
    return _walk(
        model, scene, measured, certificate, (because, answer(scene, measured)), traced=traced
    )


def answer(scene: Scene, measured: Measured) -> str:
    """What a walk of one text says first: where the two sentences part, or how much the head adds
    and from where."""
    if scene.contrast:
        return _parting(scene, measured)
    times = choose.stands(scene.here.word, scene.here.tokens.text)
    which = f" (the first of {times})" if times > 1 else ""
    return f"At “{scene.here.word}”{which}, {_adds(scene, measured)}"


def _choose(
    model: Model, seen: Seen, here: Place, head: Head, against: Elsewhere | None
) -> tuple[int, int, str]:
    """The head and why: by what differs, by the senses of the word, or by what it takes from
    content words."""
    found = choose.differs_most(seen, here, head, against)
    if found is not None:
        return found
    by_sense = None in head and choose.caution(seen, here) is None
    toward = choose.toward(model, seen, here, choose.sources_of(seen, here)) if by_sense else None
    return choose.choose_head(seen, here, head, toward=toward)


def _walk_pair(model: Model, source: str, target: str, word: str | None, head: Head) -> Walk:
    """The position of a target that predicts a word, or its last one, through cross-attention."""
    check_head(model, *head)
    at, token = _predicting(model, target, word)
    certificate = certify_pair(model, source, target).require()
    pair = trace(model, source, target)
    here = Place(pair.target, _shown(pair.target.pieces[at]), range(at, at + 1))
    seen, asked = Seen.across(pair), None
    if token is not None:
        direction = cross.directions(model, pair, cross.toward(model, token))
        asked = Asked(str(word), token, cross.by_source(pair, direction))
    layer, number, because = choose.choose_head(
        seen, here, head, None if asked is None else asked.added[:, :, at].sum(-1)
    )
    because = because if asked is None or "adds most" not in because else f"{because} of “{word}”."
    scene = Scene(seen, here, layer, number, asked=asked)
    measured = measure(scene)
    told = f"After “{here.word}”, {_adds(scene, measured) if asked is None else _answer(model, scene, asked)}"
    return _walk(model, scene, measured, certificate, (because, told))


def _walk(
    model: Model,
    scene: Scene,
    measured: Measured,
    certificate: Certificate,
    said: tuple[str, str],
    *,
    traced: bool = False,
) -> Walk:
    """The record; `said` is why this head, and what comes first."""
    seen, counted, (because, told) = scene.seen, count_tensors(model), said
    other = None if scene.other is None else scene.other.place
    travels, two = _traced(scene) if traced else (None, None)
    return Walk(
        model_name=model.name,
        origin=model.origin,
        certificate=certificate,
        parameters=counted,
        text=seen.source.text,
        target=None if seen.alone else seen.tokens.text,
        other=None if other is None else other.tokens.text,
        word=scene.here.word if seen.alone else None if scene.asked is None else scene.asked.word,
        at=scene.at,
        layer=scene.layer,
        head=scene.head,
        because=because,
        answer=told,
        caution=choose.caution(seen, scene.here) if seen.alone else None,
        same_tokens=other is not None and other.ids == scene.here.ids,
        contrast=scene.contrast,
        later=_later(model, scene) if seen.alone else None,
        travels=travels,
        frames=frames(model, scene, measured, two, counted=counted, certificate=certificate),
        block=carried(model, scene, measured, two)
        | {"answer": told, "word": scene.here.word, "because": because},
    )


def _traced(scene: Scene) -> tuple[str | None, TwoTraced | None]:
    """Where the difference of two sentences stands, layer by layer, or why that cannot be traced."""
    if scene.other is None or not scene.contrast:
        return None, None
    try:
        traced = trace_two(scene.seen.weights, scene.here, scene.other.place)
    except InputError as error:
        return str(error), None
    return traced.said(), traced


def _predicting(model: Model, target: str, word: str | None) -> tuple[int, int | None]:
    """The position that predicts the word, where it stands in the target or else behind it; the
    word's first token."""
    tokens = target_tokens(model, target)
    choose.require_word(word, "translation", "rive")
    if word is None:
        return len(tokens) - 1, None
    if choose.stands(word, target):
        place = tokens.positions_of(word)[0]
        return place - 1, tokens.ids[place]
    return len(tokens) - 1, cross.first_token(model, target, word)


def _later(model: Model, scene: Scene) -> float | None:
    """Largest change of the word's vector when all behind it is cut off, relative to its largest
    coordinate."""
    tokens, at = scene.here.tokens, scene.at
    cut = tokens.text[: tokens.spans[at][1]]
    if cut == tokens.text:
        return None
    short = trace(model, cut)
    if (
        short.tokens.ids[: at + 1] != tokens.ids[: at + 1]
    ):  # cut inside a token: not the same text without its end
        return None
    whole, alone = scene.seen.stream.resid_post[:, at], short.resid_post[:, at]
    return float((whole - alone).abs().max() / whole.abs().max())


def _parting(scene: Scene, measured: Measured) -> str:
    """Where the two sentences part at the word, and what the head adds in each."""
    quantities, c, other, word = measured.quantities, scene.carried, scene.other, scene.here.word
    assert other is not None
    differs = [
        depth
        for depth, size in enumerate(quantities["apart"].tolist(), start=-1)
        if size > choose.ALIKE
    ]
    if not differs:
        return f"At “{word}” the two sentences are the same at every depth: nothing that it reads differs."
    depth, here = (
        differs[0],
        _mostly(scene.seen.source, quantities["share"][c, scene.at], of_one=True),
    )
    later = f"where it enters layer {depth}" if depth < scene.sizes[0] else "behind the last layer"
    where = f"is the same vector in both sentences where it enters layer {depth - 1}, and another {later}"
    where = where if depth > 0 else "is the same token in both sentences, at another position"
    where = where if depth >= 0 else "is another token in each sentence"
    there = _mostly(other.place.tokens, quantities["there_share"][c], of_one=True)
    return (
        f"“{word}” {where}. L{scene.layer}H{scene.head} adds a vector of length "
        f"{decimal(float(quantities['delta_norm'][c, scene.at]))} here, {here}, and of length "
        f"{decimal(float(quantities['there_norm'][c]))} there, {there}."
    )


def _adds(scene: Scene, measured: Measured) -> str:
    """How much the head adds at the position, and from where."""
    c, at = scene.carried, scene.at
    size = decimal(float(measured.quantities["delta_norm"][c, at]))
    parts = _mostly(scene.seen.source, measured.quantities["share"][c, at], of_one=True)
    return f"L{scene.layer}H{scene.head} adds a vector of length {size}, {parts}."


def _answer(model: Model, scene: Scene, asked: Asked) -> str:
    """What the head adds to the logit of the word, and from where; all heads; the whole logit."""
    layer, head, at = scene.layer, scene.head, scene.at
    parts, whole = asked.added[layer, head, at], float(asked.added[:, :, at].sum())
    first = model.tokenizer.decode([asked.token]).strip()
    cut = (
        ""
        if first.casefold() == asked.word.strip().casefold()
        else f" (of its first token, “{first or '·'}”)"
    )
    return (
        f"L{layer}H{head} by itself adds {decimal(float(parts.sum()))} to the logit of “{asked.word}”{cut}, "
        f"{_mostly(scene.seen.source, parts)}; all {asked.added[:, :, 0, 0].numel()} heads of cross-attention together "
        f"add {decimal(whole)}. {_whole(model, scene.seen.stream.logits[at], asked.token)}"
    )


def _whole(model: Model, logits: Tensor, token: int) -> str:
    """The whole logit that heads add to, and the largest of any other token."""
    above = logits - logits.mean()
    others = above.clone()
    others[token] = -float("inf")
    rival = int(others.argmax())
    name, ahead = model.tokenizer.decode([rival]).strip(), int((above > above[token]).sum())
    rank = f"; {ahead} {'token is' if ahead == 1 else 'tokens are'} likelier there" if ahead else ""
    return (
        f"Against the mean of all tokens the whole logit is {decimal(float(above[token]))}; that of “{name}”, the "
        f"likeliest other, is {decimal(float(above[rival]))}{rank}."
    )


def _mostly(source: Tokens, parts: Tensor, *, of_one: bool = False) -> str:
    """From which source token most comes: as a share of the sum where that says something, else as
    it is.

    `of_one`: parts are shares.
    """
    best, whole = int(parts.abs().argmax()), float(parts.sum())
    named, share = f"“{_shown(source.pieces[best])}”", float(parts[best]) / whole if whole else 0.0
    if 0.5 <= share <= 1.05:
        return f"{percent(min(share, 1.0))} of it from {named}"
    return f"the largest part, {percent(share) if of_one else decimal(float(parts[best]))}, from {named}"


def _shown(piece: str) -> str:
    """A token's text; one that is only white space with its escapes."""
    return piece.strip() or repr(piece)
