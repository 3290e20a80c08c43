"""Circuits in MIB's form: runs compared with the hooked model, areas by hand, the file as MIB reads
it."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from families import each_family, family_model
from handmade import random_model

import probe
from probe.errors import InputError, UnsupportedModel
from probe.studies.mib import SIZES

LENGTH = 6
ANSWERS = [(11, 23), (17, 31)]


def random_task(model):
    """Clean and corrupt texts that differ in one token."""
    rng = np.random.default_rng(0)
    clean = rng.integers(5, model.config.d_vocab, (2, LENGTH))
    corrupt = clean.copy()
    corrupt[:, 2] = rng.integers(5, model.config.d_vocab, 2)
    return clean.tolist(), corrupt.tolist(), ANSWERS


def difference(logits):
    """The mean difference of the answers' logits."""
    picked = logits[:, -1].gather(-1, torch.tensor(ANSWERS))
    return float((picked[:, 0] - picked[:, 1]).mean())


def hooked_difference(model, ids, hooks=()):
    with torch.inference_mode():
        return difference(model.bridge.run_with_hooks(torch.tensor(ids), fwd_hooks=[*hooks]))


@pytest.mark.parametrize("kind", each_family("gpt2", "llama", "gpt_neox"))
def test_a_node_without_its_edges_is_a_head_with_the_corrupt_z_at_every_position(kind):
    """Grouped queries in Llama, parallel MLPs in GPT-NeoX."""
    model = family_model(kind)
    clean, corrupt, _ = task = random_task(model)
    scores = probe.mib.exact_scores(model, *task, level="node")
    nodes = probe.mib.graph(model).nodes
    with torch.inference_mode():
        _, cache = model.bridge.run_with_cache(torch.tensor(corrupt))
    whole = hooked_difference(model, clean)
    for layer, head in ((0, 1), (1, 2)):
        name = f"blocks.{layer}.attn.hook_z"

        def replace_z(z, hook, name=name, head=head):
            z = z.clone()
            z[:, :, head] = cache[name][:, :, head]
            return z

        expected = whole - hooked_difference(model, clean, [(name, replace_z)])
        score = scores[nodes.index(f"a{layer}.h{head}")]
        assert abs(score - expected) < 1e-5 * max(abs(whole), np.abs(scores).max())
        assert abs(expected) > 1e-4


def test_all_edges_give_the_model_and_no_edges_give_the_corrupt_text():
    model = random_model()
    clean, corrupt, _ = task = random_task(model)
    graph = probe.mib.graph(model)
    areas = probe.mib.evaluate(model, *task, graph.real * 1.0)
    assert (
        areas.sizes == SIZES and areas.faithfulness[0] == 0
    )  # 0.1 % of 262 edges is less than one
    assert areas.faithfulness[-1] == pytest.approx(1, abs=1e-4)
    curve = areas.faithfulness
    cpr = cmd = 0.0
    for number, (start, end) in enumerate(pairwise(SIZES)):
        low, high = curve[number : number + 2]
        cpr += (end - start) * (low + high) / 2
        cmd += (end - start) * (abs(1 - low) + abs(1 - high)) / 2
    assert (areas.cpr, areas.cmd) == (pytest.approx(cpr), pytest.approx(cmd))
    # If both texts are the same, no edge carries another write.
    same = probe.mib.exact_scores(model, clean, clean, ANSWERS)
    assert np.abs(same).max() < 1e-6
    assert hooked_difference(model, clean) != hooked_difference(model, corrupt)


def test_the_number_of_edges_equals_the_count_of_mib():
    """GPT-2 small has 32,491 edges in MIB's count: (heads x 3 + MLP) of each block and the logits,
    each from all earlier writers."""
    from probe.studies.mib import Graph

    graph = Graph(layers=12, heads=12, d_model=768, parallel=False)
    assert len(graph.edges) == 32491 and len(graph.nodes) == 157
    parallel = Graph(layers=1, heads=2, d_model=8, parallel=True)
    assert "a0.h0->m0" not in parallel.edges and "a0.h0->m0" in Graph(1, 2, 8, False).edges


def test_the_area_under_the_roc_is_1_if_the_known_circuit_comes_first():
    graph = probe.mib.graph(random_model())
    circuit = ["input->a0.h1<v>", "a0.h1->m1", "m1->logits"]
    scores = np.full(graph.real.shape, 0.1)
    for edge in circuit:
        scores[graph.edges[edge]] = 1.0
    assert probe.mib.area_under_roc(graph, scores, circuit) > 0.99
    for edge in circuit:
        scores[graph.edges[edge]] = 0.01
    # None of the first half, 131 of the 259 other edges; then a straight line to all.
    expected = (1 - 131 / 259) / 2
    assert probe.mib.area_under_roc(graph, scores, circuit) == pytest.approx(expected)


def test_edges_that_lead_nowhere_are_pruned():
    graph = probe.mib.graph(random_model())
    circuit = np.zeros_like(graph.real)
    chain = ["input->a0.h1<q>", "a0.h1->logits"]
    for edge in (*chain, "a0.h2->m1", "m0->a1.h0<k>"):
        circuit[graph.edges[edge]] = True
    pruned = graph.pruned(circuit)
    assert {name for name, index in graph.edges.items() if pruned[index]} == set(chain)


def test_the_file_has_a_score_for_every_edge_and_node(tmp_path):
    graph = probe.mib.graph(random_model())
    edges = np.random.default_rng(0).normal(size=graph.real.shape)
    nodes = np.arange(len(graph.nodes), dtype=float)
    file = probe.mib.write(
        graph, tmp_path / "ioi_odd" / "importances.json", edges=edges, nodes=nodes
    )
    content = json.loads(file.read_text())
    assert content["cfg"] == {
        "n_layers": 3,
        "n_heads": 4,
        "d_model": 28,
        "parallel_attn_mlp": False,
    }
    assert list(content["nodes"]) == [*graph.nodes, "logits"]
    assert content["nodes"]["m1"] == {"in_graph": True, "score": nodes[graph.nodes.index("m1")]}
    assert len(content["edges"]) == 262
    assert content["edges"]["m0->a1.h2<q>"]["score"] == edges[graph.edges["m0->a1.h2<q>"]]


def test_models_and_inputs_without_a_graph_of_edges_are_refused():
    with pytest.raises(UnsupportedModel, match="Cannot make a graph of edges of a BERT"):
        probe.mib.graph(family_model("bert"))
    model = random_model()
    with pytest.raises(InputError, match="texts of one length"):
        probe.mib.exact_scores(model, [[5, 6]], [[5, 6, 7]], [(1, 2)])
    clean, corrupt, _ = random_task(model)
    with pytest.raises(InputError, match="no circuit can keep it"):
        probe.mib.evaluate(model, clean, corrupt, [(5, 5)] * 2, probe.mib.graph(model).real * 1.0)
    with pytest.raises(InputError, match="scores of shape"):
        probe.mib.evaluate(model, *random_task(model), np.zeros(3))
