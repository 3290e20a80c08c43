"""How well the weights of two heads fit together: what a later head could read of what an earlier one writes.

With the sender's W_OV = W_V W_O and the receiver's W_QK = W_Q W_Kᵀ and W_OV (vectors are rows, so that a write is x W_V
W_O and a score x_query W_Q W_Kᵀ x_keyᵀ), in Frobenius norms:

    query  |W_OV W_QK|  / (|W_OV| |W_QK|)
    key    |W_OV W_QKᵀ| / (|W_OV| |W_QK|)
    value  |W_OV W_OV′| / (|W_OV| |W_OV′|)

Raw weights: no norm's gain is folded in, biases play no part, and rotary positions are left out (a query and a key at
the same place). A score says what a pair of heads could do, on no text at all; what it does is a path
(`probe.patching.paths`).

Source: Elhage et al. 2021 (composition scores).
"""

import torch
from torch import Tensor

from probe.model.attention import share_heads
from probe.model.weights import Weights


def composition(weights: Weights) -> Tensor:
    """Query, key and value composition of every pair of heads, in float64; NaN where the receiver's block is not later.

    `-> channel sender_layer sender_head receiver_layer receiver_head`
    """
    layers, heads, *_ = weights.shape
    q, k, v, o = (_stacked(weights, role) for role in ("w_q", "w_k", "w_v", "w_o"))
    gram_q, gram_k, gram_v = (part.mT @ part for part in (q, k, v))  # layer head d_head d_head
    gram_o = o @ o.mT
    ov, qk = ((one * other).sum((-1, -2)).sqrt() for one, other in ((gram_v, gram_o), (gram_q, gram_k)))
    found = torch.full((3, layers, heads, layers, heads), torch.nan, dtype=torch.float64)
    for sender in range(layers):
        for receiver in range(sender + 1, layers):
            read_by = ((q, gram_k, qk), (k, gram_q, qk), (v, gram_o, ov))
            for channel, (reads, behind, size) in enumerate(read_by):
                between = o[sender, :, None] @ reads[receiver]  # sender receiver d_head d_head
                product = (gram_v[sender, :, None] @ between @ behind[receiver] * between).sum((-1, -2))
                sizes = ov[sender, :, None] * size[receiver]
                found[channel, sender, :, receiver] = (product.clamp_min(0).sqrt() / sizes).cpu()
    return found


def _stacked(weights: Weights, role: str) -> Tensor:
    """One weight of every head, repeated for the heads that share it. `-> layer head ...`"""
    parts = (getattr(block, role).double() for block in weights.blocks)
    return torch.stack([share_heads(part, weights.shape[1]) for part in parts])
