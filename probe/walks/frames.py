"""The tables of a walk: its quantities at the word and head that are followed first.

`attention` contains the drawn tokens (all of a short text); every other table contains all tokens.
Numbers are rounded as in all tables (`probe.results.columns`). `columns.toml` describes each
column.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor

from probe.experiments.columns import read_descriptions
from probe.model import forward
from probe.model.check import Certificate
from probe.model.model import Model
from probe.model.parameters import Count
from probe.model.records import as_array
from probe.model.tokens import Tokens
from probe.results.columns import dictionary
from probe.results.frames import certificate_rows
from probe.tidy import by_head, rounded
from probe.walks import numbers
from probe.walks.numbers import AXES, Agreement, Quantities
from probe.walks.pair import CausalTrace
from probe.walks.scene import STREAM_NUMBERS, AttentionView, Scene

TABLES, DESCRIBED = read_descriptions(Path(__file__).with_name("columns.toml"))
GRIDS = ("dot", "score", "pattern", "open", "steep")  # columns of `attention` that are quantities
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
Decode = Callable[[list[int]], str]


def frames(
    model: Model,
    scene: Scene,
    quantities: Quantities,
    agreement: Agreement,
    causal_trace: CausalTrace | None,
    parameters: Count,
    certificate: Certificate,
) -> dict[str, pd.DataFrame]:
    """Every table of a walk by name, rounded; a step that the family or the walk does not have
    has no table.
    """
    decode = model.tokenizer.decode
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
        "agreement": pd.DataFrame(agreement),
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
    if scene.compared is None:
        return None
    index = scene.head_index
    weights = quantities["pattern"][index, scene.at]
    shares = quantities["share"][index, scene.at]
    second_weights = quantities["second_pattern"][index]
    second_shares = quantities["second_share"][index]
    sides = (
        ("this", scene.view.source, weights, shares),
        ("the other", scene.compared.word.tokens, second_weights, second_shares),
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
