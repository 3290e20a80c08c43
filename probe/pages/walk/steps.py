"""Every step of attention for all heads of one layer, each by the function of `probe.model.attention` that is its formula.

What goes in is hooked (Q, K, V, the stream); what comes out is held against the hook of the next step (`agreement`). Shapes use the
project's axis words; `pos` are all tokens of the text.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probe.model import attention, replay
from probe.model.records import Trace


@dataclass(frozen=True)
class Agreement:
    """One formula against the hook that it should equal: the largest |difference| relative to the scale of the hooked tensor."""

    layer: int
    step: str
    function: str
    error: float


def grids(trace: Trace, layer: int) -> dict[str, Tensor]:
    """`head query_pos key_pos`, by name:

    dot: Q Kᵀ · score: divided by sqrt(d_head), not yet masked · pattern: as hooked · open: softmax without the mask ·
    steep: softmax without the division.
    """
    q, k = trace.q[layer], trace.k[layer]
    score = attention.scores(q, k)
    dot = score * math.sqrt(q.shape[-1])
    return {
        "dot": dot,
        "score": score,
        "pattern": trace.pattern[layer],
        "open": attention.softmax(score),
        "steep": attention.softmax(attention.mask(dot)),
    }


def entropy(pattern: Tensor) -> Tensor:
    """-Σ A log2 A over key_pos, in bits: 0 when one token gets everything. `... key_pos -> ...`"""
    return -torch.special.xlogy(pattern, pattern).sum(-1) / math.log(2)


def response(pattern: Tensor) -> Tensor:
    """The trace of the softmax's Jacobian, Σ A (1 - A): how far the shares still answer to their scores; 0 when one token gets
    everything, so that no gradient comes back. `... key_pos -> ...`"""
    return (pattern * (1 - pattern)).sum(-1)


def written(trace: Trace, layer: int) -> Tensor:
    """Each token's value written out, V[j] W_O: what a head would add if it looked at that token alone. `-> head pos d_model`"""
    return attention.write(trace.v[layer], trace.weights.blocks[layer].w_o.cpu())


def by_source(trace: Trace, layer: int, *, at: int) -> Tensor:
    """ΔE at `at` taken apart by source token, for every head. `-> head key_pos d_model`"""
    w_o = trace.weights.blocks[layer].w_o.cpu()
    return attention.write_by_source(trace.pattern[layer][:, at], trace.v[layer], w_o)


def delta_e(trace: Trace, layer: int) -> Tensor:
    """ΔE of every head at every token. `-> head pos d_model`"""
    return attention.write(trace.z[layer], trace.weights.blocks[layer].w_o.cpu())


def along(parts: Tensor, whole: Tensor) -> Tensor:
    """The share of `whole` that each part is, along it: <part, whole> / <whole, whole>; shares of all parts sum to 1.

    `... part d_model, ... d_model -> ... part`
    """
    return (parts @ whole.unsqueeze(-1)).squeeze(-1) / whole.square().sum(-1, keepdim=True)


def plane(vectors: Tensor) -> tuple[Tensor, tuple[float, float]]:
    """The plane in which vectors differ most (PCA): coordinates, and the share of the variance that each axis explains.

    `point d -> point 2`. The sign of an axis is chosen so that its largest coordinate is positive.
    """
    centred = (vectors - vectors.mean(0)).double()
    u, s, _ = torch.linalg.svd(centred, full_matrices=False)
    coordinates = torch.nn.functional.pad(u * s, (0, max(0, 2 - len(s))))[:, :2]
    peak = coordinates.gather(0, coordinates.abs().argmax(0, keepdim=True))
    total = s.square().sum().clamp_min(torch.finfo(s.dtype).tiny)
    shares = torch.nn.functional.pad(s.square() / total, (0, max(0, 2 - len(s))))[:2].tolist()
    return (coordinates * peak.sign()).float(), (shares[0], shares[1])


def agreement(trace: Trace, layer: int, *, at: int) -> list[Agreement]:
    """Each formula run on the hooked tensors of the step before, against the hook of its own step."""
    block, epsilon = trace.weights.blocks[layer], trace.weights.epsilon
    block = replay.Block(**{name: tensor.cpu() for name, tensor in vars(block).items()})
    x, v, z = trace.x[layer], trace.v[layer], trace.z[layer]
    allowed = attention.mask(torch.zeros_like(trace.scores[layer])) == 0
    score = attention.scores(trace.q[layer], trace.k[layer])
    hooked_score = torch.where(allowed, trace.scores[layer], torch.zeros(()))
    rows: list[tuple[str, Callable[..., Tensor], Tensor, Tensor]] = [
        (
            "LN1(E)",
            attention.layer_norm,
            attention.layer_norm(trace.resid_pre[layer], block.ln1_gain, block.ln1_bias, epsilon),
            x,
        ),
        ("Q", attention.project, attention.project(x, block.w_q, block.b_q), trace.q[layer]),
        ("K", attention.project, attention.project(x, block.w_k, block.b_k), trace.k[layer]),
        ("V", attention.project, attention.project(x, block.w_v, block.b_v), v),
        ("scores", attention.scores, torch.where(allowed, score, torch.zeros(())), hooked_score),
        ("pattern", attention.softmax, attention.softmax(attention.mask(score)), trace.pattern[layer]),
        ("z", attention.mix, attention.mix(trace.pattern[layer], v), z),
        (
            "Σ over sources",
            attention.write_by_source,
            by_source(trace, layer, at=at).sum(-2),
            delta_e(trace, layer)[:, at],
        ),
        ("Concat(z) W_O + b_O", replay.merge_heads, replay.merge_heads(block, z), trace.attn_out[layer]),
        ("Σ ΔE + b_O", attention.write, delta_e(trace, layer).sum(0) + block.b_o, trace.attn_out[layer]),
    ]
    return [Agreement(layer, step, named(function), _error(got, hooked)) for step, function, got, hooked in rows]


def named(function: Callable[..., Tensor]) -> str:
    """attention.scores"""
    return f"{function.__module__.removeprefix('probe.')}.{function.__name__}"


def _error(got: Tensor, hooked: Tensor) -> float:
    scale = hooked.abs().max().item()
    gap = (got - hooked).abs().max().item()
    return gap / scale if scale else gap


def first_numbers(tensor: Tensor, positions: Sequence[int], count: int) -> Tensor:
    """The first `count` coordinates at these positions. `... pos d -> ... position count`"""
    return tensor[..., list(positions), :count]
