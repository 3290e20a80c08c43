"""A walk's quantities as tidy frames of what is followed first, and packed for the page, which
follows the rest.

`attention` holds the tokens that are drawn, all of a short text; every other table holds all
tokens. Numbers are rounded as in every table of probe (`probe.evidence.columns`); the page's are
float32 as measured. To the right of here there is no torch.
"""

import base64
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from probe.evidence.columns import by_head, dictionary, read_descriptions, rounded
from probe.evidence.tables import certificate_rows
from probe.model import forward
from probe.model.check import Certificate
from probe.model.model import Model
from probe.model.parameters import Count
from probe.model.tokens import Tokens
from probe.walkthrough import numbers
from probe.walkthrough.numbers import AXES, Measured, Quantities
from probe.walkthrough.scene import STREAM_NUMBERS, Scene, Seen, TwoTraced

TABLES, DESCRIBED = read_descriptions(Path(__file__).with_name("columns.toml"))
GRIDS = ("dot", "score", "pattern", "open", "steep")
Rows = list[dict[str, object]]
Block = dict[str, Any]


def frames(
    model: Model,
    scene: Scene,
    measured: Measured,
    traced: TwoTraced | None,
    *,
    counted: Count,
    certificate: Certificate,
) -> dict[str, pd.DataFrame]:
    """Every table of a walk by name, rounded; a step that the family or the walk does not have has
    no table."""
    decode, quantities = model.tokenizer.decode, measured.quantities
    made = {
        "tokens": tokens(scene),
        "embedding": embedding(scene),
        "layer_norm": layer_norm(scene, quantities),
        "vectors": vectors(scene, quantities),
        "attention": attention_cells(scene, quantities),
        "softmax": softmax(scene, quantities),
        "values": values(scene, quantities),
        "contrast": contrast(scene, quantities),
        "trace": None if traced is None else traced.frame(),
        "sums": sums(scene, quantities),
        "heads": heads(scene, quantities),
        "layers": layers(scene, quantities),
        "lens": neighbours(scene, quantities, "lens", "probability", decode),
        "nearest": neighbours(scene, quantities, "nearest", "cosine", decode),
        "agreement": pd.DataFrame([asdict(row) for row in measured.agreement]),
        "parameters": pd.DataFrame(
            [asdict(part) | {"total": part.total} for part in counted.parts]
        ),
        "certificate": certificate_rows(certificate).assign(
            where=[row.where for row in certificate.rows],
            note=[row.note for row in certificate.rows],
        ),
    }
    tables = {name: rounded(frame) for name, frame in made.items() if frame is not None}
    return tables | {"columns": dictionary(tables, DESCRIBED, ("meaning", "formula", "unit"))}


def tokens(scene: Scene) -> pd.DataFrame:
    """One row per token: its id and text, whether it is the word, whether it is drawn, and which
    text it is in."""
    seen = scene.seen
    sides = [
        ("source", seen.source, scene.drawn_keys),
        ("target", seen.tokens, scene.drawn_queries),
    ]
    sides = [("text", seen.tokens, scene.drawn_queries)] if seen.alone else sides
    return pd.DataFrame(
        [
            {"pos": pos, "id": side.ids[pos], "piece": side.pieces[pos], "label": side.labels[pos]}
            | {
                "word": name != "source" and pos in scene.here.positions,
                "drawn": pos in drawn,
                "text": name,
            }
            for name, side, drawn in sides
            for pos in range(len(side))
        ]
    )


def embedding(scene: Scene) -> pd.DataFrame | None:
    """The vectors that are added for the word in both sentences, their sum, and the norm of it
    where there is one.

    `difference` is the largest of a coordinate. None where no other sentence is compared.
    """
    if scene.other is None:
        return None
    places = ((scene.seen, scene.at), (scene.other.seen, scene.other.place.at))
    both = [_entering(seen, at) for seen, at in places]
    rows: Rows = []
    for part in both[0]:
        difference = (both[0][part] - both[1][part]).abs().max().item()
        for where, (_, at), found in zip(("here", "beside"), places, both, strict=True):
            row = {
                "part": part,
                "where": where,
                "pos": at,
                "norm": found[part].norm().item(),
                "difference": difference,
            }
            rows.append(row | _coordinates("e", found[part][:STREAM_NUMBERS]))
    return pd.DataFrame(rows)


