"""The edges of each word as an attribution graph, in the JSON that circuit-tracer writes and
Neuronpedia reads."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from probe import charts
from probe.results.findings import Row, WordFindings

SMALLEST_WEIGHT = 0.005  # of the gap: smaller edges are left out
# The format's names for the kinds of nodes.
INNER = "cross layer transcoder"
EMBEDDING = "embedding"
TARGET = "logit"
Node = dict[str, Any]


def graphs(findings: Mapping[str, WordFindings], model_name: str) -> dict[str, str]:
    """A graph of every word that has edges, as JSON, by file name.

    graph_0.json for the first word: a word may hold what no file name can.
    """
    return {
        f"graph_{finding.index}.json": json.dumps(
            graph(finding, model_name), indent=1, allow_nan=False
        )
        for finding in findings.values()
        if len(finding.rows["edges"])
    }


def graph(finding: WordFindings, model_name: str) -> dict[str, Any]:
    """The edges of a word as an attribution graph.

    metadata · slug: the file's stem · scan: the model · info.description: the word and its senses ·
    prompt_tokens: the names of the positions; all pairs of sentences share one set of nodes,
    aligned at the cue and at the word. qParams · what a viewer has opened: nothing. nodes · a
    token's embedding ("embedding"), a head or an MLP at a position ("cross layer transcoder", the
    format's type of inner nodes; `clerp` is its name), and the sense axis at the word ("logit",
    the target). links · weight: the total effect of an edge; from a head or an MLP at the word to
    the sense axis what it writes there by itself, the sum of the direct effects of the edges into
    it. Fractions of the sense gap.

    `node_id` is layer, number and position: layer l is "l", embeddings are in "E", the sense axis
    one above the output of the last layer. The number of a head is its index, that of an MLP one
    more than the number of heads, that of an embedding its position. `feature` is the Cantor
    pairing of layer and number, from which schema 1 reads both back, and the position of an
    embedding. The label of a target must hold its name in quotes and "(p=", its probability, which
    is 1. `node_threshold`, `influence` and `activation` belong to transcoders and are left out.

    Only edges of the table `edges` with a total of at least SMALLEST_WEIGHT are in it. Sources:
    circuit-tracer, circuit_tracer/frontend/graph_models.py (schema 1); Neuronpedia,
    apps/webapp/app/api/graph/graph-schema.json and how formatCLTGraphData reads it.
    """
    rows = finding.rows["edges"]
    edges = rows[rows["total"].abs() >= SMALLEST_WEIGHT].to_dict("records")
    tokens = charts.in_order(finding.rows["positions"])
    prompt = f"{finding.word}: {rows['sense_a'].iloc[0]} or {rows['sense_b'].iloc[0]}"
    sense_axis = _node(
        layer=str(finding.layers + 1),
        number=0,
        position=len(tokens) - 1,
        kind=TARGET,
        label=f'Output "{prompt}" (p=1.000)',
    ) | {"is_target_logit": True, "token_prob": 1.0}
    nodes: dict[str, Node] = {}
    ends = []
    for edge in edges:
        sender = _end_of_edge(edge, "sender", tokens, finding.heads_per_layer)
        receiver = _end_of_edge(edge, "receiver", tokens, finding.heads_per_layer)
        nodes[sender["node_id"]] = sender
        nodes[receiver["node_id"]] = receiver
        ends.append((sender["node_id"], receiver["node_id"]))
    nodes[sense_axis["node_id"]] = sense_axis
    metadata = {
        "slug": f"graph_{finding.index}",
        "scan": model_name,
        "transcoder_list": [],
        "prompt_tokens": tokens,
        "prompt": " ".join(tokens),
        "schema_version": 1,
        "info": {"description": prompt, "generator": {"name": "probe"}},
    }
    opened = {"pinnedIds": [], "supernodes": [], "linkType": "both", "clickedId": "", "sg_pos": ""}
    return {
        "metadata": metadata,
        "qParams": opened,
        "nodes": list(nodes.values()),
        "links": _links(edges, ends, sense_axis["node_id"]),
    }


def _links(
    edges: Sequence[Row], ends: Sequence[tuple[str, str]], target: str
) -> list[dict[str, Any]]:
    """Query, key and value into one head are one link; a part at the word has one to the
    target."""
    weights: dict[tuple[str, str], float] = defaultdict(float)
    for edge, (sender, receiver) in zip(edges, ends, strict=True):
        weights[sender, receiver] += edge["total"]
        if edge["receiver_pos"] == "word":
            weights[receiver, target] += edge["direct"]
    return [
        {"source": source, "target": end, "weight": weight}
        for (source, end), weight in weights.items()
    ]


def _end_of_edge(edge: Row, end: str, tokens: list[str], heads_per_layer: int) -> Node:
    """The part of the network at one end of an edge."""
    layer = edge[f"{end}_layer"]
    head = edge[f"{end}_head"]
    pos = edge[f"{end}_pos"]
    position = tokens.index(pos)
    if bool(pd.isna(layer)):
        return _node(layer="E", number=position, position=position, kind=EMBEDDING, label=pos)
    return _node(
        layer=str(layer),
        number=heads_per_layer if pd.isna(head) else int(head),
        position=position,
        kind=INNER,
        label=f"{charts.part_name(layer, head)} at {pos}",
    )


def _node(*, layer: str, number: int, position: int, kind: str, label: str) -> Node:
    name = f"{layer}_{number}_{position}"
    return {
        "node_id": name,
        "jsNodeId": name,
        "feature": number if kind == EMBEDDING else cantor(int(layer), number),
        "layer": layer,
        "ctx_idx": position,
        "feature_type": kind,
        "token_prob": 0.0,
        "is_target_logit": False,
        "run_idx": 0,
        "reverse_ctx_idx": 0,
        "clerp": label,
    }


def cantor(a: int, b: int) -> int:
    """One number for two: their index when all pairs are counted diagonal by diagonal."""
    return (a + b) * (a + b + 1) // 2 + b
