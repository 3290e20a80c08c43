"""Attention from its formulas: project, score, mask, softmax, mix, write.

These are pure functions of tensors, without state and without a model. A page shows them as the
formulas of each step, and runs them. A block (`probe.model.blocks`) runs them where torch has no
faster function for the same formula. The axis words are those of the whole project: `head pos
query_pos key_pos d_head d_model`. Any number of leading axes (a batch, say) may come before them.

Sources: Vaswani et al. 2017 (attention); Elhage et al. 2021, A Mathematical Framework for
    Transformer Circuits (the per-head additive form); Ba et al. 2016 (LayerNorm); Zhang & Sennrich
    2019 (RMSNorm); Su et al. 2021 (rotary positions); Chen et al. 2023, Peng et al. 2023, Ding et
    al. 2024 and Dubey et al. 2024 (their scaling: linear, YaRN, LongRoPE, Llama 3); Gemma Team 2024
    (caps); Raffel et al. 2020 (relative position buckets); Hendrycks & Gimpel 2016 (GELU, tanh
    form); So et al. 2021 (squared ReLU).
"""

import math

import torch
from torch import Tensor


def layer_norm(x: Tensor, gain: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """The input of a block: (x - mean) / sqrt(variance + epsilon) * gain + bias. `... d_model ->
    ... d_model`
    """
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred / torch.sqrt(variance + epsilon) * gain + bias


def inverse_rms(x: Tensor, epsilon: float) -> Tensor:
    """1 / sqrt(mean(x²) + epsilon) over d_model, the factor of RMSNorm. `... d_model -> ... 1`"""
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)


