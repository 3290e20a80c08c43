"""Direct logit attribution: what every component contributes to the logit of a next token, or to
the difference of two logits.

The logit is a sum over everything that was written into the residual stream: embeddings, the output
of every head by source token, attention biases, MLPs, and the biases of the final norm and the
unembedding (`probe.model.decomposition`). In an encoder-decoder, the sum is over everything that
was written into the decoder's stream, by self-attention and by cross-attention. Nothing responds,
and the scale of the final norm is held at its value in this run. The effect of changing a component
is measured by a swap (`probe.patch`).

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

STACK = "stack"  # column for an encoder-decoder: "decoder", or "cross" for cross-attention
INTEGERS = ("layer", "head", "pos")
COLUMNS = ("component", "layer", "head", "pos", "token", "logit")


def decompose(
    model: ModelSource,
    text: str,
    at: int | str,
    *,
    tokens: str | int | tuple[str | int, str | int],
    target: str | None = None,
) -> pd.DataFrame:
    """Return what every component adds to the logit of a next token, or to the difference of two
    logits, with each head split by the token that it reads.

    The columns are `component layer head pos token logit`. The sum of `logit` over all rows is the
    logit. Everything after a component is held fixed, including the scale of the final norm. b_V is
    part of a head's write.

    at: a word, which means the last token of its first occurrence, or a position, counted from the
        end if it is negative
    tokens: a token as it appears inside a sentence, such as " water", or two tokens, for the logit
        of the first minus that of the second. An id may replace a token
    target: the target text so far, for an encoder-decoder. `at` is then a token of the target, and
        a column `stack` separates cross-attention ("cross") from the decoder's self-attention
        ("decoder")

    Raises InputError for a word, position or token that does not exist, and a target that is
    missing or cannot be used; UnsupportedModel for a model without a language-model head;
    CrossCheckError if the terms miss the hooked logits by more than 1e-4 of the largest, or in
    bfloat16 by more than the rounding of all blocks.

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
    read_tokens = tokens if isinstance(tokens, tuple) else (tokens,)
    if len(read_tokens) not in (1, 2):
        raise InputError(
            f"Cannot decompose a logit of {len(read_tokens)} tokens: expected one token, or two "
            'for the difference of their logits. Give (" water", " loan"), say.'
        )
    ids = [token_id(model, token) for token in read_tokens]
    if len(set(ids)) < len(ids):
        raise InputError(
            f"Cannot decompose the difference of the logits of {read_tokens!r}: the two tokens are "
            "the same, and the difference is always 0. Give two different tokens."
        )
    columns: tuple[str, ...] = COLUMNS
    if model.config.start_token is not None and target is None:
        raise InputError(
            f"Cannot decompose a logit of {model.name}: it is an encoder-decoder and needs a "
            "target. Give target=, the text so far, and a position or word of it as at=."
        )
    if target is None:
        whole = trace(model, text)
        pos = text_position(whole.tokens, at)
        rows = terms(whole, pos, ids)
    else:
        pair = trace(model, text, target)
        whole = pair.decoder
        pos = text_position(pair.target, at)
        rows = terms_of_pair(model, pair, pos, ids)
        columns = (STACK, *COLUMNS)
    frame = pd.DataFrame(rows)[list(columns)].astype(dict.fromkeys(INTEGERS, "Int64"))
    blocks = model.config.n_layers + model.config.n_decoder_layers
    expected = largest_error(model.dtype, blocks)
    require_sum(whole, pos, ids, frame["logit"].tolist(), expected)
    return frame


class Term(NamedTuple):
    """The contribution of one component, or of one head by source token, to a logit.

    component: its name
    logit: the contribution
    layer: None for embeddings and the final biases
    head: None for a component that is not a head
    pos, token: the source token of a head
    stack: in an encoder-decoder, "decoder" or "cross"
    """

    component: str
    logit: float
    layer: int | None = None
    head: int | None = None
    pos: int | None = None
    token: str | None = None
    stack: str = "decoder"


def terms(whole: Trace, pos: int, ids: Sequence[int]) -> Iterator[Term]:
    """The terms of a logit in a model with a single stack.

    pos: the position at which the next token is predicted
    ids: the id of one token, or two ids for the logit of the first minus that of the second
    """
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
    """The terms of a head, one for each source token.

    adds: `source`
    """
    for source, logit in enumerate(adds.tolist()):
        yield Term(component, logit, layer, head, source, tokens.labels[source], stack)


