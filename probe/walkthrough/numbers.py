"""Every quantity of every step, computed once: what goes in is hooked, what comes out is by the
functions of `probe.model.forward`.

`measure` gives them by name with the axes of `AXES`. Tables take the word and the head that are
followed first out of them, the page takes what is drawn (`probe.walkthrough.frames`). What a family
does not have (a mask, a norm in front, b_O, a division) is not among them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from probe.model import attention, forward
from probe.model.decomposition import residual_stream
from probe.walkthrough import choose
from probe.walkthrough.scene import HEAD_NUMBERS, STREAM_NUMBERS, Scene, Seen

Quantities = dict[str, Tensor]
Function = Callable[..., Any]
NORMS: Mapping[str, Function] = {"LayerNorm": attention.layer_norm, "RMSNorm": attention.rms_norm}
NEAREST = 5
# Names by axes. `carried` is a head of `Scene.heads`, `number` a coordinate or a rank; `drawn`
# holds only the tokens that are drawn.
BY_AXES = {
    "carried query key": ("dot", "score", "pattern", "open", "steep", "share", "logit"),
    "carried query": (
        "pattern_entropy",
        "pattern_response",
        "pattern_largest",
        "steep_entropy",
        "steep_response",
    )
    + ("steep_largest", "later", "q_norm", "delta_norm", "others_norm"),
    "carried key": ("k_norm", "v_norm", "out_norm"),
    "carried query number": ("q", "q_plane", "delta", "others"),
    "carried key number": ("k", "k_plane", "v", "v_plane", "out"),
    "carried number": ("explained",),
    "carried there": ("there_pattern", "there_share"),
    "carried": ("there_norm",),
    "layer head": ("delta_apart",),
    "layer head query": ("write_norm", "moved", "from_content", "adds"),
    "layer query": (
        "mean",
        "std",
        "before",
        "after",
        "missed",
        "missed_norm",
        "attention_norm",
        "mlp_norm",
    )
    + ("total_norm", "normed_norm", "e_after_norm"),
    "layer query number": ("e", "total", "normed", "e_after"),
    "layer number": ("b_o",),
    "layer": ("b_o_norm",),
    "depth query": ("depth_norm", "token_cosine"),
    "depth drawn number": ("lens", "lens_ids", "nearest", "nearest_ids"),
    "depth": ("apart", "other_cosine"),
    "query": ("token_norm",),
}
AXES = {name: axes.split() for axes, names in BY_AXES.items() for name in names}


@dataclass(frozen=True)
class Agreement:
    """One formula against the hook that it should equal: max |difference| relative to max |hooked|."""

    layer: int
    step: str
    function: str
    error: float


@dataclass(frozen=True, eq=False)
class Measured:
    """Every quantity by its name in `AXES`, and how each formula of each layer agrees with its
    hook."""

    quantities: Quantities
    agreement: Sequence[Agreement]


def measure(scene: Scene, *, neighbours: bool = True) -> Measured:
    """All that the tables and the page show; `neighbours`: also the slowest, what depths are near
    and would say."""
    of_heads = [_of_layer(scene, layer) for layer in scene.layers]
    of_layers = [_of_stream(scene, layer) for layer in range(scene.sizes[0])]
    together = {name: torch.cat([part[name] for part in of_heads]) for name in of_heads[0]}
    together |= {name: torch.stack([part[name] for part in of_layers]) for name in of_layers[0]}
    agreed = [
        row for layer in range(scene.sizes[0]) for row in agreement(scene.seen, layer, at=scene.at)
    ]
    return Measured(together | _of_depths(scene, neighbours=neighbours) | _contrast(scene), agreed)


def _of_layer(scene: Scene, layer: int) -> Quantities:
    """What a layer has per head; the first axis is the head."""
    seen = scene.seen
    made = grids(seen, layer)
    for name in ("pattern", "steep"):
        if name in made:
            made |= {
                f"{name}_entropy": entropy(made[name]),
                f"{name}_response": response(made[name]),
            }
            made |= {f"{name}_largest": made[name].amax(-1)}
    if "open" in made:
        made["later"] = made["open"].masked_fill(seen.allowed, 0.0).sum(-1)
    if scene.asked is not None:
        made["logit"] = scene.asked.added[layer]
    return made | _projections(seen, layer) | _writes(seen, layer)


def grids(seen: Seen, layer: int) -> Quantities:
    """`head query_pos key_pos`, by name:

    dot: Q Kᵀ, turned by rotary positions where there are any · score: divided by sqrt(d_head) and
    capped where the family caps, not yet masked · pattern: as hooked · open: softmax without the
    mask · steep: softmax without the division. The last two only where there is a mask, a division.
    """
    trace, config = seen.attention, seen.weights.config
    unmasked = replace(seen.weights, attention=replace(seen.weights.attention, causal=False))
    bias = forward.position_bias(seen.weights, len(seen.tokens))
    uncapped = replace(unmasked, config=replace(config, attn_logit_softcapping=0.0))
    score, dot = (
        forward.score(weights, seen.weights.blocks[layer], trace.q[layer], trace.k[layer], bias)
        for weights in (unmasked, uncapped)
    )
    made = {"dot": dot * seen.root, "score": score, "pattern": trace.pattern[layer]}
    if seen.causal:
        made["open"] = forward.softmax(score, config)
    if seen.family.scaled:
        made["steep"] = forward.softmax(
            attention.mask(made["dot"]) if seen.causal else made["dot"], config
        )
    return made


def entropy(pattern: Tensor) -> Tensor:
    """-Σ A log2 A over key_pos, in bits: 0 when one token gets everything. `... key_pos -> ...`"""
    return -torch.special.xlogy(pattern, pattern).sum(-1) / math.log(2)


def response(pattern: Tensor) -> Tensor:
    """The trace of the softmax's Jacobian, Σ A (1 - A): how far the shares still answer to their
    scores.

    0 when one token gets everything, so that no gradient comes back. `... key_pos -> ...`
    """
    return (pattern * (1 - pattern)).sum(-1)


def _projections(seen: Seen, layer: int) -> Quantities:
    """Queries, keys and values: first coordinates, lengths, places in a plane; queries and keys
    share one."""
    vectors = {name: getattr(seen.attention, name)[layer] for name in ("q", "k", "v")}
    made = {name: part[..., :HEAD_NUMBERS] for name, part in vectors.items()}
    made |= {f"{name}_norm": part.norm(dim=-1) for name, part in vectors.items()}
    both = [plane(torch.cat([q, k])) for q, k in zip(vectors["q"], vectors["k"], strict=True)]
    alone, n = [plane(v) for v in vectors["v"]], len(seen.tokens)
    made["q_plane"] = torch.stack([places[:n] for places, _ in both])
    made["k_plane"] = torch.stack([places[n:] for places, _ in both])
    made["v_plane"] = torch.stack([places for places, _ in alone])
    return made | {
        "explained": torch.tensor(
            [[sum(a[1]), sum(b[1])] for a, b in zip(both, alone, strict=True)]
        )
    }


def plane(vectors: Tensor) -> tuple[Tensor, tuple[float, float]]:
    """The plane in which vectors differ most (PCA): coordinates, and the share of the variance that
    each axis explains.

    `point d -> point 2`. The sign of an axis is chosen so that its largest coordinate is positive.
    """
    centred = (vectors - vectors.mean(0)).double()
    u, s, _ = torch.linalg.svd(centred, full_matrices=False)
    coordinates = torch.nn.functional.pad(u * s, (0, max(0, 2 - len(s))))[:, :2]
    peak = coordinates.gather(0, coordinates.abs().argmax(0, keepdim=True))
    total = s.square().sum().clamp_min(torch.finfo(s.dtype).tiny)
    shares = torch.nn.functional.pad(s.square() / total, (0, max(0, 2 - len(s))))[:2].tolist()
    return (coordinates * peak.sign()).float(), (shares[0], shares[1])


def _writes(seen: Seen, layer: int) -> Quantities:
    """Values written out (what a head adds if it looks at that token alone), ΔE and its shares, the
    other heads'."""
    trace, w_o = seen.attention, seen.weights.blocks[layer].w_o
    out, delta = attention.write(trace.v[layer], w_o), attention.write(trace.z[layer], w_o)
    others = delta.sum(0, keepdim=True) - delta
    made = {"out": out, "delta": delta, "others": others}
    numbers = {name: vectors[..., :STREAM_NUMBERS] for name, vectors in made.items()}
    lengths = {f"{name}_norm": vectors.norm(dim=-1) for name, vectors in made.items()}
    return numbers | lengths | {"share": shares(trace.pattern[layer], out, delta)}


