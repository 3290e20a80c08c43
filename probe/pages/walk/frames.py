"""A walk's tensors as tidy frames: the head that is followed, at the word, step by step. To the right of here there is no torch.

`attention` holds the tokens that are drawn, all of a short text; every other table holds all tokens. Numbers are rounded as in
every table of probe (`probe.study.columns`).
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from probe.model.model import Model
from probe.model.parameters import Count
from probe.pages.walk import choose, steps, stream
from probe.pages.walk.scene import HEAD_NUMBERS, STREAM_NUMBERS, Scene
from probe.study.columns import rounded

Rows = list[dict[str, object]]


def frames(model: Model, scene: Scene, counted: Count) -> dict[str, pd.DataFrame]:
    """Every table of a walk but the certificate, by name, rounded."""
    decode = model.tokenizer.decode
    made = {
        "tokens": tokens(scene),
        "embedding": embedding(scene),
        "layer_norm": layer_norm(scene),
        "vectors": vectors(scene),
        "attention": attention_cells(scene),
        "softmax": softmax(scene),
        "values": values(scene),
        "sums": sums(scene),
        "heads": heads(scene),
        "layers": layers(scene),
        "lens": neighbours(stream.lens(scene.trace, [scene.at]), "probability", decode),
        "nearest": neighbours(stream.nearest(scene.trace, [scene.at]), "cosine", decode),
        "agreement": agreement(scene),
        "parameters": pd.DataFrame([asdict(part) | {"total": part.total} for part in counted.parts]),
    }
    return {name: rounded(frame) for name, frame in made.items()}


def tokens(scene: Scene) -> pd.DataFrame:
    """One row per token: its id, its text, whether it is the word, whether it is drawn."""
    found = scene.trace.tokens
    rows = zip(found.ids, found.pieces, found.labels, strict=True)
    return pd.DataFrame(
        [
            {"pos": pos, "id": token, "piece": piece, "label": label}
            | {"word": pos in scene.here.positions, "drawn": pos in scene.shown}
            for pos, (token, piece, label) in enumerate(rows)
        ]
    )


def embedding(scene: Scene) -> pd.DataFrame:
    """The word's token vector, position vector and their sum in both sentences; `difference` is the largest of a coordinate."""
    weights = scene.trace.weights
    rows: Rows = []
    places = ((scene.trace, scene.at), (scene.other, scene.there.at))
    both = [
        {
            "token": weights.wte.cpu()[trace.tokens.ids[at]],
            "position": weights.wpe.cpu()[at],
            "sum": trace.resid_pre[0, at],
        }
        for trace, at in places
    ]
    for part in both[0]:
        difference = (both[0][part] - both[1][part]).abs().max().item()
        for where, (_, at), found in zip(("here", "beside"), places, both, strict=True):
            vector = found[part]
            numbers = _coordinates("e", vector[:STREAM_NUMBERS])
            row = {"part": part, "where": where, "pos": at, "norm": vector.norm().item(), "difference": difference}
            rows.append(row | numbers)
    return pd.DataFrame(rows)


def layer_norm(scene: Scene) -> pd.DataFrame:
    """What entering the block's LayerNorm does to every token: mean, standard deviation and length before, length after."""
    e, x = scene.trace.resid_pre[scene.layer], scene.trace.x[scene.layer]
    columns = {"mean": e.mean(-1), "std": e.std(-1, correction=0), "before": e.norm(dim=-1), "after": x.norm(dim=-1)}
    return _by_token(scene, range(len(e)), columns)


def vectors(scene: Scene) -> pd.DataFrame:
    """Query, key and value of every token in the head: length, place in the plane, first coordinates.

    Queries and keys share a plane, values have their own; `explained` is the share of the variance that the plane holds.
    """
    q, k, v = (getattr(scene.trace, name)[scene.layer, scene.head] for name in ("q", "k", "v"))
    n = len(q)
    both, both_explained = steps.plane(torch.cat([q, k]))
    alone, alone_explained = steps.plane(v)
    parts = []
    for kind, vector, place, explained in (
        ("query", q, both[:n], both_explained),
        ("key", k, both[n:], both_explained),
        ("value", v, alone, alone_explained),
    ):
        columns = {"norm": vector.norm(dim=-1), "plane_x": place[:, 0], "plane_y": place[:, 1]}
        frame = _by_token(scene, range(n), columns | _coordinates("d", vector.T[:HEAD_NUMBERS]))
        parts.append(frame.assign(explained=sum(explained)))
        parts[-1].insert(0, "kind", kind)
    return pd.concat(parts, ignore_index=True)


def attention_cells(scene: Scene) -> pd.DataFrame:
    """Every pair of drawn tokens: Q Kᵀ, the score, whether the mask allows it, and the three softmaxes."""
    found = {name: grid[scene.head] for name, grid in steps.grids(scene.trace, scene.layer).items()}
    labels = scene.trace.tokens.labels
    return pd.DataFrame(
        [
            {"query_pos": query, "key_pos": key, "query": labels[query], "key": labels[key]}
            | {"allowed": key <= query}
            | {name: grid[query, key].item() for name, grid in found.items()}
            for query in scene.shown
            for key in scene.shown
        ]
    )


