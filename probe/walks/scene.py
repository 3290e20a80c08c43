"""The inputs of every step of a walk: an attention, the word, a second sentence, the head, the
drawn tokens.

Queries are the tokens of the text, or of the target of a translation. Keys are the tokens of the
same text, or of the source.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from probe.model import blocks
from probe.model.architectures.family import Family
from probe.model.records import CrossTrace, PairTrace, Trace
from probe.model.tokens import Tokens
from probe.model.weights import Weights

# Coordinates of a vector that tables and pages show.
HEAD_NUMBERS = 6  # of vectors of a head (d_head)
STREAM_NUMBERS = 4  # of vectors of the stream (d_model)
# head x query x key on a page: about 2 MB, all heads of GPT-2 small up to 14 tokens.
MAX_CELLS = 28_500
MAX_DRAWN_WHOLE = 32  # tokens: a text of up to this length is drawn whole
DRAWN_OF_LONG = 24  # tokens that are drawn of a longer text
# Fraction of a vector's length below which two vectors are equal, and of the distance between two
# vectors below which nothing moved: about the effect of the order of a sum in float32.
SAME_VECTOR = 1e-5


@dataclass(frozen=True)
class WordInText:
    """A word in a tokenised text: its text as written there, and its positions. It is read at
    the last position.
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
        """The token ids of the text before the word, and after it if the model reads both ways;
        without special tokens.
        """
        # A causal model has read nothing after the word when it reads the word.
        end = self.positions[0] if causal else len(self.tokens)
        ids = set()
        for pos, (start, stop) in enumerate(self.tokens.spans[:end]):
            # A special token such as [CLS] covers no character of the text.
            if start < stop and pos not in self.positions:
                ids.add(self.tokens.ids[pos])
        return frozenset(ids)


@dataclass(frozen=True, eq=False)
class AttentionView:
    """An attention with its texts: self-attention of a text, or cross-attention of a target.

    stream: the trace of the queries' text
    source: the keys' tokens
    pair: the traces of an encoder-decoder
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
        """The tokens of the queries."""
        return self.attention.tokens

    @property
    def one_text(self) -> bool:
        """Whether there is one text, which attends to itself."""
        return self.tokens is self.source

    @property
    def causal(self) -> bool:
        """Whether a token can attend only to itself and to earlier tokens."""
        return self.attention.stack.causal

    @cached_property
    def weights(self) -> Weights:
        """The attention's weights, on the CPU like the traces."""
        return self.attention.stack.on("cpu")

    @property
    def family(self) -> Family:
        """The row of the table of architectures."""
        return self.weights.config.family

    @cached_property
    def allowed(self) -> Tensor:
        """Which tokens each token can attend to. `query_pos key_pos`"""
        everything = torch.ones(len(self.tokens), len(self.source), dtype=torch.bool)
        return everything.tril() if self.causal else everything

    def key_input(self, layer: int) -> Tensor:
        """The input of keys and values: the stream as attention reads it, or the encoder's
        output.

        `key_pos d_model`
        """
        if isinstance(self.attention, CrossTrace):
            return self.attention.memory[layer]
        return self.attention.x[layer]

    def as_added(self, layer: int, write: Tensor, at: slice | int = slice(None)) -> Tensor:
        """A write in the form in which it is added to the stream at `at`. `... d_model -> ...
        d_model`

        This is the write itself. If the family norms the heads' writes, it is the write times the
        norm's gain over the root mean square of Σ ΔE in this run.
        """
        config = self.weights.config
        gain = self.weights.blocks[layer].norm_out
        if gain is None:
            return write
        # RMSNorm(w) = gain · w / sqrt(mean(w²) + ε), with w = Σ ΔE. With the divisor of this run
        # the norm is linear, so it applies to each write.
        mean_square = self.attention.attn_out[layer, at].square().mean(-1, keepdim=True)
        return write / (mean_square + config.epsilon).sqrt() * blocks.gain_of(gain, config)

    @cached_property
    def special_tokens(self) -> Tensor:
        """Which keys are not part of the text, such as [CLS]. `key_pos`"""
        return torch.tensor([start == end for start, end in self.source.spans])

    def other_words(self, word: WordInText) -> Tensor:
        """Which keys belong to other words than the query: neither special tokens nor the word
        itself.

        `query_pos key_pos`
        """
        elsewhere = self.allowed & ~self.special_tokens
        if not self.one_text:
            return elsewhere
        # Tokens of the same word do not count as context for each other.
        in_word = torch.zeros(len(elsewhere), dtype=torch.bool)
        in_word[list(word.positions)] = True
        itself = torch.eye(len(elsewhere), dtype=torch.bool)
        return elsewhere & ~itself & ~(in_word[:, None] & in_word)


@dataclass(frozen=True, eq=False)
class LogitTarget:
    """A word to come, its first token, and each head's contribution to that token's logit.

    contributions: `layer head query_pos key_pos`
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
    with.

    contrast: whether two sentences are compared head by head, side by side
    swaps: `layer head`, how far a swap of each head alone moves the word to its other meaning
        (`axes.swap_effects`), if two meanings are compared
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
    def compared(self) -> SecondSentence | None:
        """The second sentence, if the two are compared head by head."""
        return self.second if self.contrast else None

    @property
    def at(self) -> int:
        """The position that is followed first."""
        return self.word.at

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The numbers of layers and heads, d_model and d_head."""
        return self.view.weights.shape

    @cached_property
    def drawn_keys(self) -> list[int]:
        """Positions of the keys that are drawn: all of a short text, and the ones with most
        attention in a long text.

        If the text attends to itself, the word, the first token and the token after the word are
        always drawn.
        """
        n_keys = len(self.view.source)
        if n_keys <= MAX_DRAWN_WHOLE:
            return list(range(n_keys))
        always: set[int] = set()
        if self.view.one_text:
            # A word of very many tokens must leave half of the picture to other tokens.
            word_end = self.word.positions[-DRAWN_OF_LONG // 2 :]
            # Many heads rest on the first token; the token after the word shows the mask.
            always = {0, *word_end, min(self.at + 1, n_keys - 1)}
        n_allowed = int(self.view.allowed[self.at].sum())
        weights = self.view.attention.pattern[self.layer, self.head, self.at, :n_allowed]
        by_weight = weights.argsort(descending=True, stable=True).tolist()
        candidates = [pos for pos in by_weight if pos not in always]
        return sorted(always | set(candidates[: max(0, DRAWN_OF_LONG - len(always))]))

    @cached_property
    def drawn_queries(self) -> list[int]:
        """Positions of the queries that are drawn: the drawn tokens of a single text, all of a
        short target, or a window of a long one.
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
        """The layers whose heads can be followed on the page: as many layers around the chosen
        one as MAX_CELLS allows.
        """
        n_layers, n_heads = self.sizes[:2]
        cells_of_layer = n_heads * len(self.drawn_keys) * len(self.drawn_queries)
        n_page_layers = min(n_layers, max(1, MAX_CELLS // cells_of_layer))
        # A window with the chosen layer in its middle, moved if it would leave the stack.
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
        """The index in `heads` of the head that is followed first."""
        return self.heads.index((self.layer, self.head))

    @property
    def undrawn_keys(self) -> list[int]:
        """Positions of the keys that are not drawn."""
        return sorted(set(range(len(self.view.source))) - set(self.drawn_keys))


def visible(piece: str) -> str:
    """A token's text without surrounding white space; white space alone is shown with its
    escapes.
    """
    return piece.strip() or repr(piece)
