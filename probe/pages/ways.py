"""The section "From the cue to the word": maps by position, whole ways as sentences, the leading
edges; and the edges as an attribution graph for other viewers.

Made from the frames `positions`, `paths` and `ways` alone. A way is a sentence only as far as it
was measured: what goes over it, and whether every one of its edges passed its test.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pandas as pd

from probe import charts
from probe.charts import of_word
from probe.pages.rows import Frames, Row, Section, head_name, names_of, resolvers, words_of
from probe.stats.numbers import counted, decimal, listed, measured, ordinal, p_value, percent
from probe.stats.verdicts import LEVEL
from probe.text.splits import ALIGNED

ROWS = 20  # edges of the table on the page
TOLD = 3  # ways that are told one by one


def section(frames: Frames) -> Section:
    """What there is to show of every ranked word, or why there is nothing, and the end of the scale
    of the maps."""
    ranked = frames["words"].loc[frames["words"]["ranked"], "word"].unique()
    limit = percent(charts.position_limit(frames["positions"])) if len(frames["positions"]) else ""
    return {
        "limit": limit,
        "words": [_of_word(frames, word) for word in words_of(frames) if word in ranked],
    }


def _of_word(frames: Frames, word: str) -> Section:
    positions, edges = (of_word(frames[name], word) for name in ("positions", "edges"))
    if positions.empty:
        nothing: Section = {"said": [], "charts": [], "edges": [], "circuit": None}
        return {"word": word, "missing": why_not(frames, word), **nothing}
    first = positions.iloc[0]
    return {
        "word": word,
        "missing": "",
        "senses": (first["sense_a"], first["sense_b"]),
        "pairs": int(positions["pairs"].max()),
        "circuit": charts.circuit(edges, positions, word),
        "charts": charts.position_maps(frames["positions"], word),
        "said": sentences(frames, word),
        "edges": [_edge(row, word) for row in edges.head(ROWS).to_dict("records")],
        "all": len(edges),
        "graph": file_name(frames, word),
    }


def why_not(frames: Frames, word: str) -> str:
    """Why nothing was followed, in one sentence."""
    pairs = of_word(frames["words"], word)
    if not pairs["causal"].all():
        return "This model reads both ways, so what is brought to a word has no one direction along the tokens."
    if not (pairs["pair_design"] == ALIGNED).all():
        return "The sentences are not aligned in pairs, so no position of one stands for a position of the other."
    return (
        "No two sentences of a pair have the same number of tokens up to the word with the cue near enough to it, so "
        "no position of one stands for a position of the other."
    )


def sentences(frames: Frames, word: str) -> list[str]:
    """The ways of a word, best first, and how much of the gap they carry together."""
    rows = of_word(frames["paths"], word)
    if of_word(frames["edges"], word).empty:
        return []
    if rows.empty:
        ends = names_of(resolvers(frames, word))
        what = (
            f"Only the end of the way was found, {listed(ends)} at “{word}”"
            if ends
            else "No way was found"
        )
        return [
            f"{what}: over no chain of edges from the cue to a head at the word goes 1 % of the gap."
        ]
    told = [way_told(steps.to_dict("records"), word) for _, steps in rows.groupby("path")]
    more = len(told) - TOLD
    rest = [f"{counted(more, 'more way', words=True)} carry less each."] if more > 0 else []
    return [*told[:TOLD], *rest, _together(rows.iloc[0].to_dict(), len(told))]


def _together(first: Row, number: int) -> str:
    chance = f"the best of random sets of as many edges into the same layers carries {percent(first['random_high'])}"
    if number == 1:
        return f"{chance.capitalize()}."
    size = first["size"]
    kept: str = (
        ""
        if pd.isna(size)
        else f", {counted(int(size), 'edge')} of theirs {percent(first['kept'])}"
    )
    return (
        f"All {number} ways together carry {percent(first['together'])} of the gap{kept}; {chance}."
    )


def way_told(steps: Sequence[Row], word: str) -> str:
    """A way as a sentence: which head brings the sense from where to where, and what goes this way."""
    sure = (
        ""
        if steps[0]["p"] < LEVEL
        else f" (not confirmed for every step, {p_value(steps[0]['p'])})"
    )
    way = ", ".join(
        _step(step, before, word) for before, step in zip([None, *steps[:-1]], steps, strict=True)
    )
    return (
        f"{way[0].upper()}{way[1:]}: {percent(steps[0]['share'])} of the gap goes this way{sure}."
    )


def _step(step: Row, before: Row | None, word: str) -> str:
    """One step; "from there" behind another one."""
    at, head, onward = place(step["receiver_pos"], word), receiver(step), before is not None
    start = place(step["sender_pos"], word)
    if step["channel"] == "query":
        return f"{'it' if onward else start} sets what {head} looks for from {at}"
    if step["channel"] == "key":
        return f"{'it' if onward else start} sets whether {head}, from {at}, looks there"
    if step["sender_pos"] == step["receiver_pos"]:
        return f"{head} rewrites {'it at' if onward else 'the vector of'} {at}"
    moved = (
        before is not None
        and before["channel"] == "value"
        and before["sender_pos"] != before["receiver_pos"]
    )
    verb = "" if moved else "brings the meaning "
    return (
        f"{head} {verb}from there to {at}"
        if onward
        else f"{head} {verb}from {start} to {at.replace(start, 'it')}"
    )


def receiver(step: Row) -> str:
    """The head, or the MLP, that a step leads to."""
    layer, head = step["receiver_layer"], step["receiver_head"]
    return (
        f"the MLP of layer {layer}" if pd.isna(head) else head_name({"layer": layer, "head": head})
    )


def place(name: str, word: str) -> str:
    """The name of a position in words: the cue, the second token behind the cue, the word in
    quotes."""
    if name in ("word", "cue"):
        return f"“{word}”" if name == "word" else "the cue"
    _, side, number = name.split()
    nth = "" if number == "1" else f"{ordinal(int(number))} "
    return f"the {nth}token {'behind' if side == '+' else 'before the end of'} the cue"


def _edge(row: Row, word: str) -> Section:
    """An edge as text for the table."""
    ends = [
        (row[f"{end}_layer"], row[f"{end}_head"], row[f"{end}_pos"])
        for end in ("sender", "receiver")
    ]
    sender, reader = (
        f"{charts.part_name(layer, head)} at {place(pos, word)}" for layer, head, pos in ends
    )
    return {
        "sender": sender,
        "receiver": reader,
        "channel": row["channel"],
        "total": measured(row["total"], row["low"], row["high"]),
        "p": "not tested" if pd.isna(row["p"]) else p_value(row["p"]),
        "direct": percent(row["direct"]),
        "fraction": percent(row["fraction"]),
        "composition": "" if pd.isna(row["composition"]) else decimal(row["composition"]),
    }


LEAST = 0.005  # of the gap
INNER, EMBEDDING, TARGET = "cross layer transcoder", "embedding", "logit"
Node = dict[str, Any]


def graphs(frames: Frames, model_name: str) -> dict[str, str]:
    """A graph of every word that has edges, as JSON, by file name."""
    words = [word for word in words_of(frames) if len(of_word(frames["edges"], word))]
    return {
        file_name(frames, word): json.dumps(
            graph(frames, word, model_name), indent=1, allow_nan=False
        )
        for word in words
    }


def file_name(frames: Frames, word: str) -> str:
    """graph_0.json for the first word: a word may hold what no file name can."""
    return f"graph_{words_of(frames).index(word)}.json"


def graph(frames: Frames, word: str, model_name: str) -> dict[str, Any]:
    """The edges of a word as an attribution graph, in the JSON that circuit-tracer writes and
    Neuronpedia reads.

    metadata · slug: the file's stem · scan: the model · info.description: the word and its senses ·
    prompt_tokens: the names of the positions; all pairs of sentences stand on top of each other,
    aligned at the cue and at the word. qParams · what a viewer has opened: nothing. nodes · a
    token's embedding ("embedding"), a head or an MLP at a position ("cross layer transcoder", the
    format's type of inner nodes; `clerp` says what it is), and the sense axis at the word ("logit",
    the target). links · weight: the total effect of an edge; from a head or an MLP at the word to
    the sense axis what it writes there by itself, the sum of the direct effects of the edges into
    it. Fractions of the sense gap.

    `node_id` is layer, number and position: layer l is "l", embeddings are in "E", the sense axis
    one behind the output of the last layer. The number of a head is its own, that of an MLP one
    more than those of all heads, that of an embedding its position. `feature` is the Cantor pairing
    of layer and number, from which schema 1 reads both back, and the position of an embedding. The
    label of a target must hold its name in quotes and "(p=", its probability: 1, for there is no
    other. `node_threshold`, `influence` and `activation` belong to transcoders and are not there.

    Only edges of the table `paths` with a total of at least LEAST are in it. Sources:
    circuit-tracer, circuit_tracer/frontend/graph_models.py (schema 1); Neuronpedia,
    apps/webapp/app/api/graph/graph-schema.json and what formatCLTGraphData makes of it.
    """
    rows = of_word(frames["edges"], word)
    edges = rows[rows["total"].abs() >= LEAST].to_dict("records")
    tokens, heads = (
        charts.in_order(of_word(frames["positions"], word)),
        int(frames["heads"]["head"].max()) + 1,
    )
    top = int(frames["heads"]["layer"].max()) + 1
    ends = [
        (_node(edge, "sender", tokens, heads), _node(edge, "receiver", tokens, heads))
        for edge in edges
    ]
    sense_a, sense_b = rows.iloc[0][["sense_a", "sense_b"]]
    meant = f"{word}: {sense_a} or {sense_b}"
    target = _made(str(top + 1), 0, len(tokens) - 1, TARGET, f'Output "{meant}" (p=1.000)')
    target |= {"is_target_logit": True, "token_prob": 1.0}
    nodes = {node["node_id"]: node for pair in ends for node in pair} | {target["node_id"]: target}
    slug = file_name(frames, word).removesuffix(".json")
    about: dict[str, Any] = {
        "slug": slug,
        "scan": model_name,
        "transcoder_list": [],
        "prompt_tokens": tokens,
    }
    about |= {"prompt": " ".join(tokens), "schema_version": 1}
    about["info"] = {"description": meant, "generator": {"name": "probe"}}
    shown = {"pinnedIds": [], "supernodes": [], "linkType": "both", "clickedId": "", "sg_pos": ""}
    links = _links(
        edges, [(one["node_id"], other["node_id"]) for one, other in ends], target["node_id"]
    )
    return {"metadata": about, "qParams": shown, "nodes": list(nodes.values()), "links": links}


def _links(edges: list[Row], ends: list[tuple[str, str]], target: str) -> list[dict[str, Any]]:
    """Query, key and value into one head are one link; what stands at the word has one to the
    target."""
    weights: dict[tuple[str, str], float] = defaultdict(float)
    for edge, (one, other) in zip(edges, ends, strict=True):
        weights[one, other] += edge["total"]
        if edge["receiver_pos"] == "word":
            weights[other, target] += edge["direct"]
    return [
        {"source": one, "target": other, "weight": weight}
        for (one, other), weight in weights.items()
    ]


def _node(edge: Row, end: str, tokens: list[str], heads: int) -> Node:
    """What stands at one end of an edge."""
    layer, head, pos = (edge[f"{end}_{name}"] for name in ("layer", "head", "pos"))
    place = tokens.index(pos)
    if pd.isna(layer):
        return _made("E", place, place, EMBEDDING, pos)
    name = f"{charts.part_name(layer, head)} at {pos}"
    return _made(str(layer), heads if pd.isna(head) else int(head), place, INNER, name)


def _made(layer: str, number: int, place: int, kind: str, clerp: str) -> Node:
    name = f"{layer}_{number}_{place}"
    return {
        "node_id": name,
        "jsNodeId": name,
        "feature": number if kind == EMBEDDING else cantor(int(layer), number),
        "layer": layer,
        "ctx_idx": place,
        "feature_type": kind,
        "token_prob": 0.0,
        "is_target_logit": False,
        "run_idx": 0,
        "reverse_ctx_idx": 0,
        "clerp": clerp,
    }


def cantor(one: int, other: int) -> int:
    """One number for two: their place when all pairs are counted diagonal by diagonal."""
    return (one + other) * (one + other + 1) // 2 + other