def shares(pattern: Tensor, out: Tensor, delta: Tensor) -> Tensor:
    """The share of ΔE that each source token is, along it: <A V W_O, ΔE> / <ΔE, ΔE>; they sum to 1.

    `head query_pos key_pos, head key_pos d_model, head query_pos d_model -> head query_pos key_pos`
    """
    return pattern * (delta @ out.transpose(-1, -2)) / delta.square().sum(-1, keepdim=True)


def _of_stream(scene: Scene, layer: int) -> Quantities:
    """What a layer has per token that looks: from E to E′ at every token, lengths, and how far each
    head moves it.

    `total`: E + Σ ΔE + b_O, or Σ ΔE + b_O alone in a family that norms what its heads write;
    `normed`: the norm of it.
    """
    seen = scene.seen
    trace, block, config = seen.attention, seen.weights.blocks[layer], seen.weights.config
    delta = attention.write(trace.z[layer], block.w_o)
    e, after = trace.resid_pre[layer], trace.resid_mid[layer]
    total = (
        delta.sum(0)
        + (0 if block.b_o is None else block.b_o)
        + (0 if seen.family.norm_after_write else e)
    )
    made = {"e": e, "total": total, "e_after": after}
    if seen.family.norm_after_write:
        made["normed"] = forward.norm(total, block.norm_out, None, config)
    elif not seen.family.norm_first:
        made["normed"] = forward.norm(total, block.norm, block.norm_bias, config)
    if block.b_o is not None:
        made["b_o"] = block.b_o
    numbers = {name: vectors[..., :STREAM_NUMBERS] for name, vectors in made.items()}
    lengths = {
        f"{name}_norm": vectors.norm(dim=-1) for name, vectors in made.items() if name != "e"
    }
    missed = made.get("normed", total) + (e if seen.family.norm_after_write else 0) - after
    numbers |= {
        "before": e.norm(dim=-1),
        "missed": missed.abs().amax(-1),
        "missed_norm": missed.norm(dim=-1),
    }
    if seen.family.norm_first:
        numbers |= {
            "mean": e.mean(-1),
            "std": e.std(-1, correction=0),
            "after": trace.x[layer].norm(dim=-1),
        }
    wrote = {"attention": trace.attn_out[layer], "mlp": seen.stream.mlp_out[layer]}
    numbers |= {f"{name}_norm": vectors.norm(dim=-1) for name, vectors in wrote.items()}
    return numbers | lengths | _moved(scene, layer, delta)


