"""Patterns and z from queries, keys and values as they meet: scores with the family's scale, cap, bias and masks.

The attention of `probe.patching.engine` and of everything that follows one head's query, key or value.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from probe.model import forward
from probe.model.attention import cap, look_back, mask, rotary_angles, share_heads
from probe.model.weights import Block, Weights

KeysValues = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Places:
    """What depends on positions alone, for one run: cosines and sines `pos dims` of rotary positions, bias `head
    query_pos key_pos`, minus infinity where nothing is read; `local` is the same for layers that look back only so far.
    """

    cos: Tensor | None
    sin: Tensor | None
    bias: Tensor | None
    local: "Places | None" = None

    def of(self, block: Block) -> "Places":
        """Those of this block."""
        return self.local if block.local and self.local is not None else self

    def row(self, block: Block, pos: int) -> Tensor | None:
        """What is added to the scores of the query at `pos`, whose own key is the last. `head 1 key_pos`"""
        bias = self.of(block).bias
        return None if bias is None else bias[:, pos, None, : pos + 1]


def places_of(weights: Weights, n: int) -> Places:
    """The constants of texts of up to `n` tokens."""
    bias, config = forward.position_bias(weights, n), weights.config
    local = None
    if any(config.local):
        every = torch.zeros(n, n, dtype=weights.dtype, device=weights.device)
        near = mask(look_back(every, config.window)).expand(config.n_heads, n, n) if n > config.window else None
        local = Places(*_turns(weights, n, local=True), near)
    if bias is not None:
        bias = (mask(bias) if weights.causal else bias).to(weights.dtype)
    return Places(*_turns(weights, n, local=False), bias, local)


def _turns(weights: Weights, n: int, *, local: bool) -> tuple[Tensor | None, Tensor | None]:
    """Cosines and sines of rotary positions. `pos dims`"""
    if weights.config.positions.kind != "rotary":
        return None, None
    frequencies = forward.rotary(weights.config.positions, local=local).to(weights.device)
    angles = rotary_angles(torch.arange(n, device=weights.device), frequencies)
    return angles.cos().to(weights.dtype), angles.sin().to(weights.dtype)


def scale_of(weights: Weights) -> float:
    """What scores are multiplied by: one over the root of d_head, or of the config's own number."""
    config = weights.config
    return (config.query_scalar or config.d_head) ** -0.5 if config.family.scaled else 1.0


def pattern(weights: Weights, matches: Tensor, bias: Tensor | None) -> Tensor:
    """The pattern from products of queries and keys: softmax(cap(scale q k) + bias). `... key_pos`, unchanged"""
    scores = matches * scale_of(weights)
    if weights.config.score_cap:
        scores = cap(scores, weights.config.score_cap)
    return (scores if bias is None else scores + bias).softmax(-1)


def attend(weights: Weights, block: Block, q: Tensor, k: Tensor, v: Tensor, places: Places) -> Tensor:
    """z of whole texts, or of the last positions of texts whose keys and values are given whole.

    `... head query_pos d_head, twice ... kv_head key_pos d_head -> ... head query_pos d_head`
    """
    n, size, leading, bias = q.shape[-2], k.shape[-2], q.shape[:-3], places.of(block).bias
    if bias is not None:
        bias = bias[:, size - n : size, :size]
    elif weights.causal and (n < size or weights.config.score_cap):
        bias = mask(q.new_zeros(n, size))
    q, k, v = (part.flatten(0, -4) for part in (q, k, v))
    if weights.config.score_cap:
        k, v = (share_heads(part, q.shape[-3]) for part in (k, v))
        z = pattern(weights, q @ k.mT, bias) @ v
    else:
        causal, grouped = weights.causal and bias is None, q.shape[-3] != k.shape[-3]
        z = functional.scaled_dot_product_attention(
            q, k, v, bias, is_causal=causal, scale=scale_of(weights), enable_gqa=grouped
        )
    return z.unflatten(0, leading)


def attend_last(
    weights: Weights, block: Block, own: tuple[Tensor, Tensor, Tensor], known: KeysValues, places: Places
) -> Tensor:
    """z of many variants of the one position behind the known ones.

    `own: batch head variant d_head, known: batch kv_head key_pos d_head -> batch head variant d_head`
    """
    keys, values = known
    q, k, v = (part.unflatten(1, (keys.shape[1], -1)) for part in own)  # batch kv_head head variant d_head
    matches = torch.cat([_grouped(q, keys.mT), (q * k).sum(-1, keepdim=True)], dim=-1)
    bias = places.row(block, keys.shape[-2])
    shares = pattern(weights, matches, None if bias is None else bias.unflatten(0, (keys.shape[1], -1)))
    return torch.addcmul(_grouped(shares[..., :-1], values), shares[..., -1:], v).flatten(1, 2)


def _grouped(x: Tensor, shared: Tensor) -> Tensor:
    """The product of every head's rows with the matrix that its group shares.

    `batch kv_head head row a, batch kv_head a b`
    """
    return (x.flatten(2, 3) @ shared).unflatten(2, x.shape[2:4])


def pattern_at(weights: Weights, block: Block, q: Tensor, k: Tensor, at: Tensor, places: Places) -> Tensor:
    """The pattern row of the query at `at`. `batch head d_head, batch kv_head key_pos d_head -> batch head key_pos`"""
    matches = (q.unflatten(1, (k.shape[1], -1)) @ k.mT).flatten(1, 2)
    bias = places.of(block).bias
    if bias is not None:
        bias = bias[:, at, : k.shape[-2]].transpose(0, 1)
    elif weights.causal:
        bias = mask(q.new_zeros(k.shape[-2], k.shape[-2]))[at, None]
    return pattern(weights, matches, bias)
