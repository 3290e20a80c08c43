"""One attention of one layer from the raw weights, built on `probe.model.attention` by what the table and the config say.

What a family's own code computes in float32 whatever the type of the model (`Family.single`) is computed in float32 here,
too: it is part of what the model is. Nothing else is rounded, so in float64 this is the oracle.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from probe.model import attention as formulas
from probe.model.architectures import FAMILIES, Attention
from probe.model.config import Config, Positions
from probe.model.weights import Block

share_heads = formulas.share_heads
BIAS = "{}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"


def norm(x: Tensor, gain: Tensor, bias: Tensor | None, config: Config) -> Tensor:
    """The family's norm: LayerNorm, or RMSNorm in the precision in which its own code takes it. Shape unchanged."""
    family = FAMILIES[config.architecture]
    if family.norm == "LayerNorm" and bias is not None:
        return formulas.layer_norm(x, gain, bias, config.epsilon)
    if family.single == "variance":
        return x * formulas.inverse_rms(x.float(), config.epsilon) * gain
    seen = x.float()
    return (seen * formulas.inverse_rms(seen, config.epsilon)).to(x.dtype) * gain


def position_bias(weights: Mapping[str, Tensor], config: Config, attention: Attention, n: int) -> Tensor | None:
    """What T5 adds to the scores of self-attention at every layer, from the table of its first: `head query_pos key_pos`."""
    if config.positions.kind != "relative bias" or attention.name == "cross":
        return None
    table = weights[BIAS.format(attention.name)]
    places = torch.arange(n, device=table.device)
    offsets = places[None] - places[:, None]
    return formulas.relative_bias(
        table, offsets, furthest=config.positions.furthest, both_ways=attention.name == "encoder"
    )


def score(q: Tensor, k: Tensor, config: Config, attention: Attention, bias: Tensor | None) -> Tensor:
    """Scores of queries and keys with the family's positions, scale and mask: `... head query_pos key_pos`."""
    if config.positions.kind == "rotary":
        angles = formulas.rotary_angles(torch.arange(q.shape[-2]), rotary(config.positions)).to(q.device)
        q, k = formulas.rotate(q, angles), formulas.rotate(k, angles)
    found = formulas.scores(q, k) if FAMILIES[config.architecture].scaled else formulas.matches(q, k)
    if bias is not None:
        found = found + bias.to(found)
    return formulas.mask(found) if attention.causal else found


def rotary(places: Positions) -> Tensor:
    """The frequencies of rotary positions, stretched where the config says so. `-> pair`"""
    frequencies = formulas.rotary_frequencies(places.dims, places.base)
    if places.stretch is None:
        return frequencies
    factor, low, high, length = places.stretch
    return formulas.stretch(frequencies, factor=factor, low=low, high=high, length=length)


def softmax(scores: Tensor, config: Config) -> Tensor:
    """The pattern, in float32 where the family's own code softmaxes in float32."""
    if FAMILIES[config.architecture].single == "norm and softmax":
        return formulas.softmax(scores.float()).to(scores.dtype)
    return formulas.softmax(scores)


def project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Queries, keys or values of every head; a family without biases adds none. `pos d_model -> head pos d_head`"""
    none = weight.new_zeros(weight.shape[0], weight.shape[-1]) if bias is None else bias
    return formulas.project(x, weight, none)


def attend(
    block: Block,
    resid_pre: Tensor,
    config: Config,
    attention: Attention,
    *,
    bias: Tensor | None = None,
    memory: Tensor | None = None,
    pattern: Tensor | None = None,
) -> dict[str, Tensor]:
    """Every step of one attention from what enters it: x q k v scores pattern z delta_e attn_out resid_mid.

    `pos d_model -> ...`, shapes as in `probe.model.records.Trace`; `memory: key_pos d_model` is what cross-attention reads. What
    comes after the pattern is computed from `pattern` where one is given: one that was rounded, so that its rounding ends there.
    """
    x = enter(block, resid_pre, config)
    q, k, v = ask(block, x, x if memory is None else memory, config)
    scores = score(q, k, config, attention, bias)
    own = softmax(scores, config)
    z = formulas.mix(own if pattern is None else pattern.to(own), v)
    steps = {"x": x, "q": q, "k": k, "v": v, "scores": scores, "pattern": own, "z": z}
    return steps | leave(block, resid_pre, z, config)


def enter(block: Block, resid_pre: Tensor, config: Config) -> Tensor:
    """x, what attention reads of the stream: through the norm where the family has it in front. Shape unchanged."""
    if not FAMILIES[config.architecture].norm_first:
        return resid_pre
    return norm(resid_pre, block.norm, block.norm_bias, config)


def ask(block: Block, x: Tensor, source: Tensor, config: Config) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of `x`, keys and values of `source`, repeated for the heads that share them: `... head pos d_head`."""
    k, v = project(source, block.w_k, block.b_k), project(source, block.w_v, block.b_v)
    return project(x, block.w_q, block.b_q), share_heads(k, config.n_heads), share_heads(v, config.n_heads)


def leave(block: Block, resid_pre: Tensor, z: Tensor, config: Config) -> dict[str, Tensor]:
    """What the heads write and the stream behind it: delta_e attn_out resid_mid. `... pos d_model, ... head pos d_head`"""
    delta_e = formulas.write(z, block.w_o)
    attn_out = delta_e.sum(-3) if block.b_o is None else delta_e.sum(-3) + block.b_o
    return {"delta_e": delta_e, "attn_out": attn_out, "resid_mid": add(block, resid_pre, attn_out, config)}


def add(block: Block, resid_pre: Tensor, attn_out: Tensor, config: Config) -> Tensor:
    """E′ behind attention: the sum, through the norm where the family has it behind. `... pos d_model`, twice"""
    resid_mid = resid_pre + attn_out
    if FAMILIES[config.architecture].norm_first:
        return resid_mid
    return norm(resid_mid, block.norm, block.norm_bias, config)


def mlp(block: Block, resid_mid: Tensor, resid_pre: Tensor, config: Config) -> dict[str, Tensor]:
    """The block's second half: mlp_out and resid_post. `pos d_model -> pos d_model`"""
    family = FAMILIES[config.architecture]
    seen = resid_pre if family.parallel else resid_mid
    assert block.norm_mlp is not None and block.w_out is not None
    x = norm(seen, block.norm_mlp, block.norm_mlp_bias, config) if family.norm_first else seen
    activation = getattr(formulas, config.activation)
    if block.w_gate is not None and block.w_up is not None:
        inner = activation(x @ block.w_gate) * (x @ block.w_up)
    else:
        assert block.w_in is not None
        inner = activation(x @ block.w_in + (0 if block.b_in is None else block.b_in))
    mlp_out = inner @ block.w_out + (0 if block.b_out is None else block.b_out)
    resid_post = resid_mid + mlp_out
    if not family.norm_first:
        resid_post = norm(resid_post, block.norm_mlp, block.norm_mlp_bias, config)
    return {"mlp_out": mlp_out, "resid_post": resid_post}