def _moved(scene: Scene, layer: int, delta: Tensor) -> Quantities:
    """How long each head's ΔE is, how far it moves each token by what it takes from others, what it
    adds to a logit."""
    others = scene.seen.others(scene.here)
    content = others & choose.content_words(scene.seen.source)
    made = {"write_norm": delta.norm(dim=-1), "moved": choose.moved(scene.seen, layer, others)}
    made |= {"from_content": choose.moved(scene.seen, layer, content)}
    return made if scene.asked is None else made | {"adds": scene.asked.added[layer].sum(-1)}


def agreement(seen: Seen, layer: int, *, at: int) -> list[Agreement]:
    """Each formula run on the hooked tensors of the step before, against the hook of its own step."""
    trace, block, config = seen.attention, seen.weights.blocks[layer], seen.weights.config
    e, x, v, z = trace.resid_pre[layer], trace.x[layer], trace.v[layer], trace.z[layer]
    bias = forward.position_bias(seen.weights, len(seen.tokens))
    score, hooked = (
        forward.score(seen.weights, block, trace.q[layer], trace.k[layer], bias),
        trace.scores[layer],
    )
    q, k, value = forward.ask(block, x, seen.read(layer), config)
    delta, by_source = (
        attention.write(z, block.w_o),
        attention.write_by_source(trace.pattern[layer][:, at], v, block.w_o),
    )
    biased = "" if block.b_o is None else " + b_O"
    left, norm = forward.leave(block, e, z, config), seen.family.norm
    scores = attention.scores if seen.family.scaled else attention.matches
    normed = NORMS[norm]
    rows: list[tuple[str, Function, Tensor, Tensor]] = [
        (f"{norm}(E)", normed, forward.enter(block, e, config), x),
        ("Q", attention.project, q, trace.q[layer]),
        ("K", attention.project, k, trace.k[layer]),
        ("V", attention.project, value, v),
        (
            "scores",
            scores,
            score.masked_fill(~seen.allowed, 0),
            hooked.masked_fill(~seen.allowed, 0),
        ),
        ("pattern", attention.softmax, forward.softmax(score, config), trace.pattern[layer]),
        ("z", attention.mix, attention.mix(trace.pattern[layer], v), z),
        ("Σ over sources", attention.write_by_source, by_source.sum(-2), delta[:, at]),
        (
            f"Concat(z) W_O{biased}",
            forward.merge_heads,
            forward.merge_heads(block, z),
            trace.attn_out[layer],
        ),
        (f"Σ ΔE{biased}", attention.write, left["attn_out"], trace.attn_out[layer]),
    ]
    if not seen.family.norm_first:
        rows[0] = ("x = E", forward.enter, rows[0][2], x)
    if not seen.family.adds_plainly:
        step = (
            f"E + {norm}(Σ ΔE{biased})"
            if seen.family.norm_after_write
            else f"{norm}(E + Σ ΔE{biased})"
        )
        rows.append((step, normed, left["resid_mid"], trace.resid_mid[layer]))
    return [
        Agreement(layer, step, named(function), _error(got, seen))
        for step, function, got, seen in rows
    ]


