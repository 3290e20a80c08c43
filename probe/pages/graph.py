"""The edges of a word as an attribution graph, in the JSON that circuit-tracer writes and Neuronpedia reads.

    metadata   slug the file's stem, scan the model, info.description the word and its senses, prompt_tokens the names
               of the positions: all pairs of sentences stand on top of each other, aligned at the cue and at the word
    qParams    what a viewer has opened: nothing
    nodes      a token's embedding ("embedding"), a head or an MLP at a position ("cross layer transcoder", the format's
               type of inner nodes; `clerp` says what it is), and the sense axis at the word ("logit", the target)
    links      weight: the total effect of an edge; from a head or an MLP at the word to the sense axis what it writes
               there by itself, the sum of the direct effects of the edges into it. Fractions of the sense gap.

What viewers take from a node: `node_id` is layer, number and position; layer l of the model is "l", embeddings are in
"E", the sense axis one behind the output of the last layer. The number of a head is its own, that of an MLP one more
than those of all heads, that of an embedding its position. `feature` is the Cantor pairing of layer and number, from
which schema 1 reads both back, and the position of an embedding. The label of a target must hold its name in quotes and
"(p=", its probability: 1, for there is no other. There is no `node_threshold`, `influence` or `activation`: they belong
to transcoders, and a viewer prunes nothing without them. A viewer asks its server for examples of an inner node by
`scan` and `feature`; there are none, and it shows the label alone.

Only edges of the table `paths` with a total of at least LEAST are in it. Sources of the format: circuit-tracer,
circuit_tracer/frontend/graph_models.py (schema 1); Neuronpedia, apps/webapp/app/api/graph/graph-schema.json and what
formatCLTGraphData makes of it.
"""

import json
from collections import defaultdict
from typing import Any

import pandas as pd

from probe import charts
from probe.charts import of_word
from probe.pages.rows import Frames, Row, words_of

LEAST = 0.005  # of the gap
INNER, EMBEDDING, TARGET = "cross layer transcoder", "embedding", "logit"
Node = dict[str, Any]


def files(frames: Frames, model_name: str) -> dict[str, str]:
    """A graph of every word that has edges, as JSON, by file name."""
    words = [word for word in words_of(frames) if len(of_word(frames["paths"], word))]
    return {
        file_name(frames, word): json.dumps(graph(frames, word, model_name), indent=1, allow_nan=False)
        for word in words
    }


def file_name(frames: Frames, word: str) -> str:
    """graph_0.json for the first word: a word may hold what no file name can."""
    return f"graph_{words_of(frames).index(word)}.json"


def graph(frames: Frames, word: str, model_name: str) -> dict[str, Any]:
    """The graph of one word as plain values; see the module's docstring."""
    rows = of_word(frames["paths"], word)
    edges = rows[rows["total"].abs() >= LEAST].to_dict("records")
    tokens, heads = charts.in_order(of_word(frames["positions"], word)), int(frames["heads"]["head"].max()) + 1
    top = int(frames["heads"]["layer"].max()) + 1
    ends = [(_node(edge, "sender", tokens, heads), _node(edge, "receiver", tokens, heads)) for edge in edges]
    sense_a, sense_b = rows.iloc[0][["sense_a", "sense_b"]]
    meant = f"{word}: {sense_a} or {sense_b}"
    target = _made(str(top + 1), 0, len(tokens) - 1, TARGET, f'Output "{meant}" (p=1.000)')
    target |= {"is_target_logit": True, "token_prob": 1.0}
    nodes = {node["node_id"]: node for pair in ends for node in pair} | {target["node_id"]: target}
    slug = file_name(frames, word).removesuffix(".json")
    about: dict[str, Any] = {"slug": slug, "scan": model_name, "transcoder_list": [], "prompt_tokens": tokens}
    about |= {"prompt": " ".join(tokens), "schema_version": 1}
    about["info"] = {"description": meant, "generator": {"name": "probe"}}
    shown = {"pinnedIds": [], "supernodes": [], "linkType": "both", "clickedId": "", "sg_pos": ""}
    links = _links(edges, [(one["node_id"], other["node_id"]) for one, other in ends], target["node_id"])
    return {"metadata": about, "qParams": shown, "nodes": list(nodes.values()), "links": links}


def _links(edges: list[Row], ends: list[tuple[str, str]], target: str) -> list[dict[str, Any]]:
    """Query, key and value into one head are one link; what stands at the word has one to the target."""
    weights: dict[tuple[str, str], float] = defaultdict(float)
    for edge, (one, other) in zip(edges, ends, strict=True):
        weights[one, other] += edge["total"]
        if edge["receiver_pos"] == "word":
            weights[other, target] += edge["direct"]
    return [{"source": one, "target": other, "weight": weight} for (one, other), weight in weights.items()]


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
