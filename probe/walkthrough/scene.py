"""What every part of a walk looks at: an attention at work, the word in it, the same word in a
second sentence, the head, the tokens that are drawn; and the causal trace of two sentences, one
part of the first put into the second at a time.

Tokens that look (`query`) are those of the text, or of the target of a translation; tokens looked
at (`key`) are those of the same text, or of the source. A causal trace is read along the line
between the word's two vectors behind the last layer: 0 is where the second sentence's stands, 1 is
the first one's.
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

# Coordinates of a vector that tables and pages have room for.
HEAD_NUMBERS = 6  # of vectors of a head (d_head)
STREAM_NUMBERS = 4  # of vectors of the stream (d_model)
# head x query x key that a page carries: about 2 MB, all heads of GPT-2 small up to 14 tokens.
MAX_CELLS = 28_500
MAX_DRAWN_WHOLE = 32  # tokens: a text of up to so many is drawn whole
DRAWN_OF_LONG = 24  # tokens drawn of a longer text
# Layers in one step of a causal trace: few, so that work on a large model can be ended soon.
LAYERS_PER_STEP = 6
HALF_WAY = 0.5  # fraction of the way between the two vectors at which the difference has arrived


@dataclass(frozen=True)
class WordInText:
    """A word in a tokenised text: as it is written there, and its positions. It is read at the
    last of them.
    """

    tokens: Tokens
    text: str
    positions: range

    @property
    def at(self) -> int:
        """The position at which the word is read."""
        return self.positions[-1]

    @property
    def ids(self) -> tuple[int, ...]:
        """The token ids of the word."""
        return tuple(self.tokens.ids[pos] for pos in self.positions)

    def context_ids(self, *, causal: bool) -> frozenset[int]:
        """The token ids of the text before the word, and in a model that reads both ways also
        those behind it; without special tokens.
        """
        end = self.positions[0] if causal else len(self.tokens)
        ids = set()
        for pos, (start, stop) in enumerate(self.tokens.spans[:end]):
            # A special token such as [CLS] covers no character of the text.
            if start < stop and pos not in self.positions:
                ids.add(self.tokens.ids[pos])
        return frozenset(ids)


@dataclass(frozen=True, eq=False)
class AttentionView:
    """An attention at work: self-attention of a text, or cross-attention of a target; `stream` is
    the trace of the tokens that look, `source` the tokens looked at, `pair` all of an
    encoder-decoder.
    """

    attention: Trace | CrossTrace
    stream: Trace
    source: Tokens
    pair: PairTrace | None = None

    @classmethod
    def of_self_attention(cls, trace: Trace) -> "AttentionView":
        """The self-attention of a model with one stack."""
        return cls(trace, trace, trace.tokens)

    @classmethod
    def of_cross_attention(cls, pair: PairTrace) -> "AttentionView":
        """The cross-attention of an encoder-decoder, in the stream of its decoder."""
        return cls(pair.cross, pair.decoder, pair.source, pair)

    @property
    def tokens(self) -> Tokens:
        """The tokens that look."""
        return self.attention.tokens

    @property
    def one_text(self) -> bool:
        """Whether there is one text, which looks at itself."""
        return self.tokens is self.source

    @property
    def causal(self) -> bool:
        """Whether a token may look only at itself and at earlier ones."""
        return self.attention.stack.causal

    @cached_property
    def weights(self) -> Weights:
        """Those of the attention, on the CPU, where the traces are."""
        return self.attention.stack.on("cpu")

    @property
    def family(self) -> Family:
        """The row of the table of architectures."""
        return self.weights.config.family

    @cached_property
    def allowed(self) -> Tensor:
        """Which tokens each token may look at. `query_pos key_pos`"""
        whole = torch.ones(len(self.tokens), len(self.source), dtype=torch.bool)
        return whole.tril() if self.causal else whole

    def key_input(self, layer: int) -> Tensor:
        """What keys and values are computed from: the stream as attention reads it, or what the
        encoder hands over. `key_pos d_model`
        """
        if isinstance(self.attention, CrossTrace):
            return self.attention.memory[layer]
        return self.attention.x[layer]

    def as_added(self, layer: int, written: Tensor, at: slice | int = slice(None)) -> Tensor:
        """What is written, as it is added to the stream at `at`. `... d_model -> ... d_model`

        Itself; in a family that norms what its heads write, times the gain over the root mean
        square of Σ ΔE in this run.
        """
        config = self.weights.config
        gain = self.weights.blocks[layer].norm_out
        if gain is None:
            return written
        mean_square = self.attention.attn_out[layer, at].square().mean(-1, keepdim=True)
        return written / (mean_square + config.epsilon).sqrt() * forward.gain_of(gain, config)

    @cached_property
    def special_tokens(self) -> Tensor:
        """Which tokens looked at are no part of the text, such as [CLS]. `key_pos`"""
        return torch.tensor([start == end for start, end in self.source.spans])

    def other_words(self, word: WordInText) -> Tensor:
        """Which tokens looked at belong to other words than the one that looks: no special tokens,
        not the word itself. `query_pos key_pos`
        """
        others = self.allowed & ~self.special_tokens
        if not self.one_text:
            return others
        # The pieces of one word are no context of each other.
        in_word = torch.zeros(len(others), dtype=torch.bool)
        in_word[list(word.positions)] = True
        itself = torch.eye(len(others), dtype=torch.bool)
        return others & ~itself & ~(in_word[:, None] & in_word)


@dataclass(frozen=True, eq=False)
class LogitTarget:
    """A word to come, its first token, and what each head adds to that token's logit.
    `contributions: layer head query_pos key_pos`
    """

    word: str
    token: int
    contributions: Tensor


@dataclass(frozen=True, eq=False)
class SecondSentence:
    """The same word in another sentence, read by a model with one stack."""

    view: AttentionView
    word: WordInText


@dataclass(frozen=True, eq=False)
class Scene:
    """One attention, the word and the head that are followed first, and what they are compared
    with. With `contrast` the two sentences are compared head by head, side by side.

    `swaps: layer head`: how far each head, swapped by itself, moves the word to its other meaning
    (`choose.swap_effects`), where there is one.
    """

    view: AttentionView
    word: WordInText
    layer: int
    head: int
    second: SecondSentence | None = None
    logit: LogitTarget | None = None
    contrast: bool = False
    swaps: Tensor | None = None

    @property
    def at(self) -> int:
        """The position that is followed first."""
        return self.word.at

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """How many layers, heads, d_model, d_head."""
        return self.view.weights.shape

    @cached_property
    def drawn_keys(self) -> list[int]:
        """Positions of the tokens looked at that are drawn: all of a short text; of a long one
        those that get most attention, and where it looks at itself the word, the first token and
        the one behind the word.
        """
        n_keys = len(self.view.source)
        if n_keys <= MAX_DRAWN_WHOLE:
            return list(range(n_keys))
        always: set[int] = set()
        if self.view.one_text:
            # A word of very many tokens must leave half of the picture to the others.
            word_end = self.word.positions[-DRAWN_OF_LONG // 2 :]
            always = {0, *word_end, min(self.at + 1, n_keys - 1)}
        n_allowed = int(self.view.allowed[self.at].sum())
        weights = self.view.attention.pattern[self.layer, self.head, self.at, :n_allowed]
        by_weight = weights.argsort(descending=True, stable=True).tolist()
        candidates = [pos for pos in by_weight if pos not in always]
        return sorted(always | set(candidates[: max(0, DRAWN_OF_LONG - len(always))]))

    @cached_property
    def drawn_queries(self) -> list[int]:
        """Positions of the tokens that look and are drawn: those of a single text; all of a short
        target, a stretch of a long one.
        """
        if self.view.one_text:
            return self.drawn_keys
        n_queries = len(self.view.tokens)
        if n_queries <= MAX_DRAWN_WHOLE:
            return list(range(n_queries))
        first = max(0, min(self.at - DRAWN_OF_LONG // 2, n_queries - DRAWN_OF_LONG))
        return list(range(first, first + DRAWN_OF_LONG))

    @cached_property
    def layers(self) -> list[int]:
        """The layers whose heads can be followed on the page: as many around the chosen one as
        MAX_CELLS allow.
        """
        n_layers, n_heads = self.sizes[:2]
        cells_of_layer = n_heads * len(self.drawn_keys) * len(self.drawn_queries)
        n_page_layers = min(n_layers, max(1, MAX_CELLS // cells_of_layer))
        first = min(max(0, self.layer - n_page_layers // 2), n_layers - n_page_layers)
        return list(range(first, first + n_page_layers))

    @cached_property
    def heads(self) -> list[tuple[int, int]]:
        """Layer and number of every head that can be followed: the axis `page_head` of the
        quantities.
        """
        return [(layer, head) for layer in self.layers for head in range(self.sizes[1])]

    @property
    def head_index(self) -> int:
        """The index of the head that is followed first among these."""
        return self.heads.index((self.layer, self.head))

    @property
    def undrawn_keys(self) -> list[int]:
        """Positions of the tokens looked at that are not drawn."""
        return sorted(set(range(len(self.view.source))) - set(self.drawn_keys))


@dataclass(frozen=True)
class TraceSummary:
    """What a causal trace says first: the token that makes most of the difference, in the first
    sentence and in the second, how far along it brings the word, and from which layer on the
    word's own stream brings it at least half of the way; `n_layers` where no layer's does.
    """

    token: str
    second_token: str
    fraction: float
    arrival_layer: int
    n_layers: int


@dataclass(frozen=True, eq=False)
class CausalTrace:
    """How far the second sentence's word moves when one part is the first sentence's.

    `effects: component layer position`, by COMPONENTS and `pos`, positions in the text, in
    fractions of the way between the two · `pieces`: the tokens of both sentences at each position.
    """

    word: str
    at: int
    pos: Sequence[int]
    pieces: Sequence[tuple[str, str]]
    effects: Tensor

    def frame(self) -> pd.DataFrame:
        """One row a part, layer and position."""
        rows: list[dict[str, object]] = []
        for component, by_layer in zip(COMPONENTS, self.effects.tolist(), strict=True):
            for layer, by_position in enumerate(by_layer):
                for pos, pieces, effect in zip(self.pos, self.pieces, by_position, strict=True):
                    row = {"component": component, "layer": layer, "pos": pos}
                    row |= {"piece": pieces[0], "piece_there": pieces[1], "moved": effect}
                    rows.append(row)
        return pd.DataFrame(rows)

    def columns(self) -> list[dict[str, object]]:
        """Position and both tokens of each column of the page's table."""
        return [
            {"pos": pos, "pieces": list(pieces)}
            for pos, pieces in zip(self.pos, self.pieces, strict=True)
        ]

    def summary(self) -> TraceSummary:
        """Which token makes most of the difference, and from which layer on the word itself holds
        half of it.
        """
        resid_pre = self.effects[0]
        entering = resid_pre[0]
        word = resid_pre[:, self.pos.index(self.at)]
        largest = int(entering.abs().argmax())
        token, second_token = self.pieces[largest]
        layers_below_half = (word < HALF_WAY).nonzero().flatten().tolist()
        return TraceSummary(
            token=token.strip(),
            second_token=second_token.strip(),
            fraction=float(entering[largest]),
            arrival_layer=max(layers_below_half, default=-1) + 1,
            n_layers=len(word),
        )


