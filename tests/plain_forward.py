"""A forward from the formulas of `probe.model.attention`, step by step: what the blocks that swaps
run are compared with. It is readable and slow, and only tests use it."""

from dataclasses import replace

import torch
from inside import attention as formulas
from inside import blocks, forward

EXACT = torch.float64


def run(weights, ids, dtype=EXACT):
    """One dictionary of named tensors for each layer. `ids: ... pos`"""
    resid = forward.embed(weights, ids, dtype=dtype)
    bias = blocks.position_bias(weights, ids.shape[-1])
    for stored in weights.blocks:
        block = stored.to(dtype, weights.device)
        step = {"resid_pre": resid} | attend(weights, block, resid, bias=bias)
        step |= mlp(weights, block, step["resid_mid"], resid)
        resid = step["resid_post"]
        yield step


def attend(weights, block, resid_pre, *, bias=None):
    """Every step of one self-attention, from the stream that enters."""
    config = weights.config
    x = blocks.attention_input(block, resid_pre, config)
    if block.mixer is not None:
        write = block.mixer(x)
        return {"x": x, "attn_out": write, "resid_mid": added(weights, block, resid_pre, write)}
    q = blocks.projection(x, block.w_q, block.b_q)
    k, v = (
        formulas.repeat_kv(blocks.projection(x, weight, bias_of_role), config.n_heads)
        for weight, bias_of_role in ((block.w_k, block.b_k), (block.w_v, block.b_v))
    )
    scores = score(weights, block, q, k, bias)
    pattern = formulas.softmax(scores)
    z = formulas.gated(formulas.mix(pattern, v), x, block.w_head_gate)
    delta_e = formulas.write(z, block.w_o)
    attn_out = delta_e.sum(-3) if block.b_o is None else delta_e.sum(-3) + block.b_o
    return {
        "x": x,
        "q": q,
        "k": k,
        "v": v,
        "scores": scores,
        "pattern": pattern,
        "z": z,
        "delta_e": delta_e,
        "attn_out": attn_out,
        "resid_mid": added(weights, block, resid_pre, attn_out),
    }


def added(weights, block, resid, write):
    """The stream after the write of an attention."""
    family = weights.config.family
    if family.norm_after_write:
        write = blocks.norm(write, block.norm_out, None, weights.config)
    if family.norm_after_sum:
        return blocks.norm(resid + write, block.norm, block.norm_bias, weights.config)
    return resid + write


def placed(block, x, norm, config):
    """Queries or keys of whole texts after their norm and rotation."""
    normed = blocks.norm_heads(x, norm, config)
    return blocks.rotate(block, normed, torch.arange(x.shape[-2]), config)


def queries_and_keys(block, q, k, config):
    """Queries and keys as scores use them; the keys are repeated for the heads that share them."""
    k = k[..., :: config.n_heads // config.n_kv_heads, :, :]
    q, k = placed(block, q, block.norm_q, config), placed(block, k, block.norm_k, config)
    return q, formulas.repeat_kv(k, config.n_heads)


def score(weights, block, q, k, bias):
    """Scores with the family's norms, positions, scale, cap and mask."""
    config = weights.config
    q, k = queries_and_keys(block, q, k, config)
    scores = formulas.matches(q, k) / block.score_divisor
    if config.attn_logit_softcapping:
        scores = formulas.softcap(scores, config.attn_logit_softcapping)
    if bias is not None:
        scores = scores + bias.to(scores)
    return blocks.mask(weights, scores, local=block.local)


def mlp(weights, block, resid_mid, resid_pre):
    """mlp_out and resid_post."""
    config = weights.config
    x = resid_pre if config.family.parallel_attn_mlp else resid_mid
    if config.family.norm_first:
        x = blocks.norm(x, block.norm_mlp, block.norm_mlp_bias, config)
    if block.experts is not None:
        write = block.experts(x)
    else:
        activation = getattr(formulas, config.activation)
        if block.w_gate is not None:
            hidden = activation(x @ block.w_gate) * (x @ block.w_up)
        else:
            hidden = activation(x @ block.w_in + (0 if block.b_in is None else block.b_in))
        write = hidden @ block.w_out + (0 if block.b_out is None else block.b_out)
    # The norms of the MLP's write and sum take the place of the attention's.
    as_attention = replace(
        block, norm_out=block.norm_mlp_out, norm=block.norm_mlp, norm_bias=block.norm_mlp_bias
    )
    return {"mlp_out": write, "resid_post": added(weights, as_attention, resid_mid, write)}
