"""A walk's quantities as tidy frames of the word and head followed first, and packed for the
page, which can follow others.

`attention` contains the drawn tokens (all of a short text); every other table contains all tokens.
Numbers are rounded as in all tables (`probe.results.columns`); the page gets float32 as measured.
The modules that use these results do not import torch.
"""

import base64
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from probe.experiments.columns import read_descriptions
from probe.model import blocks, forward, qk
from probe.model.check import Certificate
from probe.model.model import Model
from probe.model.parameters import Count
from probe.model.records import as_array
from probe.model.tokens import Tokens, visible_token
from probe.results.columns import dictionary
from probe.results.frames import certificate_rows
from probe.tidy import by_head, rounded
from probe.walkthrough import numbers
from probe.walkthrough.numbers import AXES, MeasuredText, Quantities
from probe.walkthrough.scene import STREAM_NUMBERS, AttentionView, CausalTrace, Scene

TABLES, DESCRIBED = read_descriptions(Path(__file__).with_name("columns.toml"))
GRIDS = ("dot", "score", "pattern", "open", "steep")  # columns of `attention` that are quantities
# Quantities that the page also gets as sums over the tokens that are not drawn, for its totals.
SUMMED_UNDRAWN = ("pattern", "share", "logit")
# Terms of E′ in the order of the sum: the quantity with the vector, and the one with its length.
TERMS = {
    "E": ("e", "before"),
    "ΔE": ("delta", "delta_norm"),
    "other heads": ("others", "others_norm"),
    "b_O": ("b_o", "b_o_norm"),
    "sum": ("total", "total_norm"),
    "norm of the sum": ("normed", "normed_norm"),
    "E′ hooked": ("e_after", "e_after_norm"),
}
Rows = list[dict[str, object]]
Block = dict[str, Any]  # plain JSON
Decode = Callable[[list[int]], str]


def frames(
    model: Model,
    scene: Scene,
    measured: MeasuredText,
    causal_trace: CausalTrace | None,
    *,
    parameters: Count,
    certificate: Certificate,
) -> dict[str, pd.DataFrame]:
    """Every table of a walk by name, rounded; a step that the family or the walk does not have
    has no table.
    """
    decode = model.tokenizer.decode
    quantities = measured.quantities
    by_name = {
        "tokens": tokens(scene),
        "embedding": embedding(scene),
        "layer_norm": layer_norm(scene, quantities),
        "vectors": vectors(scene, quantities),
        "attention": attention_cells(scene, quantities),
        "softmax": softmax(scene, quantities),
        "values": values(scene, quantities),
        "contrast": contrast(scene, quantities),
        "trace": None if causal_trace is None else causal_trace.frame(),
        "sums": sums(scene, quantities),
        "heads": heads(scene, quantities),
        "layers": layers(scene, quantities),
        "lens": neighbours(scene, quantities, "lens", "probability", decode),
        "nearest": neighbours(scene, quantities, "nearest", "cosine", decode),
        "agreement": pd.DataFrame([asdict(row) for row in measured.agreement]),
        "parameters": pd.DataFrame(
            [asdict(part) | {"total": part.total} for part in parameters.parts]
        ),
        "certificate": certificate_rows(certificate).assign(
            where=[row.where for row in certificate.rows]
        ),
    }
    tables = {name: rounded(frame) for name, frame in by_name.items() if frame is not None}
    return tables | {"columns": dictionary(tables, DESCRIBED, ("meaning", "formula", "unit"))}


def tokens(scene: Scene) -> pd.DataFrame:
    """One row per token: its id and text, whether it is part of the word, whether it is drawn,
    and which text it is in.
    """
    view = scene.view
    if view.one_text:
        sides = [("text", view.tokens, scene.drawn_queries)]
    else:
        sides = [
            ("source", view.source, scene.drawn_keys),
            ("target", view.tokens, scene.drawn_queries),
        ]
    rows: Rows = []
    for name, side, drawn_positions in sides:
        for pos in range(len(side)):
            row = {"pos": pos, "id": side.ids[pos], "piece": side.pieces[pos]}
            row |= {"label": side.labels[pos]}
            # The followed word is one of the queries.
            row |= {"word": name != "source" and pos in scene.word.positions}
            rows.append(row | {"drawn": pos in drawn_positions, "text": name})
    return pd.DataFrame(rows)