def read_pair(
    weights: Weights, word: WordInText, second: WordInText
) -> tuple[PairReading, tuple[int, ...]]:
    """The runs of both sentences up to the word, and the positions to trace, counted from the
    word, from the first difference to the last.

    Raises InputError for sentences that have not as many tokens before the word, in a model that
    reads both ways also behind it, and for sentences that are the same to the word.
    """
    _require_same_length(weights, word, second)
    texts = [TargetText(one.tokens.ids, one.at) for one in (word, second)]
    n_layers = len(weights.blocks)
    (pair,) = token_pairs(weights, texts[:1], texts[1:], n_layers)
    if pair.ids[0] == pair.ids[1]:
        raise InputError(
            f"Tracing two sentences: they are the same up to “{word.text}”, so nothing that it "
            "reads differs; write them with another word before it."
        )
    offsets = positions_from_word([pair], None)
    with torch.inference_mode():
        cache = cache_pair(weights, pair.ids, pair.at, n_layers)
        line = cache.final[0, pair.at] - cache.final[1, pair.at]
        length = line.norm()
    if not length > 0:
        raise InputError(
            f"Tracing two sentences: got the same vector of “{word.text}” behind the last layer of "
            "both, expected two; write them with another word before it."
        )
    return PairReading(cache, (line / length)[None], length[None]), offsets