def softmax(scene: Scene) -> pd.DataFrame:
    """The word's row of the pattern with and without dividing by sqrt(d_head): entropy, response, largest share."""
    found = steps.grids(scene.trace, scene.layer)
    rows = [(name, found[name][scene.head, scene.at]) for name in ("pattern", "steep")]
    return pd.DataFrame(
        [
            {"variant": "divided" if name == "pattern" else "not divided"}
            | {
                "entropy": steps.entropy(row).item(),
                "response": steps.response(row).item(),
                "largest": row.max().item(),
            }
            for name, row in rows
        ]
    )


def values(scene: Scene) -> pd.DataFrame:
    """One row per source token: weight, its value written out, weight x value, and the share of ΔE along ΔE."""
    trace, layer, head = scene.trace, scene.layer, scene.head
    parts = steps.by_source(trace, layer, at=scene.at)[head, : scene.at + 1]
    whole = trace.delta_e(layer, head, scene.at)
    out = steps.written(trace, layer)[head, : scene.at + 1]
    columns = {"weight": trace.pattern[layer, head, scene.at, : scene.at + 1]}
    columns |= {"value_norm": out.norm(dim=-1)} | _coordinates("v", out.T[:STREAM_NUMBERS])
    columns |= {"norm": parts.norm(dim=-1), "share": steps.along(parts, whole)}
    return _by_token(scene, range(scene.at + 1), columns | _coordinates("p", parts.T[:STREAM_NUMBERS]))


def sums(scene: Scene) -> pd.DataFrame:
    """From E to E′ at the word: the head's ΔE, the other heads', b_O; E′ as hooked, and what the sum misses it by."""
    trace, layer, at = scene.trace, scene.layer, scene.at
    everything = steps.delta_e(trace, layer)[:, at]
    own, bias = everything[scene.head], trace.weights.blocks[layer].b_o.cpu()
    others = torch.cat([everything[: scene.head], everything[scene.head + 1 :]]).sum(0)
    before, after = trace.resid_pre[layer, at], trace.resid_mid[layer, at]
    total = before + own + others + bias
    named = {"E": before, "ΔE": own, "other heads": others, "b_O": bias, "sum": total, "E′ hooked": after}
    named["difference"] = total - after
    return pd.DataFrame(
        [
            {"term": name, "norm": vector.norm().item()} | _coordinates("e", vector[:STREAM_NUMBERS])
            for name, vector in named.items()
        ]
    )


def heads(scene: Scene) -> pd.DataFrame:
    """Every head at the word: length of ΔE, how far it moves the word by what it takes from the words before, where it looks."""
    trace, at, labels = scene.trace, scene.at, scene.trace.tokens.labels
    rows: Rows = []
    for layer in range(scene.sizes[0]):
        norms = steps.delta_e(trace, layer)[:, at].norm(dim=-1).tolist()
        moved = choose.moved(trace, layer, at=at, sources=scene.here.context()).tolist()
        for head, (norm, share) in enumerate(zip(norms, moved, strict=True)):
            weight, key = trace.pattern[layer, head, at].max(0)
            looks = {"looks_at": labels[int(key)], "weight": weight.item()}
            rows.append({"layer": layer, "head": head, "norm": norm, "moved": share} | looks)
    return pd.DataFrame(rows)


def layers(scene: Scene) -> pd.DataFrame:
    """The word's vector at the token and then at every depth: length, what the block wrote, cosines, distance to the other sentence's."""
    trace, at = scene.trace, scene.at
    distance, cosine = (part.tolist() for part in stream.apart(scene))
    token = trace.weights.wte.cpu()[trace.tokens.ids[at]].norm().item()
    norms = [token, *stream.depths(trace, [at])[:, 0].norm(dim=-1).tolist()]
    towards = [1.0, *stream.token_cosine(trace, [at])[:, 0].tolist()]
    none = [float("nan")] * 2
    wrote = [[*none, *part[:, at].norm(dim=-1).tolist()] for part in (trace.attn_out, trace.mlp_out)]
    depth = range(-1, len(norms) - 1)
    columns = {"depth": list(depth), "norm": norms, "attention": wrote[0], "mlp": wrote[1], "token_cosine": towards}
    return pd.DataFrame(columns | {"apart": distance, "beside_cosine": cosine})


def neighbours(found: stream.Neighbours, value: str, decode: Callable[[list[int]], str]) -> pd.DataFrame:
    """The leading tokens at every depth."""
    return pd.DataFrame(
        [
            {"depth": depth, "rank": rank + 1, "token": decode([token]), value: number}
            for depth, (ids, numbers) in enumerate(zip(found.ids[:, 0], found.values[:, 0], strict=True))
            for rank, (token, number) in enumerate(zip(ids.tolist(), numbers.tolist(), strict=True))
        ]
    )


def agreement(scene: Scene) -> pd.DataFrame:
    """Each formula of each layer against its hook."""
    rows = [row for layer in range(scene.sizes[0]) for row in steps.agreement(scene.trace, layer, at=scene.at)]
    return pd.DataFrame([asdict(row) for row in rows])


def _by_token(scene: Scene, positions: Sequence[int], columns: dict[str, Tensor]) -> pd.DataFrame:
    labels = [scene.trace.tokens.labels[pos] for pos in positions]
    numbers = {name: column.tolist() for name, column in columns.items()}
    return pd.DataFrame({"pos": list(positions), "label": labels} | numbers)


def _coordinates(letter: str, rows: Tensor) -> dict[str, Any]:
    """The first coordinates as columns: e0, e1, ... each a number or a column of numbers."""
    return {f"{letter}{number}": (row if row.dim() else row.item()) for number, row in enumerate(rows)}