def embedding(scene: Scene) -> pd.DataFrame | None:
    """The embedding vectors of the word in both sentences, their sum, and its norm if the family
    has one.

    `difference` is the largest difference of a coordinate. None without a second sentence.
    """
    if scene.second is None:
        return None
    second_at = scene.second.word.at
    vectors = _entering(scene.view, scene.at)
    second_vectors = _entering(scene.second.view, second_at)
    rows: Rows = []
    for part, vector in vectors.items():
        second_vector = second_vectors[part]
        difference = (vector - second_vector).abs().max().item()
        sides = (("here", scene.at, vector), ("beside", second_at, second_vector))
        for where, at, side in sides:
            row = {"part": part, "where": where, "pos": at, "norm": side.norm().item()}
            row |= {"difference": difference}
            rows.append(row | _coordinates("e", side[:STREAM_NUMBERS]))
    return pd.DataFrame(rows)


def _entering(view: AttentionView, at: int) -> dict[str, Tensor]:
    """The terms that enter the first block at a token, by name; the last one is as hooked."""
    parts = {
        name.removesuffix(" embedding"): vector.reshape(-1)
        for name, vector in numbers.token_vectors(view, [at]).items()
    }
    entering = view.stream.resid_pre[0, at]
    if not view.family.embedding_norm:
        return parts | {"sum": entering}
    return parts | {"sum": forward.sum_embeddings(parts), "norm of the sum": entering}


def layer_norm(scene: Scene, quantities: Quantities) -> pd.DataFrame | None:
    """The effect of the norm at the entrance of the block on every token: mean, standard
    deviation and length before, length after.

    None if the family has no norm in front.
    """
    if "after" not in quantities:
        return None
    columns = {name: quantities[name][scene.layer] for name in ("mean", "std", "before", "after")}
    return _by_token(scene.view.tokens, columns)


def vectors(scene: Scene, quantities: Quantities) -> pd.DataFrame:
    """Query, key and value of every token in the head: length, coordinates in the plane, first
    coordinates.

    Queries and keys share a plane, and values have a separate one. `explained` is the fraction of
    the variance in the plane.
    """
    index = scene.head_index
    match_explained, value_explained = quantities["explained"][index].tolist()
    kinds = (
        ("query", "q", scene.view.tokens, match_explained),
        ("key", "k", scene.view.source, match_explained),
        ("value", "v", scene.view.source, value_explained),
    )
    parts = []
    for kind, letter, side, explained in kinds:
        plane = quantities[f"{letter}_plane"][index]
        columns = {"norm": quantities[f"{letter}_norm"][index]}
        columns |= {"plane_x": plane[:, 0], "plane_y": plane[:, 1]}
        columns |= _coordinates("d", quantities[letter][index].T)
        frame = _by_token(side, columns).assign(explained=explained)
        frame.insert(0, "kind", kind)
        parts.append(frame)
    return pd.concat(parts, ignore_index=True)


def attention_cells(scene: Scene, quantities: Quantities) -> pd.DataFrame:
    """Every pair of drawn tokens: Q Kᵀ, the score, whether the mask allows it, and the
    softmaxes.
    """
    grids = {
        name: quantities[name][scene.head_index].tolist() for name in GRIDS if name in quantities
    }
    query_labels = scene.view.tokens.labels
    key_labels = scene.view.source.labels
    mask = scene.view.allowed.tolist()
    rows: Rows = []
    for query in scene.drawn_queries:
        for key in scene.drawn_keys:
            row: dict[str, object] = {"query_pos": query, "key_pos": key}
            row |= {"query": query_labels[query], "key": key_labels[key]}
            row |= {"allowed": mask[query][key]}
            rows.append(row | {name: grid[query][key] for name, grid in grids.items()})
    return pd.DataFrame(rows)