def named(function: Function) -> str:
    """attention.scores"""
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__}"


def _error(got: Tensor, hooked: Tensor) -> float:
    scale, gap = hooked.abs().max().item(), (got - hooked).abs().max().item()
    return gap / scale if scale else gap


def token_vectors(seen: Seen, positions: Sequence[int]) -> dict[str, Tensor]:
    """What is added for the tokens at these positions of those that look, by name. `-> position
    d_model`"""
    ids = torch.tensor([seen.tokens.ids[pos] for pos in positions])
    return forward.embedding_parts(seen.stream.stack.on("cpu"), ids, torch.tensor(positions))


def _contrast(scene: Scene) -> Quantities:
    """The word in the other sentence: what each head attends to and takes there, and how far its ΔE
    differs."""
    if scene.other is None or not scene.contrast:
        return {}
    there, at = scene.other.seen, slice(scene.other.place.at, scene.other.place.at + 1)
    parts = []
    for layer in scene.layers:
        trace, w_o = there.attention, there.weights.blocks[layer].w_o
        row, delta = trace.pattern[layer][:, at], attention.write(trace.z[layer][:, at], w_o)
        share = shares(row, attention.write(trace.v[layer], w_o), delta)
        parts.append({"pattern": row[:, 0], "share": share[:, 0], "norm": delta[:, 0].norm(dim=-1)})
    made = {f"there_{name}": torch.cat([part[name] for part in parts]) for name in parts[0]}
    return made | {"delta_apart": choose.apart(scene.seen, scene.here, scene.other)}


def _of_depths(scene: Scene, *, neighbours: bool) -> Quantities:
    """What every depth has per token that looks."""
    seen = scene.seen
    everywhere = list(range(len(seen.tokens)))
    stream = torch.stack([residual_stream(seen.stream, at) for at in everywhere], dim=1)
    token = token_vectors(seen, everywhere)["token embedding"]
    cosine = torch.nn.functional.cosine_similarity
    made = {"depth_norm": stream.norm(dim=-1), "token_norm": token.norm(dim=-1)}
    made |= {"token_cosine": cosine(stream, token, dim=-1)}
    made |= _neighbours(scene, stream[:, scene.drawn_queries]) if neighbours else {}
    if scene.other is None:
        return made
    here, elsewhere = (
        torch.cat([token_vectors(one, [at])["token embedding"], residual_stream(one.stream, at)])
        for one, at in ((seen, scene.at), (scene.other.seen, scene.other.place.at))
    )
    distance = (here - elsewhere).norm(dim=-1) / (
        0.5 * (here.norm(dim=-1) + elsewhere.norm(dim=-1))
    )
    return made | {"apart": distance, "other_cosine": cosine(here, elsewhere, dim=-1)}


def _neighbours(scene: Scene, stream: Tensor) -> Quantities:
    """The nearest token embeddings at each depth, and what the model would say there, where it has
    a head for it."""
    weights = scene.seen.stream.stack.on("cpu")
    table = torch.nn.functional.normalize(
        weights.raw[weights.config.family.embed + ".weight"].to(stream), dim=-1
    )
    near = (torch.nn.functional.normalize(stream, dim=-1) @ table.T).topk(NEAREST)
    made = {"nearest": near.values, "nearest_ids": near.indices}
    if scene.seen.stream.head_output is None:
        return made
    said = [
        attention.softmax(forward.unembed(weights, vectors)).topk(NEAREST)
        for vectors in stream.unbind(1)
    ]
    lens, lens_ids = (torch.stack(found, dim=1) for found in zip(*said, strict=True))
    return made | {"lens": lens, "lens_ids": lens_ids}