def rms_norm(x: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    """LayerNorm without centring and bias: x / sqrt(mean(x²) + epsilon) * gain. `... d_model ->
    ... d_model`
    """
    return x * inverse_rms(x, epsilon) * gain


def project(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Queries, keys or values of each head: x W + b.

    `pos d_model, head d_model d_head, head d_head -> head pos d_head`
    """
    return torch.einsum("...pm,hmd->...hpd", x, weight) + bias.unsqueeze(-2)


def repeat_kv(k: Tensor, heads: int) -> Tensor:
    """Keys (or values) of grouped-query attention, repeated for the heads / kv_head queries that
    share each of them.

    `kv_head pos d_head -> head pos d_head`
    """
    return k.repeat_interleave(heads // k.shape[-3], dim=-3)


def scores(q: Tensor, k: Tensor) -> Tensor:
    """How well each key matches each query: Q Kᵀ / sqrt(d_head).

    `twice head pos d_head -> head query_pos key_pos`
    """
    return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])


def softcap(x: Tensor, bound: float) -> Tensor:
    """Gemma's soft cap: bound tanh(x / bound), which is about x near 0 and never exceeds the
    bound. Shape unchanged.
    """
    return bound * torch.tanh(x / bound)


def matches(q: Tensor, k: Tensor) -> Tensor:
    """Q Kᵀ, the scores before scaling. T5, which scales in its initialisation, uses these.

    `-> head query_pos key_pos`
    """
    return q @ k.transpose(-1, -2)


def rotary_frequencies(dims: int, base: float, slower: Tensor | float = 1.0) -> Tensor:
    """How fast each pair of coordinates rotates with the position: 1 / (slower base^(2 i /
    dims)).

    `-> pair`

    slower: one number, or LongRoPE's number for each pair

    In single precision, because models are trained and run with the rounded numbers.
    """
    exponents = torch.arange(0, dims, 2, dtype=torch.float32, device="cpu") / dims
    return 1.0 / (slower * base**exponents)


def yarn(
    dims: int,
    base: float,
    *,
    factor: float,
    length: float,
    fast: float,
    slow: float,
    whole: bool,
) -> Tensor:
    """YaRN's frequencies for texts `factor` times as long as the training `length`. `-> pair`

    A pair that rotates more than `fast` times in that length keeps its frequency, and a pair that
    rotates fewer than `slow` times is slowed down by the factor. In between, the frequency is
    interpolated linearly in the number of the pair. `whole` rounds the two ends outwards to whole
    numbers.
    """

    def pair_of(turns: float) -> float:
        """The pair, as a real number, that makes this number of turns in the length."""
        return dims * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    first, last = pair_of(fast), pair_of(slow)
    if whole:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dims - 1)
    width = last - first or 0.001
    slowed = ((torch.arange(dims // 2, dtype=torch.float32, device="cpu") - first) / width).clamp(
        0, 1
    )
    unscaled = 1 - slowed
    frequencies = rotary_frequencies(dims, base)
    return rotary_frequencies(dims, base, factor) * (1 - unscaled) + frequencies * unscaled


def rope_scaling(
    frequencies: Tensor, *, factor: float, low: float, high: float, length: float
) -> Tensor:
    """Llama 3's frequencies for texts `factor` times as long as the training `length`.

    `pair -> pair`

    A pair that rotates fewer than `low` times in that length is slowed down by the factor, and a
    pair that rotates more than `high` times keeps its frequency. Pairs in between are interpolated.
    """
    turns = length / (2 * math.pi / frequencies)
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - share) * frequencies / factor + share * frequencies


def rotary_angles(positions: Tensor, frequencies: Tensor) -> Tensor:
    """The angle of each coordinate, in single precision, equal in both halves.

    `pos, pair -> pos dims`
    """
    return (positions.float()[:, None] * frequencies).repeat(1, 2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Coordinates i and i + dims/2 of a query or key, rotated by their angle.

    `head pos dims, pos dims -> head pos dims`

    cos, sin: of the angles; times a factor in a model that scales queries and keys
    """
    # (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin), for the two halves x1 and x2
    first, second = x.chunk(2, dim=-1)
    quarter_turn = torch.cat([-second, first], dim=-1)
    return x * cos + quarter_turn * sin


def halves(x: Tensor) -> Tensor:
    """The coordinates in the order 0 2 4 ... 1 3 5 ..., so that `rotate` rotates GPT-J's pairs of
    adjacent coordinates. Shape unchanged.

    A query and a key in the same order match as before.
    """
    return torch.cat([x[..., ::2], x[..., 1::2]], dim=-1)


def sinusoids(n: int, d_model: int) -> Tensor:
    """Vaswani's positions, first sines, then cosines: sin(pos / 10000^(2 i / d_model)).

    `-> pos d_model`

    Rounded to float32, as the architecture stores its table.
    """
    pairs = torch.arange(d_model, dtype=torch.float64, device="cpu") // 2
    positions = torch.arange(n, dtype=torch.float64, device="cpu")
    angles = positions[:, None] / 10000 ** (2 * pairs / d_model)
    return torch.cat([angles[:, 0::2].sin(), angles[:, 1::2].cos()], dim=-1).float()


def relative_bias(table: Tensor, offsets: Tensor, *, furthest: int, both_ways: bool) -> Tensor:
    """T5's positions: a number per head for the distance from query to key, by bucket, added to
    the scores.

    `bucket head, query_pos key_pos -> head query_pos key_pos`

    offsets: key position minus query position
    """
    buckets = relative_buckets(offsets, len(table), furthest=furthest, both_ways=both_ways)
    return table[buckets].movedim(-1, -3)


def relative_buckets(offsets: Tensor, buckets: int, *, furthest: int, both_ways: bool) -> Tensor:
    """The bucket of each offset: a bucket for each near key, then wider and wider buckets up to
    `furthest`. Shape unchanged.

    `both_ways` uses half of the buckets for later keys; otherwise every later key is at distance 0.
    """
    half = buckets // 2 if both_ways else buckets
    later = (offsets > 0) * half if both_ways else torch.zeros_like(offsets)
    distance = offsets.abs() if both_ways else (-offsets).clamp_min(0)
    exact = half // 2
    # In single precision, as the model rounds: at a border another rounding gives another bucket.
    octaves = torch.log(distance.clamp_min(1).float() / exact) / math.log(furthest / exact)
    wide = (exact + (octaves * (half - exact)).long()).clamp_max(half - 1)
    return later + torch.where(distance < exact, distance, wide)


def mask(scores: Tensor) -> Tensor:
    """The causal mask: minus infinity wherever the key comes after the query. Shape unchanged."""
    query_pos, key_pos = scores.shape[-2:]
    everywhere = torch.ones(query_pos, key_pos, dtype=torch.bool, device=scores.device)
    # With fewer queries than keys, the queries are the last positions.
    later = everywhere.triu(key_pos - query_pos + 1)
    return scores.masked_fill(later, -math.inf)


def sliding_window(scores: Tensor, window: int, *, both_ways: bool = False) -> Tensor:
    """A local layer's mask: minus infinity if a key is `window` or more tokens before the query.
    Shape unchanged.

    With `both_ways`: if it is more than `window` tokens away from the query.
    """
    query_pos, key_pos = scores.shape[-2:]
    everywhere = torch.ones(query_pos, key_pos, dtype=torch.bool, device=scores.device)
    diagonal = key_pos - query_pos  # on it, query and key are at the same position
    outside = everywhere.tril(diagonal - window)
    if both_ways:
        outside = everywhere.tril(diagonal - window - 1) | everywhere.triu(diagonal + window + 1)
    return scores.masked_fill(outside, -math.inf)


def softmax(scores: Tensor) -> Tensor:
    """The attention pattern A: exp(s) / sum exp(s) over key_pos. Every row sums to 1; rows are
    queries.
    """
    exponentials = torch.exp(scores - scores.amax(-1, keepdim=True))
    return exponentials / exponentials.sum(-1, keepdim=True)


def mix(pattern: Tensor, v: Tensor) -> Tensor:
    """The weighted values of each head: z = A V.

    `head query_pos key_pos, head key_pos d_head -> head query_pos d_head`
    """
    return pattern @ v


def gated(z: Tensor, x: Tensor, w_gate: Tensor | None) -> Tensor:
    """The weighted values, gated by the head's input: sigmoid(x W_gate) * z; unchanged without a
    gate.

    `head pos d_head, pos d_model, head d_model d_head -> head pos d_head`. The gate depends on the
    position, so it can also be applied to values of several keys, `head key_pos d_head`, with a
    single x.
    """
    if w_gate is None:
        return z
    return torch.sigmoid(x.unsqueeze(-3) @ w_gate) * z


def write(z: Tensor, w_o: Tensor) -> Tensor:
    """ΔE, each head's additive write, without b_O: z W_O.

    `head pos d_head, head d_head d_model -> head pos d_model`
    """
    return z @ w_o


def write_by_source(pattern_row: Tensor, v: Tensor, w_o: Tensor) -> Tensor:
    """ΔE at one destination by source token: A[t, j] V[j] W_O. The sum over key_pos is ΔE[t].

    `head key_pos, head key_pos d_head, head d_head d_model -> head key_pos d_model`. b_V is part of
    V.
    """
    return pattern_row.unsqueeze(-1) * v @ w_o


def gelu_new(x: Tensor) -> Tensor:
    """GPT-2's activation, the tanh form of GELU: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x³)))."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def gelu(x: Tensor) -> Tensor:
    """The exact GELU, x times the standard normal distribution function at x: x/2 (1 + erf(x /
    sqrt 2)).
    """
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def relu(x: Tensor) -> Tensor:
    """x if it is positive, otherwise 0."""
    return x.clamp_min(0)


def relu_squared(x: Tensor) -> Tensor:
    """x² if x is positive, otherwise 0."""
    return relu(x).square()


def silu(x: Tensor) -> Tensor:
    """x times its logistic function, also called swish: x / (1 + exp(-x))."""
    return x / (1 + torch.exp(-x))
