"""The walk through one attention: what a position of a translation reads of its source, or a word of its own text, head by head.

So is walked whatever is not GPT-2, whose every step from the embedding to the logits has formulas of its own (`probe.pages.walk.record`).

`directly` says what is added to a word's logit: a head's write along the direction that reaches the logit, with nothing downstream
answering. It is a place to look; that a head carries a choice, only a swap shows (`probe.swap_cross_heads`, `probe.study`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import pandas as pd
import torch
from torch import Tensor

from probe.model.check import Certificate, certify, certify_pair
from probe.model.model import Model
from probe.model.records import PairTrace
from probe.model.tokens import positions_of_word, target_tokens
from probe.model.trace import trace
from probe.pages.walk import choose
from probe.pages.walk.attended_frames import AttentionScene, across, carried, frames, lengths, shares, within
from probe.pages.walk.carried import Block
from probe.patching import cross
from probe.patching.cross import first_token
from probe.provenance import Origin, content_key
from probe.stats.numbers import decimal, percent

Head = tuple[int | None, int | None]


@dataclass(frozen=True, eq=False)
class AttentionWalk:
    """One position and what it reads: `answer` in a sentence, `frames` by name, `block` for the page to follow others.

    With a `target`, `text` is its source, `word` one whose logit is looked at, if any was asked for, and `at` the position of the target
    that predicts it. Without, `word` is a word of the text and `at` its last token.
    """

    model_name: str
    origin: Origin
    certificate: Certificate
    text: str
    target: str | None
    word: str | None
    at: int
    layer: int
    head: int
    because: str
    answer: str
    frames: dict[str, pd.DataFrame]
    block: Block

    @property
    def data_sha256(self) -> str:
        return content_key(self.text, *([self.target] if self.target is not None else []))

    @property
    def options(self) -> dict[str, object]:
        """What was asked for, as the manifest keeps it."""
        target = {} if self.target is None else {"target": self.target}
        return {"text": self.text, **target, "word": self.word, "layer": self.layer, "head": self.head}

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(name)}</td><td>{len(frame)} rows</td></tr>" for name, frame in self.frames.items()
        )
        into = "" if self.target is None else f" into “{escape(self.target)}”"
        texts = f"“{escape(self.text)}”{into}"
        return f"<div><p><b>Walk</b> of {texts} through {escape(self.model_name)}. {escape(self.answer)}</p><table>{rows}</table></div>"


def walk_word(model: Model, text: str, *, word: str | None = None, head: Head) -> AttentionWalk:
    """Follow what `word` (by default the last one) reads of its own text, to both sides where the model does.

    Raises InputError for a text that cannot be used, a word that does not stand in it, a head that is not there; CrossCheckError when
    hooks and formulas disagree.
    """
    here = choose.place(model, text, word)
    choose.check_head(model, *head)
    certificate = certify(model, [text]).require()
    traced = trace(model, text)
    causal = model.config.causal
    layer, number, because = choose.choose_head(traced, here, *head, causal=causal)
    scene = AttentionScene(within(traced, causal=causal), here.at, layer, number, here.word)
    at = f"At “{here.word}”"
    return _walk(model, (text, None, here.word), certificate, scene, (because, f"{at}, {_adds(scene)}"))


def walk_pair(model: Model, source: str, target: str, *, word: str | None = None, head: Head) -> AttentionWalk:
    """Follow what one position of `target` reads of `source`: the one that predicts `word`, or the last.

    Raises InputError for a text that cannot be used, a head that is not there, a word that cannot follow the target;
    CrossCheckError when hooks and formulas disagree.
    """
    choose.check_head(model, *head)
    at, token = _asked(model, target, word)
    certificate = certify_pair(model, source, target).require()
    pair = trace(model, source, target)
    added = None
    if token is not None:
        found = cross.directions(model, pair, cross.toward(model, token))
        added = cross.by_source(pair, found)
    layer, number, because = _choose(pair, at, head, added, word)
    scene = AttentionScene(across(pair), at, layer, number, word, token, added)
    return _walk(model, (source, target, word), certificate, scene, (because, _answer(model, scene)))


def _walk(
    model: Model,
    asked: tuple[str, str | None, str | None],
    certificate: Certificate,
    scene: AttentionScene,
    said: tuple[str, str],
) -> AttentionWalk:
    """The record: `asked` is the text, the target and the word, `said` why this head and what comes first."""
    (text, target, word), (because, answer) = asked, said
    return AttentionWalk(
        model_name=model.name,
        origin=model.origin,
        certificate=certificate,
        text=text,
        target=target,
        word=word,
        at=scene.at,
        layer=scene.layer,
        head=scene.head,
        because=because,
        answer=answer,
        frames=frames(model, scene, certificate),
        block=carried(model, scene),
    )


def _asked(model: Model, target: str, word: str | None) -> tuple[int, int | None]:
    """The position that predicts the word, and the word's first token: where it stands in the target, or else behind it."""
    tokens = target_tokens(model, target)
    choose.require_word(word, "translation", "rive")
    if word is None:
        return len(tokens) - 1, None
    if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", target, re.IGNORECASE):
        place = positions_of_word(tokens, word)[0]
        return place - 1, tokens.ids[place]
    return len(tokens) - 1, first_token(model, target, word)


