"""Every quantity of every step, computed once: inputs come from hooks, outputs from
`probe.model.attention` and `probe.model.blocks`.

`measure` returns the quantities by name, with the axes of `AXES`. Tables select the word and the
head that are followed first, and the page selects the drawn tokens (`probe.walks.frames`).
Quantities that a family does not have (a mask, a norm in front, b_O, a division) are missing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from probe.model import attention, blocks, forward
from probe.model.decomposition import residual_stream
from probe.walks.choose import content_words
from probe.walks.scene import (
    HEAD_NUMBERS,
    STREAM_NUMBERS,
    AttentionView,
    Scene,
    SecondSentence,
    WordInText,
)

Quantities = dict[str, Tensor]
Function = Callable[..., Any]
NORMS: Mapping[str, Function] = {"LayerNorm": attention.layer_norm, "RMSNorm": attention.rms_norm}
N_NEAREST = 5  # tokens: the nearest embeddings and the most likely next tokens at each depth
# Names by axes. `page_head` is a head of `Scene.heads`, `number` a coordinate or a rank;
# `drawn_query` contains only the drawn tokens, `second_key` the tokens of the second sentence.
NAMES_BY_AXES = {
    "page_head query key": ("dot", "score", "pattern", "open", "steep", "share", "logit"),
    "page_head query": (
        "pattern_entropy",
        "pattern_response",
        "pattern_largest",
        "steep_entropy",
        "steep_response",
        "steep_largest",
        "later",
        "q_norm",
        "delta_norm",
        "others_norm",
    ),
    "page_head key": ("k_norm", "v_norm", "out_norm"),
    "page_head query number": ("q", "q_plane", "delta", "others"),
    "page_head key number": ("k", "k_plane", "v", "v_plane", "out"),
    "page_head number": ("explained",),
    "page_head second_key": ("second_pattern", "second_share"),
    "page_head": ("second_added",),
    "layer head": ("swap",),
    "layer head query": ("write_norm", "added", "moved", "from_content", "adds"),
    "layer query": (
        "mean",
        "std",
        "before",
        "after",
        "missed",
        "missed_norm",
        "attention_norm",
        "mlp_norm",
        "total_norm",
        "normed_norm",
        "e_after_norm",
    ),
    "layer query number": ("e", "total", "normed", "e_after"),
    "layer number": ("b_o",),
    "layer": ("b_o_norm",),
    "depth query": ("depth_norm", "token_cosine"),
    "depth drawn_query number": ("lens", "lens_ids", "nearest", "nearest_ids"),
    "depth": ("apart", "second_cosine"),
    "query": ("token_norm",),
}
AXES = {name: axes.split() for axes, names in NAMES_BY_AXES.items() for name in names}


Agreement = list[dict[str, Any]]


def measure(scene: Scene, *, neighbours: bool = True) -> tuple[Quantities, Agreement]:
    """Every quantity that the tables and the page show, by its name in AXES, and the `agreement` of
    every layer.

    neighbours: whether to compute the slowest ones: the tokens that each depth is nearest to and
        would predict
    """
    all_layers = range(scene.sizes[0])
    of_heads = [_head_quantities(scene, layer) for layer in scene.layers]
    of_layers = [_layer_quantities(scene, layer) for layer in all_layers]
    quantities = {name: torch.cat([part[name] for part in of_heads]) for name in of_heads[0]}
    for name in of_layers[0]:
        quantities[name] = torch.stack([part[name] for part in of_layers])
    quantities |= _depth_quantities(scene, neighbours=neighbours)
    if scene.compared is not None:
        quantities |= _second_sentence_quantities(scene, scene.compared)
    if scene.swaps is not None:
        quantities["swap"] = scene.swaps
    rows = [row for layer in all_layers for row in agreement(scene.view, layer, at=scene.at)]
    return quantities, rows


def relative_writes(view: AttentionView, layer: int, sources: Tensor) -> Tensor:
    """How far each head moves each token by its write from some tokens. `-> head query_pos`

        ‖Σ A V W_O‖ / ‖E + Σ ΔE + b_O‖, both as they are added

    sources: `query_pos key_pos`, True for these tokens
    """
    trace = view.attention
    # E + Σ ΔE + b_O, before a norm of this sum
    after = trace.resid_pre[layer] + view.as_added(layer, trace.attn_out[layer])
    # Σ_j A[t, j] V[j] over the sources alone
    z = attention.mix(trace.pattern[layer] * sources, trace.v[layer])
    write = attention.write(z, view.weights.blocks[layer].w_o)
    return view.as_added(layer, write).norm(dim=-1) / after.norm(dim=-1)


def from_content(view: AttentionView, word: WordInText) -> Tensor:
    """How far each head moves the word by its write from other content words. `layer head`"""
    sources = view.other_words(word) & content_words(view.source)
    layers = range(len(view.attention.pattern))
    return torch.stack([relative_writes(view, layer, sources)[:, word.at] for layer in layers])


def _head_quantities(scene: Scene, layer: int) -> Quantities:
    """The quantities of every head of a layer; the first axis is the head."""
    view = scene.view
    quantities = attention_grids(view, layer)
    for name in ("pattern", "steep"):
        if name in quantities:
            weights = quantities[name]
            quantities[f"{name}_entropy"] = entropy(weights)
            quantities[f"{name}_response"] = response(weights)
            quantities[f"{name}_largest"] = weights.amax(-1)
    if "open" in quantities:
        quantities["later"] = quantities["open"].masked_fill(view.allowed, 0.0).sum(-1)
    if scene.logit is not None:
        quantities["logit"] = scene.logit.contributions[layer]
    return quantities | _projections(view, layer) | _writes(view, layer)


def attention_grids(view: AttentionView, layer: int) -> Quantities:
    """The attention grids of every head, by name. `head query_pos key_pos`

    dot: Q Kᵀ, rotated if the model has rotary positions
    score: divided as in this layer, and capped if the family caps; before the mask
    pattern: as hooked
    open: softmax without the mask; only if there is a mask
    steep: softmax without the division; only if there is a division
    """
    trace = view.attention
    config = view.weights.config
    block = view.weights.blocks[layer]
    n = trace.k.shape[-2]
    terms = blocks.position_terms(view.weights, n)
    q, k = blocks.compared(view.weights, block, trace.q[layer], trace.k[layer], terms)
    qk = attention.matches(q, k)
    bias = blocks.position_bias(view.weights, n)
    # The page shows the mask as a separate step, so the score has none. A cap comes after the
    # division, so it is off where the division is undone to get Q Kᵀ.
    unmasked = replace(view.weights, attention=replace(view.weights.attention, causal=False))
    uncapped = replace(unmasked, config=replace(config, attn_logit_softcapping=0.0))
    score = blocks.scores(unmasked, block, qk, bias)
    score = blocks.mask(unmasked, score, local=block.local)
    uncapped_score = blocks.scores(uncapped, block, qk, bias)
    # Q Kᵀ = score · divisor, which is sqrt(d_head) in most families
    dot = blocks.mask(unmasked, uncapped_score, local=block.local) * block.score_divisor
    grids = {"dot": dot, "score": score, "pattern": trace.pattern[layer]}
    if view.causal:
        grids["open"] = attention.softmax(score)
    if view.family.divides_scores:
        grids["steep"] = attention.softmax(attention.mask(dot) if view.causal else dot)
    return grids


def entropy(pattern: Tensor) -> Tensor:
    """-Σ A log2 A over key_pos, in bits; 0 if one token gets everything. `... key_pos -> ...`"""
    return -torch.special.xlogy(pattern, pattern).sum(-1) / math.log(2)


def response(pattern: Tensor) -> Tensor:
    """The trace of the softmax's Jacobian, Σ A (1 - A): how far the weights respond to their
    scores. `... key_pos -> ...`

    0 if one token gets everything, because then no gradient passes.
    """
    return (pattern * (1 - pattern)).sum(-1)


def _projections(view: AttentionView, layer: int) -> Quantities:
    """Queries, keys and values: first coordinates, lengths, and coordinates in a plane, which
    queries and keys share.
    """
    vectors = {name: getattr(view.attention, name)[layer] for name in ("q", "k", "v")}
    quantities = {name: part[..., :HEAD_NUMBERS] for name, part in vectors.items()}
    quantities |= {f"{name}_norm": part.norm(dim=-1) for name, part in vectors.items()}
    n_queries = len(view.tokens)
    q_planes = []
    k_planes = []
    v_planes = []
    fractions = []
    for q, k, v in zip(vectors["q"], vectors["k"], vectors["v"], strict=True):
        # A score is a dot product of a query and a key, so the page draws the two in one plane.
        match_plane, match_explained = plane(torch.cat([q, k]))
        value_plane, value_explained = plane(v)
        q_planes.append(match_plane[:n_queries])
        k_planes.append(match_plane[n_queries:])
        v_planes.append(value_plane)
        fractions.append([sum(match_explained), sum(value_explained)])
    quantities["q_plane"] = torch.stack(q_planes)
    quantities["k_plane"] = torch.stack(k_planes)
    quantities["v_plane"] = torch.stack(v_planes)
    quantities["explained"] = torch.tensor(fractions)
    return quantities


def plane(vectors: Tensor) -> tuple[Tensor, tuple[float, float]]:
    """The plane in which vectors differ most (PCA): coordinates, and the fraction of the
    variance that each axis explains.

    `point d -> point 2`

    The sign of an axis makes its largest coordinate positive.
    """
    # X - mean = U S Vᵀ; the coordinates along the axes in V are U S.
    centred = (vectors - vectors.mean(0)).double()
    u, s, _ = torch.linalg.svd(centred, full_matrices=False)
    # A single point, or vectors of one coordinate, have fewer than two axes; the rest is 0.
    padding = (0, max(0, 2 - len(s)))
    coordinates = torch.nn.functional.pad(u * s, padding)[:, :2]
    peak = coordinates.gather(0, coordinates.abs().argmax(0, keepdim=True))
    total = s.square().sum().clamp_min(torch.finfo(s.dtype).tiny)
    fractions = torch.nn.functional.pad(s.square() / total, padding)[:2].tolist()
    return (coordinates * peak.sign()).float(), (fractions[0], fractions[1])


def _writes(view: AttentionView, layer: int) -> Quantities:
    """Values times W_O (a head's write if it attended to that token alone), ΔE and its shares by
    source, and the sum of the other heads' ΔE.
    """
    trace = view.attention
    w_o = view.weights.blocks[layer].w_o
    out = attention.write(trace.v[layer], w_o)
    delta = attention.write(trace.z[layer], w_o)
    # ΔE[head] = z[head] W_O[head]; the other heads' sum is Σ ΔE - ΔE[head]
    other_heads = delta.sum(0, keepdim=True) - delta
    vectors = {"out": out, "delta": delta, "others": other_heads}
    quantities = {name: vector[..., :STREAM_NUMBERS] for name, vector in vectors.items()}
    quantities |= {f"{name}_norm": vector.norm(dim=-1) for name, vector in vectors.items()}
    quantities["share"] = shares(trace.pattern[layer], out, delta)
    return quantities


def shares(pattern: Tensor, out: Tensor, delta: Tensor) -> Tensor:
    """The share of each source token in ΔE, along ΔE: <A V W_O, ΔE> / <ΔE, ΔE>; the shares sum
    to 1.

    `head query_pos key_pos, head key_pos d_model, head query_pos d_model -> head query_pos key_pos`
    """
    return pattern * (delta @ out.transpose(-1, -2)) / delta.square().sum(-1, keepdim=True)


def _layer_quantities(scene: Scene, layer: int) -> Quantities:
    """The quantities of a layer at each query: from E to E′, lengths, and how far each head
    moves it.

    total: E + Σ ΔE + b_O, or Σ ΔE + b_O if the family norms the heads' writes
    normed: the norm of `total`
    """
    view = scene.view
    trace = view.attention
    block = view.weights.blocks[layer]
    config = view.weights.config
    norms_writes = view.family.norm_after_write
    delta = attention.write(trace.z[layer], block.w_o)
    e = trace.resid_pre[layer]
    e_after = trace.resid_mid[layer]
    bias = 0 if block.b_o is None else block.b_o
    total = delta.sum(0) + bias + (0 if norms_writes else e)
    vectors = {"e": e, "total": total, "e_after": e_after}
    if norms_writes:
        vectors["normed"] = blocks.norm(total, block.norm_out, None, config)
    elif not view.family.norm_first:
        vectors["normed"] = blocks.norm(total, block.norm, block.norm_bias, config)
    if block.b_o is not None:
        vectors["b_o"] = block.b_o
    quantities = {name: vector[..., :STREAM_NUMBERS] for name, vector in vectors.items()}
    quantities["before"] = e.norm(dim=-1)
    # E′ = E + Σ ΔE + b_O, norm(E + Σ ΔE + b_O) or E + norm(Σ ΔE + b_O), by family; `missed` is
    # its difference from the hooked E′.
    missed = vectors.get("normed", total) + (e if norms_writes else 0) - e_after
    quantities["missed"] = missed.abs().amax(-1)
    quantities["missed_norm"] = missed.norm(dim=-1)
    if view.family.norm_first:
        quantities["mean"] = e.mean(-1)
        # LayerNorm divides by sqrt(mean((E - mean)²)), so Bessel's correction is off.
        quantities["std"] = e.std(-1, correction=0)
        quantities["after"] = trace.x[layer].norm(dim=-1)
    quantities["attention_norm"] = trace.attn_out[layer].norm(dim=-1)
    quantities["mlp_norm"] = view.stream.mlp_out[layer].norm(dim=-1)
    for name, vector in vectors.items():
        if name != "e":  # its length is `before`
            quantities[f"{name}_norm"] = vector.norm(dim=-1)
    return quantities | _moves(scene, layer, delta)


def _moves(scene: Scene, layer: int, delta: Tensor) -> Quantities:
    """The length of each head's ΔE, also relative to the token's vector, how far its write from
    other tokens moves each token, and its contribution to a logit.
    """
    other_words = scene.view.other_words(scene.word)
    content = other_words & content_words(scene.view.source)
    quantities = {
        "write_norm": delta.norm(dim=-1),
        "added": relative_writes(scene.view, layer, scene.view.allowed),
        "moved": relative_writes(scene.view, layer, other_words),
        "from_content": relative_writes(scene.view, layer, content),
    }
    if scene.logit is not None:
        quantities["adds"] = scene.logit.contributions[layer].sum(-1)
    return quantities


def agreement(view: AttentionView, layer: int, *, at: int) -> Agreement:
    """The difference of each formula, applied to the hooked tensors of the step before, from the
    hook of its step: max |difference| / max |hooked|, in rows with layer, step and function.
    """
    steps = [
        *_norm_step(view, layer),
        *_projection_steps(view, layer),
        *_pattern_steps(view, layer),
        *_write_steps(view, layer, at),
    ]
    return [
        {
            "layer": layer,
            "step": step,
            "function": function_name(function),
            "error": _relative_error(computed, hooked),
        }
        for step, function, computed, hooked in steps
    ]


# The name of the step, the function with the formula, its result, and the hooked tensor.
Step = tuple[str, Function, Tensor, Tensor]


def _norm_step(view: AttentionView, layer: int) -> list[Step]:
    """The input of attention: the norm of E, or E itself if the family has no norm in front."""
    trace = view.attention
    block = view.weights.blocks[layer]
    config = view.weights.config
    resid = trace.resid_pre[layer]
    if not blocks.norms_input(block, config):
        return [("x = E", blocks.attention_input, resid, trace.x[layer])]
    x = _normed(view, resid, block.norm, block.norm_bias)
    return [(f"{config.family.norm}(E)", NORMS[config.family.norm], x, trace.x[layer])]


def _normed(view: AttentionView, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """The family's norm, by the formula that the page shows. Shape unchanged."""
    config = view.weights.config
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    gain = blocks.gain_of(weight, config)
    if config.family.norm == "RMSNorm":
        return attention.rms_norm(wide, gain, config.epsilon).to(x.dtype)
    no_bias = torch.zeros(())
    bias = no_bias if bias is None else bias
    return attention.layer_norm(wide, gain, bias, config.epsilon).to(x.dtype)


def _projection_steps(view: AttentionView, layer: int) -> list[Step]:
    """The steps to queries, keys and values."""
    trace = view.attention
    block = view.weights.blocks[layer]
    heads = view.weights.config.n_heads
    read = view.key_input(layer)
    q = blocks.projection(trace.x[layer], block.w_q, block.b_q)
    k = attention.repeat_kv(blocks.projection(read, block.w_k, block.b_k), heads)
    v = attention.repeat_kv(blocks.projection(read, block.w_v, block.b_v), heads)
    return [
        ("Q", attention.project, q, trace.q[layer]),
        ("K", attention.project, k, trace.k[layer]),
        ("V", attention.project, v, trace.v[layer]),
    ]


def _pattern_steps(view: AttentionView, layer: int) -> list[Step]:
    """The steps to scores and weights; scores only where the mask allows them, because a hook
    may hold minus infinity elsewhere.
    """
    trace = view.attention
    block = view.weights.blocks[layer]
    terms = blocks.position_terms(view.weights, trace.k.shape[-2])
    q, k = blocks.compared(view.weights, block, trace.q[layer], trace.k[layer], terms)
    formula = attention.scores if view.family.divides_scores else attention.matches
    qk = formula(q, k)
    if view.family.divides_scores:  # by sqrt(d_head), while a config may have another divisor
        qk = qk * math.sqrt(q.shape[-1])
    bias = blocks.bias_and_mask(view.weights, block, terms, *qk.shape[-2:])
    score = blocks.scores(view.weights, block, qk, bias)
    is_masked = ~view.allowed
    computed = score.masked_fill(is_masked, 0)
    hooked = trace.scores[layer].masked_fill(is_masked, 0)
    pattern = attention.softmax(score)
    return [
        ("scores", formula, computed, hooked),
        ("pattern", attention.softmax, pattern, trace.pattern[layer]),
    ]


def _write_steps(view: AttentionView, layer: int, at: int) -> list[Step]:
    """The steps from weighted values to the sum with the stream.

    The sum over sources is checked only at `at`, because it holds a vector for each pair of tokens.
    """
    trace = view.attention
    block = view.weights.blocks[layer]
    pattern = trace.pattern[layer]
    v = trace.v[layer]
    z = trace.z[layer]
    delta = attention.write(z, block.w_o)
    by_source = attention.write_by_source(pattern[:, at], v, block.w_o)
    # Both orders give the same sum: Concat(z) W_O = Σ over heads of z[head] W_O[head].
    from_concat = blocks.merge_heads(block, z.transpose(0, 1))
    from_heads = delta.sum(0) if block.b_o is None else delta.sum(0) + block.b_o
    bias = "" if block.b_o is None else " + b_O"
    attn_out = trace.attn_out[layer]
    steps: list[Step] = [
        ("z", attention.mix, attention.mix(pattern, v), z),
        ("Σ over sources", attention.write_by_source, by_source.sum(-2), delta[:, at]),
        (f"Concat(z) W_O{bias}", blocks.merge_heads, from_concat, attn_out),
        (f"Σ ΔE{bias}", attention.write, from_heads, attn_out),
    ]
    if view.family.adds_plainly:
        return steps
    norm = view.family.norm
    resid = trace.resid_pre[layer]
    if view.family.norm_after_write:
        summed = f"E + {norm}(Σ ΔE{bias})"
        resid_mid = resid + _normed(view, from_heads, block.norm_out, None)
    else:
        summed = f"{norm}(E + Σ ΔE{bias})"
        resid_mid = _normed(view, resid + from_heads, block.norm, block.norm_bias)
    steps.append((summed, NORMS[norm], resid_mid, trace.resid_mid[layer]))
    return steps


def function_name(function: Function) -> str:
    """A function's module and name, such as attention.scores."""
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__}"


