"""Known circuits recovered: `make campaign`, or `python tests/campaign/tracr_circuits.py --out
reports`.

Every program of `compiled` is read at its last token, on pairs of inputs that differ in one token
and in the program's output there, along the difference of the two outputs' logits. The score of a
part is the absolute effect on that difference of patching only this part: the mean over pairs and
both directions, and the largest value over positions:

    probe         heads: the exact swap of each; edges: the total effect of each (`probe.edges`)
    attribution   both by TransformerLens' attribution patching, node and edge granularity
    direct path   edges between heads of two layers by TransformerLens' direct path patching, which
                  has no others

The ranking is compared with the circuit that the compiler built: `tracr.csv` has an AUROC for each.
The output of a program has a logit of 1, all others 0. Scores that differ by less than a millionth
of that are ties. `steps`: the number of heads on the longest chain. `known`: the size of the
circuit, out of `of` parts; an empty or complete circuit has no AUROC. `between`: edges from head
to head. `error`: the largest difference between the loaded model's outputs and Tracr's, over every
input.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from compiled import CHANNELS, EMBEDDING, MLP, SMALL, Compiled, compiled, programs
from sklearn.metrics import roc_auc_score
from torch import Tensor
from transformer_lens.patching import get_act_patch_direct_path_all_sources
from transformer_lens.tools.analysis.attribution_patching import (
    EdgeAttributionConfig,
    Node,
    attribution_patch,
)

from probe import edges as every_edge
from probe import read_weights
from probe.model import forward

PAIRS, CLEAR, ALIKE = 24, 0.5, 1e-6
READERS = {"q_input": "query", "k_input": "key", "v_input": "value", "mlp_in": "input"}
Pair = tuple[int, int]
Scores = Mapping[object, float]


def pairs_of(program: Compiled, count: int = PAIRS, seed: int = 0) -> list[Pair]:
    """Rows of `inputs` that differ in one token and clearly in the output at the last one, drawn
    with the seed."""
    last = np.sort(program.predictions[:, -1], axis=-1)
    clear, answers = last[:, -1] - last[:, -2] > CLEAR, program.predictions[:, -1].argmax(-1)
    differ = (program.inputs[:, None] != program.inputs[None]).sum(-1) == 1
    first, second = np.nonzero(
        np.triu(differ & clear[:, None] & clear & (answers[:, None] != answers))
    )
    sample = np.random.default_rng(seed).permutation(len(first))[:count]
    return list(zip(first[sample].tolist(), second[sample].tolist(), strict=True))


def answer_ids(program: Compiled, pair: Pair) -> tuple[int, int]:
    """The ids of the outputs at the last token of each input."""
    a, b = (program.outputs[int(program.predictions[row, -1].argmax())] for row in pair)
    return a, b


def directions_of(program: Compiled, pairs: list[Pair]) -> Tensor:
    """The difference of the logits along which each pair is read, in the stream after the last
    block. `pair 1 d_model`

    The final norm only undoes the scale of the stream.
    """
    table = forward.unembedding(read_weights(program.model), torch.float32) / SMALL
    ids = np.array([answer_ids(program, pair) for pair in pairs])
    return (table[ids[:, 0]] - table[ids[:, 1]])[:, None]


def by_probe(program: Compiled, pairs: list[Pair]) -> tuple[Scores, Scores]:
    """Scores of heads (their swaps) and of edges (their total effects)."""
    a, b = ([program.inputs[row].tolist() for row in rows] for rows in zip(*pairs, strict=True))
    depth = program.model.config.n_layers
    result = every_edge(
        read_weights(program.model), a, b, directions_of(program, pairs), depth=depth, reach=0
    )
    heads = result.receiver_shift[:, :, :, :-1].abs().mean((0, 1)).amax(-1)
    edges: dict[object, float] = defaultdict(float)
    for edge, total in zip(
        result.edges.tolist(), result.total[..., 0].abs().mean((0, 1)).tolist(), strict=True
    ):
        key = edge[:2], edge[3:5], edge[6]
        edges[key] = max(edges[key], total)
    return {head: float(heads[head]) for head in np.ndindex(*heads.shape)}, edges


def by_attribution(program: Compiled, pairs: list[Pair]) -> tuple[Scores, Scores]:
    """The same by one gradient and one linear step, for one pair at a time so that signs cannot
    cancel."""
    heads, edges = Positions(), Positions()
    program.model.bridge.requires_grad_(True)  # gradients start at the weights
    for clean, corrupt in (run for pair in pairs for run in (pair, pair[::-1])):
        a, b = answer_ids(program, (clean, corrupt))
        ids = (torch.from_numpy(program.inputs[[row]]) for row in (clean, corrupt))
        result = attribution_patch(
            program.model.bridge,
            *ids,
            lambda logits, a=a, b=b: logits[0, -1, a] - logits[0, -1, b],
            EdgeAttributionConfig(granularity="edge"),
        )
        for node, score in result.node_scores.items():
            if node.kind == "attn_head_out":
                heads.add((node.layer, node.head), node.position, score)
        for (writer, reader), score in result.edge_scores.items():
            if reader.kind != "logits":
                edges.add(
                    (_part(writer), _part(reader), READERS[reader.kind]), reader.position, score
                )
    program.model.bridge.requires_grad_(False)
    return heads.scores(2 * len(pairs)), edges.scores(2 * len(pairs))


class Positions:
    """The sum of scores at every position; a part has the largest over positions."""

    def __init__(self) -> None:
        self.sums: dict[object, dict[int, float]] = defaultdict(lambda: defaultdict(float))

    def add(self, part: object, pos: int, score: float) -> None:
        self.sums[part][pos] += abs(score)

    def scores(self, count: int) -> Scores:
        return {part: max(by_position.values()) / count for part, by_position in self.sums.items()}


def _part(node: Node) -> tuple[int, int]:
    return (
        (EMBEDDING, MLP)
        if node.kind == "embed"
        else (node.layer, MLP if node.head is None else node.head)
    )


def by_direct_path(program: Compiled, pairs: list[Pair]) -> Scores:
    """Edges from head to head, at every position; one forward pass for all pairs, in both
    directions."""
    runs = [run for pair in pairs for run in (pair, pair[::-1])]
    clean, corrupt = (torch.from_numpy(program.inputs[[*rows]]) for rows in zip(*runs, strict=True))
    ids = torch.tensor([answer_ids(program, run) for run in runs])
    bridge, rows = program.model.bridge, torch.arange(len(runs))

    def difference(logits: Tensor) -> Tensor:
        return logits[rows, -1, ids[:, 0]] - logits[rows, -1, ids[:, 1]]

    with torch.inference_mode():
        (_, clean_cache), (logits, cache) = (
            bridge.run_with_cache(clean),
            bridge.run_with_cache(corrupt),
        )
        before = difference(logits)
        edges = {}
        for channel in CHANNELS:
            arguments = (
                bridge,
                corrupt,
                clean_cache,
                cache,
                lambda logits: (difference(logits) - before).abs().mean(),
            )
            effects = get_act_patch_direct_path_all_sources(
                *arguments, component=channel[0], verbose=False
            )
            for index in np.ndindex(*effects.shape):
                if index[0] < index[2]:
                    edges[index[:2], index[2:], channel] = float(effects[index])
    return edges


def auroc(scores: Scores, circuit: frozenset, among: Iterable) -> float | None:
    """How well scores separate the known parts from the others: 1 is perfect, .5 is chance; None if
    one of them is empty."""
    parts = sorted(among)
    truth = [part in circuit for part in parts]
    if all(truth) or not any(truth):
        return None
    return float(roc_auc_score(truth, np.round(np.array([scores[part] for part in parts]) / ALIKE)))


def row_of(name: str, count: int = PAIRS) -> dict[str, object]:
    """The row of `tracr.csv` for one program."""
    program = compiled(name)
    pairs = pairs_of(program, count)
    heads, edges = by_probe(program, pairs)
    other_heads, other_edges = by_attribution(program, pairs)
    direct = by_direct_path(program, pairs)
    assert (
        heads.keys() == other_heads.keys()
        and edges.keys() == other_edges.keys()
        and direct.keys() <= edges.keys()
    )
    row: dict[str, object] = {
        "program": name,
        "layers": program.model.config.n_layers,
        "steps": program.steps,
    }
    error = float(np.abs(outputs(program) - program.predictions)[:, 1:].max())
    row |= {"pairs": len(pairs), "inputs": len(program.inputs), "error": error}
    for kind, circuit, among, measured in (
        ("heads", program.heads, heads, {"probe": heads, "attribution": other_heads}),
        ("edges", program.edges, edges, {"probe": edges, "attribution": other_edges}),
        (
            "between",
            program.edges,
            direct,
            {"probe": edges, "attribution": other_edges, "direct_path": direct},
        ),
    ):
        row |= {f"{kind}_known": len(circuit & among.keys()), f"{kind}_of": len(among)}
        row |= {
            f"{kind}_{tool}": auroc(scores, circuit, among) for tool, scores in measured.items()
        }
    return row


def outputs(program: Compiled) -> np.ndarray:
    """The loaded model's logits of the program's outputs, on every input. `input pos output`"""
    with torch.inference_mode():
        logits = program.model.bridge(torch.from_numpy(program.inputs))
    return logits[..., list(program.outputs)].numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder of tracr.csv")
    parser.add_argument("--programs", nargs="+", help="by default all")
    options = parser.parse_args()
    if find_spec("tracr") is None:
        parser.error(
            "Tracr is not installed: it compiles the programs; python -m pip install '.[tracr]' "
            "and again"
        )
    rows = []
    for name in options.programs or programs():
        rows.append(row_of(name))
        print(rows[-1], flush=True)
    pd.DataFrame(rows).to_csv(options.out / "tracr.csv", index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
