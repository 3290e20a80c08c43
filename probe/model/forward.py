"""A complete forward from raw weights, step by step from `probe.model.attention`, following the
table and the config.

No modelling code of Hugging Face or TransformerLens is used: the tensors come directly from the
checkpoint. It is readable and slow. `probe.model.batched` has the same steps for many texts and
variants at once, and tests compare the two. Quantities that a family's code computes in float32,
whatever the dtype of the model (`Family.in_float32`), are computed in float32 here, too, because
they are part of the model. Nothing else is rounded, so in float64 this is the other side of
`probe.model.check`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probe.model import attention as formulas
from probe.model.model import Config, Positions
from probe.model.weights import Block, Expert, Weights

Stacks = Mapping[str, Weights]
Norm = Callable[[Tensor, Tensor | None, Tensor | None, Config], Tensor]


def embed(weights: Weights, ids: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """E before the first block: tokens with the family's scale, positions, types, norm. `... pos
    -> ... pos d_model`
    """
    positions = torch.arange(ids.shape[-1], device=ids.device)
    parts = embedding_parts(weights, ids, positions, dtype=dtype)
    return embedding_norm(weights, sum_embeddings(parts))


def embedding_parts(
    weights: Weights, ids: Tensor, positions: Tensor, *, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """The embeddings that the family adds for tokens at `positions`, by name. `..., ... -> ...
    d_model`
    """
    config = weights.config
    family = config.family
    dtype = dtype or weights.dtype
    tokens = weights.raw[family.embed + ".weight"][ids]
    parts = {"token embedding": tokens.to(dtype) * config.embed_scale}
    if config.positions.kind == "learned":
        table = weights.raw[family.position_table.format(weights.attention.name) + ".weight"]
        parts["position embedding"] = table[config.positions.first + positions].to(dtype)
    if config.positions.kind == "sinusoidal":
        rows = int(positions.max()) + 1 if positions.numel() else 0
        sinusoids = formulas.sinusoids(rows, config.d_model).to(parts["token embedding"])
        parts["position embedding"] = sinusoids[positions]
    if config.n_token_types:
        # A single text consists of tokens of the first type.
        parts["token type embedding"] = weights.raw[family.type_table + ".weight"][0].to(dtype)
    return parts


def sum_embeddings(parts: Mapping[str, Tensor]) -> Tensor:
    """The sum of the embeddings, in the order of the names."""
    first, *later = parts.values()
    return sum(later, start=first)


def embedding_norm(weights: Weights, resid: Tensor) -> Tensor:
    """The stream after the norm between the embeddings and the first block, if the family has
    one. Shape unchanged.
    """
    return _named_norm(weights, resid, weights.config.family.embedding_norm)


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
        no_bias = x.new_zeros(())
        return formulas.layer_norm(x, gain, no_bias if bias is None else bias, config.epsilon)
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


def _named_norm(weights: Weights, x: Tensor, name: str) -> Tensor:
    weight, bias = weights.norm(name, x.dtype)
    return x if weight is None else norm(x, weight, bias, weights.config)


def position_bias(weights: Weights, n: int) -> Tensor | None:
    """The bias that positions add to the scores of self-attention: T5's, from its first layer's
    table, or ALiBi's; otherwise None.

    `-> head query_pos key_pos`
    """
    config = weights.config
    stack = weights.attention.name
    positions = torch.arange(n, device=weights.device)
    if config.positions.kind == "alibi":
        slopes = formulas.alibi_slopes(config.n_heads).to(weights.device)
        return formulas.alibi(slopes, positions).expand(-1, n, n)
    if config.positions.kind != "relative bias" or stack == "cross":
        return None
    table = weights.raw[config.family.position_table.format(stack) + ".weight"]
    offsets = positions[None] - positions[:, None]
    furthest = config.positions.furthest
    return formulas.relative_bias(table, offsets, furthest=furthest, both_ways=not weights.causal)


def score(weights: Weights, block: Block, q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
    """Scores of queries and keys with the family's norms, positions, scale, cap and mask.

    `twice ... head pos d_head -> ... head query_pos key_pos`
    """
    config = weights.config
    q, k = apply_rotary(block, q, k, config)
    if "scores" in config.family.in_float32:
        q = q.float()
        k = k.float()
    root = math.sqrt(config.d_head)
    divides_scores = config.family.divides_scores
    if divides_scores and block.score_divisor != root:  # the divisor is another number
        q = q * (root / block.score_divisor)
    scores = formulas.scores(q, k) if divides_scores else formulas.matches(q, k)
    if config.attn_logit_softcapping:
        scores = formulas.softcap(scores, config.attn_logit_softcapping)
    if bias is not None:
        scores = scores + bias.to(scores)
    return mask(weights, block, scores)


def mask(weights: Weights, block: Block, scores: Tensor) -> Tensor:
    """Scores with minus infinity where this layer does not let a query read: later tokens, and
    tokens outside its window. `... query_pos key_pos`, unchanged
    """
    if block.local:
        window = weights.config.window
        scores = formulas.sliding_window(scores, window, both_ways=not weights.causal)
    return formulas.mask(scores) if weights.causal else scores


def apply_rotary(block: Block, q: Tensor, k: Tensor, config: Config) -> tuple[Tensor, Tensor]:
    """Queries and keys, normed and rotated by their positions if the family does so. Shapes
    unchanged.
    """
    # Keys are repeated for the heads that share them; each is normed and rotated once.
    group = config.n_heads // config.n_kv_heads
    k = k[..., ::group, :, :]
    positions = torch.arange(q.shape[-2])
    q = rotate(block, norm_heads(q, block.norm_q, config), positions, config)
    k = rotate(block, norm_heads(k, block.norm_k, config), positions, config)
    return q, formulas.repeat_kv(k, config.n_heads)


def rotate(block: Block, x: Tensor, positions: Tensor, config: Config) -> Tensor:
    """Queries or keys rotated by their positions, if this layer rotates. `... pos d_head`,
    unchanged
    """
    if not block.rotated or config.positions.kind != "rotary":
        return x
    frequencies = rotary(config.positions, local=block.local)
    angles = formulas.rotary_angles(positions, frequencies)
    factor = rotary_factor(config.positions, local=block.local)
    return _rotate(x, angles, factor, config)


def _rotate(x: Tensor, angles: Tensor, factor: float, config: Config) -> Tensor:
    family = config.family
    dims = angles.shape[-1]
    rotary, unrotated = x[..., :dims], x[..., dims:]
    if "rotation" in family.in_float32:
        rotary = rotary.float()
    if "rotated" in family.in_float32:
        rotary = rotary.float().to(x.dtype)
    if family.rotary_adjacent_pairs:
        rotary = formulas.halves(rotary, dims)
    rotated = formulas.rotate(rotary, angles.to(x.device), factor)
    return torch.cat([rotated.to(x.dtype), unrotated], dim=-1)


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


def softmax(scores: Tensor, block: Block, config: Config) -> Tensor:
    """The pattern, computed in float32 if the family's code does so."""
    dtype = scores.dtype
    if "softmax" in config.family.in_float32:
        scores = scores.float()
    if block.sinks is None:
        return formulas.softmax(scores).to(dtype)
    return formulas.softmax_with_sink(scores, block.sinks.to(scores)).to(dtype)


def project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Queries, keys or values of every head, with a bias if there is one.

    `pos d_model -> head pos d_head`
    """
    if bias is None:
        bias = weight.new_zeros(weight.shape[0], weight.shape[-1])
    return formulas.project(x, weight, bias)


def attend(
    weights: Weights,
    block: Block,
    resid_pre: Tensor,
    *,
    bias: Tensor | None = None,
    memory: Tensor | None = None,
    pattern: Tensor | None = None,
) -> dict[str, Tensor]:
    """Every step of one attention, from the stream that enters: x q k v scores pattern z delta_e
    attn_out resid_mid.

    `pos d_model -> ...`, shapes as in `probe.model.records.Trace`

    memory: `key_pos d_model`, the input of keys and values of cross-attention
    pattern: a rounded pattern, from which the later steps are computed, so that its rounding has no
        further effect

    A layer without attention has only x, attn_out (its mixer's write) and resid_mid.
    """
    config = weights.config
    x = attention_input(block, resid_pre, config)
    if block.mixer is not None:
        output = attention_output(block, resid_pre, block.mixer(x).unsqueeze(-3), config)
        return {"x": x, "attn_out": output["attn_out"], "resid_mid": output["resid_mid"]}
    q, k, v = project_qkv(block, x, x if memory is None else memory, config)
    scores = score(weights, block, q, k, bias)
    computed = softmax(scores, block, config).to(v)
    read = formulas.mix(computed if pattern is None else pattern.to(computed), v)
    z = formulas.gated(read, x, block.w_head_gate)
    steps = {"x": x, "q": q, "k": k, "v": v, "scores": scores, "pattern": computed, "z": z}
    return steps | attention_output(block, resid_pre, z, config)


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


def project_qkv(
    block: Block, x: Tensor, source: Tensor, config: Config
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of `x`, and keys and values of `source`, repeated for the heads that share them:
    `... head pos d_head`.
    """
    q = project(x, block.w_q, block.b_q)
    k = project(source, block.w_k, block.b_k)
    v = project(source, block.w_v, block.b_v)
    heads = config.n_heads
    return q, formulas.repeat_kv(k, heads), formulas.repeat_kv(v, heads)


def merge_heads(block: Block, z: Tensor) -> Tensor:
    """attn_out = Concat(z) W_O + b_O, which equals Σ_h ΔE_h + b_O. `... head pos d_head -> ...
    pos d_model`
    """
    merged = z.transpose(-3, -2).flatten(-2) @ block.w_o.flatten(0, 1)
    return merged if block.b_o is None else merged + block.b_o


def attention_output(
    block: Block, resid_pre: Tensor, z: Tensor, config: Config
) -> dict[str, Tensor]:
    """The heads' writes and the stream after them. `... pos d_model, ... head pos d_head -> ...
    pos d_model`
    """
    delta_e = formulas.write(z, block.w_o)
    attn_out = delta_e.sum(-3) if block.b_o is None else delta_e.sum(-3) + block.b_o
    added = attn_out
    if config.family.norm_after_write:
        added = norm(attn_out, block.norm_out, None, config)
    resid_mid = resid_pre + added
    if config.family.norm_after_sum:
        resid_mid = norm(resid_mid, block.norm, block.norm_bias, config)
    return {"delta_e": delta_e, "attn_out": attn_out, "resid_mid": resid_mid}


def mlp(block: Block, resid_mid: Tensor, resid_pre: Tensor, config: Config) -> dict[str, Tensor]:
    """The second half of a block: mlp_out and resid_post. `pos d_model -> pos d_model`"""
    family = config.family
    x = mlp_input(block, resid_mid, resid_pre, config)
    mlp_out = experts(block, x, config) if block.experts else neurons(block, x, config)
    added = mlp_out
    if family.norm_after_write:
        added = norm(mlp_out, block.norm_mlp_out, None, config)
    resid_post = resid_mid + added
    if family.norm_after_sum:
        resid_post = norm(resid_post, block.norm_mlp, block.norm_mlp_bias, config)
    return {"mlp_out": mlp_out, "resid_post": resid_post}


def mlp_input(block: Block, resid_mid: Tensor, resid_pre: Tensor, config: Config) -> Tensor:
    """The input of the MLP: the stream, after the norm if there is one in front. Shape
    unchanged.
    """
    x = resid_pre if config.family.parallel_attn_mlp else resid_mid
    return normed_for_mlp(block, x, config)


def normed_for_mlp(block: Block, x: Tensor, config: Config, norm: Norm = norm) -> Tensor:
    """The stream after the norm in front of the MLP; the stream itself without such a norm.

    Shape: ... d_model -> ... d_model
    """
    if not config.family.norm_first:
        return x
    return norm(x, block.norm_mlp, block.norm_mlp_bias, config)


def neurons(block: Block, x: Tensor, config: Config) -> Tensor:
    """The write of a plain MLP: its activations times W_out, plus b_out. `... d_model -> ...
    d_model`
    """
    assert block.w_out is not None
    write = activate(block, x, config) @ block.w_out
    return write if block.b_out is None else write + block.b_out


def experts(block: Block, x: Tensor, config: Config) -> Tensor:
    """The write of a routed MLP: Σ weight times the expert's write over the token's experts,
    plus that of the shared expert. `... d_model -> ... d_model`
    """
    shares = route(block, x, config)
    total = torch.zeros_like(x)
    for number, expert in enumerate(block.experts):
        of_expert = activate_expert(expert, x, config) @ expert.w_out
        if expert.b_out is not None:
            of_expert = of_expert + expert.b_out
        total = total + shares[..., number, None] * of_expert
    if block.shared is not None:
        of_shared = activate_expert(block.shared, x, config) @ block.shared.w_out
        total = total + shared_gate(block, x) * of_shared
    return total


def route(block: Block, x: Tensor, config: Config) -> Tensor:
    """The weight of each expert for each token, in float32 if the family's router is. `...
    d_model -> ... expert`
    """
    assert block.w_router is not None and config.family.routed is not None
    logits = x @ block.w_router
    if block.b_router is not None:
        logits = logits + block.b_router
    if "router" in config.family.in_float32:
        logits = logits.float()
    of_all = config.family.routed.softmax_over_all_experts
    normed = config.normed_shares
    return formulas.route(logits, config.n_chosen, of_all=of_all, normed=normed).to(x.dtype)


def shared_gate(block: Block, x: Tensor) -> Tensor:
    """The weight of the expert that every token uses, between 0 and 1. `... d_model -> ... 1`"""
    assert block.w_shared is not None
    return torch.sigmoid(x @ block.w_shared)


def activate_expert(expert: Expert, x: Tensor, config: Config) -> Tensor:
    """An expert's activations: f(x W_gate) * x W_up, or GPT-OSS' clamped form. `... d_model ->
    ... d_mlp`
    """
    gate = x @ expert.w_gate
    up = x @ expert.w_up
    if expert.b_gate is not None and expert.b_up is not None:
        gate = gate + expert.b_gate
        up = up + expert.b_up
    if config.swiglu_limit:
        sharpness = config.swiglu_sharpness
        return formulas.clamped_swiglu(gate, up, sharpness=sharpness, limit=config.swiglu_limit)
    return getattr(formulas, config.activation)(gate) * up


def activate(block: Block, x: Tensor, config: Config) -> Tensor:
    """The MLP's activations: f(x W_in + b_in), or f(x W_gate) * x W_up if it is gated. `...
    d_model -> ... d_mlp`
    """
    activation = getattr(formulas, config.activation)
    if block.w_gate is not None and block.w_up is not None:
        return activation(x @ block.w_gate) * (x @ block.w_up)
    assert block.w_in is not None
    hidden = x @ block.w_in
    return activation(hidden if block.b_in is None else hidden + block.b_in)


def run(weights: Weights, ids: Tensor, dtype: torch.dtype) -> Iterator[dict[str, Tensor]]:
    """One dictionary of named tensors for each layer, in order.

    `ids: ... pos`. Names: resid_pre x q k v scores pattern z delta_e attn_out resid_mid mlp_out
        resid_post.

    Neither a whole run nor a converted model is held in memory.
    """
    resid = embed(weights, ids, dtype)
    bias = position_bias(weights, ids.shape[-1])
    for stored in weights.blocks:
        block = stored.to(dtype, weights.device)
        step = {"resid_pre": resid} | attend(weights, block, resid, bias=bias)
        step |= mlp(block, step["resid_mid"], resid, weights.config)
        resid = step["resid_post"]
        yield step


def final_norm(weights: Weights, resid_post: Tensor) -> Tensor:
    """The output of a stack: its last resid_post after the final norm, if the family has one.
    Shape unchanged.
    """
    return _named_norm(weights, resid_post, weights.config.family.final_norm)


def logits(weights: Weights, final: Tensor, tokens: Sequence[int] | None = None) -> Tensor:
    """Scores over the vocabulary, or of some tokens, from the output of the last stack. `...
    d_model -> ... d_vocab`
    """
    table = unembedding(weights, final.dtype)
    stored = weights.raw.get(weights.config.family.unembed_bias or "final_logits_bias")
    bias = table.new_zeros(len(table)) if stored is None else stored.to(final).flatten()
    if tokens is not None:
        table = table[list(tokens)]
        bias = bias[list(tokens)]
    scores = transformed(weights, final) @ table.T + bias
    bound = weights.config.final_logit_softcapping
    return formulas.softcap(scores, bound) if bound else scores


def transformed(weights: Weights, final: Tensor) -> Tensor:
    """The stream after BERT's head up to its last product: norm(activation(x W + b)), if the
    family has it. Shape unchanged.
    """
    dense, last_norm, activation = weights.config.family.lm_head_transform
    if not dense:
        return final
    hidden = final @ weights.raw[dense + ".weight"].to(final).T
    bias = weights.raw.get(dense + ".bias")
    activate = getattr(formulas, activation or weights.config.activation)
    preactivation = hidden if bias is None else hidden + bias.to(final)
    return _named_norm(weights, activate(preactivation), last_norm)


def unembedding_input(weights: Weights, resid_post: Tensor) -> Tensor:
    """The input of W_U: the last resid_post after the final norm and, if the family has it,
    BERT's head. Shape unchanged.
    """
    return transformed(weights, final_norm(weights, resid_post))


def unembedding(weights: Weights, dtype: torch.dtype) -> Tensor:
    """W_U, including the config's scale. `d_vocab d_model`"""
    config = weights.config
    family = config.family
    table = weights.raw[(family.embed if config.tied else family.unembed) + ".weight"].to(dtype)
    return table if config.unembed_scale == 1 else table * config.unembed_scale


def unembed(weights: Weights, resid_post: Tensor, tokens: Sequence[int] | None = None) -> Tensor:
    """Logits over the vocabulary, or of some tokens, from the last resid_post: the final norm,
    then W_U. `... d_model -> ... d_vocab`
    """
    return logits(weights, final_norm(weights, resid_post), tokens)


@dataclass(frozen=True, eq=False)
class Decoded:
    """A decoder's run over a target, as far as its last position needs it: an entry for each
    layer, and the logits there.

    entering: `1 d_model`
    self_attention: (k, v), `head pos d_head`, of the target before its last position
    cross_attention: (k, v) of the source, `head key_pos d_head`
    z: `layer head d_head`, of cross-attention at the last position
    logits: `d_vocab`
    """

    entering: Tensor
    self_attention: Sequence[tuple[Tensor, Tensor]]
    cross_attention: Sequence[tuple[Tensor, Tensor]]
    z: Tensor
    logits: Tensor


def encode(stacks: Stacks, ids: Sequence[int]) -> Tensor:
    """The encoder's output for a source, which the decoder reads. `-> key_pos d_model`"""
    encoder = stacks["encoder"]
    for step in run(encoder, torch.tensor(ids, device=encoder.device), encoder.dtype):
        last = step["resid_post"]
    return final_norm(encoder, last)


def decode(stacks: Stacks, ids: Sequence[int], memory: Tensor) -> Decoded:
    """The decoder over `ids`.

    memory: `... key_pos d_model`; its leading axes lead every tensor of the result
    """
    decoder = stacks["decoder"]
    cross = stacks["cross"]
    resid = embed(decoder, torch.tensor(ids, device=decoder.device))
    bias = position_bias(decoder, len(ids))
    entering = resid[-1:]
    self_keys_values = []
    source_keys_values = []
    z = []
    for block, cross_block in zip(decoder.blocks, cross.blocks, strict=True):
        self_attention = attend(decoder, block, resid, bias=bias)
        across = attend(cross, cross_block, self_attention["resid_mid"], memory=memory)
        self_keys_values.append(
            (self_attention["k"][..., :-1, :], self_attention["v"][..., :-1, :])
        )
        source_keys_values.append((across["k"], across["v"]))
        z.append(across["z"][..., -1, :])
        resid = mlp(block, across["resid_mid"], resid, decoder.config)["resid_post"]
    return Decoded(
        entering,
        self_keys_values,
        source_keys_values,
        torch.stack(z),
        unembed(decoder, resid[..., -1, :]),
    )
