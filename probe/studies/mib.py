"""Circuits in the form of MIB's circuit track: a graph with a score for every edge, the
faithfulness of the edges with the largest scores, and the file for a submission.

A node writes to the residual stream: `input` (the token embeddings), a head `a0.h3` or an MLP `m0`.
An edge leads from a node to a later reader of the stream: the query, key or value of a head,
`m0->a1.h2<q>`, an MLP, or the `logits`. A circuit is a set of edges. It is run on a clean text: an
edge of the circuit carries the node's write in that run, every other edge the node's write in the
corrupt text.

    faithfulness   (M(circuit) - M(no edge)) / (M(model) - M(no edge)), M a difference of two logits
    CPR            area under the faithfulness of the top edges, over the shares in SIZES
    CMD            area between that curve and 1
    AUROC          of the edges of a known circuit, over the same shares

A head with all its edges from the corrupt text writes the same as there. Edges from nodes without
an edge of the circuit into them therefore change nothing, and circuits need no pruning to be run.

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

SIZES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)  # shares of all edges or nodes
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
    """The nodes that write to the residual stream of a model, and the readers of the stream.

    parallel: whether the MLP of a block reads the same stream as the heads of the block
    """

    layers: int
    heads: int
    d_model: int
    parallel: bool

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes, in the order of the blocks."""
        names = [INPUT]
        for layer in range(self.layers):
            names += [f"a{layer}.h{head}" for head in range(self.heads)]
            names.append(f"m{layer}")
        return tuple(names)

    @cached_property
    def readers(self) -> tuple[str, ...]:
        """The names of the readers, in the same order: for each block all queries, all keys, all
        values and the MLP; then the logits."""
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
        """The index of every edge in a matrix `node reader`, by its name."""
        return {
            f"{self.nodes[node]}->{self.readers[reader]}": (int(node), int(reader))
            for node, reader in zip(*np.nonzero(self.real), strict=True)
        }

    @cached_property
    def readers_of(self) -> tuple[NDArray[np.intp], ...]:
        """The numbers of the readers of each node; none for the input. `node`"""
        names = [
            [number for number, reader in enumerate(self.readers) if reader.split("<")[0] == node]
            for node in self.nodes
        ]
        return tuple(np.array(numbers, dtype=np.intp) for numbers in names)

    def pruned(self, circuit: Mask) -> Mask:
        """A circuit without edges that no path from the input to the logits uses. `node reader`"""
        circuit = circuit.copy()
        # Removing an edge can disconnect others: repeat until nothing changes.
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
    """The half of a block at whose end a node has written, with halves counted from 0."""
    layer = int(node[1:].split(".")[0])
    return 2 * layer + (1 if node[0] == "m" or parallel else 0)


def _reads_at(reader: str, parallel: bool) -> int:
    """The half of a block in which a reader reads."""
    layer = int(reader[1:].split(".")[0])
    return 2 * layer + (1 if reader[0] == "m" and not parallel else 0)


