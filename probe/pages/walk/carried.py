"""What a walk's page carries to follow any head and any drawn token: the same tensors as the frames, for all of them at once.

Numbers are float32 as measured, in base64 with their shape; the page only looks them up and rounds them for reading. Axes: `carried`
is a head (row of `heads`), `at` and `token` are drawn tokens; `pair` runs over the pairs of drawn tokens that the mask allows, in
the order (0,0) (1,0) (1,1) (2,0) ...
"""

import base64
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from probe.model.model import Model
from probe.pages.walk import choose, steps, stream
from probe.pages.walk.scene import HEAD_NUMBERS, STREAM_NUMBERS, Scene

Block = dict[str, Any]


def carried(model: Model, scene: Scene) -> Block:
    """Everything the page's script reads, ready for JSON."""
    tokens, (layers, heads, d_model, d_head) = scene.trace.tokens, scene.sizes
    by_head = [_of_layer(scene, layer) for layer in scene.layers]
    arrays = {name: torch.cat([part[name] for part in by_head]) for name in by_head[0]}
    arrays |= _of_stream(scene) | _of_depths(scene)
    named = {
        "lens": stream.lens(scene.trace, scene.shown),
        "nearest": stream.nearest(scene.trace, scene.shown),
    }
    return {
        "tokens": [{"pos": pos, "label": tokens.labels[pos], "piece": tokens.pieces[pos]} for pos in scene.shown],
        "word": [scene.shown.index(pos) for pos in scene.here.positions if pos in scene.shown],
        "first": {"at": scene.shown.index(scene.at), "layer": scene.layer, "head": scene.head},
        "sizes": {"layers": layers, "heads": heads, "d_model": d_model, "d_head": d_head, "tokens": len(tokens)},
        "heads": [[layer, head] for layer in scene.layers for head in range(heads)],
        "bos": tokens.bos,
        "beyond": len(tokens) - len(scene.shown),
        "steps": [row.step for row in steps.agreement(scene.trace, 0, at=scene.at)],
        "arrays": {name: packed(array) for name, array in arrays.items()}
        | {name: packed(found.values) for name, found in named.items()},
        "words": {name: decoded(found.ids, model.tokenizer.decode) for name, found in named.items()},
    }


def pairs(count: int) -> tuple[list[int], list[int]]:
    """Destination and source of every pair that the mask allows, row by row."""
    found = torch.tril_indices(count, count)
    return found[0].tolist(), found[1].tolist()


def _of_layer(scene: Scene, layer: int) -> dict[str, Tensor]:
    """Arrays of every head of a layer; the first axis is the head."""
    trace, shown = scene.trace, list(scene.shown)
    grids = steps.grids(trace, layer)
    made = {name: grid[:, shown][:, :, shown] for name, grid in grids.items()}  # head at token
    for name in ("pattern", "steep"):
        made |= {f"{name}_entropy": steps.entropy(grids[name])[:, shown]}
        made |= {f"{name}_response": steps.response(grids[name])[:, shown]}
        made |= {f"{name}_largest": grids[name].amax(-1)[:, shown]}
    made["later"] = grids["open"].triu(1).sum(-1)[:, shown]  # what would go to later tokens without the mask
    return made | _projections(scene, layer) | _writes(scene, layer)


def _projections(scene: Scene, layer: int) -> dict[str, Tensor]:
    trace, shown = scene.trace, list(scene.shown)
    made: dict[str, Tensor] = {}
    n = len(trace.tokens)
    for name in ("q", "k", "v"):
        vectors = getattr(trace, name)[layer]
        made |= {name: steps.first_numbers(vectors, shown, HEAD_NUMBERS)}
        made |= {f"{name}_norm": vectors[:, shown].norm(dim=-1)}
    both = [steps.plane(torch.cat([q, k])) for q, k in zip(trace.q[layer], trace.k[layer], strict=True)]
    alone = [steps.plane(v) for v in trace.v[layer]]
    made["q_plane"] = torch.stack([place[:n][shown] for place, _ in both])
    made["k_plane"] = torch.stack([place[n:][shown] for place, _ in both])
    made["v_plane"] = torch.stack([place[shown] for place, _ in alone])
    made["explained"] = torch.tensor([[sum(a[1]), sum(b[1])] for a, b in zip(both, alone, strict=True)])
    return made