def _relative_error(computed: Tensor, hooked: Tensor) -> float:
    scale = hooked.abs().max().item()
    # max |computed - hooked| / max |hooked|; a tensor of zeros has no scale
    difference = (computed - hooked).abs().max().item()
    return difference / scale if scale else difference


def token_vectors(view: AttentionView, positions: Sequence[int]) -> dict[str, Tensor]:
    """The embeddings that are added for the queries at these positions, by name.

    `-> position d_model`
    """
    ids = torch.tensor([view.tokens.ids[pos] for pos in positions])
    return forward.embedding_parts(view.stream.stack.on("cpu"), ids, torch.tensor(positions))


def _second_sentence_quantities(scene: Scene, second: SecondSentence) -> Quantities:
    """The word in the second sentence: what each head attends to and writes there."""
    view = second.view
    at = slice(second.word.at, second.word.at + 1)
    patterns = []
    key_shares = []
    sizes = []
    for layer in scene.layers:
        trace = view.attention
        w_o = view.weights.blocks[layer].w_o
        pattern = trace.pattern[layer][:, at]
        out = attention.write(trace.v[layer], w_o)
        delta = attention.write(trace.z[layer][:, at], w_o)
        patterns.append(pattern[:, 0])
        key_shares.append(shares(pattern, out, delta)[:, 0])
        sizes.append(relative_writes(view, layer, view.allowed)[:, second.word.at])
    return {
        "second_pattern": torch.cat(patterns),
        "second_share": torch.cat(key_shares),
        "second_added": torch.cat(sizes),
    }


