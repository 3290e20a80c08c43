"""Circuits in the form of MIB's circuit track: a graph with a score for every edge, how much of the
model's answer the best edges keep, and the file that a submission is made of.

A node writes to the stream: `input` (the token embeddings), a head `a0.h3` or an MLP `m0`. An edge
leads from a node to what reads the stream later: the query, key or value of a head, `m0->a1.h2<q>`,
an MLP, or the `logits`. A circuit is a set of edges. It is run on a clean text: an edge of the
circuit carries what its node writes in that run, every other edge what the node writes in the
corrupt text.

    faithfulness   (M(circuit) - M(no edge)) / (M(model) - M(no edge)), M a difference of two logits
    CPR            area under the faithfulness of the first edges, over the shares in SIZES
    CMD            area between that curve and 1
    AUROC          of the edges of a circuit that is known, over the same shares

A head with all its edges from the corrupt text writes what it writes there, so that edges from
nodes that nothing reaches change nothing: circuits need no pruning to be run.

Source: Mueller et al. 2025 (MIB, arXiv 2504.13151).
"""

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.errors import InputError, UnsupportedModel
from probe.model import forward
from probe.model.attention import repeat_kv
from probe.model.load import ModelSource, load, read_weights
from probe.model.weights import Block, Weights
from probe.stats.resampling import Array

__all__ = ["Areas", "Graph", "area_under_roc", "evaluate", "exact_scores", "graph", "write"]

SIZES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)  # of the edges, or of the nodes
CHANNELS = "qkv"
INPUT = "input"
LOGITS = "logits"
# Numbers in the widest tensor of a batch: 64 MB in float32.
BATCH_NUMBERS = 2**24

Level = Literal["edge", "node"]
Mask = NDArray[np.bool_]
Texts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Graph:
    """What writes to the stream of a model and what reads it.

    parallel: whether the MLP of a block reads what the heads of the block read
    """

    layers: int
    heads: int
    d_model: int
    parallel: bool

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """What writes, in the order of the blocks."""
        names = [INPUT]
        for layer in range(self.layers):
            names += [f"a{layer}.h{head}" for head in range(self.heads)]
            names.append(f"m{layer}")
        return tuple(names)

    @cached_property
    def readers(self) -> tuple[str, ...]:
        """What reads, in the same order: of each block all queries, all keys, all values, the MLP;
        then the logits."""
        names = []
        for layer in range(self.layers):
            for channel in CHANNELS:
                names += [f"a{layer}.h{head}<{channel}>" for head in range(self.heads)]
            names.append(f"m{layer}")
        return (*names, LOGITS)

    @cached_property
    def real(self) -> Mask:
        """Whether there is an edge: the node writes before the reader reads. `node reader`"""
        step = {INPUT: -1} | {name: _step(name, self.parallel) for name in self.nodes[1:]}
        reads_at = {
            name: 2 * self.layers if name == LOGITS else _reads_at(name, self.parallel)
            for name in self.readers
        }
        return np.array(
            [[step[node] < reads_at[reader] for reader in self.readers] for node in self.nodes]
        )

    @cached_property
    def edges(self) -> dict[str, tuple[int, int]]:
        """The place of every edge in a matrix `node reader`, by its name."""
        return {
            f"{self.nodes[node]}->{self.readers[reader]}": (int(node), int(reader))
            for node, reader in zip(*np.nonzero(self.real), strict=True)
        }

    @cached_property
    def readers_of(self) -> tuple[NDArray[np.intp], ...]:
        """What each node reads through, as numbers of readers; nothing for the input. `node`"""
        names = [
            [number for number, reader in enumerate(self.readers) if reader.split("<")[0] == node]
            for node in self.nodes
        ]
        return tuple(np.array(numbers, dtype=np.intp) for numbers in names)

    def pruned(self, circuit: Mask) -> Mask:
        """A circuit without the edges that lead nowhere and those that nothing leads to. `node
        reader`"""
        circuit = circuit.copy()
        while True:
            read: Mask = np.asarray(circuit.any(0))  # reader
            reached = np.array(
                [node == 0 or read[numbers].any() for node, numbers in enumerate(self.readers_of)]
            )
            alive = reached & circuit.any(1)
            is_read = np.zeros(len(self.readers), dtype=bool)
            is_read[-1] = True
            for numbers in (self.readers_of[node] for node in np.nonzero(alive)[0]):
                is_read[numbers] = True
            fewer = circuit & alive[:, None] & is_read
            if (fewer == circuit).all():
                return fewer
            circuit = fewer