def graph(model: ModelSource) -> Graph:
    """Return the graph of a model.

    Raises UnsupportedModel for a model in which a node's write is changed before it is added to the
    stream, or in which some layers have no attention.

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
            "causal attention and MLPs that add their writes to the stream unchanged. Take a "
            "GPT-2, Llama, Qwen or GPT-NeoX, or measure its edges with probe.edges."
        )
    return Graph(*weights.shape[:3], parallel=bool(config.family.parallel_attn_mlp))


# --- running circuits -----------------------------------------------------------------------------


class Pairs(NamedTuple):
    """Clean texts, corrupt texts of the same length, and two answers for each pair, whose logits
    are compared at the last token."""

    clean: Tensor  # pair pos
    corrupt: Tensor  # pair pos
    answers: Tensor  # pair 2: the clean text's answer, the corrupt text's


def _pairs(weights: Weights, clean: Texts, corrupt: Texts, answers: Texts) -> Pairs:
    lengths = {len(row) for row in (*clean, *corrupt)}
    if len(lengths) != 1 or not len(clean) == len(corrupt) == len(answers):
        raise InputError(
            f"Cannot run circuits: got {len(clean)} clean and {len(corrupt)} corrupt texts of "
            f"{sorted(lengths)} tokens and {len(answers)} pairs of answers, expected the same "
            "number of each, and texts of one length. Give pairs that differ in few tokens, or run "
            "each length alone."
        )
    tensors = (torch.tensor([*rows], device=weights.device) for rows in (clean, corrupt, answers))
    return Pairs(*tensors)


def _logit_differences(weights: Weights, pairs: Pairs, circuits: Tensor | None) -> Tensor:
    """M of every circuit, mean over pairs. `circuit node reader -> circuit`

    circuits: the edges of each; None for the model itself, as one circuit.
    """
    width = len(weights.blocks) * (weights.shape[1] + 1) + 1
    size = pairs.clean.numel() * width * weights.shape[2]
    count = 1 if circuits is None else len(circuits)
    at_once = max(1, BATCH_NUMBERS // size)  # circuits in a batch
    differences = []
    with torch.inference_mode():
        corrupt = _run(weights, pairs.corrupt, None, None)
        for start in range(0, count, at_once):
            batch = None if circuits is None else circuits[start : start + at_once]
            run = _run(weights, pairs.clean, corrupt, batch)
            final = run.resid[..., -1, :]  # circuit pair d_model
            logits = forward.unembed(weights, final)
            of_answers = logits.gather(-1, pairs.answers.expand(len(logits), -1, -1))
            differences.append((of_answers[..., 0] - of_answers[..., 1]).mean(-1))
    return torch.cat(differences).cpu().clone()


class NodeWrites(NamedTuple):
    """A run: the write of every node, and the residual stream before the final norm."""

    nodes: Tensor  # circuit node pair pos d_model
    resid: Tensor  # circuit pair pos d_model


def _run(
    weights: Weights, ids: Tensor, corrupt: NodeWrites | None, edges: Tensor | None
) -> NodeWrites:
    """One run of some texts for every circuit.

    This loop is not that of `probe.patching.variants`, where all parts of a block read one stream.
    Here every query, key, value and MLP reads a sum of its own.

    ids: `pair pos`
    corrupt: the run of the corrupt texts, whose writes the edges outside the circuit carry
    edges: of each circuit, `circuit node reader`; None for all edges
    """
    config = weights.config
    positions = torch.arange(ids.shape[-1], device=ids.device)
    parts = forward.embedding_parts(weights, ids, positions)
    constant = forward.sum_embeddings(parts) - parts["token embedding"]
    bias = forward.position_bias(weights, ids.shape[-1])
    circuits = 1 if edges is None else len(edges)
    nodes = [parts["token embedding"].expand(circuits, -1, -1, -1)]

    def read(first: int, count: int) -> Tensor:
        """The input of `count` readers from number `first` on.
        `-> circuit reader pair pos d_model`"""
        clean_writes = torch.stack(nodes, dim=1)
        if edges is None or corrupt is None:
            return (constant + clean_writes.sum(1))[:, None].expand(-1, count, -1, -1, -1)
        # sum over nodes of the corrupt write, plus (clean - corrupt) for edges of the circuit
        corrupt_writes = corrupt.nodes[:, : len(nodes)]
        in_circuit = edges[:, : len(nodes), first : first + count].to(clean_writes)
        change = torch.einsum("cnr,cnptd->crptd", in_circuit, clean_writes - corrupt_writes)
        return constant + corrupt_writes.sum(1)[:, None] + change

    heads = weights.shape[1]
    reader = 0
    for block in weights.blocks:
        q, k, v = (read(reader + number * heads, heads) for number in range(3))
        mlp_reader = reader + 3 * heads
        of_mlp = read(mlp_reader, 1)[:, 0] if config.family.parallel_attn_mlp else None
        head_writes = _head_writes(weights, block, (q, k, v), bias)
        nodes += head_writes.unbind(1)
        if block.b_o is not None:
            constant = constant + block.b_o
        resid = read(mlp_reader, 1)[:, 0] if of_mlp is None else of_mlp
        nodes.append(forward.mlp(block, resid, resid, config)["mlp_out"])
        reader = mlp_reader + 1
    return NodeWrites(torch.stack(nodes, dim=1), read(reader, 1)[:, 0])


def _head_writes(
    weights: Weights, block: Block, streams: Sequence[Tensor], bias: Tensor | None
) -> Tensor:
    """The write of every head. `-> circuit head pair pos d_model`

    streams: the inputs of its query, its key and its value, each `circuit head pair pos d_model`
    """
    heads = weights.shape[1]
    projected = []
    matrices = ((block.w_q, block.b_q), (block.w_k, block.b_k), (block.w_v, block.b_v))
    for stream, (weight, offset) in zip(streams, matrices, strict=True):
        x = forward.attention_input(block, stream, weights.config)
        out = torch.einsum("chptd,hde->cphte", x, repeat_kv(weight, heads))
        projected.append(out if offset is None else out + repeat_kv(offset[:, None], heads))
    q, k, v = projected  # circuit pair head pos d_head
    # softmax(q k^T) v W_O
    pattern = forward.softmax(forward.score(weights, block, q, k, bias), block, weights.config)
    return torch.einsum("cphte,hed->chptd", pattern.to(v) @ v, block.w_o)


# --- scores and areas -----------------------------------------------------------------------------


def exact_scores(
    model: ModelSource, clean: Texts, corrupt: Texts, answers: Texts, *, level: Level = "edge"
) -> Array:
    """Return how far the difference of the answers' logits falls when one edge carries the write of
    the corrupt text, for every edge.

    clean, corrupt: token ids of texts, all of one length
    answers: for each pair the answer to the clean text and the answer to the corrupt text, as ids
    level: "node" to patch all edges from a node together
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
    indices = list(of_model.edges.values())
    count = len(of_model.nodes) if level == "node" else len(indices)
    # One circuit for each edge or node: all edges but that one, or but those from that node.
    without = torch.from_numpy(of_model.real).expand(count, -1, -1).clone()
    for number in range(count):
        index = number if level == "node" else indices[number]
        without[number][index] = False
    # score(edge) = M(model) - M(all edges but this one)
    whole = _logit_differences(weights, pairs, None)
    fall = (whole - _logit_differences(weights, pairs, without.to(weights.device))).double().numpy()
    if level == "node":
        return fall
    scores = np.zeros(of_model.real.shape)
    for index, value in zip(indices, fall, strict=True):
        scores[index] = value
    return scores


