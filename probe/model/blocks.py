"""The steps of one block, computed from weights, for every family of the table.

Everything that runs a block runs these functions: swaps, causal traces and edges, whose loop over
blocks is `probe.model.variants`, and `probe check`, which compares them with the hooked model.

No modelling code of Hugging Face or TransformerLens is used: the tensors come directly from the
checkpoint. One product computes the queries, keys and values of a block; norms, activations and
attention are torch's; rotations and relative biases are computed once for each run. In float64, a
family's norm and rotation round to float32 where its code does (`Family.in_float32`), because this
is part of the model; its softmax and its scores do not. In bfloat16, norms and softmax are computed
in float32 internally, as in the families' code. No step changes its arguments.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from probe.model import attention as formulas
from probe.model.model import Config, Positions
from probe.model.weights import Block, Weights

KeysValues = tuple[Tensor, Tensor]
# What the positions of a text read of earlier ones in one block: the keys and values of these, `row
# kv_head pos d_head` each; or, in a layer without attention, the input of its mixer, `row pos
# d_model`.
Past = tuple[Tensor, ...]
Norm = Callable[[Tensor, Tensor | None, Tensor | None, Config], Tensor]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "relu_squared": lambda x: functional.relu(x).square(),
    "silu": functional.silu,
}


# --- norms ----------------------------------------------------------------------------------------


def gain_of(weight: Tensor | None, config: Config) -> Tensor:
    """The factor of a norm: its weight, or 1 + its weight if the family defines it so. `d_model`

    In float32 if the family's code multiplies in float32.
    """
    assert weight is not None
    if "gain" in config.family.in_float32:
        weight = weight.float()
    return 1 + weight if config.family.norm_adds_one else weight


def norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, config: Config) -> Tensor:
    """The family's norm: LayerNorm, or RMSNorm in the precision of the family's code. Shape
    unchanged.
    """
    family = config.family
    gain = gain_of(weight, config)
    if family.norm == "LayerNorm":
        return functional.layer_norm(x, x.shape[-1:], gain, bias, config.epsilon)
    if x.dtype == torch.float32:
        return functional.rms_norm(x, x.shape[-1:], gain, config.epsilon)
    if "variance" in family.in_float32:
        return (x * formulas.inverse_rms(x.float(), config.epsilon)).to(x.dtype) * gain
    single = x.float()
    normed = single * formulas.inverse_rms(single, config.epsilon)
    # Families differ in whether they round to the model's dtype before or after the gain.
    if "gain" in family.in_float32:
        return (normed * gain).to(x.dtype)
    return normed.to(x.dtype) * gain


def norm_scale(x: Tensor, config: Config) -> Tensor:
    """The divisor of the family's norm: sqrt(mean x² + eps), for LayerNorm of x - mean x. `...
    d_model -> ...`
    """
    centred = config.family.norm == "LayerNorm"
    square = x.var(-1, unbiased=False) if centred else x.square().mean(-1)
    return (square + config.epsilon).sqrt()


def norm_heads(x: Tensor, weight: Tensor | None, config: Config, norm: Norm = norm) -> Tensor:
    """Queries or keys after their norm: head by head, or all heads together, by the size of the
    weight. `... head pos d_head`
    """
    if weight is None:
        return x
    if len(weight) == x.shape[-1]:
        return norm(x, weight, None, config)
    heads_last = x.transpose(-3, -2)  # ... pos head d_head
    normed = norm(heads_last.flatten(-2), weight, None, config)
    return normed.unflatten(-1, heads_last.shape[-2:]).transpose(-3, -2)


# --- positions ------------------------------------------------------------------------------------


class LayerTerms(NamedTuple):
    """The tensors of one kind of layer that depend only on positions; None where a layer has
    none.

    cos, sin: `pos dims`, of rotary positions
    bias: `head query_pos key_pos`, minus infinity where nothing is read
    """

    cos: Tensor | None
    sin: Tensor | None
    bias: Tensor | None


@dataclass(frozen=True, eq=False)
class PositionTerms:
    """The terms of one run, by kind of layer: whether it is local, and whether it is rotated."""

    layers: Mapping[tuple[bool, bool], LayerTerms]

    def of(self, block: Block) -> LayerTerms:
        """The terms of this block."""
        return self.layers[block.local, block.rotated]

    def query_bias(self, block: Block, pos: int, keys: slice) -> Tensor | None:
        """The bias of the scores of the query at `pos` and some keys; None without a bias.

        Shape: `head 1 key_pos`
        """
        bias = self.of(block).bias
        return None if bias is None else bias[:, pos, None, keys]


def position_terms(weights: Weights, n: int) -> PositionTerms:
    """The terms of the positions of texts of up to `n` tokens."""
    positions = torch.arange(n, device=weights.device)
    layers = {}
    for local, rotated in {(block.local, block.rotated) for block in weights.blocks}:
        cos = None
        sin = None
        if rotated and weights.config.positions.kind == "rotary":
            cos, sin = rotations(weights.config, positions, local=local, dtype=weights.dtype)
        layers[local, rotated] = LayerTerms(cos, sin, _bias(weights, n, local=local))
    return PositionTerms(layers)


def _bias(weights: Weights, n: int, *, local: bool) -> Tensor | None:
    """The bias of relative positions or slopes, and the window of a local layer, with the mask;
    None if only the mask is left.

    Shape: `head query_pos key_pos`
    """
    bias = position_bias(weights, n)
    if bias is None:
        if not local or n <= weights.config.window:  # a shorter text is read completely
            return None
        bias = torch.zeros(n, n, device=weights.device)
    bias = mask(weights, bias, local=local)
    return bias.to(weights.dtype).expand(weights.config.n_heads, n, n)


def mask(weights: Weights, scores: Tensor, *, local: bool) -> Tensor:
    """Scores with minus infinity where a layer does not let a query read: later tokens, and, in a
    local layer, tokens outside its window.

    Shape: `... query_pos key_pos`, unchanged
    """
    if local:
        window = weights.config.window
        scores = formulas.sliding_window(scores, window, both_ways=not weights.causal)
    return formulas.mask(scores) if weights.causal else scores


def position_bias(weights: Weights, n: int) -> Tensor | None:
    """The bias that positions add to the scores of self-attention: T5's, from its first layer's
    table; otherwise None.

    `-> head query_pos key_pos`
    """
    config = weights.config
    stack = weights.attention.name
    positions = torch.arange(n, device=weights.device)
    if config.positions.kind != "relative bias" or stack == "cross":
        return None
    table = weights.raw[config.family.position_table.format(stack) + ".weight"]
    offsets = positions[None] - positions[:, None]
    furthest = config.positions.furthest
    return formulas.relative_bias(table, offsets, furthest=furthest, both_ways=not weights.causal)


def rotations(
    config: Config, positions: Tensor, *, local: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of rotary positions.

    Shape: `pos dims` each
    """
    frequencies = rotary(config.positions, local=local).to(positions.device)
    angles = formulas.rotary_angles(positions, frequencies)
    factor = rotary_factor(config.positions, local=local)
    return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)


def rotary(positions: Positions, *, local: bool) -> Tensor:
    """Rotary frequencies, scaled as in the config; local layers may have a separate base.

    `-> pair`
    """
    dims = positions.dims
    if local and positions.local_base:
        return formulas.rotary_frequencies(dims, positions.local_base)
    base = positions.base
    scaling = positions.rope_scaling
    if scaling is None:
        return formulas.rotary_frequencies(dims, base)
    if scaling.kind == "longrope":
        return formulas.rotary_frequencies(dims, base, torch.tensor(scaling.factors, device="cpu"))
    if scaling.kind == "yarn":
        return formulas.yarn(
            dims,
            base,
            factor=scaling.factor,
            length=scaling.length,
            fast=scaling.high,
            slow=scaling.low,
            whole=scaling.whole,
        )
    frequencies = formulas.rotary_frequencies(dims, base)
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    return formulas.rope_scaling(
        frequencies,
        factor=scaling.factor,
        low=scaling.low,
        high=scaling.high,
        length=scaling.length,
    )


def rotary_factor(positions: Positions, *, local: bool) -> float:
    """The factor by which rotation scales queries and keys: 1 unless the config states another
    one.
    """
    scaling = positions.rope_scaling
    return 1.0 if scaling is None or (local and positions.local_base) else scaling.attention_factor


# --- attention ------------------------------------------------------------------------------------


class Projected(NamedTuple):
    """Queries, keys and values of every head, rotated for their positions, and the gates of z.

    q: `... head pos d_head`
    k, v: `... kv_head pos d_head`
    gate: `... head pos d_head`, before the sigmoid; None if heads are not gated
    """

    q: Tensor
    k: Tensor
    v: Tensor
    gate: Tensor | None = None

    def map(self, change: Callable[..., Tensor], *others: "Projected") -> "Projected":
        """`change` of each part; its further arguments are the same part of `others`."""
        parts = zip(self, *others, strict=True)
        return Projected(*(change(*part) for part in parts if part[0] is not None))


def norms_input(block: Block, config: Config) -> bool:
    """Whether this attention's input is normed. ModernBERT, which norms its embeddings, does not
    norm it in the first layer.
    """
    return config.family.norm_first and block.norm is not None


def attention_input(block: Block, resid_pre: Tensor, config: Config, norm: Norm = norm) -> Tensor:
    """x, the input of attention: the stream, after the norm if there is one in front. Shape
    unchanged.
    """
    if not norms_input(block, config):
        return resid_pre
    return norm(resid_pre, block.norm, block.norm_bias, config)


def project(
    weights: Weights, block: Block, resid: Tensor, terms: PositionTerms, pos: Tensor
) -> Projected:
    """Queries, keys, values and gates of a layer with attention.

    Shape: `... pos d_model`, and `pos` broadcasts over its leading axes
    """
    x = attention_input(block, resid, weights.config)
    projected = read_input(block, x, weights.config)
    q, k = placed(weights, block, projected.q, projected.k, terms, pos)
    return projected._replace(q=q, k=k)


def projection(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Queries, keys or values of every head, with a bias if there is one.

    Shape: `... pos d_model -> ... head pos d_head`
    """
    if bias is None:
        bias = weight.new_zeros(weight.shape[0], weight.shape[-1])
    return formulas.project(x, weight, bias)


def read_input(block: Block, x: Tensor, config: Config) -> Projected:
    """Queries, keys, values and gates of the input of an attention, before norms and rotation.

    Shape: `... pos d_model`
    """
    flat = _linear(x, *block.fused)
    heads = flat.unflatten(-1, (-1, config.d_head)).transpose(-2, -3)  # ... head pos d_head
    counts = [config.n_heads, config.n_kv_heads, config.n_kv_heads]
    counts += [] if block.w_head_gate is None else [config.n_heads]
    return Projected(*heads.split(counts, dim=-3))


def placed(
    weights: Weights, block: Block, q: Tensor, k: Tensor, terms: PositionTerms, pos: Tensor
) -> tuple[Tensor, Tensor]:
    """Queries and keys after their norms, rotated by their positions, if the family does so.

    Shape: `... head pos d_head, ... kv_head pos d_head`, unchanged
    """
    config = weights.config
    layer_terms = terms.of(block)
    q = norm_heads(q, block.norm_q, config)
    k = norm_heads(k, block.norm_k, config)
    if layer_terms.cos is None or layer_terms.sin is None:
        return q, k
    cos = layer_terms.cos[pos].unsqueeze(-3)
    sin = layer_terms.sin[pos].unsqueeze(-3)
    return _rotate(config, q, cos, sin), _rotate(config, k, cos, sin)


def gated(z: Tensor, gate: Tensor | None) -> Tensor:
    """z times the sigmoid of its gates; z itself if heads are not gated.

    Shape: `... d_head, ... d_head -> ... d_head`
    """
    return z if gate is None else z * gate.sigmoid()


def rotate(block: Block, x: Tensor, positions: Tensor, config: Config) -> Tensor:
    """Queries or keys rotated by their positions, if this layer rotates. `... pos d_head`,
    unchanged
    """
    if not block.rotated or config.positions.kind != "rotary":
        return x
    return _rotate(config, x, *rotations(config, positions, local=block.local, dtype=x.dtype))


def _rotate(config: Config, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotated queries or keys.

    Shape: `... head pos d_head, ... pos dims -> ... head pos d_head`
    """
    dims = cos.shape[-1]
    # A family may rotate only the first coordinates of a head.
    rotary = x[..., :dims]
    unrotated = x[..., dims:]
    if config.family.rotary_adjacent_pairs:
        rotary = formulas.halves(rotary)
    # Rounded to float32 in between, as in the family's code.
    rounded = config.family.in_float32 if x.dtype == torch.float64 else ()
    if "rotated" in rounded or "rotation" in rounded:
        rotary = rotary.float()
    if "rotated" in rounded:
        rotary = rotary.double()
    elif "rotation" in rounded:
        cos, sin = cos.float(), sin.float()
    rotated = formulas.rotate(rotary, cos, sin).to(x.dtype)
    return torch.cat([rotated, unrotated], dim=-1) if unrotated.shape[-1] else rotated


def score(weights: Weights, block: Block, q: Tensor, k: Tensor, terms: PositionTerms) -> Tensor:
    """The scores of whole texts, from queries and keys before their norms and rotation.

    Shape: `... head query_pos d_head, ... head key_pos d_head -> ... head query_pos key_pos`

    k: repeated for the heads that share them
    """
    qk = formulas.matches(*compared(weights, block, q, k, terms))
    return scores(weights, block, qk, bias_and_mask(weights, block, terms, *qk.shape[-2:]))


def compared(
    weights: Weights, block: Block, q: Tensor, k: Tensor, terms: PositionTerms
) -> tuple[Tensor, Tensor]:
    """Queries and keys of whole texts after their norms and rotation; arguments as for `score`.

    Shape: `... head pos d_head`, unchanged
    """
    heads = q.shape[-3]
    # Each key is normed and rotated once.
    k = k[..., :: heads // weights.config.n_kv_heads, :, :]
    q, k = placed(weights, block, q, k, terms, torch.arange(q.shape[-2], device=q.device))
    return q, formulas.repeat_kv(k, heads)


def scores(weights: Weights, block: Block, qk: Tensor, bias: Tensor | None) -> Tensor:
    """Scores from products of queries and keys: cap(q k / divisor) + bias.

    Shape: `... key_pos -> ... key_pos`
    """
    scaled = qk * (1 / block.score_divisor)
    if weights.config.attn_logit_softcapping:
        scaled = formulas.softcap(scaled, weights.config.attn_logit_softcapping)
    return scaled if bias is None else scaled + bias


def pattern(weights: Weights, block: Block, qk: Tensor, bias: Tensor | None) -> Tensor:
    """The pattern from products of queries and keys: the softmax of their scores.

    Shape: `... key_pos -> ... key_pos`
    """
    return softmax(scores(weights, block, qk, bias))


def softmax(scores: Tensor) -> Tensor:
    """The pattern from scores.

    Shape: `... key_pos`, unchanged
    """
    return scores.softmax(-1)


def scores_at(
    weights: Weights, block: Block, q: Tensor, k: Tensor, at: Tensor, terms: PositionTerms
) -> Tensor:
    """The scores of the query at `at`, minus infinity for masked keys.

    Shape: `batch head d_head, batch kv_head key_pos d_head -> batch head key_pos`
    """
    qk = (q.unflatten(1, (k.shape[1], -1)) @ k.mT).flatten(1, 2)
    n = k.shape[-2]
    bias = bias_and_mask(weights, block, terms, n, n)
    if bias is not None:
        bias = bias[..., at, :].transpose(0, 1) if bias.ndim == 3 else bias[at, None]
    return scores(weights, block, qk, bias)


def pattern_at(
    weights: Weights, block: Block, q: Tensor, k: Tensor, at: Tensor, terms: PositionTerms
) -> Tensor:
    """The pattern row of the query at `at`.

    Shape: `batch head d_head, batch kv_head key_pos d_head -> batch head key_pos`
    """
    return softmax(scores_at(weights, block, q, k, at, terms))


def bias_and_mask(
    weights: Weights, block: Block, terms: PositionTerms, n: int, size: int
) -> Tensor | None:
    """What is added to the scores of the last `n` of `size` positions: the bias of this layer, and
    minus infinity where nothing is read; None if there is neither.

    Shape: `query_pos key_pos`, or with a bias `head query_pos key_pos`
    """
    bias = terms.of(block).bias
    if bias is not None:
        return bias[:, size - n : size, :size]
    return formulas.mask(weights.blocks[0].w_o.new_zeros(n, size)) if weights.causal else None


def attend(weights: Weights, block: Block, projected: Projected, terms: PositionTerms) -> Tensor:
    """z of whole texts, or of their last positions if only these have queries.

    Shape: `... head query_pos d_head`
    """
    q, k, v, gate = projected
    n = q.shape[-2]
    size = k.shape[-2]
    leading = q.shape[:-3]
    heads = q.shape[-3]
    # torch's attention does not support a cap of the scores.
    by_hand = bool(weights.config.attn_logit_softcapping)
    bias = terms.of(block).bias
    if bias is not None or n < size or by_hand:
        bias = bias_and_mask(weights, block, terms, n, size)
    q = q.flatten(0, -4)
    k = k.flatten(0, -4)
    v = v.flatten(0, -4)
    if by_hand:
        qk = q @ formulas.repeat_kv(k, heads).mT
        z = pattern(weights, block, qk, bias) @ formulas.repeat_kv(v, heads)
    else:
        z = functional.scaled_dot_product_attention(
            q,
            k,
            v,
            bias,
            is_causal=weights.causal and bias is None,
            scale=1 / block.score_divisor,
            enable_gqa=heads != k.shape[-3],
        )
    return gated(z.unflatten(0, leading), gate)


def attend_one_position(
    weights: Weights, block: Block, projected: Projected, past: Past, terms: PositionTerms
) -> Tensor:
    """z of many variants of one position.

    Shape: `batch head variant d_head`

    projected: of the variants, `batch head variant d_head`
    past: keys and values of the positions before it, `batch kv_head key_pos d_head`
    """
    keys, values = past
    groups = (keys.shape[1], -1)
    # batch kv_head head variant d_head
    q, k, v, gate = projected.map(lambda part: part.unflatten(1, groups))
    qk_of_itself = (q * k).sum(-1, keepdim=True)
    qk = torch.cat([_grouped(q, keys.mT), qk_of_itself], dim=-1)
    pos = keys.shape[-2]
    bias = terms.query_bias(block, pos, slice(pos + 1))
    bias = None if bias is None else bias.unflatten(0, groups)
    attention = pattern(weights, block, qk, bias)
    from_past = _grouped(attention[..., :-1], values)
    return gated(torch.addcmul(from_past, attention[..., -1:], v), gate).flatten(1, 2)


def _grouped(x: Tensor, shared: Tensor) -> Tensor:
    """Every head's rows times the matrix that its group shares.

    Shape: `batch kv_head head row a, batch kv_head a b -> batch kv_head head row b`
    """
    return (x.flatten(2, 3) @ shared).unflatten(2, x.shape[2:4])


def attend_variants(
    weights: Weights, block: Block, projected: Projected, past: Past | None, terms: PositionTerms
) -> Tensor:
    """z of the live positions of every variant.

    Shape: `batch variant live head d_head`

    projected: of the live positions, `batch variant head live d_head`
    past: keys and values of the positions before them, `batch kv_head key_pos d_head`

    Each live position reads the positions before, and the variant's own live positions as the mask
    allows.
    """
    if past is None:
        return attend(weights, block, projected, terms).transpose(2, 3)
    if projected.q.shape[-2] == 1:
        # With one live position, the keys and values before it need not be repeated for each
        # variant.
        one_position = projected.map(lambda part: part.squeeze(-2).transpose(1, 2))
        z = attend_one_position(weights, block, one_position, past, terms)
        return z.transpose(1, 2).unsqueeze(2)
    q, k, v, gate = projected
    keys, values = (part[:, None].expand(-1, q.shape[1], -1, -1, -1) for part in past)
    k = torch.cat([keys, k], dim=-2)
    v = torch.cat([values, v], dim=-2)
    return attend(weights, block, Projected(q, k, v, gate), terms).transpose(2, 3)


def memory_read(block: Block, memory: Tensor, config: Config) -> KeysValues:
    """The keys and values of cross-attention, which are the same for every query.

    Shape: `... key_pos d_model -> ... head key_pos d_head` each
    """
    k = projection(memory, block.w_k, block.b_k)
    v = projection(memory, block.w_v, block.b_v)
    return formulas.repeat_kv(k, config.n_heads), formulas.repeat_kv(v, config.n_heads)


def cross_queries(block: Block, x: Tensor, config: Config) -> Tensor:
    """The queries of cross-attention.

    Shape: `... pos d_model -> ... head pos d_head`
    """
    return _linear(x, *block.queries).unflatten(-1, (config.n_heads, -1)).transpose(-2, -3)


def cross_attend(weights: Weights, block: Block, resid: Tensor, memory: KeysValues) -> Tensor:
    """z of cross-attention.

    Shape: `batch variant live d_model -> batch variant live head d_head`

    memory: the keys and values of each text, `batch head key_pos d_head`
    """
    x = attention_input(block, resid, weights.config)
    q = cross_queries(block, x.flatten(1, 2), weights.config)
    z = functional.scaled_dot_product_attention(q, *memory, scale=1 / block.score_divisor)
    return z.transpose(1, 2).unflatten(1, resid.shape[1:3])


# --- mixers ---------------------------------------------------------------------------------------


def mix_variants(block: Block, x: Tensor, past: Past | None) -> Tensor:
    """The mixer's write at the live positions of every variant, as z of a single head. The module
    reads whole texts.

    Shape: `batch variant live d_model -> batch variant live 1 d_model`

    past: the mixer's input at the positions before them, `batch pos d_model`
    """
    assert block.mixer is not None
    live = x.shape[2]
    if past is not None:
        [earlier] = past
        x = torch.cat([earlier[:, None].expand(-1, x.shape[1], -1, -1), x], dim=2)
    return block.mixer(x)[:, :, -live:].unsqueeze(3)


# --- writes ---------------------------------------------------------------------------------------


class Writer(NamedTuple):
    """The parameters with which the attention or the MLP of a block writes.

    weight: `input d_model`
    bias: `d_model`
    norm_of_write: the gain of the norm after the write, if the family has one
    norm_of_sum, norm_of_sum_bias: of the norm after the sum, if the family has one
    """

    weight: Tensor
    bias: Tensor | None
    norm_of_write: Tensor | None
    norm_of_sum: Tensor | None
    norm_of_sum_bias: Tensor | None

    def write(self, x: Tensor) -> Tensor:
        """What is added to the stream, before any norm: x W + b.

        Shape: `... input -> ... d_model`
        """
        return _linear(x, self.weight, self.bias)


def attention_writer(weights: Weights, block: Block) -> Writer:
    """The writer of all heads of a block; its input is their concatenated z."""
    after_sum = weights.config.family.norm_after_sum
    return Writer(
        weight=block.w_o.flatten(0, 1),
        bias=block.b_o,
        norm_of_write=block.norm_out,
        norm_of_sum=block.norm if after_sum else None,
        norm_of_sum_bias=block.norm_bias if after_sum else None,
    )


def mlp_writer(weights: Weights, block: Block) -> Writer:
    """The writer of the MLP of a block; its input is the activations."""
    after_sum = weights.config.family.norm_after_sum
    return Writer(
        weight=block.w_hidden,
        bias=block.b_out,
        norm_of_write=block.norm_mlp_out,
        norm_of_sum=block.norm_mlp if after_sum else None,
        norm_of_sum_bias=block.norm_mlp_bias if after_sum else None,
    )


def add_write(config: Config, writer: Writer, resid: Tensor, write: Tensor) -> Tensor:
    """The stream after a write: the sum, with the family's norm of the write or of the sum.

    Shape: `... d_model, ... d_model -> ... d_model`
    """
    if config.family.norm_after_write:
        return resid + norm(write, writer.norm_of_write, None, config)
    if config.family.norm_after_sum:
        return norm(resid + write, writer.norm_of_sum, writer.norm_of_sum_bias, config)
    return resid + write


def merge_heads(block: Block, z: Tensor) -> Tensor:
    """attn_out = Concat(z) W_O + b_O, which equals Σ_h ΔE_h + b_O.

    Shape: `... head d_head -> ... d_model`
    """
    return _linear(z.flatten(-2), block.w_o.flatten(0, 1), block.b_o)


def after_attention(weights: Weights, block: Block, resid: Tensor, z: Tensor) -> Tensor:
    """resid_mid: the stream after the attention, resid + Concat(z) W_O + b_O, with the family's
    norms.

    Shape: `... pos d_model, ... pos head d_head -> ... pos d_model`
    """
    return _add_output(weights.config, attention_writer(weights, block), resid, z.flatten(-2))


def activate(weights: Weights, block: Block, resid: Tensor) -> Tensor:
    """The MLP's activations from the stream that it reads.

    Shape: `... d_model -> ... d_mlp`
    """
    config = weights.config
    activation = ACTIVATIONS[config.activation]
    x = resid
    if config.family.norm_first:
        x = norm(resid, block.norm_mlp, block.norm_mlp_bias, config)
    if block.experts is not None:
        return block.experts(x.reshape(1, -1, x.shape[-1])).reshape(x.shape)
    if block.w_gate is not None and block.w_up is not None:
        gate = activation(_linear(x, block.w_gate, None))
        up = _linear(x, block.w_up, None)
        # Some activations' gradients are computed from their output, which must then be kept.
        return gate * up if torch.is_grad_enabled() else gate.mul_(up)
    assert block.w_in is not None
    return activation(_linear(x, block.w_in, block.b_in))


def after_mlp(weights: Weights, block: Block, resid_mid: Tensor, hidden: Tensor) -> Tensor:
    """resid_post: the stream after the MLP, resid_mid + hidden W_out + b_out, with the family's
    norms.

    Shape: `... d_model, ... d_mlp -> ... d_model`
    """
    return _add_output(weights.config, mlp_writer(weights, block), resid_mid, hidden)


def _add_output(config: Config, writer: Writer, resid: Tensor, x: Tensor) -> Tensor:
    """The stream after a writer writes its output for x.

    Shape: `... d_model, ... input -> ... d_model`
    """
    if not config.family.adds_plainly:
        return add_write(config, writer, resid, writer.write(x))
    # One product adds the write to a new tensor, so that `resid` keeps its values.
    rows = resid.flatten(0, -2)
    total = rows.clone() if writer.bias is None else rows + writer.bias
    return total.addmm_(x.flatten(0, -2), writer.weight).unflatten(0, resid.shape[:-1])


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = x.flatten(0, -2)
    product = rows @ weight if bias is None else torch.addmm(bias, rows, weight)
    return product.unflatten(0, x.shape[:-1])