def _step(node: str, parallel: bool) -> int:
    """After which half of a block a node has written, halves counted from 0."""
    layer = int(node[1:].split(".")[0])
    return 2 * layer + (1 if node[0] == "m" or parallel else 0)


def _reads_at(reader: str, parallel: bool) -> int:
    """In which half of a block something reads."""
    layer = int(reader[1:].split(".")[0])
    return 2 * layer + (1 if reader[0] == "m" and not parallel else 0)


def graph(model: ModelSource) -> Graph:
    """The graph of a model.

    Raises UnsupportedModel for a model in which a node does not add what it writes to the stream as
    it is, or some layers have no attention.

    Example:
        >>> nodes = probe.mib.graph("tiny-senses").nodes
        >>> nodes[:3], len(nodes)
        (('input', 'a0.h0', 'a0.h1'), 21)
    """
    weights = read_weights(load(model))
    config = weights.config
    if not (config.family.adds_plainly and config.attends_plainly and config.causal):
        raise UnsupportedModel(
            f"Cannot make a graph of edges of a {config.family.name} model: it is not a stack of "
            "causal attention and MLPs that add to the stream what they write; take a GPT-2, "
            "Llama, Qwen or GPT-NeoX, or measure its edges with probe.edges."
        )
    return Graph(*weights.shape[:3], parallel=bool(config.family.parallel))


# --- running circuits -----------------------------------------------------------------------------


class Pairs(NamedTuple):
    """Clean texts, corrupt texts of the same length, and of each pair two tokens whose logits are
    compared at its end: the clean text's answer and the corrupt one's."""

    clean: Tensor  # pair pos
    corrupt: Tensor
    answers: Tensor  # pair 2


def _pairs(weights: Weights, clean: Texts, corrupt: Texts, answers: Texts) -> Pairs:
    lengths = {len(row) for row in (*clean, *corrupt)}
    if len(lengths) != 1 or not len(clean) == len(corrupt) == len(answers):
        raise InputError(
            f"Running circuits: got {len(clean)} clean and {len(corrupt)} corrupt texts of "
            f"{sorted(lengths)} tokens and {len(answers)} pairs of answers, expected as many of "
            "each, all of one length; give pairs that differ in few tokens, or run each length "
            "alone."
        )
    tensors = (torch.tensor([*rows], device=weights.device) for rows in (clean, corrupt, answers))
    return Pairs(*tensors)