class Areas(NamedTuple):
    """The faithfulness of circuits of growing size, and the areas that MIB ranks methods by.

    sizes: shares of all edges, or nodes
    faithfulness: at each size
    cpr: the area under the curve; larger is better
    cmd: the area between the curve and 1; smaller is better
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
    """Return the faithfulness of the edges, or nodes, with the largest scores, and its areas.

    clean, corrupt, answers: as for `exact_scores`
    scores: of edges, `node reader`, or of nodes, `node`. The circuit of a set of nodes has all
        edges from them
    absolute: whether scores are ranked by their absolute value

    Raises InputError for scores of another shape, and for clean and corrupt texts with the same
    difference of the answers' logits.

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
    masks = [np.zeros_like(of_model.real)]
    masks += [_circuit(of_model, order[: int(size * len(order))], scores.ndim) for size in SIZES]
    circuits = torch.from_numpy(np.stack(masks)).to(weights.device)
    no_edge, *by_size = _logit_differences(weights, pairs, circuits).double().tolist()
    [whole] = _logit_differences(weights, pairs, None).double().tolist()
    if whole == no_edge:
        raise InputError(
            "Cannot evaluate a circuit: the clean and the corrupt texts have the same difference "
            "of the answers' logits, and no circuit can keep it. Give answers that differ."
        )
    faithfulness = [(value - no_edge) / (whole - no_edge) for value in by_size]
    curve = np.array(faithfulness)
    return Areas(
        SIZES,
        tuple(faithfulness),
        cpr=float(np.trapezoid(curve, SIZES)),
        cmd=float(np.trapezoid(np.abs(1 - curve), SIZES)),
    )