def softmax(scene: Scene, quantities: Quantities) -> pd.DataFrame:
    """The word's row of the pattern with and without the division by sqrt(d_head): entropy,
    response, largest weight.
    """
    variants = {
        "pattern": "divided" if scene.view.family.divides_scores else "not divided",
        "steep": "not divided",
    }
    statistics = ("entropy", "response", "largest")
    rows: Rows = []
    for name, variant in variants.items():
        if name in quantities:
            row: dict[str, object] = {"variant": variant}
            for statistic in statistics:
                value = quantities[f"{name}_{statistic}"][scene.head_index, scene.at]
                row[statistic] = value.item()
            rows.append(row)
    return pd.DataFrame(rows, columns=["variant", *statistics])


def values(scene: Scene, quantities: Quantities) -> pd.DataFrame:
    """One row per source token: weight, value times W_O, weight times that, and the share of ΔE
    along ΔE.
    """
    index = scene.head_index
    keys = scene.view.allowed[scene.at].nonzero()[:, 0].tolist()
    weight = quantities["pattern"][index, scene.at][keys]
    share = quantities["share"][index, scene.at][keys]
    out = quantities["out"][index][keys]
    out_norm = quantities["out_norm"][index][keys]
    columns = {"weight": weight, "value_norm": out_norm} | _coordinates("v", out.T)
    # ‖A V W_O‖ = A ‖V W_O‖, because a weight is never negative
    columns |= {"norm": weight * out_norm, "share": share}
    columns |= _coordinates("p", (weight[:, None] * out).T)
    if "logit" in quantities:
        columns["logit"] = quantities["logit"][index, scene.at][keys]
    return _by_token(scene.view.source, columns, keys)


def contrast(scene: Scene, quantities: Quantities) -> pd.DataFrame | None:
    """Both sentences, token by token: the head's attention from the word, and the share of ΔE.

    None if they are not compared head by head.
    """
    if scene.second is None or not scene.contrast:
        return None
    index = scene.head_index
    weights = quantities["pattern"][index, scene.at]
    shares = quantities["share"][index, scene.at]
    second_weights = quantities["second_pattern"][index]
    second_shares = quantities["second_share"][index]
    sides = (
        ("this", scene.view.source, weights, shares),
        ("the other", scene.second.word.tokens, second_weights, second_shares),
    )
    parts = []
    for name, side, weight, share in sides:
        frame = _by_token(side, {"weight": weight, "share": share})
        parts.append(frame.assign(sentence=name, text=side.text))
    return pd.concat(parts, ignore_index=True)


def sums(scene: Scene, quantities: Quantities) -> pd.DataFrame:
    """From E to E′ at the word: the head's ΔE, the other heads', b_O; E′ as hooked, and its
    difference from the sum.
    """
    rows: Rows = []
    for term, (name, norm_name) in TERMS.items():
        if name in quantities:
            index = _index_at_word(scene, name)
            size = quantities[norm_name][index].item()
            rows.append({"term": term, "norm": size} | _coordinates("e", quantities[name][index]))
    at_word = (scene.layer, scene.at)
    total = quantities.get("normed", quantities["total"])[at_word]
    difference = total - quantities["e_after"][at_word]
    if scene.view.family.norm_after_write:
        # The norm is of the heads' writes alone, and E is added to it.
        difference = difference + quantities["e"][at_word]
    size = quantities["missed_norm"][at_word].item()
    rows.append({"term": "difference", "norm": size} | _coordinates("e", difference))
    return pd.DataFrame(rows)


def _index_at_word(scene: Scene, name: str) -> tuple[int, ...]:
    """The index of a quantity for the head and the word that are followed first."""
    if AXES[name][0] == "page_head":
        return (scene.head_index, scene.at)
    if "query" in AXES[name]:
        return (scene.layer, scene.at)
    return (scene.layer,)


def heads(scene: Scene, quantities: Quantities) -> pd.DataFrame:
    """Every head at the word: length of ΔE, how far its write from other tokens moves the word,
    and the token that it attends to most.
    """
    weight, key = scene.view.attention.pattern[:, :, scene.at].max(-1)
    columns = {
        "norm": quantities["write_norm"][..., scene.at],
        "moved": quantities["moved"][..., scene.at],
        "looks_at": key,
        "weight": weight,
        "from_content": quantities["from_content"][..., scene.at],
    }
    if "swap" in quantities:
        columns["swap"] = quantities["swap"]
    if "adds" in quantities:
        columns["logit"] = quantities["adds"][..., scene.at]
    rows = by_head({name: as_array(column) for name, column in columns.items()})
    return rows.assign(looks_at=[scene.view.source.labels[key] for key in rows["looks_at"]])


