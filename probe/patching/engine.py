"""The forward of `probe.model.replay` in fused operations, for the swaps of `probe.patching.swaps`: the same formulas, fewer passes over memory.

Why one position is enough: in a causal model a change at position t touches only t and later positions, so a variant of a run
is one vector per layer, carried against the keys and values of the unchanged positions before it. Those are computed once.

Queries, keys and values of all heads come out of one product, norms, GELU and the attention of the prefix are torch's own, and
sums go into the tensor that is there. What it must equal is `replay.run`: to 1e-5 of the scale in float32, 1e-10 in float64.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from probe.model import replay
from probe.model.replay import Block, Weights


def project(block: Block, resid: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of every head from LN1(E). `batch pos d_model -> batch head pos d_head`, three times."""
    x = functional.layer_norm(resid, resid.shape[-1:], block.ln1_gain, block.ln1_bias, epsilon)
    q, k, v = _linear(x, block.w_qkv, block.b_qkv).unflatten(-1, (3, len(block.w_o), -1)).permute(2, 0, 3, 1, 4)
    return q, k, v


def write(block: Block, resid: Tensor, z: Tensor) -> Tensor:
    """E′ = E + Concat(z) W_O + b_O. `batch pos d_model, batch head pos d_head -> batch pos d_model`"""
    return _added(resid + block.b_o, z.transpose(1, 2).flatten(2), block.w_o.flatten(0, 1))


def activate(block: Block, resid_mid: Tensor, epsilon: float) -> Tensor:
    """gelu(W_in LN2(E′) + b_in). `batch pos d_model -> batch pos d_mlp`"""
    x = functional.layer_norm(resid_mid, resid_mid.shape[-1:], block.ln2_gain, block.ln2_bias, epsilon)
    return functional.gelu(_linear(x, block.w_in, block.b_in), approximate="tanh")


def finish(block: Block, resid_mid: Tensor, epsilon: float) -> Tensor:
    """The block's end: E′ + MLP(LN2(E′)), in the place of E′."""
    hidden = activate(block, resid_mid, epsilon)
    return _added(resid_mid.add_(block.b_out), hidden, block.w_out)


def run(weights: Weights, rows: Sequence[Sequence[int]], depth: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Queries, keys and values of an unchanged run of equally long rows of token ids, block by block, for `depth` blocks.

    What stands at a position depends on the tokens up to it alone, so a beginning that several rows share is computed once.
    `-> batch head pos d_head`, three times.
    """
    once, where = (torch.tensor(part, dtype=torch.long, device=weights.wte.device) for part in _beginnings(rows))
    ids = torch.tensor(rows, dtype=torch.long, device=weights.wte.device)
    resid = replay.embed(weights, ids).flatten(0, 1)[once, None]  # beginning 1 d_model
    for layer, block in enumerate(weights.blocks[:depth]):
        q, k, v = (part[where, :, 0].transpose(1, 2) for part in project(block, resid, weights.epsilon))
        yield q, k, v
        if layer + 1 < depth:
            z = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            z = z.transpose(1, 2).flatten(0, 1)[once].unsqueeze(2)
            resid = finish(block, write(block, resid, z), weights.epsilon)


def _beginnings(rows: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Where each different beginning `row[: pos + 1]` first ends in the flattened rows, and which one ends at each place."""
    number: dict[tuple[int, int], int] = {}
    once: list[int] = []
    where: list[list[int]] = [[] for _ in rows]
    for place, row in enumerate(rows):
        last = -1
        for pos, token in enumerate(row):
            longer = number.setdefault((last, token), len(number))
            if longer == len(once):
                once.append(place * len(row) + pos)
            where[place].append(last := longer)
    return once, where


def attend_last(block: Block, resid: Tensor, prefix: tuple[Tensor, Tensor], epsilon: float) -> Tensor:
    """z of many variants of the position after the prefix; each attends to the prefix and to itself.

    `batch variant d_model, twice batch head key_pos d_head -> batch head variant d_head`
    """
    q, k, v = project(block, resid, epsilon)
    q = q * q.shape[-1] ** -0.5
    to_itself = (q * k).sum(-1, keepdim=True)
    pattern = torch.cat([q @ prefix[0].transpose(-1, -2), to_itself], dim=-1).softmax(-1)
    return torch.addcmul(pattern[..., :-1] @ prefix[1], pattern[..., -1:], v)


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias, x.flatten(0, -2), weight).unflatten(0, x.shape[:-1])


def _added(total: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """total + x W, in the place of total, which must be contiguous."""
    total.view(-1, total.shape[-1]).addmm_(x.flatten(0, -2), weight)
    return total
