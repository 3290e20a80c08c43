"""The steps of one block on batches of texts and variants, computed from weights, for every family
of the table.

`probe.patching.variants` has the loop over blocks; patching and edges also call single steps. One
product computes the queries, keys and values of a block; norms, activations and attention are
torch's; rotations and relative biases are computed once for each run. Each step equals that of
`probe.model.forward`: to 1e-5 of the scale in float32, 1e-10 in float64 (1e-6 if a family's code
rounds to float32 in between). In bfloat16, norms and softmax are computed in float32 internally, as
in the families' code. No step changes its arguments.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from probe.model import forward
from probe.model.attention import (
    gelu_bloom,
    halves,
    mask,
    repeat_kv,
    rotary_angles,
    sliding_window,
    softcap,
)
from probe.model.model import Config
from probe.model.weights import Block, Weights

KeysValues = tuple[Tensor, Tensor]
# What the positions of a text read of earlier ones in one block: the keys and values of these, `row
# kv_head pos d_head` each; or, in a layer without attention, the input of its mixer, `row pos
# d_model`.
Past = tuple[Tensor, ...]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_bloom": gelu_bloom,
    "relu": functional.relu,
    "relu_squared": lambda x: functional.relu(x).square(),
    "silu": functional.silu,
}


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
    layers = {}
    for local, rotated in {(block.local, block.rotated) for block in weights.blocks}:
        cos, sin = _rotations(weights, n, local=local) if rotated else (None, None)
        layers[local, rotated] = LayerTerms(cos, sin, _bias(weights, n, local=local))
    return PositionTerms(layers)


def _bias(weights: Weights, n: int, *, local: bool) -> Tensor | None:
    """The bias of relative positions or slopes, and the window of a local layer, with the mask;
    None if only the mask is left.

    Shape: `head query_pos key_pos`
    """
    config = weights.config
    bias = forward.position_bias(weights, n)
    if local and n > config.window:  # a shorter text is read completely
        if bias is None:
            bias = torch.zeros(n, n, dtype=weights.dtype, device=weights.device)
        bias = sliding_window(bias, config.window, both_ways=not weights.causal)
    if bias is None:
        return None
    if weights.causal:
        bias = mask(bias)
    return bias.to(weights.dtype).expand(config.n_heads, n, n)


def _rotations(weights: Weights, n: int, *, local: bool) -> tuple[Tensor | None, Tensor | None]:
    """Cosines and sines of rotary positions.

    Shape: `pos dims` each
    """
    positions = weights.config.positions
    if positions.kind != "rotary":
        return None, None
    frequencies = forward.rotary(positions, local=local).to(weights.device)
    angles = rotary_angles(torch.arange(n, device=weights.device), frequencies)
    factor = forward.rotary_factor(positions, local=local)
    return (angles.cos() * factor).to(weights.dtype), (angles.sin() * factor).to(weights.dtype)


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


def project(
    weights: Weights, block: Block, resid: Tensor, terms: PositionTerms, pos: Tensor
) -> Projected:
    """Queries, keys, values and gates of a layer with attention.

    Shape: `... pos d_model`, and `pos` broadcasts over its leading axes
    """
    config = weights.config
    layer_terms = terms.of(block)
    x = forward.attention_input(block, resid, config, _norm)
    flat = _linear(x, *block.fused)
    heads = flat.unflatten(-1, (-1, config.d_head)).transpose(-2, -3)  # ... head pos d_head
    counts = [config.n_heads, config.n_kv_heads, config.n_kv_heads]
    counts += [] if block.w_head_gate is None else [config.n_heads]
    q, k, v, *gate = heads.split(counts, dim=-3)
    q = forward.norm_heads(q, block.norm_q, config, _norm)
    k = forward.norm_heads(k, block.norm_k, config, _norm)
    if layer_terms.cos is not None:
        q = _rotate(config, q, layer_terms, pos)
        k = _rotate(config, k, layer_terms, pos)
    return Projected(q, k, v, *gate)


def gated(z: Tensor, gate: Tensor | None) -> Tensor:
    """z times the sigmoid of its gates; z itself if heads are not gated.

    Shape: `... d_head, ... d_head -> ... d_head`
    """
    return z if gate is None else z * gate.sigmoid()


def _rotate(config: Config, x: Tensor, terms: LayerTerms, pos: Tensor) -> Tensor:
    """Rotated queries or keys, with the run's cosines and sines.

    Shape: `... head pos d_head, ... pos -> ... head pos d_head`
    """
    assert terms.cos is not None and terms.sin is not None
    dims = terms.cos.shape[-1]
    # A family may rotate only the first coordinates of a head.
    rotary = x[..., :dims]
    unrotated = x[..., dims:]
    if config.family.rotary_adjacent_pairs:
        rotary = halves(rotary, dims)
    cos = terms.cos[pos].unsqueeze(-3)
    sin = terms.sin[pos].unsqueeze(-3)
    rounded = config.family.in_float32 if x.dtype == torch.float64 else ()
    # Rounded to float32 in between, as in the family's code.
    if "rotated" in rounded or "rotation" in rounded:
        rotary = rotary.float()
    if "rotated" in rounded:
        rotary = rotary.double()
    elif "rotation" in rounded:
        cos, sin = cos.float(), sin.float()
    first, second = rotary.chunk(2, dim=-1)
    rotated = rotary * cos + torch.cat([-second, first], dim=-1) * sin
    rotated = rotated.to(x.dtype)
    return torch.cat([rotated, unrotated], dim=-1) if unrotated.shape[-1] else rotated


def scores(weights: Weights, block: Block, qk: Tensor, bias: Tensor | None) -> Tensor:
    """Scores from products of queries and keys: cap(q k / divisor) + bias.

    Shape: `... key_pos -> ... key_pos`
    """
    scaled = qk * (1 / block.score_divisor)
    if weights.config.attn_logit_softcapping:
        scaled = softcap(scaled, weights.config.attn_logit_softcapping)
    return scaled if bias is None else scaled + bias


def pattern(
    weights: Weights, block: Block, qk: Tensor, bias: Tensor | None, sinks: Tensor | None
) -> Tensor:
    """The pattern from products of queries and keys: the softmax of their scores.

    Shape: `... key_pos -> ... key_pos`

    sinks: as for `softmax_with_sinks`
    """
    return softmax_with_sinks(scores(weights, block, qk, bias), sinks)


def softmax_with_sinks(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """The pattern from scores.

    Shape: `... key_pos -> ... key_pos`

    sinks: of the heads, shaped like the scores without keys; None if heads have no sink
    """
    if sinks is None:
        return scores.softmax(-1)
    sink = sinks[..., None].expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]


def scores_at(
    weights: Weights, block: Block, q: Tensor, k: Tensor, at: Tensor, terms: PositionTerms
) -> Tensor:
    """The scores of the query at `at`, minus infinity for masked keys.

    Shape: `batch head d_head, batch kv_head key_pos d_head -> batch head key_pos`
    """
    qk = (q.unflatten(1, (k.shape[1], -1)) @ k.mT).flatten(1, 2)
    bias = terms.of(block).bias
    if bias is not None:
        bias = bias[:, at, : k.shape[-2]].transpose(0, 1)
    elif weights.causal:
        bias = mask(q.new_zeros(k.shape[-2], k.shape[-2]))[at, None]
    return scores(weights, block, qk, bias)


def pattern_at(
    weights: Weights, block: Block, q: Tensor, k: Tensor, at: Tensor, terms: PositionTerms
) -> Tensor:
    """The pattern row of the query at `at`.

    Shape: `batch head d_head, batch kv_head key_pos d_head -> batch head key_pos`
    """
    return softmax_with_sinks(scores_at(weights, block, q, k, at, terms), block.sinks)


def attend(weights: Weights, block: Block, projected: Projected, terms: PositionTerms) -> Tensor:
    """z of whole texts, or of their last positions if only these have queries.

    Shape: `... head query_pos d_head`
    """
    q, k, v, gate = projected
    n = q.shape[-2]
    size = k.shape[-2]
    leading = q.shape[:-3]
    heads = q.shape[-3]
    # torch's attention supports neither a cap of the scores nor sinks.
    by_hand = bool(weights.config.attn_logit_softcapping) or block.sinks is not None
    bias = terms.of(block).bias
    if bias is not None:
        bias = bias[:, size - n : size, :size]
    elif weights.causal and (n < size or by_hand):
        bias = mask(q.new_zeros(n, size))
    q = q.flatten(0, -4)
    k = k.flatten(0, -4)
    v = v.flatten(0, -4)
    if by_hand:
        qk = q @ repeat_kv(k, heads).mT
        sinks = None if block.sinks is None else block.sinks[:, None]
        z = pattern(weights, block, qk, bias, sinks) @ repeat_kv(v, heads)
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
    sinks = None if block.sinks is None else block.sinks.unflatten(0, groups)[..., None]
    attention = pattern(weights, block, qk, bias, sinks)
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


def cross_attend(weights: Weights, block: Block, resid: Tensor, memory: KeysValues) -> Tensor:
    """z of cross-attention, whose keys and values are constants.

    Shape: `batch variant live d_model -> batch variant live head d_head`
    """
    config = weights.config
    x = forward.attention_input(block, resid, config, _norm)
    q = _linear(x.flatten(1, 2), *block.queries).unflatten(-1, (config.n_heads, -1)).transpose(1, 2)
    z = functional.scaled_dot_product_attention(q, *memory, scale=1 / block.score_divisor)
    return z.transpose(1, 2).unflatten(1, resid.shape[1:3])


# --- mixers ---------------------------------------------------------------------------------------


def mixer_input(weights: Weights, block: Block, resid: Tensor) -> Tensor:
    """What the mixer of a layer without attention reads.

    Shape: `... pos d_model -> ... pos d_model`
    """
    return forward.attention_input(block, resid, weights.config, _norm)


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
        return resid + _norm(write, writer.norm_of_write, None, config)
    if config.family.norm_after_sum:
        return _norm(resid + write, writer.norm_of_sum, writer.norm_of_sum_bias, config)
    return resid + write


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
    x = forward.normed_for_mlp(block, resid, config, _norm)
    if block.experts:
        return _activate_experts(block, x, config)
    if block.w_gate is not None and block.w_up is not None:
        gate = activation(_linear(x, block.w_gate, None))
        up = _linear(x, block.w_up, None)
        # Some activations' gradients are computed from their output, which must then be kept.
        return gate * up if torch.is_grad_enabled() else gate.mul_(up)
    assert block.w_in is not None
    return activation(_linear(x, block.w_in, block.b_in))


def chosen_experts(weights: Weights, block: Block, resid: Tensor) -> Tensor:
    """Which experts of a routed MLP are chosen for the stream that it reads.

    Shape: `... d_model -> ... expert`
    """
    config = weights.config
    x = forward.normed_for_mlp(block, resid, config, _norm)
    return forward.route(block, x, config) > 0


def _activate_experts(block: Block, x: Tensor, config: Config) -> Tensor:
    """The activations of a routed MLP, as in `Block`.

    Shape: `... d_model -> ... d_mlp`

    Each expert runs only for the tokens that choose it in this very run.
    """
    rows = x.flatten(0, -2)
    shares = forward.route(block, rows, config)
    hidden = rows.new_zeros(len(rows), block.d_mlp)
    width = block.experts[0].w_out.shape[0]
    for number, expert in enumerate(block.experts):
        tokens = shares[:, number].nonzero()[:, 0]
        activations = forward.activate_expert(expert, rows[tokens], config)
        columns = slice(number * width, (number + 1) * width)
        hidden[tokens, columns] = shares[tokens, number, None] * activations
    end = len(block.experts) * width
    if block.shared is not None:
        activations = forward.activate_expert(block.shared, rows, config)
        end += activations.shape[-1]
        hidden[:, end - activations.shape[-1] : end] = (
            forward.shared_gate(block, rows) * activations
        )
    if hidden.shape[-1] > end:  # the weights of the experts, which multiply their biases
        hidden[:, end:] = shares
    return hidden.unflatten(0, x.shape[:-1])


def run_mlp(weights: Weights, block: Block, resid_pre: Tensor, resid_mid: Tensor) -> Tensor:
    """resid_post: the stream after the MLP, from the streams before and after the attention.

    Shape: `... d_model, ... d_model -> ... d_model`
    """
    parallel = weights.config.family.parallel_attn_mlp
    hidden = activate(weights, block, resid_pre if parallel else resid_mid)
    return after_mlp(weights, block, resid_mid, hidden)


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


def _norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, config: Config) -> Tensor:
    if config.family.norm == "LayerNorm":
        gain = forward.gain_of(weight, config)
        return functional.layer_norm(x, x.shape[-1:], gain, bias, config.epsilon)
    if config.family.in_float32 and x.dtype != torch.float32:
        # In float32 internally, as in the family's code.
        return forward.norm(x, weight, bias, config)
    return functional.rms_norm(x, x.shape[-1:], forward.gain_of(weight, config), config.epsilon)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = x.flatten(0, -2)
    product = rows @ weight if bias is None else torch.addmm(bias, rows, weight)
    return product.unflatten(0, x.shape[:-1])