def _require_same_length(weights: Weights, word: WordInText, second: WordInText) -> None:
    """Raises InputError where the parts of one sentence have no counterpart in the other."""
    same = word.at == second.at
    if not weights.causal:
        same = same and len(word.tokens) == len(second.tokens)
    if not same:
        raise InputError(
            f"Tracing two sentences: the word is token {word.at} of this one and token {second.at} "
            "of the other, and parts can be put only where they fit; write the two with as many "
            "tokens before the word."
        )


def trace_steps(
    reading: PairReading, offsets: Sequence[int], parts: Sequence[str]
) -> Iterator[tuple[float, dict[str, Tensor]]]:
    """How far the word of the second sentence moves when a part at one layer and position is the
    first sentence's, some layers at a time.

    Yields the fraction of the work that is done and the effects up to then, `part: layer variant
    position`, NaN where nothing was run yet.
    """
    n_layers, n_heads = reading.cache.weights.shape[:2]
    effects = {}
    for part in parts:
        n_variants = n_heads if part == HEAD else 1
        effects[part] = torch.full((n_layers, n_variants, len(offsets)), torch.nan)
    starts = range(0, n_layers, LAYERS_PER_STEP)
    layer_groups = [range(n_layers)[start : start + LAYERS_PER_STEP] for start in starts]
    steps = list(product(range(len(offsets)), layer_groups))
    for n_done, (index, layers) in enumerate(steps, start=1):
        with torch.inference_mode():
            measured = positions.effects(
                reading.cache, [offsets[index]], reading.directions, parts, layers=layers
            )
        for part, effect in measured.items():
            fraction = effect[1, ..., 0, 0] / reading.gap[0]
            effects[part][layers.start : layers.stop, :, index] = fraction.cpu()
        yield n_done / len(steps), effects


def trace_pair(weights: Weights, word: WordInText, second: WordInText) -> CausalTrace:
    """The causal trace of the residual stream, all heads of a layer and the MLP, at every layer
    and position. Raises as `read_pair`.
    """
    reading, offsets = read_pair(weights, word, second)
    *_, (_, effects) = trace_steps(reading, offsets, COMPONENTS)
    return causal_trace(word, second, offsets, effects)


def causal_trace(
    word: WordInText, second: WordInText, offsets: Sequence[int], effects: Mapping[str, Tensor]
) -> CausalTrace:
    """The record of steps that are all done. `part: layer variant position`"""
    pos = [word.at + offset for offset in offsets]
    pieces = [(word.tokens.pieces[one], second.tokens.pieces[one]) for one in pos]
    stacked = torch.stack([effects[component][:, 0] for component in COMPONENTS])
    return CausalTrace(word.text, word.at, pos, pieces, stacked)