def _entering(seen: Seen, at: int) -> dict[str, Tensor]:
    """What enters the first block at a token, by part; the last one is as hooked."""
    added = numbers.token_vectors(seen, [at])
    parts = {name.removesuffix(" embedding"): part.reshape(-1) for name, part in added.items()}
    entering = seen.stream.resid_pre[0, at]
    if not seen.family.embedding_norm:
        return parts | {"sum": entering}
    return parts | {"sum": forward.sum_of(parts), "norm of the sum": entering}


def layer_norm(scene: Scene, measured: Quantities) -> pd.DataFrame | None:
    """What entering the block's norm does to every token: mean, standard deviation and length
    before, length after."""
    if "after" not in measured:
        return None
    columns = {name: measured[name][scene.layer] for name in ("mean", "std", "before", "after")}
    return _by_token(scene.seen.tokens, columns)


def vectors(scene: Scene, measured: Quantities) -> pd.DataFrame:
    """Query, key and value of every token in the head: length, place in the plane, first
    coordinates.

    Queries and keys share a plane, values have their own; `explained` is the share of the variance
    that the plane holds.
    """
    explained = measured["explained"][scene.carried].tolist()
    parts = []
    for kind, side in (
        ("query", scene.seen.tokens),
        ("key", scene.seen.source),
        ("value", scene.seen.source),
    ):
        vector, norm, place = (
            measured[kind[0] + what][scene.carried] for what in ("", "_norm", "_plane")
        )
        columns = {"norm": norm, "plane_x": place[:, 0], "plane_y": place[:, 1]}
        frame = _by_token(side, columns | _coordinates("d", vector.T)).assign(
            explained=explained[kind == "value"]
        )
        frame.insert(0, "kind", kind)
        parts.append(frame)
    return pd.concat(parts, ignore_index=True)


def attention_cells(scene: Scene, measured: Quantities) -> pd.DataFrame:
    """Every pair of drawn tokens: Q Kᵀ, the score, whether the mask allows it, and the softmaxes."""
    found = {name: measured[name][scene.carried].tolist() for name in GRIDS if name in measured}
    queries, keys, allowed = (
        scene.seen.tokens.labels,
        scene.seen.source.labels,
        scene.seen.allowed.tolist(),
    )
    return pd.DataFrame(
        [
            {"query_pos": query, "key_pos": key, "query": queries[query], "key": keys[key]}
            | {"allowed": allowed[query][key]}
            | {name: grid[query][key] for name, grid in found.items()}
            for query in scene.drawn_queries
            for key in scene.drawn_keys
        ]
    )


def softmax(scene: Scene, measured: Quantities) -> pd.DataFrame:
    """The word's row of the pattern with and without dividing by sqrt(d_head): entropy, response,
    largest share."""
    named = {
        "pattern": "divided" if scene.seen.family.scaled else "not divided",
        "steep": "not divided",
    }
    place = scene.carried, scene.at
    rows = [
        {
            what: measured[f"{name}_{what}"][place].item()
            for what in ("entropy", "response", "largest")
        }
        | {"variant": variant}
        for name, variant in named.items()
        if name in measured
    ]
    return pd.DataFrame(rows, columns=["variant", "entropy", "response", "largest"])


def values(scene: Scene, measured: Quantities) -> pd.DataFrame:
    """One row per source token: weight, its value written out, weight x value, and the share of ΔE
    along ΔE."""
    keys = scene.seen.allowed[scene.at].nonzero()[:, 0].tolist()
    weight, share = (measured[name][scene.carried, scene.at][keys] for name in ("pattern", "share"))
    out, norm = (measured[name][scene.carried][keys] for name in ("out", "out_norm"))
    columns = {"weight": weight, "value_norm": norm} | _coordinates("v", out.T)
    columns |= {"norm": weight * norm, "share": share} | _coordinates(
        "p", (weight[:, None] * out).T
    )
    if "logit" in measured:
        columns["logit"] = measured["logit"][scene.carried, scene.at][keys]
    return _by_token(scene.seen.source, columns, keys)


def contrast(scene: Scene, measured: Quantities) -> pd.DataFrame | None:
    """Both sentences, token by token: how much the head attends to it from the word, and its share
    of ΔE."""
    if scene.other is None or not scene.contrast:
        return None
    c, at, there = scene.carried, scene.at, scene.other.place.tokens
    names = {"weight": "pattern", "share": "share"}
    sides = [
        ("this", scene.seen.source, {name: measured[key][c, at] for name, key in names.items()}),
        ("the other", there, {name: measured[f"there_{key}"][c] for name, key in names.items()}),
    ]
    parts = [
        _by_token(side, columns).assign(sentence=name, text=side.text)
        for name, side, columns in sides
    ]
    return pd.concat(parts, ignore_index=True)


