"""What a walk follows: the word and its tokens, the same word in another sentence, the head, the tokens that are drawn.

Without a head given, it is the one that carries most from the other words into the word: ‖Σ_j A[t, j] V[j] W_O‖ / ‖E′[t]‖ over the
tokens j of the text before the word, and behind it where the model reads both ways. Special tokens and the word itself are left out
of the sum, because many heads rest there and write the same whatever the text says; divided by the length of the stream after that
layer's attention, E′ = E + Σ ΔE + b_O, because the stream grows with depth. It is a choice of where to look first, not a finding
about the head.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probe.errors import InputError
from probe.model import attention
from probe.model.model import Model
from probe.model.records import Trace
from probe.model.tokens import Tokens, find_word, positions_of_span, tokenize
from probe.stats.numbers import percent
from probe.text.lexicon import showcase

DRAWN = 32  # a text of up to this many tokens is drawn whole
OF_LONG = 24  # and of a longer one so many
FRAMES = ("They had told us nothing about the {}", 'They had told us: "{}')


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

    @property
    def before(self) -> tuple[int, ...]:
        """The tokens before the word: with the same ones, a causal model cannot but give it the same vectors."""
        return self.tokens.ids[: self.positions[0]]

    def context(self, at: int | None = None) -> list[int]:
        """The positions before `at` (the word itself if None) that are neither BOS nor the word."""
        at = self.at if at is None else at
        first = self.positions[0] if at in self.positions else at
        return list(range(int(self.tokens.bos), first))

    def others(self) -> list[int]:
        """The positions on both sides of the word that are no special tokens."""
        return [pos for pos, (start, end) in enumerate(self.tokens.spans) if start < end and pos not in self.positions]


def require_word(word: str | None, whose: str, such: str) -> None:
    """Raises InputError for a word that is given and empty."""
    if word is not None and not word.strip():
        raise InputError(
            f"Choosing a word to follow: got an empty one, expected a word of the {whose}; give --word {such}, say."
        )


def place(model: Model, text: str, word: str | None) -> Place:
    """Where `word` stands in `text`, the last word of the text by default. Raises InputError where it does not."""
    tokens = tokenize(model, text)
    require_word(word, "text", "bank")
    if word is None:
        found = list(re.finditer(r"\w+", text))
        if not found:
            raise InputError(f"Choosing a word of {text!r}: got no letters or digits; give a text with a word in it.")
        start, end = found[-1].span()
    else:
        start, end = find_word(text, word)
    return Place(tokens, text[start:end], positions_of_span(tokens, start, end))


def beside(model: Model, here: Place, text: str | None) -> Place:
    """The same word in another sentence: in `text`, or in one that ships, as the same tokens where that can be had.

    Raises InputError when the word does not stand in `text`.
    """
    if text is not None:
        return place(model, text, here.word)
    known = [row.text for row in showcase() if row.text != here.tokens.text]
    texts = [*known, *(frame.format(here.word) for frame in FRAMES)]
    found = [place(model, other, here.word) for other in texts if _usable(model, other, here.word)]
    return next((other for other in found if other.ids == here.ids and other.before != here.before), found[-1])


def _usable(model: Model, text: str, word: str) -> bool:
    """Whether the word stands in the text, and the text in the context window."""
    fits = len(model.tokenizer(text, add_special_tokens=False)["input_ids"]) < model.config.n_ctx
    return fits and re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) is not None


def moved(trace: Trace, layer: int, *, at: int, sources: Sequence[int]) -> Tensor:
    """How far each head of a layer moves position `at` by what it takes from `sources`: ‖Σ A V W_O‖ / ‖E′‖. `-> head`"""
    w_o, after = trace.stack.blocks[layer].w_o.cpu(), trace.resid_pre[layer, at] + trace.attn_out[layer, at]
    z = attention.mix(trace.pattern[layer][:, at : at + 1, list(sources)], trace.v[layer][:, list(sources)])
    return attention.write(z, w_o)[:, 0].norm(dim=-1) / after.norm()


def check_head(model: Model, layer: int | None, head: int | None) -> None:
    """Raises InputError for a layer or head that the model (its decoder, if it has one) lacks, and for a head without its layer."""
    layers, heads = model.config.n_decoder_layers or model.config.n_layers, model.config.n_heads
    for name, got, number in (("layer", layer, layers), ("head", head, heads)):
        if got is not None and not 0 <= got < number:
            raise InputError(
                f"Following {name} {got} of {model.name}: it has {number} {name}s{' per layer' * (name == 'head')}; "
                f"give --{name} from 0 to {number - 1}."
            )
    if head is not None and layer is None:
        raise InputError(
            f"Following head {head}: got a head without its layer, expected both; give --layer from 0 to {layers - 1} too."
        )


def choose_head(
    trace: Trace, here: Place, layer: int | None, head: int | None, *, causal: bool = True
) -> tuple[int, int, str]:
    """The layer and head to follow, and why in a sentence; what was asked for was checked by `check_head`."""
    if layer is not None and head is not None:
        return layer, head, f"L{layer}H{head} was asked for."
    return _largest(trace, here, range(len(trace.stack.blocks)) if layer is None else [layer], causal)


def _largest(trace: Trace, here: Place, layers: Sequence[int], causal: bool) -> tuple[int, int, str]:
    sources = here.context() if causal else here.others()
    whole = not sources  # a word with nothing beside it: only what it takes from itself and special tokens is there
    taken = list(range(here.at + 1 if causal else len(trace.tokens))) if whole else sources
    sizes = torch.stack([moved(trace, layer, at=here.at, sources=taken) for layer in layers])
    place, head = divmod(int(sizes.argmax()), sizes.shape[1])
    among = f"{sizes.numel()} heads" if len(layers) > 1 else f"{sizes.numel()} heads of layer {layers[0]}"
    by = "most" if whole else f"most by what it takes from the {'words before' if causal else 'other words'}"
    why = (
        f"L{layers[place]}H{head} is followed because, of {among}, it moves “{here.word}” {by}: with a vector "
        f"{percent(float(sizes[place, head]))} as long as the word's own after that layer's attention."
    )
    return layers[place], head, why


def drawn(trace: Trace, here: Place, layer: int, head: int) -> list[int]:
    """The positions that the pictures show: all of a short text; of a long one those that the word looks at most, with the
    word, the first token and the next one."""
    n = len(trace.tokens)
    if n <= DRAWN:
        return list(range(n))
    kept = {0, *here.positions[-OF_LONG // 2 :], min(here.at + 1, n - 1)}
    order = trace.pattern[layer, head, here.at, : here.at + 1].argsort(descending=True, stable=True).tolist()
    for pos in order:
        if len(kept) < OF_LONG:
            kept.add(pos)
    return sorted(kept)
