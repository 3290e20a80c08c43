"""Direct logit attribution: what every component writes into the logit of a next token, or into the
difference of two, by itself.

The logit is a sum over all that was ever written: embeddings, every head by the token that it took
its part from, attention biases, MLPs, and the biases of the norm and the head behind them
(`probe.model.decomposition`); in an encoder-decoder what was ever written into the decoder's
stream, by its own attention and across from the source. Nothing responds, and the scale of the
final norm is held at what it was: what changes when a component does, only a swap shows
(`probe.patch`).

Sources: Elhage et al. 2021 (direct paths); Wang et al. 2022 (direct logit attribution).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from probe.errors import CrossCheckError, InputError
from probe.model import forward
from probe.model.decomposition import (
    SINK,
    before_norm,
    components_by_source,
    largest_error,
    logit_direction,
)
from probe.model.load import ModelSource, load
from probe.model.model import Model
from probe.model.records import PairTrace, Trace
from probe.model.tokens import Tokens, text_position, token_id
from probe.model.trace import trace
from probe.model.weights import read_stacks
from probe.patching.cross import directions

INTEGERS = ("layer", "head", "pos")
STACK = "stack"  # of an encoder-decoder: "decoder", or "cross" for what comes from the source


class Term(NamedTuple):
    """What one component adds to a logit, a head's from one token."""

    component: str
    logit: float
    layer: int | None = None
    head: int | None = None
    pos: int | None = None
    token: str | None = None
    stack: str = "decoder"


COLUMNS = ("component", "layer", "head", "pos", "token", "logit")


def decompose(
    model: ModelSource,
    text: str,
    *,
    at: int | str,
    tokens: str | int | tuple[str | int, str | int],
    target: str | None = None,
) -> pd.DataFrame:
    """What every component adds to the logit of a next token, or to the difference of two, a head's
    by the token that it was taken from: columns `component layer head pos token logit`, whose sum
    over all rows is the logit.

    `at`: a word, at its last token where it first stands, or a position, counted from the end where
    it is negative · `tokens`: one as it stands inside a sentence, such as " water", or two, for the
    logit of the first less that of the second; ids are taken, too. Everything behind a component is
    held as it was, the scale of the final norm among it; b_V is inside a head's write.

    An encoder-decoder also reads `target`, and `at` counts in that; a column `stack` tells heads
    that take from the source ("cross") from those of the decoder's own attention ("decoder").

    Raises InputError for a word, position or token that is not there, for a target that is missing
    or cannot be used, and for a model whose hooks stay on; UnsupportedModel for one without a
    language-model head; CrossCheckError where the terms miss the hooked logits by more than 1e-4 of
    the largest, in bfloat16 by more than the roundings of all blocks.

    Example:
        >>> tokens = (" and", " with")
        >>> terms = probe.decompose("tiny-senses", "The old bank", at="bank", tokens=tokens)
        >>> list(terms.columns)
        ['component', 'layer', 'head', 'pos', 'token', 'logit']
        >>> by_head = terms.groupby(["layer", "head"])["logit"].sum()
        >>> len(by_head)  # 4 layers x 4 heads
        16
    """
    model = load(model)
    if model.origin.hooks:
        raise InputError(
            f"Decomposing a logit of {model.name}: it is {model.origin.hooked}, and what hooks "
            "write is no component of it; load it without hooks, or swap with probe.patch."
        )
    asked = tokens if isinstance(tokens, tuple) else (tokens,)
    if len(asked) not in (1, 2):
        raise InputError(
            f"Decomposing a logit of {len(asked)} tokens: expected one token, or two for the "
            'difference of their logits; give (" water", " loan"), say.'
        )
    ids = [token_id(model, token) for token in asked]
    if len(set(ids)) < len(ids):
        raise InputError(
            f"Decomposing the difference of the logits of {asked!r}: the two tokens are the same, "
            "and the difference of a logit from itself is always 0; give two different tokens."
        )
    columns: tuple[str, ...] = COLUMNS
    if model.config.start_token is not None and target is None:
        raise InputError(
            f"Decomposing a logit of {model.name}: it is an encoder-decoder and writes a target; "
            "give target=, the text so far, and a position or word of that as at=."
        )
    if target is None:
        whole = trace(model, text)
        pos = text_position(whole.tokens, at)
        terms = _terms(whole, pos, ids)
    else:
        pair = trace(model, text, target)
        whole = pair.decoder
        pos = text_position(pair.target, at)
        terms = _terms_of_pair(model, pair, pos, ids)
        columns = (STACK, *COLUMNS)
    frame = pd.DataFrame(terms)[list(columns)].astype(dict.fromkeys(INTEGERS, "Int64"))
    blocks = model.config.n_layers + model.config.n_decoder_layers
    expected = largest_error(model.dtype, blocks)
    _require_sum(whole, pos, ids, float(frame["logit"].sum()), expected)
    return frame