def sums(scene: Scene, measured: Quantities) -> pd.DataFrame:
    """From E to E′ at the word: the head's ΔE, the other heads', b_O; E′ as hooked, and what the
    sum misses it by."""
    layer, at, c = scene.layer, scene.at, scene.carried
    named = {
        "E": ("e", "before"),
        "ΔE": ("delta", ""),
        "other heads": ("others", ""),
        "b_O": ("b_o", ""),
    }
    named |= {"sum": ("total", ""), "norm of the sum": ("normed", ""), "E′ hooked": ("e_after", "")}
    rows: Rows = []
    for term, (name, norm) in named.items():
        if name in measured:
            place = (
                (c, at)
                if AXES[name][0] == "carried"
                else (layer, at)
                if "query" in AXES[name]
                else (layer,)
            )
            vector, size = measured[name][place], measured[norm or f"{name}_norm"][place]
            rows.append({"term": term, "norm": size.item()} | _coordinates("e", vector))
    last = measured.get("normed", measured["total"])[layer, at] - measured["e_after"][layer, at]
    last = last + measured["e"][layer, at] if scene.seen.family.norm_after_write else last
    rows.append(
        {"term": "difference", "norm": measured["missed_norm"][layer, at].item()}
        | _coordinates("e", last)
    )
    return pd.DataFrame(rows)


def heads(scene: Scene, measured: Quantities) -> pd.DataFrame:
    """Every head at the word: length of ΔE, how far it moves the word by what it takes from others,
    where it looks."""
    weight, key = scene.seen.attention.pattern[:, :, scene.at].max(-1)
    norm, moved, from_content = (
        measured[name][..., scene.at] for name in ("write_norm", "moved", "from_content")
    )
    columns = {
        "norm": norm,
        "moved": moved,
        "looks_at": key,
        "weight": weight,
        "from_content": from_content,
    }
    if "delta_apart" in measured:
        columns["apart"] = measured["delta_apart"]
    if "adds" in measured:
        columns["logit"] = measured["adds"][..., scene.at]
    rows = by_head({name: column.numpy() for name, column in columns.items()})
    return rows.assign(looks_at=[scene.seen.source.labels[key] for key in rows["looks_at"]])


def layers(scene: Scene, measured: Quantities) -> pd.DataFrame:
    """The word's vector at every depth: length, what the block wrote, cosines, distance to the
    other sentence's."""
    at, none = scene.at, [float("nan")] * 2
    norms = [measured["token_norm"][at].item(), *measured["depth_norm"][:, at].tolist()]
    wrote = {
        what: [*none, *measured[f"{what}_norm"][:, at].tolist()] for what in ("attention", "mlp")
    }
    columns = {"depth": list(range(-1, len(norms) - 1)), "norm": norms} | wrote
    columns |= {"token_cosine": [1.0, *measured["token_cosine"][:, at].tolist()]}
    if "apart" in measured:
        columns |= {
            "apart": measured["apart"].tolist(),
            "beside_cosine": measured["other_cosine"].tolist(),
        }
    return pd.DataFrame(columns)


def neighbours(
    scene: Scene, measured: Quantities, name: str, value: str, decode: Callable[[list[int]], str]
) -> pd.DataFrame | None:
    """The leading tokens at every depth; None where the model has no head to read them with."""
    if name not in measured:
        return None
    place = scene.drawn_queries.index(scene.at)
    ids, found = (measured[key][:, place].tolist() for key in (f"{name}_ids", name))
    return pd.DataFrame(
        [
            {"depth": depth, "rank": rank + 1, "token": decode([token]), value: number}
            for depth, (row, readings) in enumerate(zip(ids, found, strict=True))
            for rank, (token, number) in enumerate(zip(row, readings, strict=True))
        ]
    )


def _by_token(
    side: Tokens, columns: dict[str, Tensor], positions: Sequence[int] | None = None
) -> pd.DataFrame:
    positions = range(len(side)) if positions is None else positions
    plain = {name: column.tolist() for name, column in columns.items()}
    return pd.DataFrame(
        {"pos": list(positions), "label": [side.labels[pos] for pos in positions]} | plain
    )


def _coordinates(letter: str, rows: Tensor) -> dict[str, Any]:
    """The first coordinates as columns: e0, e1, ... each a number or a column of numbers."""
    return {
        f"{letter}{number}": (row if row.dim() else row.item()) for number, row in enumerate(rows)
    }


