"""Attention from its formulas: project, score, mask, softmax, mix, write.

Pure functions of tensors with no state and no model in sight. They are the lesson (each is the
formula that a page shows) and the oracle: `probe.model.forward` runs them from raw weights, in
float64 as the other side of every comparison with a hooked model. Axis words are those of the whole
project: `head pos query_pos key_pos d_head d_model`; any number of leading axes (a batch, say) may
stand before them.

Sources: Vaswani et al. 2017 (attention); Elhage et al. 2021, A Mathematical Framework for
Transformer Circuits (the per-head additive form); Ba et al. 2016 (LayerNorm); Zhang & Sennrich 2019
(RMSNorm); Su et al. 2021 (rotary positions); Chen et al. 2023, Peng et al. 2023, Ding et al. 2024
and Dubey et al. 2024 (their scaling: linear, YaRN, LongRoPE, Llama 3); Gemma Team 2024 (caps);
Raffel et al. 2020 (relative position buckets); Press et al. 2022 (ALiBi); Hendrycks & Gimpel 2016
(GELU, tanh form); So et al. 2021 (squared ReLU); Shazeer et al. 2017 (routed MLPs); Xiao et al.
2024 and OpenAI 2025 (sinks).
"""

import math

import torch
from torch import Tensor


def layer_norm(x: Tensor, gain: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """What a block reads: (x - mean) / sqrt(variance + epsilon) * gain + bias. `... d_model -> ...
    d_model`"""
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred / torch.sqrt(variance + epsilon) * gain + bias


def inverse_rms(x: Tensor, epsilon: float) -> Tensor:
    """1 / sqrt(mean(x²) + epsilon) over d_model, by which RMSNorm multiplies. `... d_model -> ...
    1`"""
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)