def _terms(whole: Trace, pos: int, ids: Sequence[int]) -> Iterator[Term]:
    """The terms of a logit of a model with one stack."""
    towards = logit_direction(whole, pos, ids)
    for part in components_by_source(whole, len(whole.pattern), at=pos):
        adds = part.vectors.double() @ towards.direction
        if part.head is None or part.layer is None:
            yield Term(part.component, float(adds[0]), part.layer)
        else:
            yield from _head_terms(part.component, adds, part.layer, part.head, whole.tokens)
    for name, logit in towards.constants.items():
        yield Term(name, logit)


def _head_terms(
    component: str, adds: Tensor, layer: int, head: int, tokens: Tokens, stack: str = "decoder"
) -> Iterator[Term]:
    """What a head adds from each token; last, where there is one more, from its sink, which writes
    nothing."""
    for source, logit in enumerate(adds.tolist()):
        if source < len(tokens):
            token = tokens.labels[source]
            yield Term(component, logit, layer, head, source, token, stack)
        else:
            yield Term(component, logit, layer, head, None, SINK, stack)


def _terms_of_pair(model: Model, pair: PairTrace, pos: int, ids: Sequence[int]) -> Iterator[Term]:
    """The terms of a logit of an encoder-decoder: what is written into the decoder's stream at a
    position of the target, the scales of all norms behind it held."""
    stacks = {
        name: stack.on("cpu") for name, stack in read_stacks(model.weights, model.config).items()
    }
    decoder = stacks["decoder"]
    config = decoder.config
    family = config.family
    table = forward.unembedding(decoder, decoder.dtype)[list(ids)].double()
    signs = table.new_tensor([1.0, -1.0])[: len(ids)]
    towards = signs @ table
    stored = decoder.raw.get(family.head_bias or "final_logits_bias")
    if stored is not None:
        yield Term("unembedding bias", float(signs @ stored.flatten()[list(ids)].double()))
    behind = towards
    gain, bias = decoder.norm(family.final_norm, torch.float64)
    if gain is not None:
        behind = before_norm(towards, pair.decoder.resid_post[-1, pos], gain, config)
    if bias is not None:
        yield Term("final norm bias", float(bias @ towards))

    along = directions(model, pair, towards)
    parts = forward.embedding_parts(
        decoder, torch.tensor(pair.target.ids[pos]), torch.tensor(pos), dtype=torch.float64
    )
    entering = along.entering[pos]
    gain, bias = decoder.norm(family.embedding_norm, torch.float64)
    if bias is not None:
        yield Term("norm bias behind embedding", float(bias @ entering))
    if gain is not None:
        entering = before_norm(entering, forward.sum_embeddings(parts), gain, config)
    for name, vector in parts.items():
        yield Term(name, float(vector @ entering))

    layers = len(decoder.blocks)
    traces = {"decoder": pair.decoder, "cross": pair.cross}
    for layer in range(layers):
        for stack, whole in traces.items():
            direction = getattr(along, stack)[layer, pos]
            block = stacks[stack].blocks[layer]
            tokens = pair.target if stack == "decoder" else pair.source
            read = pos + 1 if stack == "decoder" else len(tokens)
            for head in range(config.n_heads):
                adds = whole.delta_e_by_source(layer, head, pos)[:read].double() @ direction
                yield from _head_terms(f"L{layer}H{head}", adds, layer, head, tokens, stack)
            if block.b_o is not None:
                logit = float(block.b_o.double() @ direction)
                yield Term(f"attention bias {layer}", logit, layer, stack=stack)
            after = along.cross[layer, pos] if stack == "decoder" else along.mlp[layer, pos]
            if family.norm_after_sum and block.norm_bias is not None:
                logit = float(block.norm_bias.double() @ after)
                yield Term(f"norm bias behind attention {layer}", logit, layer, stack=stack)
        logit = float(pair.decoder.mlp_out[layer, pos].double() @ along.mlp[layer, pos])
        yield Term(f"MLP {layer}", logit, layer)
        norm_bias = decoder.blocks[layer].norm_mlp_bias
        if family.norm_after_sum and norm_bias is not None:
            after = along.decoder[layer + 1, pos] if layer + 1 < layers else behind
            yield Term(f"norm bias behind MLP {layer}", float(norm_bias.double() @ after), layer)


def _require_sum(whole: Trace, pos: int, ids: list[int], total: float, expected: float) -> None:
    """Raises CrossCheckError where the terms miss the hooked logits by more than rounding, which
    comes to `expected` of the largest."""
    logits = whole.logits[pos].double()
    hooked = logits[ids[0]] - (logits[ids[1]] if len(ids) == 2 else 0.0)
    error = float((total - hooked).abs() / logits.abs().max())
    if not error <= expected:
        raise CrossCheckError(
            f"Adding up a logit of {whole.model_name} at position {pos}: the terms miss it by "
            f"{error:.1e} of the largest, expected at most {expected:.0e}; run `probe check` to "
            "see which quantity disagrees."
        )