def _logit_differences(weights: Weights, pairs: Pairs, kept: Tensor | None) -> Tensor:
    """M of every circuit, mean over pairs. `circuit node reader -> circuit`

    kept: the edges of each circuit; None for the model itself, which is one.
    """
    width = len(weights.blocks) * (weights.shape[1] + 1) + 1
    size = pairs.clean.numel() * width * weights.shape[2]
    count = 1 if kept is None else len(kept)
    at_once = max(1, BATCH_NUMBERS // size)
    found = []
    with torch.inference_mode():
        written = _written(weights, pairs.corrupt, None, None)
        for start in range(0, count, at_once):
            some = None if kept is None else kept[start : start + at_once]
            ends = _written(weights, pairs.clean, written, some)
            final = ends.resid[..., -1, :]  # circuit pair d_model
            logits = forward.unembed(weights, final)
            picked = logits.gather(-1, pairs.answers.expand(len(logits), -1, -1))
            found.append((picked[..., 0] - picked[..., 1]).mean(-1))
    return torch.cat(found).cpu().clone()


class Written(NamedTuple):
    """A run: what every node writes, and what enters the final norm."""

    nodes: Tensor
    resid: Tensor  # circuit pair pos d_model


def _written(
    weights: Weights, ids: Tensor, corrupt: Written | None, kept: Tensor | None
) -> Written:
    """One run of some texts for every circuit; without `kept` every edge carries what its node
    writes in this very run. `pair pos`"""
    config = weights.config
    positions = torch.arange(ids.shape[-1], device=ids.device)
    parts = forward.embedding_parts(weights, ids, positions)
    constant = forward.sum_embeddings(parts) - parts["token embedding"]
    bias = forward.position_bias(weights, ids.shape[-1])
    circuits = 1 if kept is None else len(kept)
    nodes = [parts["token embedding"].expand(circuits, -1, -1, -1)]

    def read(first: int, count: int) -> Tensor:
        """What some readers in a row read. `-> circuit reader pair pos d_model`"""
        current = torch.stack(nodes, dim=1)
        if kept is None or corrupt is None:
            return (constant + current.sum(1))[:, None].expand(-1, count, -1, -1, -1)
        theirs = corrupt.nodes[:, : len(nodes)]
        edges = kept[:, : len(nodes), first : first + count].to(current)
        own = torch.einsum("cnr,cnptd->crptd", edges, current - theirs)
        return constant + theirs.sum(1)[:, None] + own

    heads = weights.shape[1]
    reader = 0
    for block in weights.blocks:
        q, k, v = (read(reader + number * heads, heads) for number in range(3))
        mlp_reader = reader + 3 * heads
        of_mlp = read(mlp_reader, 1)[:, 0] if config.family.parallel else None
        written = _heads(weights, block, (q, k, v), bias)
        nodes += written.unbind(1)
        if block.b_o is not None:
            constant = constant + block.b_o
        resid = read(mlp_reader, 1)[:, 0] if of_mlp is None else of_mlp
        nodes.append(forward.mlp(block, resid, resid, config)["mlp_out"])
        reader = mlp_reader + 1
    return Written(torch.stack(nodes, dim=1), read(reader, 1)[:, 0])


def _heads(
    weights: Weights, block: Block, streams: Sequence[Tensor], bias: Tensor | None
) -> Tensor:
    """What every head writes, from what its query, its key and its value read. `circuit head pair
    pos d_model, three times -> circuit head pair pos d_model`"""
    heads = weights.shape[1]
    projected = []
    matrices = ((block.w_q, block.b_q), (block.w_k, block.b_k), (block.w_v, block.b_v))
    for stream, (weight, offset) in zip(streams, matrices, strict=True):
        x = forward.attention_input(block, stream, weights.config)
        out = torch.einsum("chptd,hde->cphte", x, repeat_kv(weight, heads))
        projected.append(out if offset is None else out + repeat_kv(offset[:, None], heads))
    q, k, v = projected  # circuit pair head pos d_head
    pattern = forward.softmax(forward.score(weights, block, q, k, bias), block, weights.config)
    return torch.einsum("cphte,hed->chptd", pattern.to(v) @ v, block.w_o)


# --- scores and areas -----------------------------------------------------------------------------


def exact_scores(
    model: ModelSource, clean: Texts, corrupt: Texts, answers: Texts, *, level: Level = "edge"
) -> Array:
    """How far the difference of the answers' logits falls when one edge carries what the corrupt
    text has, for every edge; with `level="node"` when all edges from one node do.

    clean, corrupt: token ids of texts, all of one length
    answers: of each pair the token that the clean text ends in and the one that the corrupt text
        does
    Shape: `node reader`, 0 where there is no edge; `node` for nodes

    Example:
        >>> texts = ("The river bank", "The money bank")
        >>> ids = [probe.tokenize("tiny-senses", text).ids for text in texts]
        >>> scores = probe.mib.exact_scores("tiny-senses", ids[:1], ids[1:], [(5, 9)])
        >>> scores.shape
        (21, 53)
    """
    model = load(model)
    of_model = graph(model)
    weights = read_weights(model)
    pairs = _pairs(weights, clean, corrupt, answers)
    places = list(of_model.edges.values())
    count = len(of_model.nodes) if level == "node" else len(places)
    without = torch.from_numpy(of_model.real).expand(count, -1, -1).clone()
    for number in range(count):
        place = number if level == "node" else places[number]
        without[number][place] = False
    whole = _logit_differences(weights, pairs, None)
    fall = (whole - _logit_differences(weights, pairs, without.to(weights.device))).double().numpy()
    if level == "node":
        return fall
    scores = np.zeros(of_model.real.shape)
    for place, value in zip(places, fall, strict=True):
        scores[place] = value
    return scores


class Areas(NamedTuple):
    """The faithfulness of circuits of growing size, and the areas that MIB ranks methods by.

    sizes: shares of all edges, or nodes. faithfulness: of each. cpr: the area under the curve,
    larger is better. cmd: the area between the curve and 1, smaller is better.
    """

    sizes: tuple[float, ...]
    faithfulness: tuple[float, ...]
    cpr: float
    cmd: float


def evaluate(
    model: ModelSource,
    clean: Texts,
    corrupt: Texts,
    answers: Texts,
    scores: Array,
    *,
    absolute: bool = False,
) -> Areas:
    """The faithfulness of the edges, or nodes, with the largest scores, and its areas.

    clean, corrupt, answers: as for `exact_scores`
    scores: of edges, `node reader`, or of nodes, `node`, whose circuits have all edges from them
    absolute: whether scores count by their size alone

    Example:
        >>> texts = ("The river bank", "The money bank")
        >>> ids = [probe.tokenize("tiny-senses", text).ids for text in texts]
        >>> task = ids[:1], ids[1:], [(5, 9)]
        >>> scores = probe.mib.exact_scores("tiny-senses", *task)
        >>> areas = probe.mib.evaluate("tiny-senses", *task, scores)
        >>> round(areas.faithfulness[-1], 2)  # all edges
        1.0
    """
    model = load(model)
    of_model = graph(model)
    weights = read_weights(model)
    pairs = _pairs(weights, clean, corrupt, answers)
    values = _in_order(of_model, scores)
    order = np.argsort(-(np.abs(values) if absolute else values), kind="stable")
    circuits = [np.zeros_like(of_model.real)]
    circuits += [_first(of_model, order[: int(size * len(order))], scores.ndim) for size in SIZES]
    kept = torch.from_numpy(np.stack(circuits)).to(weights.device)
    none, *measured = _logit_differences(weights, pairs, kept).double().tolist()
    [whole] = _logit_differences(weights, pairs, None).double().tolist()
    if whole == none:
        raise InputError(
            "Evaluating a circuit: the clean and the corrupt texts have the same difference of the "
            "answers' logits, so that no circuit can keep it; give answers in which they differ."
        )
    faithfulness = [(value - none) / (whole - none) for value in measured]
    curve = np.array(faithfulness)
    return Areas(
        SIZES,
        tuple(faithfulness),
        cpr=float(np.trapezoid(curve, SIZES)),
        cmd=float(np.trapezoid(np.abs(1 - curve), SIZES)),
    )


def _in_order(of_model: Graph, scores: Array) -> Array:
    """The scores of all edges in the order of their names, or those of all nodes."""
    expected = of_model.real.shape if scores.ndim == 2 else (len(of_model.nodes),)
    if scores.shape != expected or not np.isfinite(scores).all():
        raise InputError(
            f"Evaluating a circuit: got scores of shape {list(scores.shape)}, expected node reader "
            f"{list(of_model.real.shape)} or node [{len(of_model.nodes)}], all of them numbers; "
            "give those of probe.mib.exact_scores, or a matrix filled by graph.edges."
        )
    return scores[of_model.real] if scores.ndim == 2 else scores


def _first(of_model: Graph, chosen: NDArray[np.intp], ndim: int) -> Mask:
    """The circuit of some edges, or of some nodes with all edges from them. `-> node reader`"""
    if ndim == 1:
        is_chosen = np.zeros(len(of_model.nodes), dtype=bool)
        is_chosen[chosen] = True
        return of_model.real & is_chosen[:, None]
    circuit = np.zeros_like(of_model.real)
    rows, columns = np.nonzero(of_model.real)
    circuit[rows[chosen], columns[chosen]] = True
    return circuit


def area_under_roc(of_model: Graph, scores: Array, known: Collection[str]) -> float:
    """How well scores of edges tell those of a known circuit: the area under the curve of its edges
    found (true positives) over other edges taken (false positives), at the sizes in SIZES.

    Circuits grow from the logits: the largest edge into what they hold already is added next, as
    MIB does it, and what leads nowhere is pruned.

    Example:
        >>> graph = probe.mib.graph("tiny-senses")
        >>> scores = graph.real * 1.0
        >>> known = ["input->a0.h0<v>", "a0.h0->logits"]
        >>> for edge in known:
        ...     scores[graph.edges[edge]] = 2.0
        >>> probe.mib.area_under_roc(graph, scores, known) > 0.9
        True
    """
    places = {of_model.edges[name] for name in known}
    is_known = np.zeros_like(of_model.real)
    is_known[tuple(np.array(sorted(places)).T)] = True
    found, taken = [], []
    for size in SIZES:
        count = math.ceil(size * of_model.real.sum())
        circuit = of_model.pruned(_grown(of_model, scores, count))
        found.append((circuit & is_known).sum() / is_known.sum())
        taken.append((circuit & ~is_known).sum() / (of_model.real & ~is_known).sum())
    widths = np.array(taken) / taken[-1]
    return float(np.trapezoid(found, widths))


def _grown(of_model: Graph, scores: Array, count: int) -> Mask:
    """The first edges of a circuit that grows from the logits. `-> node reader`"""
    sizes = np.where(of_model.real, np.abs(scores), -1.0)
    circuit = np.zeros_like(of_model.real)
    open_readers = np.zeros(len(of_model.readers), dtype=bool)
    open_readers[-1] = True
    for _ in range(count):
        candidates = np.where(open_readers & ~circuit, sizes, -1.0)
        node, reader = np.unravel_index(candidates.argmax(), candidates.shape)
        if candidates[node, reader] < 0:
            break
        circuit[node, reader] = True
        open_readers[of_model.readers_of[node]] = True
    return circuit


def write(
    of_model: Graph,
    path: str | Path,
    *,
    edges: Array | None = None,
    nodes: Array | None = None,
) -> Path:
    """Write scores as the JSON file that MIB's circuit track takes, and return its path.

    edges: `node reader`, 0 for all where only nodes have scores
    nodes: `node`

    The folder of a submission holds one such file per task and model, in folders such as
    `ioi_gpt2`.

    Example:
        >>> import json, tempfile
        >>> graph = probe.mib.graph("tiny-senses")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = probe.mib.write(graph, f"{folder}/ioi_tiny.json", edges=graph.real * 1.0)
        ...     sorted(json.loads(file.read_text()))
        ['cfg', 'edges', 'nodes']
    """
    path = Path(path)
    scores = np.zeros(of_model.real.shape) if edges is None else edges
    _in_order(of_model, scores)
    of_nodes: dict[str, dict[str, bool | float]] = {}
    for number, name in enumerate(of_model.nodes):
        of_nodes[name] = {"in_graph": True}
        if nodes is not None:
            of_nodes[name]["score"] = float(nodes[number])
    of_nodes[LOGITS] = {"in_graph": True}
    content = {
        "cfg": {
            "n_layers": of_model.layers,
            "n_heads": of_model.heads,
            "parallel_attn_mlp": of_model.parallel,
            "d_model": of_model.d_model,
        },
        "nodes": of_nodes,
        "edges": {
            name: {"score": float(scores[place]), "in_graph": True}
            for name, place in of_model.edges.items()
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path