def _writes(scene: Scene, layer: int) -> dict[str, Tensor]:
    """Values written out, ΔE by source and whole, and what the other heads add."""
    trace, shown = scene.trace, list(scene.shown)
    out, delta = steps.written(trace, layer)[:, shown], steps.delta_e(trace, layer)[:, shown]
    whole = [_sources(scene, layer, at) for at in shown]
    rest = [place for place in range(len(trace.tokens)) if place not in set(shown)]
    made = {
        "out": out[..., :STREAM_NUMBERS],
        "out_norm": out.norm(dim=-1),
        "delta": delta[..., :STREAM_NUMBERS],
        "delta_norm": delta.norm(dim=-1),
        "others": (delta.sum(0, keepdim=True) - delta)[..., :STREAM_NUMBERS],
        "others_norm": (delta.sum(0, keepdim=True) - delta).norm(dim=-1),
    }
    for name in whole[0]:  # head pair ...
        rows = [part[name][:, shown[: place + 1]] for place, part in enumerate(whole)]
        made[f"part_{name}"] = torch.cat(rows, dim=1)
    if rest:
        made["rest"] = torch.stack(
            [
                torch.cat([part["share"][:, rest].sum(-1, keepdim=True), part["vector"][:, rest].sum(1)], -1)
                for part in whole
            ],
            dim=1,
        )  # head at (share, first coordinates)
        made["rest_weight"] = trace.pattern[layer][:, shown][:, :, rest].sum(-1)
    return made


def _sources(scene: Scene, layer: int, at: int) -> dict[str, Tensor]:
    """ΔE at `at` by source, of every head: length, share along ΔE, first coordinates."""
    parts = steps.by_source(scene.trace, layer, at=at)  # head key_pos d_model
    share = steps.along(parts, steps.delta_e(scene.trace, layer)[:, at])
    return {"norm": parts.norm(dim=-1), "share": share, "vector": parts[..., :STREAM_NUMBERS]}


def _of_stream(scene: Scene) -> dict[str, Tensor]:
    """Arrays of every layer; the first axis is the layer."""
    trace, shown = scene.trace, list(scene.shown)
    e, after = trace.resid_pre[:, shown], trace.resid_mid[:, shown]
    sums = torch.stack([steps.delta_e(trace, layer)[:, shown].sum(0) for layer in range(scene.sizes[0])])
    bias = torch.stack([block.b_o.cpu() for block in trace.weights.blocks])
    total = e + sums + bias[:, None]
    contexts = [scene.here.context(at) for at in shown]
    return {
        "mean": e.mean(-1),
        "std": e.std(-1, correction=0),
        "before": e.norm(dim=-1),
        "after": trace.x[:, shown].norm(dim=-1),
        "e": e[..., :STREAM_NUMBERS],
        "e_after": after[..., :STREAM_NUMBERS],
        "e_after_norm": after.norm(dim=-1),
        "total": total[..., :STREAM_NUMBERS],
        "total_norm": total.norm(dim=-1),
        "missed": (total - after).abs().amax(-1),
        "b_o": bias[:, :STREAM_NUMBERS],
        "b_o_norm": bias.norm(dim=-1),
        "write_norm": torch.stack([steps.delta_e(trace, layer)[:, shown].norm(dim=-1) for layer in range(len(e))]),
        "moved": torch.stack([_moved(scene, layer, contexts) for layer in range(len(e))]),
        "agreement": torch.tensor(
            [[row.error for row in steps.agreement(trace, layer, at=scene.at)] for layer in range(len(e))]
        ),
    }


def _moved(scene: Scene, layer: int, contexts: Sequence[list[int]]) -> Tensor:
    """`-> head at`"""
    found = [
        choose.moved(scene.trace, layer, at=at, sources=context)
        for at, context in zip(scene.shown, contexts, strict=True)
    ]
    return torch.stack(found, dim=-1)


def _of_depths(scene: Scene) -> dict[str, Tensor]:
    """Arrays of every depth."""
    trace, shown = scene.trace, list(scene.shown)
    return {
        "depth_norm": stream.depths(trace, shown).norm(dim=-1),
        "attention_norm": trace.attn_out[:, shown].norm(dim=-1),
        "mlp_norm": trace.mlp_out[:, shown].norm(dim=-1),
        "token_cosine": stream.token_cosine(trace, shown),
        "token_norm": trace.weights.wte.cpu()[[trace.tokens.ids[pos] for pos in shown]].norm(dim=-1),
        "beside_cosine": stream.apart(scene)[1],
    }


def packed(array: Tensor) -> Block:
    """An array as float32 in base64 with its shape."""
    raw = array.detach().to(torch.float32).contiguous().numpy().astype("<f4").tobytes()
    return {"shape": list(array.shape), "data": base64.b64encode(raw).decode()}


def decoded(ids: Tensor, decode: Callable[[list[int]], str]) -> Any:
    """Token texts in the shape of the ids."""
    if ids.dim() == 0:
        return decode([int(ids)])
    return [decoded(part, decode) for part in ids]
