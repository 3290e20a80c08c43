"""The two ends of a forward from raw weights: from token ids to the stream that enters the first
block, and from the stream after the last block to the logits.

`probe.model.blocks` has the steps of a block, and `probe.model.variants` the loop over blocks.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from probe.model import attention as formulas
from probe.model.blocks import norm
from probe.model.weights import Weights


def embed(
    weights: Weights, ids: Tensor, start: int = 0, *, dtype: torch.dtype | None = None
) -> Tensor:
    """E before the first block: tokens with the family's scale, positions, types, norm. `... pos
    -> ... pos d_model`

    start: the position of the first of `ids`
    """
    positions = torch.arange(start, start + ids.shape[-1], device=ids.device)
    parts = embedding_parts(weights, ids, positions, dtype=dtype)
    return embedding_norm(weights, sum_embeddings(parts))


def embedding_parts(
    weights: Weights, ids: Tensor, positions: Tensor, *, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """The embeddings that the family adds for tokens at `positions`, by name. `..., ... -> ...
    d_model`
    """
    config = weights.config
    family = config.family
    dtype = dtype or weights.dtype
    tokens = weights.raw[family.embed + ".weight"][ids]
    parts = {"token embedding": tokens.to(dtype) * config.embed_scale}
    if config.positions.kind == "learned":
        table = weights.raw[family.position_table.format(weights.attention.name) + ".weight"]
        parts["position embedding"] = table[config.positions.first + positions].to(dtype)
    if config.positions.kind == "sinusoidal":
        rows = int(positions.max()) + 1 if positions.numel() else 0
        sinusoids = formulas.sinusoids(rows, config.d_model).to(parts["token embedding"])
        parts["position embedding"] = sinusoids[positions]
    if config.n_token_types:
        # A single text consists of tokens of the first type.
        parts["token type embedding"] = weights.raw[family.type_table + ".weight"][0].to(dtype)
    return parts


def sum_embeddings(parts: Mapping[str, Tensor]) -> Tensor:
    """The sum of the embeddings, in the order of the names."""
    first, *later = parts.values()
    return sum(later, start=first)


def embedding_norm(weights: Weights, resid: Tensor) -> Tensor:
    """The stream after the norm between the embeddings and the first block, if the family has
    one. Shape unchanged.
    """
    return _named_norm(weights, resid, weights.config.family.embedding_norm)


def _named_norm(weights: Weights, x: Tensor, name: str) -> Tensor:
    weight, bias = weights.norm(name, x.dtype)
    return x if weight is None else norm(x, weight, bias, weights.config)


def final_norm(weights: Weights, resid_post: Tensor) -> Tensor:
    """The output of a stack: its last resid_post after the final norm, if the family has one.
    Shape unchanged.
    """
    return _named_norm(weights, resid_post, weights.config.family.final_norm)


def logits(weights: Weights, final: Tensor, tokens: Sequence[int] | None = None) -> Tensor:
    """Scores over the vocabulary, or of some tokens, from the output of the last stack. `...
    d_model -> ... d_vocab`
    """
    table = unembedding(weights, final.dtype)
    stored = weights.raw.get(weights.config.family.unembed_bias or "final_logits_bias")
    bias = table.new_zeros(len(table)) if stored is None else stored.to(final).flatten()
    if tokens is not None:
        table = table[list(tokens)]
        bias = bias[list(tokens)]
    scores = transformed(weights, final) @ table.T + bias
    bound = weights.config.final_logit_softcapping
    return formulas.softcap(scores, bound) if bound else scores


def transformed(weights: Weights, final: Tensor) -> Tensor:
    """The stream after BERT's head up to its last product: norm(activation(x W + b)), if the
    family has it. Shape unchanged.
    """
    dense, last_norm, activation = weights.config.family.lm_head_transform
    if not dense:
        return final
    hidden = final @ weights.raw[dense + ".weight"].to(final).T
    bias = weights.raw.get(dense + ".bias")
    activate = getattr(formulas, activation or weights.config.activation)
    preactivation = hidden if bias is None else hidden + bias.to(final)
    return _named_norm(weights, activate(preactivation), last_norm)


def unembedding_input(weights: Weights, resid_post: Tensor) -> Tensor:
    """The input of W_U: the last resid_post after the final norm and, if the family has it,
    BERT's head. Shape unchanged.
    """
    return transformed(weights, final_norm(weights, resid_post))


def unembedding(weights: Weights, dtype: torch.dtype) -> Tensor:
    """W_U, including the config's scale. `d_vocab d_model`"""
    config = weights.config
    family = config.family
    table = weights.raw[(family.embed if config.tied else family.unembed) + ".weight"].to(dtype)
    return table if config.unembed_scale == 1 else table * config.unembed_scale


def unembed(weights: Weights, resid_post: Tensor, tokens: Sequence[int] | None = None) -> Tensor:
    """Logits over the vocabulary, or of some tokens, from the last resid_post: the final norm,
    then W_U. `... d_model -> ... d_vocab`
    """
    return logits(weights, final_norm(weights, resid_post), tokens)
