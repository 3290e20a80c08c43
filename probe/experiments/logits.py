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

import torch
from torch import Tensor

from probe.errors import CrossCheckError
from probe.model import forward
from probe.model.decomposition import (
    SINK,
    before_norm,
    components_by_source,
    logit_direction,
)
from probe.model.model import Model
from probe.model.records import PairTrace, Trace
from probe.model.tokens import Tokens
from probe.model.weights import read_stacks
from probe.patching.cross import directions

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


def terms(whole: Trace, pos: int, ids: Sequence[int]) -> Iterator[Term]:
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


def terms_of_pair(model: Model, pair: PairTrace, pos: int, ids: Sequence[int]) -> Iterator[Term]:
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


def require_sum(whole: Trace, pos: int, ids: list[int], total: float, expected: float) -> None:
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
