"""What every part of a walk looks at: an attention at work, the word in it, the same word
elsewhere, the head, the tokens that are drawn; and the causal trace of two sentences, one part of
this one at a time put into the other.

Tokens that look (`query`) are those of the text, or of the target of a translation; tokens looked
at (`key`) are those of the same text, or of the source. A trace is read along the line between the
word's two vectors behind the last layer: 0 is where the other sentence's stands, 1 is this one's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import pandas as pd
import torch
from torch import Tensor

from probe.errors import InputError
from probe.model import forward
from probe.model.architectures.family import Family
from probe.model.records import CrossTrace, PairTrace, Trace
from probe.model.tokens import TargetText, Tokens
from probe.model.weights import Weights
from probe.patching import positions
from probe.patching.pair import PairReading, cache_pair, positions_from_word, token_pairs
from probe.patching.positions import COMPONENTS, HEAD
from probe.stats.numbers import percent

HEAD_NUMBERS = 6  # first coordinates shown of vectors of a head (d_head)
STREAM_NUMBERS = 4  # and of vectors of the stream (d_model)
CELLS = 28_500  # head x query x key that a page carries, about 2 MB: all heads of GPT-2 small up to 14 tokens
DRAWN = 32  # a text of up to this many tokens is drawn whole
OF_LONG = 24  # and of a longer one so many
TOGETHER = 6  # layers a step of a trace, so that work on a large model can be ended soon
HALF = 0.5


@dataclass(frozen=True)
class Place:
    """A word in a tokenised text: its positions; it is read at the last of them."""

    tokens: Tokens
    word: str
    positions: range

    @property
    def at(self) -> int:
        return self.positions[-1]

    @property
    def ids(self) -> tuple[int, ...]:
        """The tokens of the word."""
        return tuple(self.tokens.ids[pos] for pos in self.positions)

    def around(self, *, causal: bool) -> frozenset[int]:
        """The tokens of the text before the word, and those behind it where they are read."""
        last = self.positions[0] if causal else len(self.tokens)
        spans = enumerate(self.tokens.spans[:last])
        return frozenset(
            self.tokens.ids[pos]
            for pos, (start, end) in spans
            if start < end and pos not in self.positions
        )


@dataclass(frozen=True, eq=False)
class Seen:
    """An attention at work: self-attention of a text, or cross-attention of a target; `stream` is
    that of the tokens that look.
    """

    attention: Trace | CrossTrace
    stream: Trace
    source: Tokens

    @classmethod
    def within(cls, trace: Trace) -> "Seen":
        """The self-attention of a model with one stack."""
        return cls(trace, trace, trace.tokens)

    @classmethod
    def across(cls, pair: PairTrace) -> "Seen":
        """The cross-attention of an encoder-decoder, in the stream of its decoder."""
        return cls(pair.cross, pair.decoder, pair.source)

    @property
    def tokens(self) -> Tokens:
        """The tokens that look."""
        return self.attention.tokens

    @property
    def alone(self) -> bool:
        """Whether there is one text, which looks at itself."""
        return self.tokens is self.source

    @property
    def causal(self) -> bool:
        return self.attention.stack.causal

    @cached_property
    def weights(self) -> Weights:
        """Those of the attention, on the CPU, where the traces are."""
        return self.attention.stack.on("cpu")

    @property
    def family(self) -> Family:
        return self.weights.config.family

    @property
    def root(self) -> float:
        """What Q Kᵀ is divided by: sqrt(d_head) or the config's own number, 1 in a family that does
        not divide."""
        config = self.weights.config
        return float((config.query_scalar or config.d_head) ** 0.5) if self.family.scaled else 1.0

    @cached_property
    def allowed(self) -> Tensor:
        """Which tokens each token may look at. `query_pos key_pos`"""
        whole = torch.ones(len(self.tokens), len(self.source), dtype=torch.bool)
        return whole.tril() if self.causal else whole

    def read(self, layer: int) -> Tensor:
        """What keys and values are made of: the stream as attention reads it, or what the encoder
        hands over.

        `key_pos d_model`
        """
        return (
            self.attention.memory[layer]
            if isinstance(self.attention, CrossTrace)
            else self.attention.x[layer]
        )

    def added(self, layer: int, written: Tensor, at: slice | int = slice(None)) -> Tensor:
        """What is written, as it is added to the stream at `at`: itself; in a family that norms
        what its heads write, times the gain over the root mean square of Σ ΔE in this run. `...
        d_model -> ... d_model`
        """
        gain, config = self.weights.blocks[layer].norm_out, self.weights.config
        if gain is None:
            return written
        mean_square = self.attention.attn_out[layer, at].square().mean(-1, keepdim=True)
        return written / (mean_square + config.epsilon).sqrt() * forward.gain_of(gain, config)

    @cached_property
    def marks(self) -> Tensor:
        """Which tokens looked at are no part of the text, such as [CLS]: `key_pos`."""
        return torch.tensor([start == end for start, end in self.source.spans])

    def others(self, here: Place) -> Tensor:
        """Which tokens looked at are other words than the one that looks: no marks, not the word
        itself.

        `query_pos key_pos`
        """
        found = self.allowed & ~self.marks
        if self.alone:
            found = found & ~torch.eye(len(found), dtype=torch.bool)
            word = torch.zeros(len(found), dtype=torch.bool)
            word[list(here.positions)] = True
            found = found & ~(word[:, None] & word)
        return found


@dataclass(frozen=True, eq=False)
class Asked:
    """A word to come, its first token, what each head adds to its logit: `added: layer head
    query_pos key_pos`."""

    word: str
    token: int
    added: Tensor


@dataclass(frozen=True, eq=False)
class Elsewhere:
    """The same word in another sentence, read by a model with one stack."""

    seen: Seen
    place: Place


@dataclass(frozen=True, eq=False)
class Scene:
    """One attention, the word and the head that are followed first, and what they are compared
    with.

    With `contrast`, head by head: both sentences side by side.
    """

    seen: Seen
    here: Place
    layer: int
    head: int
    other: Elsewhere | None = None
    asked: Asked | None = None
    contrast: bool = False

    @property
    def at(self) -> int:
        return self.here.at

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """How many layers, heads, d_model, d_head."""
        return self.seen.weights.shape

    @cached_property
    def drawn_keys(self) -> list[int]:
        """The tokens looked at that are drawn: all of a short text; of a long one those that get
        most attention, and where it looks at itself the word, the first token and the next one.
        """
        n = len(self.seen.source)
        if n <= DRAWN:
            return list(range(n))
        row = self.seen.attention.pattern[
            self.layer, self.head, self.at, : int(self.seen.allowed[self.at].sum())
        ]
        kept = (
            {0, *self.here.positions[-OF_LONG // 2 :], min(self.at + 1, n - 1)}
            if self.seen.alone
            else set()
        )
        order = [
            pos for pos in row.argsort(descending=True, stable=True).tolist() if pos not in kept
        ]
        return sorted(kept | set(order[: max(0, OF_LONG - len(kept))]))

    @cached_property
    def drawn_queries(self) -> list[int]:
        """The tokens that look and are drawn: those of a single text; all of a short target, a part
        of a long one."""
        if self.seen.alone:
            return self.drawn_keys
        n = len(self.seen.tokens)
        first = max(0, min(self.at - OF_LONG // 2, n - OF_LONG))
        return list(range(n)) if n <= DRAWN else list(range(first, first + OF_LONG))

    @cached_property
    def layers(self) -> list[int]:
        """The layers whose heads can be followed on the page: as many around the chosen one as
        CELLS allow."""
        layers, heads = self.sizes[:2]
        fit = min(layers, max(1, CELLS // (heads * len(self.drawn_keys) * len(self.drawn_queries))))
        first = min(max(0, self.layer - fit // 2), layers - fit)
        return list(range(first, first + fit))

    @cached_property
    def heads(self) -> list[tuple[int, int]]:
        """Layer and number of every head that can be followed: the axis `carried` of the
        quantities."""
        return [(layer, head) for layer in self.layers for head in range(self.sizes[1])]

    @property
    def carried(self) -> int:
        """The place of the head that is followed first among these."""
        return self.heads.index((self.layer, self.head))

    @property
    def undrawn(self) -> list[int]:
        """The tokens looked at that are not drawn."""
        return sorted(set(range(len(self.seen.source))) - set(self.drawn_keys))


@dataclass(frozen=True, eq=False)
class TwoTraced:
    """The causal trace of two sentences: `moved: component layer pos`, by COMPONENTS and `pos`,
    positions in the text.

    `pieces`: the tokens of both sentences at each position.
    """

    word: str
    at: int
    pos: Sequence[int]
    pieces: Sequence[tuple[str, str]]
    moved: Tensor

    def frame(self) -> pd.DataFrame:
        """One row a part, layer and position."""
        values = self.moved.tolist()
        return pd.DataFrame(
            [
                {"component": part, "layer": layer, "pos": pos, "piece": here, "piece_there": there}
                | {"moved": values[number][layer][place]}
                for number, part in enumerate(COMPONENTS)
                for layer in range(self.moved.shape[1])
                for place, (pos, (here, there)) in enumerate(
                    zip(self.pos, self.pieces, strict=True)
                )
            ]
        )

    def columns(self) -> list[dict[str, object]]:
        """What the page writes above each position."""
        return [
            {"pos": pos, "pieces": list(both)}
            for pos, both in zip(self.pos, self.pieces, strict=True)
        ]

    def said(self) -> str:
        """Which token makes most of the difference, and from which layer on the word itself holds
        half of it."""
        entering, word = self.moved[0, 0], self.moved[0, :, self.pos.index(self.at)]
        most = int(entering.abs().argmax())
        here, there = (piece.strip() for piece in self.pieces[most])
        first = max((word < HALF).nonzero().flatten().tolist(), default=-1) + 1
        later = " and every later one" if first + 1 < len(word) else ", the last,"
        alone = f"the vector of “{self.word}” alone brings it"
        arrives = (
            f"Where it enters layer {first}{later} {alone} at least half of the way: by then the difference has "
            f"arrived there."
            if first < len(word)
            else f"Even where it enters the last layer {alone} less than half of the way."
        )
        put = f"Putting “{here}” in the place of “{there}” brings the other sentence"
        return f"{put} {percent(float(entering[most]))} of the way to this one. {arrives}"


def read_pair(weights: Weights, here: Place, there: Place) -> tuple[PairReading, tuple[int, ...]]:
    """Both sentences kept up to the word, and the positions counted from it, from the first
    difference to the last.

    Raises InputError for sentences that have not as many tokens before the word, in a model that
    reads both ways also behind it, and for sentences that are the same to the word.
    """
    sizes = [(place.at, 0 if weights.causal else len(place.tokens)) for place in (here, there)]
    if sizes[0] != sizes[1]:
        raise InputError(
            f"Tracing two sentences: the word is token {sizes[0][0]} of this one and token {sizes[1][0]} of the "
            f"other, and parts can be put only where they fit; write the two with as many tokens before the word."
        )
    texts = [TargetText(place.tokens.ids, place.at) for place in (here, there)]
    (pair,) = token_pairs(weights, texts[:1], texts[1:], len(weights.blocks))
    if pair.ids[0] == pair.ids[1]:
        raise InputError(
            f"Tracing two sentences: they are the same up to “{here.word}”, so nothing that it reads differs; write "
            f"them with another word before it."
        )
    offsets = positions_from_word([pair], None)
    with torch.inference_mode():
        both = cache_pair(weights, pair.ids, pair.at, len(weights.blocks))
        apart = both.final[0, pair.at] - both.final[1, pair.at]
        gap = apart.norm()
    if not gap > 0:
        raise InputError(
            f"Tracing two sentences: got the same vector of “{here.word}” behind the last layer of both, expected two; "
            f"write them with another word before it."
        )
    return PairReading(both, (apart / gap)[None], gap[None]), offsets


def trace_steps(
    read: PairReading, offsets: Sequence[int], parts: Sequence[str]
) -> Iterator[tuple[float, dict[str, Tensor]]]:
    """How far the word of the other sentence moves when a part at one layer and position is this
    sentence's.

    Some layers at a time: the share that is done, and what is known by then, `part: layer variant
    pos`, NaN elsewhere.
    """
    depth, heads = read.cache.weights.shape[:2]
    moved = {
        part: torch.full((depth, heads if part == HEAD else 1, len(offsets)), torch.nan)
        for part in parts
    }
    some = [range(depth)[first : first + TOGETHER] for first in range(0, depth, TOGETHER)]
    steps = [*product(range(len(offsets)), some)]
    for done, (place, layers) in enumerate(steps, start=1):
        with torch.inference_mode():
            effects = positions.effects(
                read.cache, [offsets[place]], read.directions, parts, layers=layers
            )
        for part, one in effects.items():
            moved[part][layers.start : layers.stop, :, place] = (
                one[1, ..., 0, 0] / read.gap[0]
            ).cpu()
        yield done / len(steps), moved


def trace_two(weights: Weights, here: Place, there: Place) -> TwoTraced:
    """The residual stream, all heads of a layer and the MLP, at every layer and position. Raises as
    `read_pair`."""
    read, offsets = read_pair(weights, here, there)
    *_, (_, moved) = trace_steps(read, offsets, COMPONENTS)
    return two_traced(here, there, offsets, moved)


def two_traced(
    here: Place, there: Place, offsets: Sequence[int], moved: Mapping[str, Tensor]
) -> TwoTraced:
    """The record of steps that are all done. `part: layer variant pos`"""
    pos = [here.at + offset for offset in offsets]
    pieces = [(here.tokens.pieces[one], there.tokens.pieces[one]) for one in pos]
    return TwoTraced(
        here.word, here.at, pos, pieces, torch.stack([moved[part][:, 0] for part in COMPONENTS])
    )