def terms_of_pair(model: Model, pair: PairTrace, pos: int, ids: Sequence[int]) -> Iterator[Term]:
    """The terms of a logit in an encoder-decoder: everything that is written into the decoder's
    stream at a position of the target, with the scales of all later norms held.

    pos: the position of the target at which the next token is predicted
    ids: as in `terms`
    """
    stacks = {
        name: stack.on("cpu")
        for name, stack in read_stacks(model.weights, model.config, model.modules).items()
    }
    decoder = stacks["decoder"]
    config = decoder.config
    family = config.family
    table = forward.unembedding(decoder, decoder.dtype)[list(ids)].double()
    # logit = <x, W_U[a]> or <x, W_U[a] - W_U[b]>, plus the bias of the same tokens
    signs = table.new_tensor([1.0, -1.0])[: len(ids)]
    towards = signs @ table
    stored = decoder.raw.get(family.unembed_bias or "final_logits_bias")
    if stored is not None:
        yield Term("unembedding bias", float(signs @ stored.flatten()[list(ids)].double()))
    # The direction in the stream before the final norm, for writes that only this norm follows.
    before_final = towards
    gain, bias = decoder.norm(family.final_norm, torch.float64)
    if gain is not None:
        before_final = before_norm(towards, pair.decoder.resid_post[-1, pos], gain, config)
    if bias is not None:
        yield Term("final norm bias", float(bias @ towards))

    # For every other write, the direction followed back through all later norms.
    along = directions(model, pair, towards)
    parts = forward.embedding_parts(
        decoder, torch.tensor(pair.target.ids[pos]), torch.tensor(pos), dtype=torch.float64
    )
    entering = along.entering[pos]
    gain, bias = decoder.norm(family.embedding_norm, torch.float64)
    if bias is not None:
        yield Term("norm bias after embedding", float(bias @ entering))
    if gain is not None:
        entering = before_norm(entering, forward.sum_embeddings(parts), gain, config)
    for name, vector in parts.items():
        yield Term(name, float(vector @ entering))

    layers = len(decoder.blocks)
    # Within a layer, self-attention writes first, then cross-attention, then the MLP.
    traces = {"decoder": pair.decoder, "cross": pair.cross}
    for layer in range(layers):
        for stack, whole in traces.items():
            direction = getattr(along, stack)[layer, pos]
            block = stacks[stack].blocks[layer]
            tokens = pair.target if stack == "decoder" else pair.source
            # Self-attention is causal; cross-attention reads the whole source.
            read = pos + 1 if stack == "decoder" else len(tokens)
            for head in range(config.n_heads):
                adds = whole.delta_e_by_source(layer, head, pos)[:read].double() @ direction
                yield from _head_terms(f"L{layer}H{head}", adds, layer, head, tokens, stack)
            if block.b_o is not None:
                logit = float(block.b_o.double() @ direction)
                yield Term(f"attention bias {layer}", logit, layer, stack=stack)
            # A norm after the sum adds its bias after this writer and before the next.
            after = along.cross[layer, pos] if stack == "decoder" else along.mlp[layer, pos]
            if family.norm_after_sum and block.norm_bias is not None:
                logit = float(block.norm_bias.double() @ after)
                yield Term(f"norm bias after attention {layer}", logit, layer, stack=stack)
        logit = float(pair.decoder.mlp_out[layer, pos].double() @ along.mlp[layer, pos])
        yield Term(f"MLP {layer}", logit, layer)
        norm_bias = decoder.blocks[layer].norm_mlp_bias
        if family.norm_after_sum and norm_bias is not None:
            after = along.decoder[layer + 1, pos] if layer + 1 < layers else before_final
            yield Term(f"norm bias after MLP {layer}", float(norm_bias.double() @ after), layer)


def require_sum(
    whole: Trace, pos: int, ids: list[int], values: Sequence[float], expected: float
) -> None:
    """Raises CrossCheckError if the terms miss the hooked logit by more than rounding error.

    values: of the terms
    expected: the largest rounding error, as a fraction of the largest logit, or of the largest term
        if the terms cancel
    """
    logits = whole.logits[pos].double()
    hooked = logits[ids[0]] - (logits[ids[1]] if len(ids) == 2 else 0.0)
    size = max(float(logits.abs().max()), *map(abs, values))
    missed = abs(sum(values) - float(hooked))
    error = missed / size if missed else 0.0
    if not error <= expected:
        raise CrossCheckError(
            f"Cannot sum a logit of {whole.model_name} at position {pos}: the terms miss it by "
            f"{error:.1e} of the largest logit, expected at most {expected:.0e}. Run `probe check` "
            "to see which quantity disagrees."
        )