def rms_norm(x: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    """LayerNorm without centring and bias: x / sqrt(mean(x²) + epsilon) * gain. `... d_model -> ...
    d_model`"""
    return x * inverse_rms(x, epsilon) * gain


def project(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x W + b: queries, keys or values by head. `pos d_model, head d_model d_head, head d_head ->
    head pos d_head`"""
    return torch.einsum("...pm,hmd->...hpd", x, weight) + bias.unsqueeze(-2)


def repeat_kv(k: Tensor, heads: int) -> Tensor:
    """Grouped-query heads: each key (or value) head serves heads / kv_head queries side by side.

    `kv_head pos d_head -> head pos d_head`
    """
    return k.repeat_interleave(heads // k.shape[-3], dim=-3)


def scores(q: Tensor, k: Tensor) -> Tensor:
    """How well each key answers each query: Q Kᵀ / sqrt(d_head). `twice head pos d_head -> head
    query_pos key_pos`"""
    return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])


def softcap(x: Tensor, bound: float) -> Tensor:
    """Gemma's soft cap: bound tanh(x / bound), x itself near 0 and never beyond the bound. Shape
    unchanged."""
    return bound * torch.tanh(x / bound)


def matches(q: Tensor, k: Tensor) -> Tensor:
    """Q Kᵀ, scores before scaling; T5, which scales in its initialisation, stops here. `-> head
    query_pos key_pos`"""
    return q @ k.transpose(-1, -2)


def rotary_frequencies(dims: int, base: float, slower: Tensor | float = 1.0) -> Tensor:
    """How fast each pair of coordinates turns with the position: 1 / (slower base^(2 i / dims)).
    `-> pair`

    `slower` is one number, or LongRoPE's of every pair. In single precision: models are trained and
    run with the rounded numbers, which are part of what they are.
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
    """YaRN's frequencies for texts `factor` times as long as the `length` of training. `-> pair`

    A pair that turns more than `fast` times in that length is left alone, one that turns fewer than
    `slow` times is slowed down by the factor; between the two the share of either goes linearly
    with the number of the pair. `whole` rounds the two ends outwards to whole numbers.
    """

    def pair_of(turns: float) -> float:
        """The pair, as a real number, that turns so many times in the length."""
        return dims * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    first, last = pair_of(fast), pair_of(slow)
    if whole:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dims - 1)
    width = last - first or 0.001
    slowed = ((torch.arange(dims // 2, dtype=torch.float32, device="cpu") - first) / width).clamp(
        0, 1
    )
    alone = 1 - slowed
    frequencies = rotary_frequencies(dims, base)
    return rotary_frequencies(dims, base, factor) * (1 - alone) + frequencies * alone


def rope_scaling(
    frequencies: Tensor, *, factor: float, low: float, high: float, length: float
) -> Tensor:
    """Llama 3's frequencies for texts `factor` times as long as the `length` of its training. `pair
    -> pair`

    A pair that turns fewer than `low` times in that length is slowed down by the factor, one that
    turns more than `high` times is left alone, those between are mixed in proportion.
    """
    turns = length / (2 * math.pi / frequencies)
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - share) * frequencies / factor + share * frequencies


def rotary_angles(positions: Tensor, frequencies: Tensor) -> Tensor:
    """By how much each coordinate is turned, in single precision, both halves alike. `pos, pair ->
    pos dims`"""
    return (positions.float()[:, None] * frequencies).repeat(1, 2)


def rotate(x: Tensor, angles: Tensor, length: float = 1.0) -> Tensor:
    """Coordinates i and i + dims/2 of a query or key rotated by their angle, and `length` times as
    long; those beyond dims left alone.

    `head pos d_head, pos dims -> head pos d_head`
    """
    dims = angles.shape[-1]
    rotary = x[..., :dims]
    first, second = rotary.chunk(2, dim=-1)
    quarter_turn = torch.cat([-second, first], dim=-1)
    cos = (angles.cos() * length).to(x.dtype)
    sin = (angles.sin() * length).to(x.dtype)
    rotated = rotary * cos + quarter_turn * sin
    return torch.cat([rotated, x[..., dims:]], dim=-1)


def halves(x: Tensor, dims: int) -> Tensor:
    """The first `dims` coordinates in the order 0 2 4 ... 1 3 5 ..., so that `rotate` turns GPT-J's
    pairs, which stand side by side, together. A query and a key in the same order match as before.
    Shape unchanged.
    """
    return torch.cat([x[..., :dims:2], x[..., 1:dims:2], x[..., dims:]], dim=-1)


def sinusoids(n: int, d_model: int) -> Tensor:
    """Vaswani's positions, first sines, then cosines: sin(pos / 10000^(2 i / d_model)). `-> pos
    d_model`

    Rounded to float32, which is how the architecture keeps its table.
    """
    pairs = torch.arange(d_model, dtype=torch.float64, device="cpu") // 2
    positions = torch.arange(n, dtype=torch.float64, device="cpu")
    angles = positions[:, None] / 10000 ** (2 * pairs / d_model)
    return torch.cat([angles[:, 0::2].sin(), angles[:, 1::2].cos()], dim=-1).float()


def relative_bias(table: Tensor, offsets: Tensor, *, furthest: int, both_ways: bool) -> Tensor:
    """T5's positions: for how far the key is from the query, a number per head, by bucket, added to
    the scores.

    `bucket head, query_pos key_pos -> head query_pos key_pos`; `offsets` is key position minus
    query position.
    """
    buckets = relative_buckets(offsets, len(table), furthest=furthest, both_ways=both_ways)
    return table[buckets].movedim(-1, -3)


def relative_buckets(offsets: Tensor, buckets: int, *, furthest: int, both_ways: bool) -> Tensor:
    """The bucket of each offset: one each for near keys, then wider and wider ones up to
    `furthest`; the same shape.

    `both_ways` keeps half of the buckets for later keys; otherwise every later key is at distance
    0.
    """
    half = buckets // 2 if both_ways else buckets
    later = (offsets > 0) * half if both_ways else torch.zeros_like(offsets)
    distance = offsets.abs() if both_ways else (-offsets).clamp_min(0)
    exact = half // 2
    # single precision, as the model rounds: at a border the other rounding would be another bucket
    octaves = torch.log(distance.clamp_min(1).float() / exact) / math.log(furthest / exact)
    wide = (exact + (octaves * (half - exact)).long()).clamp_max(half - 1)
    return later + torch.where(distance < exact, distance, wide)


def alibi_slopes(heads: int) -> Tensor:
    """How much each head's scores fall with the distance: 2^(-8 i / heads) for i = 1, 2, ... `->
    head`

    Where the number of heads is no power of two, the slopes of the next smaller power stand first,
    then every second one of the next larger. In single precision, as models have them.
    """
    power = 2 ** int(math.log2(heads))

    def slopes(count: int) -> Tensor:
        ratio = torch.tensor(2 ** (-8 / count), dtype=torch.float32, device="cpu")
        return ratio ** torch.arange(1, count + 1, device="cpu")

    return torch.cat([slopes(power), slopes(2 * power)[::2]])[:heads]


def alibi(slopes: Tensor, keys: Tensor) -> Tensor:
    """ALiBi, added to the scores: slope times key position. `head, key_pos -> head 1 key_pos`

    Less the same of the query's own position, which the softmax does not see, it is how far the key
    stands before the query, times minus the slope.
    """
    return slopes[:, None, None] * keys


def mask(scores: Tensor) -> Tensor:
    """The causal mask: minus infinity wherever the key stands after the query. Shape unchanged."""
    query_pos, key_pos = scores.shape[-2:]
    every = torch.ones(query_pos, key_pos, dtype=torch.bool, device=scores.device)
    # with fewer queries than keys, the queries are the last positions
    later = every.triu(key_pos - query_pos + 1)
    return scores.masked_fill(later, -math.inf)


def sliding_window(scores: Tensor, window: int, *, both_ways: bool = False) -> Tensor:
    """A local layer's mask: minus infinity where a key is `window` or more tokens before the query;
    read `both_ways`, where it is more than `window` tokens from it. Shape unchanged."""
    query_pos, key_pos = scores.shape[-2:]
    every = torch.ones(query_pos, key_pos, dtype=torch.bool, device=scores.device)
    own = key_pos - query_pos  # the diagonal on which a query meets its own key
    outside = every.tril(own - window)
    if both_ways:
        outside = every.tril(own - window - 1) | every.triu(own + window + 1)
    return scores.masked_fill(outside, -math.inf)


def softmax(scores: Tensor) -> Tensor:
    """The attention pattern A: exp(s) / sum exp(s) over key_pos, so that every row is shares of 1.
    Rows are queries."""
    exponentials = torch.exp(scores - scores.amax(-1, keepdim=True))
    return exponentials / exponentials.sum(-1, keepdim=True)


def softmax_with_sink(scores: Tensor, sinks: Tensor) -> Tensor:
    """The attention pattern of a head with a sink: exp(s) / (exp(sink) + sum exp(s)), so that every
    row is shares of 1 of which the sink has the rest. `head query_pos key_pos, head -> head
    query_pos key_pos`"""
    sink = sinks[:, None, None]
    largest = torch.maximum(scores.amax(-1, keepdim=True), sink)
    exponentials = torch.exp(scores - largest)
    return exponentials / (exponentials.sum(-1, keepdim=True) + torch.exp(sink - largest))


def mix(pattern: Tensor, v: Tensor) -> Tensor:
    """What each head carries: z = A V. `head query_pos key_pos, head key_pos d_head -> head
    query_pos d_head`"""
    return pattern @ v


def write(z: Tensor, w_o: Tensor) -> Tensor:
    """ΔE, each head's additive write, without b_O: z W_O. `head pos d_head, head d_head d_model ->
    head pos d_model`"""
    return z @ w_o


def write_by_source(pattern_row: Tensor, v: Tensor, w_o: Tensor) -> Tensor:
    """ΔE at one destination, taken apart by source token: A[t, j] V[j] W_O. Sums over key_pos to
    ΔE[t].

    `head key_pos, head key_pos d_head, head d_head d_model -> head key_pos d_model`. b_V stays
    inside V.
    """
    return pattern_row.unsqueeze(-1) * v @ w_o


def route(logits: Tensor, chosen: int, *, of_all: bool, normed: bool) -> Tensor:
    """How much each expert of a routed MLP counts: 0 but for the `chosen` ones with the largest
    logits. `... expert -> ... expert`

    Their shares are a softmax over all experts (`of_all`), where `normed` divided by their sum, or
    a softmax over the chosen ones.
    """
    if of_all:
        shares, experts = softmax(logits).topk(chosen, dim=-1)
        shares = shares / shares.sum(-1, keepdim=True) if normed else shares
    else:
        largest, experts = logits.topk(chosen, dim=-1)
        shares = softmax(largest)
    return torch.zeros_like(logits).scatter(-1, experts, shares)


def clamped_swiglu(gate: Tensor, up: Tensor, *, sharpness: float, limit: float) -> Tensor:
    """GPT-OSS' gated activation: g / (1 + exp(-sharpness g)) (u + 1), g and u cut off at the limit,
    g only above. Shape unchanged."""
    gate = gate.clamp_max(limit)
    up = up.clamp(-limit, limit)
    return gate * torch.sigmoid(sharpness * gate) * (up + 1)


def gelu_new(x: Tensor) -> Tensor:
    """GPT-2's activation, the tanh form of GELU: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x³)))."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def gelu_bloom(x: Tensor) -> Tensor:
    """BLOOM's: the same with sqrt(2/pi) rounded to eight digits, as its code has it."""
    return 0.5 * x * (1 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


def gelu(x: Tensor) -> Tensor:
    """The exact GELU: x times the share of a standard normal distribution below x, x/2 (1 + erf(x /
    sqrt 2))."""
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def relu(x: Tensor) -> Tensor:
    """x where it is positive, 0 elsewhere."""
    return x.clamp_min(0)


def relu_squared(x: Tensor) -> Tensor:
    """x² where x is positive, 0 elsewhere."""
    return relu(x).square()


def silu(x: Tensor) -> Tensor:
    """x times its logistic function, also called swish: x / (1 + exp(-x))."""
    return x / (1 + torch.exp(-x))