def carried(
    model: Model, scene: Scene, measured: Measured, traced: TwoTraced | None = None
) -> Block:
    """Everything the page's script reads, ready for JSON: every quantity at the drawn tokens, the
    words of the neighbours, and the causal trace of two sentences.
    """
    quantities, decode = measured.quantities, model.tokenizer.decode
    arrays = {
        name: _drawn(name, whole, scene)
        for name, whole in quantities.items()
        if not name.endswith("_ids")
    }
    arrays |= _rest(scene, quantities)
    arrays["agreement"] = torch.tensor([row.error for row in measured.agreement]).unflatten(
        0, (scene.sizes[0], -1)
    )
    if traced is not None:
        arrays["trace"] = traced.moved
    return _facts(scene) | {
        "steps": [row.step for row in measured.agreement if row.layer == 0],
        "arrays": {name: packed(array) for name, array in arrays.items()},
        "traced": None if traced is None else traced.columns(),
        "words": {
            name: decoded(quantities[f"{name}_ids"], decode)
            for name in ("lens", "nearest")
            if name in quantities
        },
    }


def _facts(scene: Scene) -> Block:
    """What is drawn, what is followed first, and what the family and the walk have."""
    seen, (layers, heads, d_model, d_head) = scene.seen, scene.sizes
    sizes = {"layers": layers, "heads": heads, "d_model": d_model, "d_head": d_head}
    return {
        "tokens": _chips(seen.tokens, scene.drawn_queries),
        "source": _chips(seen.source, scene.drawn_keys),
        "first": {
            "at": scene.drawn_queries.index(scene.at),
            "layer": scene.layer,
            "head": scene.head,
        },
        "sizes": sizes | {"tokens": len(seen.tokens), "source": len(seen.source)},
        "heads": [list(head) for head in scene.heads],
        "beyond": len(scene.undrawn),
        "causal": seen.causal,
        "alone": seen.alone,
        "there": _there(scene),
        "asked": None if scene.asked is None else scene.asked.word,
        **_of_family(scene),
    }


def _there(scene: Scene) -> list[dict[str, object]] | None:
    """The tokens of the other sentence that its word may look at, where the two are shown side by
    side."""
    if scene.other is None or not scene.contrast:
        return None
    place = scene.other.place
    return _chips(place.tokens, range(place.at + 1 if scene.seen.causal else len(place.tokens)))


def _of_family(scene: Scene) -> Block:
    """What the steps of the page depend on, from the table of architectures and the config."""
    config, block = scene.seen.weights.config, scene.seen.weights.blocks[0]
    return {
        "norm": config.family.norm,
        "norm_first": config.family.norm_first,
        "norm_after_write": config.family.norm_after_write,
        "scaled": config.family.scaled,
        "cap": config.attn_logit_softcapping,
        "parallel": config.family.parallel,
        "positions": config.positions.kind,
        "kv_heads": config.n_kv_heads,
        "norm_heads": block.norm_q is not None,
        "biased": {"q": block.b_q is not None, "o": block.b_o is not None},
        "marks": [
            piece
            for piece, mark in zip(scene.seen.source.pieces, scene.seen.marks, strict=True)
            if mark
        ],
    }


def _drawn(name: str, whole: Tensor, scene: Scene) -> Tensor:
    """A quantity at the tokens that are drawn."""
    drawn = {"query": scene.drawn_queries, "key": scene.drawn_keys}
    for axis, what in enumerate(AXES[name]):
        if what in drawn:
            whole = whole.index_select(axis, torch.tensor(drawn[what]))
    return whole


def _rest(scene: Scene, measured: Quantities) -> Quantities:
    """What the tokens that are not drawn get and give together. `carried query`"""
    beyond = scene.undrawn
    names = [name for name in ("pattern", "share", "logit") if beyond and name in measured]
    return {
        f"{name}_rest": measured[name][:, scene.drawn_queries][..., beyond].sum(-1)
        for name in names
    }


def _chips(side: Tokens, drawn: Sequence[int]) -> list[dict[str, object]]:
    return [{"pos": pos, "label": side.labels[pos], "piece": side.pieces[pos]} for pos in drawn]


def packed(array: Tensor) -> Block:
    """An array as float32 in base64 with its shape."""
    raw = array.detach().to(torch.float32).contiguous().numpy().astype("<f4").tobytes()
    return {"shape": list(array.shape), "data": base64.b64encode(raw).decode()}


def decoded(ids: Tensor, decode: Callable[[list[int]], str]) -> Any:
    """Token texts in the shape of the ids."""
    if ids.dim() == 0:
        return decode([int(ids)])
    return [decoded(part, decode) for part in ids]