def _choose(pair: PairTrace, at: int, head: Head, added: Tensor | None, word: str | None) -> tuple[int, int, str]:
    layer, number = head
    if layer is not None and number is not None:
        return layer, number, f"L{layer}H{number} was asked for."
    layers: Sequence[int] = range(len(pair.cross.z)) if layer is None else [layer]
    sizes = lengths(pair.cross)[0][:, :, at] if added is None else added[:, :, at].sum(-1)
    place, number = divmod(int(sizes[list(layers)].argmax()), sizes.shape[1])
    among = f"{sizes.numel()} heads" if layer is None else f"{sizes.shape[1]} heads of layer {layer}"
    by = "writes most here" if added is None else f"adds most to the logit of “{word}”"
    return layers[place], number, f"L{layers[place]}H{number} is followed because, of {among}, it {by}."


def _answer(model: Model, scene: AttentionScene) -> str:
    """What the page of a translation says first."""
    seen, (layer, head, at) = scene.seen, (scene.layer, scene.head, scene.at)
    after = f"After “{seen.tokens.pieces[at].strip()}”"
    if scene.added is None or scene.token is None or seen.logits is None:
        return f"{after}, {_adds(scene)}"
    parts, whole, heads = (
        scene.added[layer, head, at],
        float(scene.added[:, :, at].sum()),
        scene.added[:, :, 0, 0].numel(),
    )
    first = model.tokenizer.decode([scene.token]).strip()
    cut = "" if first.casefold() == str(scene.word).strip().casefold() else f" (of its first token, “{first or '·'}”)"
    return (
        f"{after}, L{layer}H{head} by itself adds {decimal(float(parts.sum()))} to the logit of “{scene.word}”{cut}, "
        f"{_mostly(scene, parts)}; all {heads} heads of cross-attention together add {decimal(whole)}. "
        f"{_whole(model, seen.logits[at], scene.token)}"
    )


def _adds(scene: AttentionScene) -> str:
    """How much the head adds at the position, and from where."""
    layer, head, at = scene.layer, scene.head, scene.at
    size = decimal(float(lengths(scene.seen.record)[0][layer, head, at]))
    return f"L{layer}H{head} adds a vector of length {size}, {_mostly(scene, shares(scene, layer, [at])[head, 0])}."


def _whole(model: Model, logits: Tensor, token: int) -> str:
    """The whole logit that heads add to, beside the largest of any other token."""
    above = logits - logits.mean()
    others = above.clone()
    others[token] = -torch.inf
    rival = int(others.argmax())
    name, ahead = model.tokenizer.decode([rival]).strip(), int((above > above[token]).sum())
    rank = f"; {ahead} {'token is' if ahead == 1 else 'tokens are'} likelier there" if ahead else ""
    return (
        f"Against the mean of all tokens the whole logit is {decimal(float(above[token]))}; that of “{name}”, the likeliest "
        f"other, is {decimal(float(above[rival]))}{rank}."
    )


def _mostly(scene: AttentionScene, parts: Tensor) -> str:
    """From which source token most comes: as a share of the sum where that says something, else as it is."""
    best, whole = int(parts.abs().argmax()), float(parts.sum())
    named, share = f"“{scene.seen.source.pieces[best].strip()}”", float(parts[best]) / whole if whole else 0.0
    if 0.5 <= share <= 1.05:
        return f"{percent(min(share, 1.0))} of it from {named}"
    return f"the largest part, {decimal(float(parts[best]))}, from {named}"