def layers(scene: Scene, quantities: Quantities) -> pd.DataFrame:
    """The word's vector at every depth: length, the block's writes, cosines, distance to the
    second sentence's.
    """
    at = scene.at
    norms = [quantities["token_norm"][at].item(), *quantities["depth_norm"][:, at].tolist()]
    # The token embedding and the stream before the first block come before all writes.
    no_write = [float("nan")] * 2
    columns = {
        "depth": list(range(-1, len(norms) - 1)),
        "norm": norms,
        "attention": [*no_write, *quantities["attention_norm"][:, at].tolist()],
        "mlp": [*no_write, *quantities["mlp_norm"][:, at].tolist()],
        "token_cosine": [1.0, *quantities["token_cosine"][:, at].tolist()],
    }
    if "apart" in quantities:
        columns["apart"] = quantities["apart"].tolist()
        columns["beside_cosine"] = quantities["second_cosine"].tolist()
    return pd.DataFrame(columns)


def neighbours(
    scene: Scene, quantities: Quantities, name: str, column: str, decode: Decode
) -> pd.DataFrame | None:
    """The leading tokens at every depth; None if the model does not predict tokens."""
    if name not in quantities:
        return None
    drawn_index = scene.drawn_queries.index(scene.at)
    ids_by_depth = quantities[f"{name}_ids"][:, drawn_index].tolist()
    values_by_depth = quantities[name][:, drawn_index].tolist()
    rows: Rows = []
    for depth, (ids, values) in enumerate(zip(ids_by_depth, values_by_depth, strict=True)):
        for rank, (token, value) in enumerate(zip(ids, values, strict=True), start=1):
            row = {"depth": depth, "rank": rank, "token": decode([token]), column: value}
            rows.append(row)
    return pd.DataFrame(rows)


def _by_token(
    side: Tokens, columns: dict[str, Tensor], positions: Sequence[int] | None = None
) -> pd.DataFrame:
    """One row per token at these positions, by default at all of them."""
    positions = range(len(side)) if positions is None else positions
    labels = [side.labels[pos] for pos in positions]
    plain = {name: column.tolist() for name, column in columns.items()}
    return pd.DataFrame({"pos": list(positions), "label": labels} | plain)


def _coordinates(letter: str, rows: Tensor) -> dict[str, Any]:
    """The first coordinates as columns: e0, e1, ... Each is a number or a column of numbers."""
    return {
        f"{letter}{number}": (row if row.dim() else row.item()) for number, row in enumerate(rows)
    }


def page_block(
    model: Model, scene: Scene, measured: MeasuredText, causal_trace: CausalTrace | None = None
) -> Block:
    """Everything that the page's script reads, ready for JSON: every quantity at the drawn
    tokens, the words of the neighbours, and the causal trace of two sentences.
    """
    quantities = measured.quantities
    arrays = {
        name: _at_drawn(name, quantity, scene)
        for name, quantity in quantities.items()
        # Token ids go into the page as words.
        if not name.endswith("_ids")
    }
    arrays |= _undrawn_sums(scene, quantities)
    errors = torch.tensor([row.error for row in measured.agreement])
    arrays["agreement"] = errors.unflatten(0, (scene.sizes[0], -1))
    if causal_trace is not None:
        arrays["trace"] = causal_trace.effects
    words = {
        name: decoded(quantities[f"{name}_ids"], partial(visible_token, model))
        for name in ("lens", "nearest")
        if name in quantities
    }
    return _scene_facts(scene) | {
        "steps": [row.step for row in measured.agreement if row.layer == 0],
        "arrays": {name: packed(array) for name, array in arrays.items()},
        "trace_columns": None if causal_trace is None else causal_trace.columns(),
        "words": words,
    }


