"""Attention from its formulas: project, score, mask, softmax, mix, write.

Pure functions of tensors with no state and no model in sight. They are the lesson (each is the formula that a page shows),
the oracle (run in float64 from raw weights, the other side of every comparison with a hooked model) and, in float32, the
engine of `probe.replay`. Axis words are those of the whole project: `head pos query_pos key_pos d_head d_model`; any number
of leading axes (a batch, say) may stand before them.

Sources: Vaswani et al. 2017 (attention); Elhage et al. 2021, A Mathematical Framework for Transformer Circuits (the
per-head additive form); Ba et al. 2016 (LayerNorm); Hendrycks & Gimpel 2016 (GELU, tanh form).
"""

import math

import torch
from torch import Tensor


def layer_norm(x: Tensor, gain: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """What a block reads: (x - mean) / sqrt(variance + epsilon) * gain + bias, over d_model. `... d_model -> ... d_model`."""
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred / torch.sqrt(variance + epsilon) * gain + bias


def project(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Queries, keys or values of every head: x W + b.

    `pos d_model, head d_model d_head, head d_head -> head pos d_head`
    """
    return torch.einsum("...pm,hmd->...hpd", x, weight) + bias.unsqueeze(-2)


def scores(q: Tensor, k: Tensor) -> Tensor:
    """How well each key answers each query: Q Kᵀ / sqrt(d_head).

    `head query_pos d_head, head key_pos d_head -> head query_pos key_pos`
    """
    return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])


def mask(scores: Tensor) -> Tensor:
    """The causal mask: minus infinity wherever the key stands after the query. `head query_pos key_pos`, unchanged in shape."""
    query_pos, key_pos = scores.shape[-2:]
    ahead = torch.ones(query_pos, key_pos, dtype=torch.bool, device=scores.device).triu(key_pos - query_pos + 1)
    return scores.masked_fill(ahead, -math.inf)


def softmax(scores: Tensor) -> Tensor:
    """The attention pattern A: exp(s) / sum exp(s) over key_pos, so that every row is shares of 1. Rows are queries."""
    exponentials = torch.exp(scores - scores.amax(-1, keepdim=True))
    return exponentials / exponentials.sum(-1, keepdim=True)


def mix(pattern: Tensor, v: Tensor) -> Tensor:
    """What each head carries: z = A V.  `head query_pos key_pos, head key_pos d_head -> head query_pos d_head`"""
    return pattern @ v


def write(z: Tensor, w_o: Tensor) -> Tensor:
    """ΔE, each head's additive write to the residual stream, without b_O: z W_O.

    `head pos d_head, head d_head d_model -> head pos d_model`
    """
    return z @ w_o


def write_by_source(pattern_row: Tensor, v: Tensor, w_o: Tensor) -> Tensor:
    """ΔE at one destination, taken apart by source token: A[t, j] V[j] W_O. Sums over key_pos to ΔE[t].

    `head key_pos, head key_pos d_head, head d_head d_model -> head key_pos d_model`. b_V stays inside V.
    """
    return pattern_row.unsqueeze(-1) * v @ w_o


def gelu_new(x: Tensor) -> Tensor:
    """GPT-2's activation, the tanh form of GELU: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x³)))."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
