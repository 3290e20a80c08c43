"""The front door of the walk: a model and a text in, a record of every step out, nothing of it without a certificate."""

from dataclasses import dataclass
from html import escape
from typing import overload

import pandas as pd

from probe.errors import InputError
from probe.model.architectures import WHOLE
from probe.model.check import Certificate, certify
from probe.model.model import Model
from probe.model.parameters import Count, count_tensors
from probe.model.trace import trace
from probe.pages.walk import choose
from probe.pages.walk.attended import AttentionWalk, Head, walk_pair, walk_word
from probe.pages.walk.carried import Block, carried
from probe.pages.walk.frames import frames
from probe.pages.walk.scene import Scene
from probe.provenance import Origin, content_key
from probe.study.columns import rounded
from probe.study.tables import certificate_rows


@dataclass(frozen=True, eq=False)
class Walk:
    """One sentence through one model, every step of one head at one word: `frames` by name, `because` says why that head.

    `block` is what the page needs to follow the other heads and tokens. `later` is the largest change of the word's vector, at any
    depth, when everything after it is cut off; None where nothing comes after it.
    """

    model_name: str
    origin: Origin
    certificate: Certificate
    parameters: Count
    text: str
    beside: str
    word: str
    at: int
    layer: int
    head: int
    because: str
    same_tokens: bool
    later: float | None
    frames: dict[str, pd.DataFrame]
    block: Block

    @property
    def data_sha256(self) -> str:
        return content_key(self.text, self.beside)

    @property
    def options(self) -> dict[str, object]:
        """What was asked for, as the manifest keeps it."""
        asked: dict[str, object] = {"text": self.text, "word": self.word, "beside": self.beside}
        return asked | {"layer": self.layer, "head": self.head}

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(name)}</td><td>{len(frame)} rows</td></tr>" for name, frame in self.frames.items()
        )
        return (
            f"<div><p><b>Walk</b> of “{escape(self.text)}” through {escape(self.model_name)}: “{escape(self.word)}” in "
            f"L{self.layer}H{self.head}. {escape(self.because)}</p><table>{rows}</table></div>"
        )


@overload
def walk(
    model: Model, text: str, *, word: str | None = None, head: Head = (None, None), beside: str | None = None
) -> Walk | AttentionWalk: ...
@overload
def walk(
    model: Model, text: str, target: str, *, word: str | None = None, head: Head = (None, None), beside: None = None
) -> AttentionWalk: ...
@overload
def walk(
    model: Model,
    text: str,
    target: str | None,
    *,
    word: str | None = None,
    head: Head = (None, None),
    beside: str | None = None,
) -> Walk | AttentionWalk: ...
def walk(
    model: Model,
    text: str,
    target: str | None = None,
    *,
    word: str | None = None,
    head: Head = (None, None),
    beside: str | None = None,
) -> Walk | AttentionWalk:
    """Follow `word` (by default the last one) of `text` through every step of attention in one head, with the real numbers.

    `head` is (layer, head); without them the head is chosen that moves the word most by what it takes from the other words, with
    a layer alone among the heads of that layer. `beside` is another text with the same word, by default one that ships.

    So far for GPT-2. Of the other families one attention is shown, certified as it is (`probe.pages.walk.attended`): an encoder-decoder's
    cross-attention, where `text` is the source, `target` its translation so far, and `word`, if any, one that stands in the target or
    could follow it; else what the word reads of its own text.

    Raises InputError for an empty or over-long text, a word that does not stand in
    a text, a layer or head that the model does not have, a head without its layer, a target that is missing or cannot be used;
    CrossCheckError when hooks and formulas disagree.
    """
    check_texts(model, target, beside)
    if target is not None:
        return walk_pair(model, text, target, word=word, head=head)
    if model.config.architecture != WHOLE:
        return walk_word(model, text, word=word, head=head)
    return _walk_steps(model, text, word, head, beside)


def _walk_steps(model: Model, text: str, word: str | None, head: Head, beside: str | None) -> Walk:
    """The walk through every step of a model whose whole forward is certified."""
    here = choose.place(model, text, word)
    there = choose.beside(model, here, beside)
    choose.check_head(model, *head)
    certificate = certify(model, [text, there.tokens.text]).require()
    traced = trace(model, text)
    layer, number, because = choose.choose_head(traced, here, *head)
    shown = choose.drawn(traced, here, layer, number)
    scene = Scene(traced, here, trace(model, there.tokens.text), there, layer, number, tuple(shown))
    counted = count_tensors(model)
    made = frames(model, scene, counted) | {"certificate": rounded(certificate_rows(certificate))}
    return Walk(
        model_name=model.name,
        origin=model.origin,
        certificate=certificate,
        parameters=counted,
        text=text,
        beside=there.tokens.text,
        word=here.word,
        at=here.at,
        layer=layer,
        head=number,
        because=because,
        same_tokens=there.ids == here.ids,
        later=_later(model, scene),
        frames=made,
        block=carried(model, scene),
    )


def check_texts(model: Model, target: str | None, beside: str | None) -> None:
    """Raises InputError for a target without a decoder, a decoder without a target, and another text where none is compared."""
    two = model.config.start_token is not None
    if two and target is None:
        found = "it is an encoder-decoder; give the translation so far with --target"
    elif target is not None and not two:
        found = "it has no decoder for a target; leave --target away, or take an encoder-decoder, as tiny-translator"
    elif target is not None and beside is not None:
        found = "a walk through two texts compares no word with another sentence; leave --beside away"
    elif beside is not None and model.config.architecture != WHOLE:
        found = "another sentence is compared for GPT-2 only; leave --beside away"
    else:
        return
    raise InputError(f"Walking a text through {model.name}: {found}.")


def _later(model: Model, scene: Scene) -> float | None:
    """The largest change of the word's vector when all that follows it is cut off, relative to its largest coordinate."""
    tokens, at = scene.here.tokens, scene.at
    cut = tokens.text[: tokens.spans[at][1]]
    if at == len(tokens) - 1:
        return None
    short = trace(model, cut)
    if short.tokens.ids != tokens.ids[: at + 1]:  # cut inside a token: another text, not the same one without its end
        return None
    whole, alone = scene.trace.resid_post[:, at], short.resid_post[:, at]
    return float((whole - alone).abs().max() / whole.abs().max())
