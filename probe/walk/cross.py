"""The front door of the walk through cross-attention: what one position of a translation reads of the source, head by head.

`directly` says what is added to a word's logit: a head's write along the direction that reaches the logit, with nothing downstream
answering. It is a place to look; that a head carries a choice, only a swap shows (`probe.swap_cross_heads`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import pandas as pd
import torch
from torch import Tensor

from probe.check import Certificate, certify_pair
from probe.errors import InputError
from probe.families import directly
from probe.families.crossing import first_token
from probe.families.pairs import PairTrace, target_tokens, trace_pair
from probe.models import Model, Origin
from probe.numerals import decimal, percent
from probe.provenance import content_key
from probe.tokens import positions_of_word
from probe.walk import choose
from probe.walk.carried import Block
from probe.walk.cross_frames import CrossScene, carried, frames, lengths, shares


@dataclass(frozen=True, eq=False)
class CrossWalk:
    """One position of a translation and what it reads: `answer` in a sentence, `frames` by name, `block` for the page to follow others.

    `word`, where one was asked for, is the word whose logit is looked at; `at` the position that is followed first.
    """

    model_name: str
    origin: Origin
    certificate: Certificate
    source: str
    target: str
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
        return content_key(self.source, self.target)

    @property
    def options(self) -> dict[str, object]:
        """What was asked for, as the manifest keeps it."""
        asked: dict[str, object] = {"source": self.source, "target": self.target, "word": self.word}
        return asked | {"layer": self.layer, "head": self.head}

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(name)}</td><td>{len(frame)} rows</td></tr>" for name, frame in self.frames.items()
        )
        texts = f"“{escape(self.source)}” into “{escape(self.target)}”"
        return f"<div><p><b>Walk</b> of {texts} through {escape(self.model_name)}. {escape(self.answer)}</p><table>{rows}</table></div>"


def walk_cross(
    model: Model, source: str, target: str, *, word: str | None = None, head: tuple[int | None, int | None]
) -> CrossWalk:
    """Follow what one position of `target` reads of `source`: the one that predicts `word`, or the last.

    Raises InputError for a text that cannot be used, a head that is not there, a word that cannot follow the target;
    CrossCheckError when hooks and formulas disagree.
    """
    choose.check_head(model, *head)
    at, token = _asked(model, target, word)
    certificate = certify_pair(model, source, target).require()
    pair = trace_pair(model, source, target)
    added = None
    if token is not None:
        found = directly.directions(model, pair, directly.toward(model, token))
        added = directly.by_source(pair, found)
    layer, number, because = _choose(pair, at, head, added, word)
    scene = CrossScene(pair, at, layer, number, word, token, added)
    return CrossWalk(
        model_name=model.name,
        origin=model.origin,
        certificate=certificate,
        source=source,
        target=target,
        word=word,
        at=at,
        layer=layer,
        head=number,
        because=because,
        answer=_answer(model, scene),
        frames=frames(model, scene, certificate),
        block=carried(model, scene),
    )


def _asked(model: Model, target: str, word: str | None) -> tuple[int, int | None]:
    """The position that predicts the word, and the word's first token: where it stands in the target, or else behind it."""
    tokens = target_tokens(model, target)
    if word is None:
        return len(tokens) - 1, None
    if not word.strip():
        raise InputError(
            "Choosing a word to follow: got an empty one, expected a word of the translation; give --word rive, say."
        )
    if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", target, re.IGNORECASE):
        place = positions_of_word(tokens, word)[0]
        return place - 1, tokens.ids[place]
    return len(tokens) - 1, first_token(model, target, word)


def _choose(
    pair: PairTrace, at: int, head: tuple[int | None, int | None], added: Tensor | None, word: str | None
) -> tuple[int, int, str]:
    layer, number = head
    if layer is not None and number is not None:
        return layer, number, f"L{layer}H{number} was asked for."
    layers: Sequence[int] = range(len(pair.cross.z)) if layer is None else [layer]
    sizes = lengths(pair)[0][:, :, at] if added is None else added[:, :, at].sum(-1)
    place, number = divmod(int(sizes[list(layers)].argmax()), sizes.shape[1])
    among = f"{sizes.numel()} heads" if layer is None else f"{sizes.shape[1]} heads of layer {layer}"
    by = "writes most here" if added is None else f"adds most to the logit of “{word}”"
    return layers[place], number, f"L{layers[place]}H{number} is followed because, of {among}, it {by}."


def _answer(model: Model, scene: CrossScene) -> str:
    """What the page says first."""
    pair, (layer, head, at) = scene.pair, (scene.layer, scene.head, scene.at)
    after, name = f"After “{pair.target.pieces[at].strip()}”", f"L{layer}H{head}"
    if scene.added is None or scene.token is None:
        size = decimal(float(lengths(pair)[0][layer, head, at]))
        return f"{after}, {name} adds a vector of length {size}, {_mostly(pair, shares(scene, layer)[head, at])}."
    parts, whole, heads = (
        scene.added[layer, head, at],
        float(scene.added[:, :, at].sum()),
        scene.added[:, :, 0, 0].numel(),
    )
    return (
        f"{after}, {name} by itself adds {decimal(float(parts.sum()))} to the logit of “{scene.word}”, {_mostly(pair, parts)}; all "
        f"{heads} heads of cross-attention together add {decimal(whole)}. {_whole(model, pair.logits[at], scene.token)}"
    )


def _whole(model: Model, logits: Tensor, token: int) -> str:
    """The whole logit that heads add to, beside the largest of any other token."""
    above = logits - logits.mean()
    others = above.clone()
    others[token] = -torch.inf
    rival = int(others.argmax())
    name = model.tokenizer.decode([rival]).strip()
    return (
        f"Against the mean of all tokens the whole logit is {decimal(float(above[token]))}; that of “{name}”, the likeliest "
        f"other, is {decimal(float(above[rival]))}."
    )


def _mostly(pair: PairTrace, parts: Tensor) -> str:
    """From which source token most comes: as a share of the sum where that says something, else as it is."""
    best, whole = int(parts.abs().argmax()), float(parts.sum())
    named, share = f"“{pair.source.pieces[best].strip()}”", float(parts[best]) / whole if whole else 0.0
    if 0.5 <= share <= 1.05:
        return f"{percent(min(share, 1.0))} of it from {named}"
    return f"the largest part, {decimal(float(parts[best]))}, from {named}"