def _depth_quantities(scene: Scene, *, neighbours: bool) -> Quantities:
    """The quantities of every depth at each query."""
    view = scene.view
    positions = list(range(len(view.tokens)))
    stream = torch.stack([residual_stream(view.stream, pos) for pos in positions], dim=1)
    token = token_vectors(view, positions)["token embedding"]
    cosine = torch.nn.functional.cosine_similarity
    quantities = {
        "depth_norm": stream.norm(dim=-1),
        "token_norm": token.norm(dim=-1),
        "token_cosine": cosine(stream, token, dim=-1),
    }
    if neighbours:
        quantities |= _neighbours(scene, stream[:, scene.drawn_queries])
    if scene.second is None:
        return quantities
    word = _word_by_depth(view, scene.at)
    second = _word_by_depth(scene.second.view, scene.second.word.at)
    # ‖x - x′‖ / ((‖x‖ + ‖x′‖) / 2); the stream grows with depth, so lengths alone do not compare.
    mean_norm = 0.5 * (word.norm(dim=-1) + second.norm(dim=-1))
    quantities["apart"] = (word - second).norm(dim=-1) / mean_norm
    quantities["second_cosine"] = cosine(word, second, dim=-1)
    return quantities


def _word_by_depth(view: AttentionView, at: int) -> Tensor:
    """The token embedding at a position, then its stream at every depth. `depth d_model`"""
    token = token_vectors(view, [at])["token embedding"]
    return torch.cat([token, residual_stream(view.stream, at)])


def _neighbours(scene: Scene, stream: Tensor) -> Quantities:
    """The nearest token embeddings at each depth, and the model's prediction there if it
    predicts tokens.
    """
    normalize = torch.nn.functional.normalize
    weights = scene.view.stream.stack.on("cpu")
    embedding = weights.raw[weights.config.family.embed + ".weight"].to(stream)
    # By cosine, because the stream grows with depth.
    cosines = normalize(stream, dim=-1) @ normalize(embedding, dim=-1).T
    nearest = cosines.topk(N_NEAREST)
    quantities = {"nearest": nearest.values, "nearest_ids": nearest.indices}
    if scene.view.stream.head_output is None:
        return quantities
    # Token by token, because the vocabulary at every depth of all tokens at once needs too much
    # memory.
    likeliest = [
        attention.softmax(forward.unembed(weights, vectors)).topk(N_NEAREST)
        for vectors in stream.unbind(1)
    ]
    quantities["lens"] = torch.stack([top.values for top in likeliest], dim=1)
    quantities["lens_ids"] = torch.stack([top.indices for top in likeliest], dim=1)
    return quantities