def _scene_facts(scene: Scene) -> Block:
    """The drawn tokens, what is followed first, and the properties of the family and the walk."""
    view = scene.view
    n_layers, n_heads, d_model, d_head = scene.sizes
    return {
        "word": scene.word.text,
        "tokens": _token_facts(view.tokens, scene.drawn_queries),
        "source": _token_facts(view.source, scene.drawn_keys),
        "first": {
            "at": scene.drawn_queries.index(scene.at),
            "layer": scene.layer,
            "head": scene.head,
        },
        "sizes": {
            "layers": n_layers,
            "heads": n_heads,
            "d_model": d_model,
            "d_head": d_head,
            "tokens": len(view.tokens),
            "source": len(view.source),
        },
        "heads": [list(head) for head in scene.heads],
        "n_undrawn": len(scene.undrawn_keys),
        "causal": view.causal,
        "one_text": view.one_text,
        "second_tokens": _second_tokens(scene),
        "logit_word": None if scene.logit is None else scene.logit.word,
        **_family_facts(scene),
    }


def _second_tokens(scene: Scene) -> list[dict[str, object]] | None:
    """The tokens of the second sentence that its word can attend to; None if the two are not
    compared side by side.
    """
    if scene.second is None or not scene.contrast:
        return None
    word = scene.second.word
    n_allowed = word.at + 1 if scene.view.causal else len(word.tokens)
    return _token_facts(word.tokens, range(n_allowed))


def _family_facts(scene: Scene) -> Block:
    """The properties that the steps of the page depend on, from the table of architectures and
    the config.
    """
    config = scene.view.weights.config
    block = scene.view.weights.blocks[0]
    followed = scene.view.weights.blocks[scene.layer]
    source = scene.view.source
    special_positions = scene.view.special_tokens.nonzero()[:, 0].tolist()
    return {
        "norm": config.family.norm,
        "norm_first": config.family.norm_first,
        "first_unnormed": config.family.norm_first and not blocks.norms_input(block, config),
        "norm_after_write": config.family.norm_after_write,
        "scaled": config.family.divides_scores,
        "under_root": float(f"{config.query_scalar or config.d_head:.6g}"),
        "by_layer": config.scores_by_layer,
        "plain_root": not (config.query_scalar or config.scores_by_layer),
        "cap": config.attn_logit_softcapping,
        "parallel": config.family.parallel_attn_mlp,
        "biases": [*qk.POSITION_BIAS.values()],
        "positions": config.positions.kind if followed.rotated else "none",
        "kv_heads": config.n_kv_heads,
        "norm_heads": block.norm_q is not None,
        "biased": {"q": block.b_q is not None, "o": block.b_o is not None},
        "special_tokens": [source.pieces[pos] for pos in special_positions],
    }


def _at_drawn(name: str, quantity: Tensor, scene: Scene) -> Tensor:
    """A quantity at the drawn tokens."""
    positions = {"query": scene.drawn_queries, "key": scene.drawn_keys}
    for axis, axis_name in enumerate(AXES[name]):
        if axis_name in positions:
            quantity = quantity.index_select(axis, torch.tensor(positions[axis_name]))
    return quantity


def _undrawn_sums(scene: Scene, quantities: Quantities) -> Quantities:
    """The sums over the keys that are not drawn. `page_head query`"""
    undrawn = scene.undrawn_keys
    if not undrawn:
        return {}
    return {
        f"{name}_rest": quantities[name][:, scene.drawn_queries][..., undrawn].sum(-1)
        for name in SUMMED_UNDRAWN
        if name in quantities
    }


def _token_facts(side: Tokens, positions: Sequence[int]) -> list[dict[str, object]]:
    return [{"pos": pos, "label": side.labels[pos], "piece": side.pieces[pos]} for pos in positions]


def packed(array: Tensor) -> Block:
    """An array as float32 in base64, with its shape."""
    # Little-endian whatever the machine, because the page's script expects it.
    raw = array.detach().to(torch.float32).contiguous().numpy().astype("<f4").tobytes()
    return {"shape": list(array.shape), "data": base64.b64encode(raw).decode()}


def decoded(ids: Tensor, text_of: Callable[[int], str]) -> Any:
    """Token texts in the shape of the ids."""
    if ids.dim() == 0:
        return text_of(int(ids))
    return [decoded(part, text_of) for part in ids]