def _in_order(of_model: Graph, scores: Array) -> Array:
    """The scores of all edges, in the order of the graph's list of edges, or of all nodes, in the
    order of its list of nodes. Raises InputError for another shape and for scores that are not
    finite.
    """
    expected = of_model.real.shape if scores.ndim == 2 else (len(of_model.nodes),)
    if scores.shape != expected or not np.isfinite(scores).all():
        raise InputError(
            f"Cannot use scores of shape {list(scores.shape)}: expected node reader "
            f"{list(of_model.real.shape)} or node [{len(of_model.nodes)}], all finite. Give the "
            "scores of probe.mib.exact_scores, or a matrix filled by graph.edges."
        )
    return scores[of_model.real] if scores.ndim == 2 else scores


def _circuit(of_model: Graph, numbers: NDArray[np.intp], ndim: int) -> Mask:
    """The circuit of some edges, or of some nodes with all edges from them. `-> node reader`

    numbers: of the edges or nodes, in the order of their names
    ndim: 2 for edges, 1 for nodes
    """
    if ndim == 1:
        in_circuit = np.zeros(len(of_model.nodes), dtype=bool)
        in_circuit[numbers] = True
        return of_model.real & in_circuit[:, None]
    circuit = np.zeros_like(of_model.real)
    rows, columns = np.nonzero(of_model.real)
    circuit[rows[numbers], columns[numbers]] = True
    return circuit


def area_under_roc(of_model: Graph, scores: Array, circuit_edges: Collection[str]) -> float:
    """Return how well scores identify the edges of a known circuit: the area under the curve of the
    true positive rate over the false positive rate, at the sizes in SIZES.

    circuit_edges: the names of the edges of the known circuit

    Circuits grow from the logits, as in MIB: the edge with the largest score into a node of the
    circuit is added next. Edges that lead nowhere are pruned. The false positive rate is divided by
    its value at the largest size.

    Example:
        >>> graph = probe.mib.graph("tiny-senses")
        >>> scores = graph.real * 1.0
        >>> known = ["input->a0.h0<v>", "a0.h0->logits"]
        >>> for edge in known:
        ...     scores[graph.edges[edge]] = 2.0
        >>> probe.mib.area_under_roc(graph, scores, known) > 0.9
        True
    """
    indices = {of_model.edges[name] for name in circuit_edges}
    is_known = np.zeros_like(of_model.real)
    is_known[tuple(np.array(sorted(indices)).T)] = True
    true_positives, false_positives = [], []
    for size in SIZES:
        count = math.ceil(size * of_model.real.sum())
        circuit = of_model.pruned(_grow(of_model, scores, count))
        unknown = of_model.real & ~is_known
        true_positives.append((circuit & is_known).sum() / is_known.sum())
        false_positives.append((circuit & ~is_known).sum() / unknown.sum())
    widths = np.array(false_positives) / false_positives[-1]
    return float(np.trapezoid(true_positives, widths))


def _grow(of_model: Graph, scores: Array, count: int) -> Mask:
    """The first `count` edges of a circuit that grows from the logits. `-> node reader`"""
    # Edges are ranked by the size of their score; -1 marks pairs that are not edges.
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
        # Edges into this node now lead to the logits.
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

    edges: scores of edges, `node reader`; 0 for all by default
    nodes: scores of nodes, `node`; absent by default

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
            name: {"score": float(scores[index]), "in_graph": True}
            for name, index in of_model.edges.items()
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path
